"""What a pack says of an instruction is what the line table says that it was made of, and damage never changes it."""

import contextlib
import random
import struct
from array import array
from dataclasses import replace

import pytest

from gpucore import line_pack
from gpucore.code_identity import PatchedField, identify, identity_at
from gpucore.code_map import CodeMap
from gpucore.dwarf import Place
from gpucore.errors import UnreadableBinary
from gpucore.line_pack import HEADER, SECTION, Kind, LineRecord
from gpucore.line_packs import LinePack, Match, PackWriter, Provenance, distinct, match, merge, records_of
from tests.builders.relocate import relocate
from tests.support.cubins import cubin
from tests.support.line_packs import CUBINS, pack_of


@pytest.mark.parametrize("name", CUBINS)
def test_every_instruction_has_the_chain_of_its_line_table(name: str) -> None:
    code, pack = CodeMap(cubin(name)), LinePack(pack_of())
    compared = 0
    for identity in identify(code):
        function = identity.function
        (record,) = match(pack, code, identity).same
        for offset in range(0, function.size, 16):
            expected = code.locate(Place(section=function.section, offset=function.start + offset))
            assert record.chain(offset) == expected.chain
            assert set(record.siblings(offset)) == set(expected.siblings)
            compared += bool(expected.chain)
    assert compared > 20


@pytest.mark.parametrize("base", [0, 0x7FFD00000000])
def test_code_without_lines_gets_those_of_the_same_code(base: int) -> None:
    lines = CodeMap(cubin("inline_chain_sm90"))
    stock = CodeMap(relocate(cubin("no_lines_sm90"), base) if base else cubin("no_lines_sm90"))
    assert stock.lines is None
    for kernel in stock.kernels:
        place = Place(section=kernel.section, offset=kernel.start + 0x140)
        (same,) = found.same if (found := match_at(LinePack(pack_of()), stock, place)) else ()
        original = next(f for f in lines.kernels if f.name == kernel.name)
        expected = lines.locate(Place(section=original.section, offset=original.start + 0x140)).chain
        assert same.chain(0x140) == expected != ()


def test_another_build_of_a_kernel_is_not_the_same() -> None:
    data = bytearray(cubin("no_lines_sm90"))
    code = CodeMap(bytes(data))
    kernel = code.kernels[0]
    data[code.elf.sections[kernel.section].offset + kernel.start + 0x20] ^= 1
    changed = CodeMap(bytes(data))
    found = match_at(LinePack(pack_of("inline_chain_sm90")), changed, Place(section=kernel.section, offset=0))
    assert found
    assert found.same == ()
    assert [record.name for record in found.other] == [kernel.name]


def test_addresses_that_the_driver_filled_in_do_not_matter() -> None:
    """The image in a core may lack the relocations: the fields that the pack notes are left out then."""
    (record, *_), (binary, *_) = records("inline_chain_sm90"), LinePack(pack_of()).binaries
    code = CodeMap(cubin("no_lines_sm90"))
    identity = next(i for i in identify(code) if i.function.name == record.name)
    section = code.elf.sections[identity.function.section]
    field = PatchedField(0x40, 32, 32)
    image = bytearray(cubin("no_lines_sm90"))
    at = section.offset + identity.function.start + 0x44
    image[at : at + 4] = bytes(4)
    masked = next(i for i in identify(CodeMap(bytes(image))) if i.function.name == record.name)
    writer = PackWriter()
    writer.add_binary(binary)
    writer.add(replace(record, hash=masked.hash, fields=(field,), sources=(binary.digest,)))
    image[at : at + 4] = b"\x12\x34\x56\x78"
    filled = CodeMap(bytes(image))
    found = match_at(LinePack(writer.build()), filled, Place(section=section.number, offset=0x140))
    assert found
    assert [r.name for r in found.same] == [record.name]
    image[at + 4] ^= 1
    other = match_at(LinePack(writer.build()), CodeMap(bytes(image)), Place(section=section.number, offset=0x140))
    assert other
    assert other.same == ()


def match_at(pack: LinePack, code: CodeMap, place: Place) -> Match | None:
    identity = identity_at(code, place.section, place.offset)
    return match(pack, code, identity) if identity else None


def records(name: str) -> tuple[LineRecord, ...]:
    return tuple(records_of(CodeMap(cubin(name)), f"sm_{name[-2:]}", "d"))


def test_two_builds_that_disagree_on_lines_both_stay() -> None:
    (record, *_) = records("inline_chain_sm90")
    moved = replace(record, tree=replace(record.tree, lines=array("I", [line + 1 for line in record.tree.lines])))
    elsewhere = replace(
        record, tree=replace(record.tree, strings=tuple(f"/other/{text}" for text in record.tree.strings))
    )
    writer = PackWriter()
    writer.add_binary(Provenance(digest="d", binary="a"))
    for one in (record, moved, elsewhere):
        writer.add(one)
    found = LinePack(writer.build()).find(record.hash, record.name)
    assert len(found) == 3
    lines = {r.chain(0x140)[0].line for r in distinct(found, 0x140)}
    assert lines == {record.chain(0x140)[0].line, record.chain(0x140)[0].line + 1}


def test_a_pack_is_the_same_bytes_whatever_the_order() -> None:
    one, other = LinePack(pack_of("inline_chain_sm90")), LinePack(pack_of("inline_chain_sm80", "shared_leaf_sm90"))
    assert merge([one, other]) == merge([other, one]) == pack_of()
    assert merge([one, one]) == pack_of("inline_chain_sm90")
    assert merge([LinePack(merge([one, other]))]) == pack_of()


