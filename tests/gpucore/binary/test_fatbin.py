"""Containers and entries: every way of storing, every lie about a size, and no entry passed over in silence."""

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gpucore import fatbin
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import Compression, EntryFlag, EntryKind, entries
from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, container

CUBIN = cubin("_Z1kPf")
PTX = b".version 9.0\n.target sm_90\n"

specs = st.builds(
    EntrySpec,
    payload=st.binary(max_size=200).map(lambda b: b"\x7fELF" + b),
    arch=st.sampled_from([75, 80, 90, 100, 120]),
    how=st.sampled_from(Compression),
    identifier=st.text("abc/._", max_size=20),
)


@given(st.lists(st.lists(specs, max_size=4), max_size=4), st.integers(0, 5))
def test_every_entry_written_is_read_back(groups: list[list[EntrySpec]], padding: int) -> None:
    data = b"".join(container(*group) + bytes(8 * padding) for group in groups)
    written = [spec for group in groups for spec in group]
    read = list(entries(data))
    assert [(e.arch, e.compression, e.identifier) for e in read] == [(s.arch, s.how, s.identifier) for s in written]
    assert [bytes(e.payload())[: len(s.payload)] for e, s in zip(read, written, strict=True)] == [
        s.payload for s in written
    ]
    assert [b"".join(e.payload_in_pieces()) for e in read] == [bytes(e.payload()) for e in read]


@pytest.mark.parametrize(
    ("flags", "kind", "target"),
    [
        (0x11, EntryKind.ELF, "sm_90"),
        (0x100011, EntryKind.ELF, "sm_90a"),
        (0x1200011, EntryKind.ELF, "sm_90f"),
        (0x11, EntryKind.PTX, "compute_90"),
    ],
)
def test_the_target_is_named_as_nvcc_names_it(flags: int, kind: EntryKind, target: str) -> None:
    (entry,) = entries(container(EntrySpec(payload=CUBIN, flags=flags, kind=kind)))
    assert entry.target == target


def test_the_blank_behind_a_stubs_identifier_is_dropped() -> None:
    (entry,) = entries(container(EntrySpec(payload=CUBIN, identifier="host.cu ")))
    assert entry.identifier == "host.cu"


def test_an_unknown_compression_is_an_error_that_names_the_flag() -> None:
    odd = bytearray(container(EntrySpec(payload=CUBIN, how=Compression.ZSTD)))
    flags_at = 16 + 40
    odd[flags_at : flags_at + 8] = (0x40011).to_bytes(8, "little")
    (entry,) = entries(bytes(odd))
    with pytest.raises(UnreadableBinary, match="unknown flags 0x40000 of 0x40011"):
        entry.payload()


def test_a_payload_that_is_no_elf_file_is_an_error_that_names_the_flag() -> None:
    (entry,) = entries(container(EntrySpec(payload=b"scrambled" * 20, flags=0x10011)))
    with pytest.raises(UnreadableBinary, match="unknown flags 0x10000"):
        entry.payload()


def test_two_compressions_at_once_are_an_error() -> None:
    (entry,) = entries(container(EntrySpec(payload=CUBIN, how=Compression.LZ4, flags=EntryFlag.ZSTD)))
    with pytest.raises(UnreadableBinary, match="flags 0xa000"):
        entry.payload()


def test_lto_code_is_kept_as_what_it_is() -> None:
    (entry,) = entries(container(EntrySpec(payload=b"\xde\xc9", kind=EntryKind.LTO_IR, flags=0x18011)))
    assert entry.kind == EntryKind.LTO_IR


@pytest.mark.parametrize("how", [Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("lie", [1, len(CUBIN) - 1, len(CUBIN) + 1, fatbin.LARGEST + 1, 1 << 63])
def test_a_lie_about_the_size_is_an_error(how: Compression, lie: int) -> None:
    (entry,) = entries(container(EntrySpec(payload=CUBIN, how=how, claimed_size=lie)))
    with pytest.raises(UnreadableBinary):
        entry.payload()


@pytest.mark.parametrize("how", [Compression.LZ4, Compression.ZSTD])
def test_a_damaged_payload_is_an_error(how: Compression) -> None:
    damaged = bytearray(container(EntrySpec(payload=CUBIN, how=how)))
    damaged[-40:-8] = b"\xff" * 32
    (entry,) = entries(bytes(damaged))
    with pytest.raises(UnreadableBinary):
        entry.payload()
    with pytest.raises(UnreadableBinary):
        list(entry.payload_in_pieces())


def test_a_frame_that_claims_more_than_its_entry_is_refused_before_it_is_expanded() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    with pytest.raises(UnreadableBinary, match="a zstd frame claims 67,108,864 bytes where its entry claims 100"):
        fatbin.expand(memoryview(bomb), Compression.ZSTD, 100)


def test_a_frame_without_a_size_is_read_as_far_as_its_entry_claims() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(CUBIN)
    assert fatbin.expand(memoryview(frame), Compression.ZSTD, len(CUBIN)) == CUBIN


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x01" + bytes(63), "no fat binary container here"),
        (container()[:10], "cut short"),
        (container(EntrySpec(payload=CUBIN))[:-1], "runs past the end"),
        (b"\x50\xed\x55\xba\x02\x00\x10\x00" + bytes(8), "of version 2"),
        (b"\x50\xed\x55\xba\x01\x00\x10\x00" + (9).to_bytes(8, "little") + b"x" * 9, "entry is cut short"),
    ],
)
def test_a_damaged_container_is_an_error(data: bytes, what: str) -> None:
    with pytest.raises(UnreadableBinary, match=what):
        list(entries(data))


def test_nothing_but_padding_is_no_entry() -> None:
    assert list(entries(bytes(1 << 20))) == []
    assert list(entries(b"")) == []


@given(st.data())
def test_damage_ends_in_an_answer_or_a_typed_error(data: st.DataObject) -> None:
    damaged = bytearray(container(*(EntrySpec(payload=CUBIN, how=how, identifier="k.cu") for how in Compression)))
    for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=10)):
        damaged[place] = data.draw(st.integers(0, 255))
    try:
        for entry in fatbin.entries(bytes(damaged)):
            entry.payload()
    except UnreadableBinary:
        pass
