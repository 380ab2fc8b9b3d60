"""Coverage-guided fuzzing of the GPU core reader.

Synthetic cores of every shape are the seeds. Any error but
UnreadableBinary is a finding.
"""

import atheris

with atheris.instrument_imports(include=["gpucore"]):
    from gpucore.core import find_faults, group_warps, read_registers
    from gpucore.core_reader import CoreSections, read_core
    from gpucore.errors import UnreadableBinary

from tests.fuzz.harness import fuzz
from tests.fuzz.seeds import core_seeds


def read(data: bytes) -> None:
    """Read the bytes as a core, all of it."""
    try:
        core = read_core(data)
        for fault in find_faults(core):
            if fault.first:
                read_registers(CoreSections(data), fault.first)
        group_warps(core)
    except UnreadableBinary:
        pass


if __name__ == "__main__":
    fuzz(read, core_seeds(), longest=1 << 17)
