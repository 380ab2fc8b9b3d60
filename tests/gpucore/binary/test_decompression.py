"""A payload comes whole, or from its start in pieces: the same bytes, however it is stored."""

import contextlib
import random
from collections.abc import Callable

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gpucore import fatbin
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import Compression, expand, expand_in_pieces, lz4_start

LARGE = random.Random(3).randbytes(1 << 14) + bytes(range(256)) * 12_000 + random.Random(4).randbytes(1 << 15)
STORE: dict[Compression, Callable[[bytes], bytes]] = {
    Compression.RAW: bytes,
    Compression.LZ4: lambda data: lz4.block.compress(data, store_size=False),
    Compression.ZSTD: lambda data: zstandard.ZstdCompressor().compress(data),
}


@pytest.mark.parametrize("how", Compression)
@pytest.mark.parametrize("size", [0, 1, 1 << 14, (1 << 14) + 1, 1 << 17, (1 << 20) + 5, len(LARGE)])
def test_the_pieces_are_the_whole(how: Compression, size: int) -> None:
    stored = memoryview(STORE[how](LARGE[:size]))
    pieces = [bytes(piece) for piece in expand_in_pieces(stored, how, size)]
    assert b"".join(pieces) == LARGE[:size] == bytes(expand(stored, how, size))
    assert len(pieces) > 1 or size <= 1 << 16


@pytest.mark.parametrize("how", Compression)
def test_the_start_alone_is_expanded_for_who_stops_early(how: Compression) -> None:
    stored = STORE[how](LARGE)
    damaged = memoryview(stored[: len(stored) // 2] + b"\xff" * 64)
    first = next(iter(expand_in_pieces(damaged, how, len(LARGE))))
    assert bytes(first) == LARGE[: len(first)] and len(first) <= 1 << 16


def test_lz4_is_read_whole_where_its_library_offers_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lz4_start() is not None  # the wheels of lz4 have it
    monkeypatch.setattr(fatbin, "lz4_start", lambda: None)
    stored = memoryview(STORE[Compression.LZ4](LARGE))
    assert [bytes(piece) for piece in expand_in_pieces(stored, Compression.LZ4, len(LARGE))] == [LARGE]


def test_many_readers_at_once_do_not_share_a_decompressor() -> None:
    contents = [random.Random(seed).randbytes(100) * 2000 for seed in range(8)]
    readers = [
        expand_in_pieces(memoryview(STORE[Compression.ZSTD](data)), Compression.ZSTD, len(data)) for data in contents
    ]
    read = [b""] * len(contents)
    for _ in range(8):
        read = [held + bytes(next(reader, b"")) for held, reader in zip(read, readers, strict=True)]
    assert read == contents


@given(st.binary(max_size=300), st.integers(0, 60_000), st.sampled_from([Compression.LZ4, Compression.ZSTD]))
def test_damage_ends_in_bytes_or_a_typed_error(noise: bytes, at: int, how: Compression) -> None:
    stored = bytearray(STORE[how](LARGE))
    stored[at : at + len(noise)] = noise
    with contextlib.suppress(UnreadableBinary):
        assert sum(len(piece) for piece in expand_in_pieces(memoryview(stored), how, len(LARGE))) <= 2 * len(LARGE)
