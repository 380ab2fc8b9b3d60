"""The guilty kernels of samples, run by the interpreter of SASS as their `main` launches them, until they fault.

The registers of a core from here are those that the machine code computes. Only how long a GPU runs on after the
access is a guess: as far as to the next instruction that a warp waits at.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from gpucore.code_map import CodeMap
from tests.gpu.samples import Sample
from tests.support.sass.executed import Executed, Launched, run_to_fault
from tests.support.sass.programs import Program
from tests.support.toolchain import cuda_tool

_FIRST = 0x7F2A4E000000  # what cudaMalloc returns first, and the next of its blocks
_SECOND = _FIRST + 0x200000
_FAR = 1 << 36
_RUNS_ON = 64  # instructions at most
_REGISTERS = 32  # of a thread; no guilty kernel has more


LAUNCHED: Mapping[str, Launched] = {
    "inlined-templates": Launched(
        grid=(8, 1, 1), block=(32, 1, 1), block_index=(5, 0, 0), parameters=struct.pack("<3Q", _FIRST, 128, _SECOND),
        sizes={_FIRST: 8 * 128 * 4, _SECOND: 8 * 8}, contents={_SECOND + 5 * 8: struct.pack("<q", 1 << 32)},
    ),
    "graph-middle": Launched(
        parameters=struct.pack("<2Q", _FIRST, _SECOND), sizes={_FIRST: 4096, _SECOND: 8},
        contents={_SECOND: struct.pack("<q", _FAR)},
    ),
    "copy-takes-the-blame": Launched(
        block=(256, 1, 1), parameters=struct.pack("<Qi", _FIRST, 100), sizes={_FIRST: 400}
    ),
    "misaligned": Launched(block=(32, 1, 1), parameters=struct.pack("<Q", _FIRST), sizes={_FIRST: 4096}),
    "two-ranks": Launched(parameters=struct.pack("<2Q", _FIRST, _FAR), sizes={_FIRST: 256}),
}  # fmt: skip


def executed(sample: Sample, cubin: bytes, kernel: str, exception: int) -> Executed | None:
    """Run the guilty kernel of a sample to its fault; None for a sample whose launch is not written down here."""
    launch = LAUNCHED.get(sample.name)
    if launch is None:
        return None
    program = Program(cubin, CodeMap(cubin).elf.arch or 0, cuda_tool("nvdisasm"))
    return run_to_fault(program, kernel, launch, run_on=_RUNS_ON, exception=exception, held=_REGISTERS)