def test_what_merging_keeps() -> None:
    other = pack_of("inline_chain_sm90", release="sample 2.0")
    merged = LinePack(merge([LinePack(pack_of("inline_chain_sm90")), LinePack(other)]))
    assert len(merged) == len(LinePack(other))
    assert len(merged.binaries) == 1
    assert merged.binaries[0].release == "sample 2.0"


def test_functions_are_found_by_name() -> None:
    pack = LinePack(pack_of())
    found = pack.named("_Z4kernIfEvPT_iS0_")
    assert sorted(arch for record in found for arch in record.archs) == ["sm_80", "sm_90"]
    assert pack.named("_Z4none") == ()
    assert [p.size for p in found[0].parameters] == [8, 4, 4]


def answers(data: bytes) -> list[object]:
    """Return what a pack says of every function of the sample cubins; an error says nothing."""
    found: list[object] = []
    for name in CUBINS:
        code = CodeMap(cubin(name))
        for identity in identify(code):
            with contextlib.suppress(UnreadableBinary):
                for record in match(LinePack(data), code, identity).same:
                    found += [(record.name, offset, record.chain(offset)) for offset in (0, 0x40, 0x140)]
    return found


def test_no_damage_gives_another_line() -> None:
    whole = pack_of()
    right = answers(whole)
    assert len(right) == 3 * len(LinePack(whole))
    draw = random.Random(12)
    silent = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 1, 3))):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        left = answers(bytes(data))
        assert all(answer in right for answer in left)
        silent += left == right
    assert silent < 20  # a bit that no look-up reads: in the provenance, or in the texts of others


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.9, 0.999])
def test_a_pack_that_is_cut_short_is_refused(share: float) -> None:
    whole = pack_of()
    with pytest.raises(UnreadableBinary, match="line pack"):
        LinePack(whole[: int(share * len(whole))])


def forged(data: bytes, change: dict[Kind, bytes]) -> bytes:
    """Return a pack with sections replaced and every checksum right: what a hostile server may send."""
    sections = line_pack.Sections(data)
    return line_pack.assemble({kind: change.get(kind, bytes(sections[kind])) for kind in Kind})


def read_all(data: bytes) -> None:
    pack = LinePack(data)
    with contextlib.suppress(UnreadableBinary):
        pack.check()
    for name in CUBINS:
        code = CodeMap(cubin(name))
        for identity in identify(code):
            with contextlib.suppress(UnreadableBinary):
                for record in match(pack, code, identity).same:
                    record.chain(0x40)
                    record.siblings(0x40)


def test_a_hostile_pack_raises_nothing_else() -> None:
    whole = pack_of("inline_chain_sm90")
    sections = line_pack.Sections(whole)
    offset, _, size, first, _ = line_pack.FRAME_ROW.unpack(sections[Kind.BLOCK_TABLE])
    block = bytes(line_pack.expand(sections[Kind.BLOCKS], size))
    draw = random.Random(7)
    for _ in range(200):
        evil = bytearray(block)
        for _ in range(draw.choice((1, 2, 8))):
            evil[draw.randrange(len(evil))] = draw.choice((0, 1, 0x7F, 0xFF, draw.randrange(256)))
        frame = line_pack.compress(bytes(evil))
        table = line_pack.FRAME_ROW.pack(offset, len(frame), size, first, line_pack.checksum(frame, 8))
        read_all(forged(whole, {Kind.BLOCKS: frame, Kind.BLOCK_TABLE: table}))
    for kind in (Kind.CODE, Kind.NAMES, Kind.BLOCK_TABLE, Kind.STRING_TABLE, Kind.PROVENANCE):
        for _ in range(30):
            evil = bytearray(sections[kind])
            evil[draw.randrange(len(evil))] = draw.randrange(256)
            read_all(forged(whole, {kind: bytes(evil)}))


def test_a_frame_that_claims_gigabytes_is_refused() -> None:
    whole = pack_of("shared_leaf_sm90")
    frame = line_pack.compress(bytes(line_pack.LARGEST_FRAME + 1))
    table = line_pack.FRAME_ROW.pack(0, len(frame), line_pack.LARGEST_FRAME + 1, 0, line_pack.checksum(frame, 8))
    evil = LinePack(forged(whole, {Kind.BLOCKS: frame, Kind.BLOCK_TABLE: table}))
    with pytest.raises(UnreadableBinary, match="claims a frame"):
        evil.check()


def test_a_check_finds_an_index_that_leads_elsewhere() -> None:
    whole = pack_of("inline_chain_sm90")
    rows = bytes(line_pack.Sections(whole)[Kind.CODE])
    swapped = rows[:24] + rows[56:64] + rows[32:56] + rows[24:32]
    with pytest.raises(UnreadableBinary, match="index"):
        LinePack(forged(whole, {Kind.CODE: swapped})).check()


def test_another_version_says_so() -> None:
    data = bytearray(pack_of("shared_leaf_sm90"))
    struct.pack_into("<H", data, 8, 2)
    with pytest.raises(UnreadableBinary, match="version 2"):
        LinePack(bytes(data))
    with pytest.raises(UnreadableBinary, match="not a line pack"):
        LinePack(cubin("no_lines_sm90"))


def test_the_table_of_sections_is_within_the_file() -> None:
    assert HEADER.size + SECTION.size * len(Kind) < len(pack_of("shared_leaf_sm90"))
