"""What the fuzz targets for line tables and cores start from."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

from gpucore.elf import Elf
from tests.builders import core_builder as cores

_DATA = Path(__file__).parents[1] / "data"


def cubin_seeds() -> Iterable[bytes]:
    """Yield every cubin of the test data, and its two line sections alone."""
    for path in sorted((_DATA / "cubins").glob("*.cubin")):
        data = path.read_bytes()
        yield b"C" + data
        elf = Elf(data)
        for name in (".debug_line", ".nv_debug_line_sass"):
            section = elf.section(name)
            if section:
                yield b"L" + bytes(elf.contents(section))


def core_seeds() -> Iterable[bytes]:
    """Yield small cores: each layout, each place of a fault, one cut short."""
    module = cores.sample_module("shared_leaf_sm90")
    launch = cores.LaunchSpec(kernel="pick_both")
    faulting = cores.WarpSpec(offset=0x50, error_offset=0x40, exception=14, valid=0xF, active=0xF)
    for branch in (cores.BRANCHES[0], "r555", "r575", cores.BRANCHES[-1]):
        for first in (False, True):
            device = cores.DeviceSpec(modules=[module], launches=[launch], blocks=[cores.BlockSpec(warps=[faulting])])
            yield cores.build_core(cores.CoreSpec(devices=[device], branch=branch, table_first=first))
    yield cores.exited_warps_core()
    yield gzip.decompress((_DATA / "cores" / "truncated.nvcudmp.gz").read_bytes())
