"""No bytes bring the core reader down: it returns a core, with notes, or says what the bytes are instead."""

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpucore import core_layout
from gpucore.core import find_faults, group_warps, read_registers
from gpucore.core_reader import CoreSections, read_core
from gpucore.errors import UnreadableBinary
from tests.builders.core_builder import BRANCHES, exited_warps_core, hang_core, illegal_address_core

CORES = {
    "fault": illegal_address_core(),
    "table first": illegal_address_core(table_first=True),
    "hang": hang_core(),
    "exited warps": exited_warps_core(),
}


def read_everything(data: bytes) -> None:
    with contextlib.suppress(UnreadableBinary):
        core = read_core(data)
        for fault in find_faults(core):
            if fault.first:
                read_registers(CoreSections(data), fault.first)
        group_warps(core)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(CORES)), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=12))
def test_any_damaged_bytes_are_read_without_another_error(name: str, damage: list[tuple[float, int]]) -> None:
    data = bytearray(CORES[name])
    for at, value in damage:
        data[int(at * (len(data) - 1))] = value
    read_everything(bytes(data))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(CORES)), st.floats(0, 1), st.integers(0, 63), st.binary(min_size=8, max_size=8))
def test_any_damaged_section_header_is_read_without_another_error(
    name: str, which: float, at: int, value: bytes
) -> None:
    core = CORES[name]
    table = int.from_bytes(core[40:48], "little")
    count = int.from_bytes(core[60:62], "little")
    data = bytearray(core)
    place = table + 64 * int(which * (count - 1)) + at
    data[place : place + 8] = value
    read_everything(bytes(data[: len(core)]))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(CORES)), st.floats(0, 1))
def test_a_core_cut_anywhere_is_read_without_another_error(name: str, where: float) -> None:
    core = CORES[name]
    read_everything(core[: int(where * len(core))])


@given(st.binary(max_size=200))
def test_any_bytes_after_a_cores_header(data: bytes) -> None:
    read_everything(CORES["fault"][:64] + data)


LAYOUTS: list[core_layout.Layout[Any]] = [
    core_layout.DEVICE, core_layout.GRID, core_layout.SM, core_layout.CTA, core_layout.WARP,
    core_layout.LANE,
]  # fmt: skip


@given(st.sampled_from(range(len(LAYOUTS))), st.integers(0, 200), st.binary(min_size=256, max_size=512))
def test_a_field_exists_only_where_it_fits(which: int, more: int, table: bytes) -> None:
    form = LAYOUTS[which]
    size = form.smallest + more
    for row in form.rows(table, size):
        last_known = max((i for i, value in enumerate(row) if value is not None), default=-1)
        assert all(value is not None for value in row[:last_known])
        assert size < form.sizes[-1] or None not in row


def test_the_layouts_grow_as_the_header_says() -> None:
    assert [form.sizes for form in LAYOUTS] == [
        (72, 80, 88), (104, 120, 136), (8, 24, 40, 48), (24, 40, 56), (32, 40, 48, 64, 80), (48, 56, 64),
    ]  # fmt: skip
    assert len(BRANCHES) == 11
