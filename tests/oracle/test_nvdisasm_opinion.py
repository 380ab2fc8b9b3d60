"""nvdisasm itself, asked about a relocated image and about a cubin on disk, answers in the shape we read."""

import subprocess
from pathlib import Path

import pytest

from gpucore.fatbin import find_device_code
from tests.builders.core_builder import illegal_address_core
from tests.builders.elf import ElfSpec, SectionSpec, build_elf
from tests.builders.fatbin import EM_X86_64
from tests.support.toolchain import cuda_tool
from tests.unit.run.test_steps import Bench
from vdbg_env.common.programs import Completed, Programs

CUBINS = Path(__file__).parents[1] / "data" / "cubins"


class WithNvdisasm(Programs):
    """This machine's programs, with nvdisasm where the tests keep it."""

    def head(self, program: str) -> bytes:
        return b""

    def which(self, program: str) -> str | None:
        return cuda_tool("nvdisasm") if program == "nvdisasm" else None


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    cuda_tool("nvdisasm")
    made = Bench(tmp_path)
    made.programs = WithNvdisasm()  # type: ignore[assignment]
    return made


def test_the_faulting_instruction_of_a_core_is_shown(bench: Bench) -> None:
    done = bench.use("decode-gpu-core", cores=[bench.put("core.cuda.a", illegal_address_core())])
    assert any(note.startswith("nvdisasm agrees on the line: STG.E ") for note in done.notes), done.notes
    listing = (bench.directory / "steps" / "s" / "fault.sass").read_text()
    assert sum(line.startswith("> ") for line in listing.splitlines()) == 1 and "inline_chain.cu:3" in listing


def test_a_kernel_found_on_disk_is_confirmed(bench: Bench) -> None:
    core = bench.put("core.cuda.a", illegal_address_core(lines=False))
    done = bench.use("locate", cores=[core], binaries=[str(CUBINS / "inline_chain_sm90.cubin")])
    assert done.results["agrees"] is True


@pytest.mark.parametrize("path", sorted(CUBINS.glob("*.cubin")), ids=lambda path: path.stem)
def test_nvdisasm_takes_the_payload_of_an_embedded_cubin(path: Path, tmp_path: Path) -> None:
    """It refuses one that ends before its program headers."""
    held = SectionSpec(name=".rodata", data=b"\1" * 9 + path.read_bytes() + b"\2" * 99)
    (code,) = find_device_code(build_elf(ElfSpec(sections=[held], machine=EM_X86_64, flags=0)))
    (tmp_path / "payload.cubin").write_bytes(code.entry.payload())
    command = [cuda_tool("nvdisasm"), str(tmp_path / "payload.cubin")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and ".text." in run.stdout, run.stderr


def test_a_cubin_that_nvdisasm_refuses_costs_only_its_opinion(bench: Bench) -> None:
    class Refuses(WithNvdisasm):
        def run(self, argv, *, timeout_s=60.0):  # type: ignore[no-untyped-def]
            Path(argv[-1]).write_bytes(b"not a cubin")
            done: Completed = super().run(argv, timeout_s=timeout_s)
            assert done.code != 0
            return done

    bench.programs = Refuses()  # type: ignore[assignment]
    done = bench.use("decode-gpu-core", cores=[bench.put("core.cuda.a", illegal_address_core())])
    assert done.results["has_lines"] is True
    (note,) = (note for note in done.notes if "nvdisasm" in note)
    assert note.startswith("nvdisasm shows no instruction there (nvdisasm fatal"), note


def test_an_nvdisasm_that_does_not_answer_is_noted(bench: Bench) -> None:
    class Hangs(WithNvdisasm):
        def run(self, argv, *, timeout_s=60.0):  # type: ignore[no-untyped-def]
            return super().run(["sleep", "60"], timeout_s=0.1)

    bench.programs = Hangs()  # type: ignore[assignment]
    done = bench.use("decode-gpu-core", cores=[bench.put("core.cuda.a", illegal_address_core())])
    assert "nvdisasm could not be asked: sleep did not end within 0.1 seconds" in done.notes
