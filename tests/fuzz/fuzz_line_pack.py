"""Coverage-guided fuzzing of line packs, their checksums made right; any error but UnreadableBinary is a finding."""

import atheris

with atheris.instrument_imports(include=["gpucore.line_pack"]):
    from gpucore import line_pack
    from gpucore.errors import UnreadableBinary
    from gpucore.line_pack import FRAME_ROW, Kind
    from gpucore.line_packs import LinePack

from tests.fuzz.harness import fuzz
from tests.support.line_packs import CUBINS, pack_of

_WHOLE = line_pack.Sections(pack_of(*CUBINS))


def read(data: bytes) -> None:
    """Read the bytes as one section of a sound pack, which the first byte chooses; 8 is the whole file."""
    if not data:
        return
    kind, rest = data[0] % 9, data[1:]
    sections = {known: bytes(_WHOLE[known]) for known in Kind}
    if kind in (Kind.BLOCKS, Kind.STRINGS):
        frame = line_pack.compress(rest)
        table = Kind.BLOCK_TABLE if kind == Kind.BLOCKS else Kind.STRING_TABLE
        sections |= {
            Kind(kind): frame,
            table: FRAME_ROW.pack(0, len(frame), len(rest), 0, line_pack.checksum(frame, 8)),
        }
    elif kind in set(Kind):
        sections[Kind(kind)] = rest
    try:
        pack = LinePack(rest if kind in (0, 8) else line_pack.assemble(sections))
        pack.check()
        for record in pack.records():
            record.chain(0x40)
            record.siblings(0x40)
    except UnreadableBinary:
        pass


def seeds() -> list[bytes]:
    """Return each section of a sound pack, those in frames expanded, and the whole."""
    found = [bytes([8]) + pack_of(*CUBINS)]
    for kind in Kind:
        data = _WHOLE[kind]
        if kind in (Kind.BLOCKS, Kind.STRINGS):
            table = Kind.BLOCK_TABLE if kind == Kind.BLOCKS else Kind.STRING_TABLE
            data = line_pack.expand(data, FRAME_ROW.unpack_from(_WHOLE[table])[2])
        found.append(bytes([kind]) + bytes(data))
    return found


if __name__ == "__main__":
    fuzz(read, seeds())
