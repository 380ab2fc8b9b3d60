"""Coverage-guided fuzzing of the line program and of the tables of a cubin.

The first byte chooses whether the rest is a line
section or a cubin; a damaged real one of each is the seed. Any error but UnreadableBinary is a finding.
"""

import atheris

with atheris.instrument_imports(include=["gpucore"]):
    from gpucore.code_map import CodeMap
    from gpucore.dwarf import Place, decode, read_units
    from gpucore.errors import UnreadableBinary

from tests.fuzz.harness import fuzz
from tests.fuzz.seeds import cubin_seeds


def read(data: bytes) -> None:
    """Read the bytes as the first of them says."""
    if data[:1] == b"L":
        program = read_units(data[1:])
        for unit in program.units:
            for sequence in unit.sequences:
                rows = decode(data[1:], unit, sequence)
                assert len(rows) <= len(data), "more rows than bytes"
        return
    try:
        code = CodeMap(data[1:])
        for section in code.code_sections[:8]:
            for offset in (0, 16, section.size // 2, section.size - 1):
                location = code.locate(Place(section=section.number, offset=offset))
                assert len(location.chain) <= len(data), "a chain longer than the file"
        assert isinstance(code.notes, tuple)
    except UnreadableBinary:
        pass


if __name__ == "__main__":
    fuzz(read, cubin_seeds())
