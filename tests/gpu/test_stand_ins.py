"""Without a GPU: stand-ins walk the very paths that `test_on_gpu` walks, and are judged by the same assertions.

A stand-in's core is synthetic, but the machine code in it is what nvcc makes of the sample, and the faulting PC is an
instruction of the planted line: what is proven is everything from the driver's file on to the report.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders.core_builder import BlockSpec, CoreSpec, DeviceSpec, LaunchSpec, ModuleSpec, SmSpec, WarpSpec
from tests.builders.core_builder import build_core as core_of
from tests.gpu.samples import Sample, build, samples
from tests.gpu.walking import assert_planted, lead, vdbg_env, walk
from tests.support.toolchain import cuda_tool
from vdbg_env.cuda.code_map import CodeMap, Function
from vdbg_env.cuda.demangle import short_name
from vdbg_env.cuda.line_table import Place

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

STAND_IN = Path(__file__).with_name("stand_in.py")
CODES = {"Warp Misaligned Address": 6, "Warp Assert": 12, "Warp Illegal Address": 14, "Trap Or Breakpoint": 4}
FAULTING = [s for s in samples() if s.ends == "fault" and s.kernel and not s.python]
HANGING = [s for s in samples() if s.ends == "hang" and not s.exceptions]


def named(sample: Sample) -> str:
    return sample.name


def synthetic_core(sample: Sample, folder: Path, *, lines: bool = True) -> Path:
    """Write a core as the driver would have, around the sample's own machine code."""
    cubin, plain = folder / "sample.cubin", folder / "plain.cubin"
    build(cuda_tool("nvcc"), sample, cubin, "sm_90", cubin=True)
    build(cuda_tool("nvcc"), sample, plain, "sm_90", cubin=True, lineinfo=False)
    kernel, offset = planted_instruction(CodeMap(cubin.read_bytes()), sample)
    module = ModuleSpec(cubin=(cubin if lines else plain).read_bytes())
    launch = LaunchSpec(kernel=kernel.name)
    if sample.ends == "hang":
        spinning, waiting = WarpSpec(offset=offset, thread_state=1), WarpSpec(offset=0, barrier_scope=3, thread_state=8)
        blocks, sms = [BlockSpec(block=(2, 0, 0), sm=0, warps=[spinning, waiting, waiting])], {}
    else:
        code = next((CODES[name] for name in sample.exceptions if name in CODES), 14)
        faulting = WarpSpec(offset=offset + 16, error_offset=offset, exception=code)
        blocks, sms = (
            [BlockSpec(block=(1, 0, 0), sm=0, warps=[faulting])],
            {0: SmSpec(exception=code, error_offset=offset)},
        )
    device = DeviceSpec(modules=[module], launches=[launch], blocks=blocks, sms=sms)
    path = folder / "driver.core"
    path.write_bytes(core_of(CoreSpec(devices=[device], branch="r590")))
    return path


def planted_instruction(code: CodeMap, sample: Sample) -> tuple[Function, int]:
    """Return the guilty kernel and an offset into it whose chain begins at the planted line."""
    kernel = next(k for k in code.kernels if short_name(k.demangled) == sample.kernel)
    for offset in range(0, (code.code_sections and code.elf.sections[kernel.section].size) or 0, 16):
        chain = code.locate(Place(section=kernel.section, offset=offset)).chain
        if chain and Path(chain[0].file).name == sample.source.name and chain[0].line == sample.planted:
            return kernel, offset - kernel.start
    raise AssertionError(f"{sample.name}: no instruction of line {sample.planted}")


def program_of(sample: Sample, folder: Path, core: Path | None) -> list[str]:
    role = {"says": sample.says or "", "ends": sample.ends} | ({"core": str(core)} if core else {})
    (folder / "role.json").write_text(json.dumps(role))
    return [sys.executable, str(STAND_IN), str(folder / "role.json")]


@pytest.mark.parametrize("sample", FAULTING, ids=named)
def test_the_runbook_finds_the_planted_line(sample: Sample, tmp_path: Path) -> None:
    report = walk(sample, program_of(sample, tmp_path, synthetic_core(sample, tmp_path)), tmp_path)
    if sample.name == "trap":  # a trap has no exception number of its own: the stand-in's core says illegal instruction
        sample = replace(sample, exceptions=(*sample.exceptions, "Warp Illegal Instruction"))
    assert_planted(report, sample)
    assert report["verdict"] == "reproduced" and report["exit_status"] == 3


def test_without_line_info_kernel_and_offset_are_named_and_the_rebuild_is_advised(tmp_path: Path) -> None:
    sample = FAULTING[0]
    report = walk(sample, program_of(sample, tmp_path, synthetic_core(sample, tmp_path, lines=False)), tmp_path)
    assert_planted(report, sample, lines=False)
    assert any("vdbg-env build --lineinfo" in (step["command"] or "") for step in report["next_steps"])


@pytest.mark.parametrize("sample", HANGING, ids=named)
def test_a_hang_is_caught_and_the_spinning_line_is_named(sample: Sample, tmp_path: Path) -> None:
    report = walk(sample, program_of(sample, tmp_path, synthetic_core(sample, tmp_path)), tmp_path)
    assert_planted(report, sample)
    assert report["hangs"][0]["total"] == 3
    assert lead(report)["rule"] == "gpu-core-hang"


@pytest.mark.parametrize("name", ["out-of-memory", "launch-config", "clean"])
def test_what_leaves_no_core_is_not_given_one(name: str, tmp_path: Path) -> None:
    sample = next(s for s in samples() if s.name == name)
    report = walk(sample, program_of(sample, tmp_path, None), tmp_path)
    assert not any(f["how_known"] == "gpu-core" for f in report["findings"])


def test_triage_names_the_class_of_what_a_stand_in_prints(tmp_path: Path) -> None:
    import subprocess

    sample = FAULTING[0]
    done = subprocess.run(program_of(sample, tmp_path, None), capture_output=True, text=True, cwd=tmp_path)
    (tmp_path / "log").write_text(done.stdout + done.stderr)
    said = json.loads(vdbg_env("triage", "--json", str(tmp_path / "log")).stdout)
    assert said["class"] == "illegal-memory-access"
