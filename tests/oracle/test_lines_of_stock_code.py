"""A crash in code without line info, explained by the line table of a rebuild: every chain against nvdisasm's listing.

The cores are synthetic: written around the stock cubin by the test builder, at random instructions.

The stock wheel of vLLM is looked at where VDBG_STOCK_LIBRARY names one of its extensions and VDBG_REBUILT_CUBINS a
folder of cubins of the same sources, compiled with -lineinfo for one architecture (docs/guides/stock-wheels.md).
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpucore.code_map import CodeMap
from gpucore.fatbin import EntryKind, find_device_code
from tests.builders.core_builder import BlockSpec, CoreSpec, DeviceSpec, LaunchSpec, ModuleSpec, WarpSpec, build_core
from tests.oracle.nvdisasm_listing import Lines
from tests.oracle.test_lines_against_nvdisasm import compare, nvcc
from tests.support.command_line import vdbg_env

KERNELS = Path(__file__).parents[1] / "data" / "kernels"
Place = tuple[str, int]  # kernel and offset


def listed(cubin: Path) -> dict[Place, tuple[Lines, Lines]]:
    """Return, for every instruction, nvdisasm's chain and the one that explains the whole listing."""
    compared = compare(cubin)
    assert compared.unexplained == []
    return {(i.section.removeprefix(".text."), i.offset): (i.chain, ours) for i, ours in compared.rows}


def explained(stock: bytes, kernel: str, offsets: Sequence[int], pack: Path, folder: Path) -> dict[int, Lines]:
    """Return what `core` says, by offset, of a dump with faults at some offsets of a kernel of the stock code."""
    warps = [WarpSpec(offset=offset, error_offset=offset, exception=14, valid=1, active=1) for offset in offsets]
    device = DeviceSpec(
        modules=[ModuleSpec(cubin=stock)],
        launches=[LaunchSpec(kernel=kernel)],
        blocks=[BlockSpec(warps=warps)],
        registers=False,
    )
    dump = folder / "stock.nvcudmp"
    dump.write_bytes(build_core(CoreSpec(devices=[device])))
    without = json.loads(vdbg_env("core", "--json", str(dump)).stdout)
    assert all(not fault["chain"] and fault["kernel"]["name"] == kernel for fault in without["faults"])
    assert any("--lines PACK" in note for note in without["notes"])
    document = json.loads(vdbg_env("core", "--json", "--lines", str(pack), str(dump)).stdout)
    assert all(
        fault["lines_from"] is None or "identical code" in fault["lines_from"]["how_known"]
        for fault in document["faults"]
    )
    return {
        int(fault["offset"], 16): tuple((frame["file"], frame["line"]) for frame in fault["chain"])
        for fault in document["faults"]
    }


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_crash_in_code_compiled_without_lines(arch: str, tmp_path: Path) -> None:
    source = KERNELS / "first_unit.cu"
    for name, flag in (("stock", ""), ("rebuilt", "-lineinfo")):
        nvcc(f"{flag} -rdc=true -arch={arch} -cubin -o {name}.cubin", source, tmp_path)
    pack = tmp_path / "rebuilt.lines"
    assert vdbg_env("lines", "pack", str(tmp_path / "rebuilt.cubin"), "-o", str(pack)).status == 0
    stock = (tmp_path / "stock.cubin").read_bytes()
    expected = listed(tmp_path / "rebuilt.cubin")
    kernel = CodeMap(stock).kernels[0]
    offsets = [offset for name, offset in expected if name == kernel.name]
    found = explained(stock, kernel.name, offsets, pack, tmp_path)
    assert len(found) == len(offsets) > 10
    assert all(chain == expected[kernel.name, offset][1] != () for offset, chain in found.items())


@pytest.mark.long
@pytest.mark.nvcc
def test_the_stock_wheel_against_rebuilt_units(tmp_path: Path) -> None:
    library, cubins = os.environ.get("VDBG_STOCK_LIBRARY"), os.environ.get("VDBG_REBUILT_CUBINS")
    if not library or not cubins:
        pytest.skip("VDBG_STOCK_LIBRARY and VDBG_REBUILT_CUBINS name nothing: docs/guides/stock-wheels.md says what")
    rebuilt = sorted(Path(cubins).glob("*.cubin"))
    pack = tmp_path / "rebuilt.lines"
    assert vdbg_env("lines", "pack", *map(str, rebuilt), "-o", str(pack)).status == 0
    expected = {place: chains for path in rebuilt for place, chains in listed(path).items()}
    names = sorted({kernel for kernel, _ in expected})
    arch = CodeMap(rebuilt[0].read_bytes()).elf.arch
    draw = random.Random(33)
    compared, kernels, stale = 0, 0, 0
    for stock in _cubins(Path(library), arch):
        code = CodeMap(stock)
        known = sorted({k.name for k in code.kernels} & set(names))
        for name in draw.sample(known, min(len(known), 25)):
            kernel = next(k for k in code.kernels if k.name == name)
            offsets = sorted(draw.sample(range(0, kernel.size, 16), min(5, kernel.size // 16)))
            for offset, chain in explained(stock, name, offsets, pack, tmp_path).items():
                listing, ours = expected[name, offset]
                assert chain == ours
                assert chain[:1] == listing[:1]
                compared += 1
                stale += chain != listing
            kernels += 1
    print(f"{compared} instructions of {kernels} kernels: all chains equal, {stale} with a stale caller in the listing")
    assert kernels >= 50
    assert compared >= 200


def _cubins(library: Path, arch: int | None) -> list[bytes]:
    entries = [code.entry for code in find_device_code(library.read_bytes())]
    return [bytes(e.payload()) for e in entries if e.kind == EntryKind.ELF and e.arch == arch]
