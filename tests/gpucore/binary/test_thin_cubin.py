"""A thinned cubin is judged as the whole one is."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucore.cubin import read_cubin, thin
from gpucore.elf import Elf
from gpucore.errors import UnreadableBinary
from gpucore.lineinfo import read_coverage
from tests.builders.cubin import cubin

CUBINS = Path(__file__).parents[2] / "data" / "cubins"


def thinned(data: bytes, step: int = 1000) -> bytearray | None:
    def pieces() -> Iterator[bytes]:
        return (data[at : at + step] for at in range(0, len(data), step))

    return thin(pieces, len(data))


@pytest.mark.parametrize("data", [
    *(path.read_bytes() for path in sorted(CUBINS.glob("*.cubin"))),
    cubin("k", "l", lines=True), cubin("k", "l", lines=True, covered=["k"]), cubin("k", debug=True), cubin(),
])  # fmt: skip
@pytest.mark.parametrize("step", [7, 1000, 1 << 20])
def test_a_thinned_cubin_gives_the_same_answers(data: bytes, step: int) -> None:
    small = thinned(data, step)
    assert small is not None
    assert read_cubin(small) == read_cubin(data)
    assert read_coverage(small) == read_coverage(data)


def test_the_embedded_ptx_and_the_code_are_dropped() -> None:
    data = (CUBINS / "inline_chain_sm90.cubin").read_bytes()
    small = thinned(data)
    assert small
    assert b".version" not in small
    assert Elf(small).contents_end < len(small) < len(data) * 0.75


def test_sections_that_overlap_are_not_copied_each() -> None:
    """65,000 headers of a gigabyte each would be 65,000 copies of it."""
    data = bytearray(cubin("k", lines=True))
    elf = Elf(bytes(data))
    (table,) = elf.sections_named(".debug_line")
    start = int.from_bytes(data[40:48], "little")
    row = bytearray(data[start + 64 * table.number : start + 64 * table.number + 64])
    row[24:40] = (64).to_bytes(8, "little") + (start - 64).to_bytes(8, "little")  # everything
    copies = bytes(row) * 40
    data[60:62] = (elf.section_count + 40).to_bytes(2, "little")
    assert thinned(bytes(data + copies)) is None


def test_kept_sections_by_the_thousand_are_not_looked_for_in_every_piece() -> None:
    data = bytearray(cubin("k", lines=True))
    elf = Elf(bytes(data))
    (table,) = elf.sections_named(".debug_line")
    start = int.from_bytes(data[40:48], "little")
    row = bytearray(data[start + 64 * table.number : start + 64 * table.number + 64])
    row[32:40] = (1).to_bytes(8, "little")
    data[60:62] = (elf.section_count + 100).to_bytes(2, "little")
    assert thinned(bytes(data + bytes(row) * 100)) is None


def test_a_payload_that_ends_before_its_sections_is_damaged() -> None:
    data = cubin("k", lines=True)
    size = len(data)
    with pytest.raises(UnreadableBinary, match="ends before its sections"):
        thin(_Shrinking(data), size)


class _Shrinking:
    """A payload that is whole when its headers are read, and ends early when its contents are."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._asked = 0

    def __call__(self) -> Iterator[bytes]:
        self._asked += 1
        return iter([self._data if self._asked < 4 else self._data[:100]])


def test_another_layout_is_not_thinned() -> None:
    assert thinned(b"\x7fELF" + bytes(80)) is None
    assert thinned(b"short") is None


@given(st.integers(0, 255), st.integers(0, 255), st.floats(0, 1))
def test_any_damage_ends_in_an_answer_or_a_typed_error(first: int, second: int, where: float) -> None:
    data = bytearray(cubin("k", "l", lines=True))
    at = int(where * (len(data) - 2))
    data[at : at + 2] = bytes([first, second])
    try:
        small = thinned(bytes(data))
        if small:
            read_coverage(small)
    except UnreadableBinary:
        pass
