"""Numbers of compilers that make no sense are refused; an architecture is understood however it is written."""

from pathlib import Path

import pytest

from gpucore.arch import arch_of_gpu, as_arch, as_target
from tests.support.command_line import vdbg_env

CUBIN = Path(__file__).parents[2] / "data" / "cubins" / "inline_chain_sm90.cubin"
PLANNED = ("build", "--dry-run", "--profile", "sample", "--no-guard")


@pytest.mark.parametrize("jobs", ["-5", "0", "999999999999"])
@pytest.mark.parametrize("words", [PLANNED, ("lines", "build", "vllm==0.33.0", "--all"), ("build", "--onto", "x:1")])
def test_a_number_of_jobs_that_makes_no_sense_is_refused(words: tuple[str, ...], jobs: str) -> None:
    ran = vdbg_env(*words, "--jobs", jobs)
    assert (ran.status, "is not in the range" in ran.stderr) == (2, True)


@pytest.mark.parametrize(("one", "other"), [("sm_90", "9.0"), ("sm_90a", "9.0a"), ("sm_100f", "10.0f"), ("x", "x")])
def test_both_ways_to_write_an_architecture(one: str, other: str) -> None:
    assert (as_arch(one), as_arch(other)) == (other, other)
    assert (as_target(one), as_target(other)) == (one, one)


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("H100", "9.0"), ("nvidia h100 80GB HBM3", "9.0"), ("A100-SXM4-80GB", "8.0"), ("Tesla T4", "7.5"),
        ("NVIDIA GeForce RTX 4090", "8.9"), ("B200", "10.0"), ("NVIDIA RTX PRO 6000 Blackwell", "12.0"),
        ("9.0", None), ("RTX 6000", None), ("hopper", None), ("", None),
    ],
)  # fmt: skip
def test_the_name_of_a_gpu_gives_its_architecture(name: str, arch: str | None) -> None:
    assert arch_of_gpu(name) == arch


def test_a_build_takes_the_names_of_gpus() -> None:
    one, other = (vdbg_env(*PLANNED, "--arch", arch) for arch in ("H100,h200,L40S", "9.0;8.9"))
    assert (one.status, one.stdout) == (0, other.stdout)


def test_a_build_takes_both() -> None:
    one, other = (vdbg_env(*PLANNED, "--arch", arch) for arch in ("sm_90a;sm_80", "9.0a;8.0"))
    assert (one.status, one.stdout) == (0, other.stdout)


@pytest.mark.parametrize(("arch", "status"), [("9.0", 0), ("sm_90", 0), ("8.0", 2)])
def test_locate_and_a_pack_take_both(arch: str, status: int, tmp_path: Path) -> None:
    packed = vdbg_env("lines", "pack", str(CUBIN), "--arch", arch, "-o", str(tmp_path / "x.lines"), "--release", "x==1")
    assert (packed.status != 0) == (status != 0), packed.stderr
    found = vdbg_env("locate", "0x10", str(CUBIN), "--arch", arch)
    assert ("no device code" in found.stderr) == (status != 0), found.stderr
