"""The stock wheel's CUTLASS kernels: each core gets marked lines and the exact command, never an unmarked line.

The code is the wheel's own and the cores around it are synthetic. One small unit for each of sm_75, sm_90 and sm_100 is
compiled, which takes minutes each; a folder that has them is used again: VDBG_UNITS, else `.cache/units`.
"""

from __future__ import annotations

import json
import os
import random
from functools import cache
from pathlib import Path

import pytest

from gpucore.code_map import CodeMap
from tests.builders.core_builder import BlockSpec, CoreSpec, DeviceSpec, LaunchSpec, ModuleSpec, WarpSpec, build_core
from tests.support.command_line import vdbg_env
from vdbg_env.crash.files import BinaryFiles
from vdbg_env_lines.stock import StockLibrary, read_stock
from vdbg_env_lines.units import match_by_order, read_compile_commands

pytestmark = [pytest.mark.long, pytest.mark.nvcc]

UNITS = Path(os.environ.get("VDBG_UNITS", Path(__file__).parents[2] / ".cache" / "units"))
RELEASE = "vllm==0.33.0"
MARK = "(line of CUTLASS 4.5.0; the wheel was built with v4.7.1)"
PLACES = 12


@cache
def stock() -> tuple[StockLibrary, tuple[str, ...]]:
    """Return the library with the kernels, and the source of each of its units."""
    wheels = sorted((UNITS / "wheel-vllm-0.33.0").glob("*.whl"))
    commands = sorted(UNITS.glob("vllm-0.33.0-*/build/compile_commands.json"))
    if not wheels or not commands:
        pytest.skip(f"{UNITS} has no sources: vdbg-env lines build {RELEASE} --kernel rms_norm_kernel --work {UNITS}")
    with BinaryFiles().open(str(wheels[0])) as files:
        (library,) = (one for one in read_stock(files) if one.extension == "_C_stable_libtorch")
    units = [u for u in read_compile_commands(commands[0].read_text()) if u.extension == library.extension]
    matched = match_by_order([unit.targets for unit in library.units], units)
    assert matched
    return library, tuple(unit.source if unit else "" for unit in matched)


@pytest.mark.parametrize(
    ("source", "target", "functions"),
    [
        ("scaled_mm_c2x.cu", "sm_75", 208),
        ("scaled_mm_azp_sm90_int8.cu", "sm_90a", 20),
        ("scaled_mm_blockwise_sm100_fp8.cu", "sm_100f", 14),
    ],
)
def test_every_frame_of_other_headers_is_marked(source: str, target: str, functions: int, tmp_path: Path) -> None:
    library, sources = stock()
    number = next(n for n, path in enumerate(sources) if path.endswith(f"/{source}"))
    cubin = library.units[number].cubin(target)
    assert cubin
    code = bytes(cubin.entry.payload())
    draw = random.Random(int(target[3:5]))
    kernel = draw.choice([kernel for kernel in CodeMap(code).kernels if kernel.size > 4000])
    offsets = sorted(draw.sample(range(0, kernel.size, 16), PLACES))
    warps = [WarpSpec(error_offset=at, offset=at, exception=14, valid=1, active=1) for at in offsets]
    device = DeviceSpec(
        sm_type=target.rstrip("af"),
        modules=[ModuleSpec(cubin=code)],
        launches=[LaunchSpec(kernel=kernel.name)],
        blocks=[BlockSpec(warps=warps)],
        registers=False,
    )
    core, pack = tmp_path / "core.nvcudmp", tmp_path / "new.lines"
    core.write_bytes(build_core(CoreSpec(devices=[device])))
    last = vdbg_env("core", str(core)).stdout.splitlines()[-1]
    assert last == f"  try: vdbg-env lines build vllm==VERSION --core {core}"

    flags = ("--work", str(UNITS), "-o", str(pack), "--json", "-q")
    built = vdbg_env("lines", "build", RELEASE, "--core", str(core), *flags)
    document = json.loads(built.stdout)
    assert built.status == 4
    assert [len(unit["comparison"]["identical"]) for unit in document["units"]] == [functions]
    assert (document["core"]["places"], document["core"]["without"]) == (PLACES, [])
    (headers,) = document["headers"]
    assert (headers["project"], headers["used"], headers["wanted"]) == ("CUTLASS", "4.5.0", "v4.7.1")
    (project,) = document["other_projects"]
    assert project["fetch"] == ["git clone --depth 1 --branch v4.7.1 https://github.com/nvidia/cutlass.git"]
    assert project["external"] == 'VLLM_CUTLASS_SRC_DIR="$PWD/cutlass"'

    text = vdbg_env("core", "--all", "--lines", str(pack), str(core)).stdout
    of_headers = [line for line in text.splitlines() if "cutlass-4.5.0/" in line]
    assert len(of_headers) >= PLACES and all(MARK in line for line in of_headers)
    assert not any(MARK in line for line in text.splitlines() if " csrc/" in line)
    assert str(UNITS) not in text and str(UNITS.resolve()) not in text
    for fault in json.loads(vdbg_env("core", "--json", "--lines", str(pack), str(core)).stdout)["faults"]:
        assert fault["chain"] and fault["lines_from"]
        for frame in fault["chain"]:
            assert ("headers" in frame) == frame["file"].startswith("cutlass-4.5.0/")
