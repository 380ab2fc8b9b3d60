"""Cores and roles for stand-ins: what a driver would have written, around the sample's own machine code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.builders.core_builder import BlockSpec, CoreSpec, DeviceSpec, LaunchSpec, ModuleSpec, SmSpec, WarpSpec
from tests.builders.core_builder import build_core as core_of
from tests.gpu.samples import Sample, build
from tests.support.toolchain import cuda_tool
from vdbg_env.cuda.code_map import CodeMap, Function
from vdbg_env.cuda.demangle import short_name
from vdbg_env.cuda.line_table import Place

STAND_IN = Path(__file__).with_name("stand_in.py")
CODES = {"Warp Misaligned Address": 6, "Warp Assert": 12, "Warp Illegal Address": 14, "Trap Or Breakpoint": 4}


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
