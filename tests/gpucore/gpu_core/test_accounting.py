"""Rows of a GPU core are accounted for: what was lost is noted, and one exception is one fault."""

import random
import struct
from collections.abc import Callable, Iterator

import pytest

from gpucore.core import DecodedCore, Fault, Scope, decode_core, find_faults, group_warps
from gpucore.core_layout import GpuException, SectionType
from gpucore.core_reader import read_core
from gpucore.elf import Elf, Section
from gpucore.errors import UnreadableBinary
from tests.builders.core_builder import (
    BlockSpec,
    CoreSpec,
    DeviceSpec,
    ModuleSpec,
    SmSpec,
    WarpSpec,
    build_core,
    exited_warps_core,
    hang_core,
    idle_core,
    illegal_address_core,
    sample_module,
)

FAULTING = WarpSpec(offset=0x150, error_offset=0x140)
FIELDS = {"type": (4, 4), "size": (32, 8), "link": (40, 4), "info": (44, 4), "entry_size": (56, 8)}


def core(*blocks: BlockSpec, sms: dict[int, SmSpec] | None = None, module: ModuleSpec | None = None) -> bytes:
    device = DeviceSpec(modules=[module or sample_module()], blocks=blocks, sms=sms or {})
    return build_core(CoreSpec(devices=[device]))


def faults(data: bytes) -> tuple[Fault, ...]:
    return find_faults(read_core(data))


def section(data: bytes, kind: SectionType) -> Section:
    return Elf(data).sections_of(frozenset({kind}))[0]


def damaged(data: bytes, kind: SectionType, field: str, value: int) -> bytes:
    """Return a core with one field of the first section header of a kind overwritten."""
    at, size = FIELDS[field]
    table = int.from_bytes(data[40:48], "little") + 64 * section(data, kind).number + at
    return data[:table] + value.to_bytes(size, "little") + data[table + size :]


def is_clean(read: DecodedCore) -> bool:
    """Return whether the command would end with status 0 and not a word."""
    return not read.faults and read.core.complete and len(read.notes) == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("type", 5), ("type", 99), ("link", 0), ("link", 77), ("info", 3), ("size", 0), ("size", 39), ("size", 40),
     ("entry_size", 0), ("entry_size", 41)],
)  # fmt: skip
def test_a_damaged_sm_table_never_reads_as_a_clean_core(field: str, value: int) -> None:
    read = decode_core(damaged(exited_warps_core(), SectionType.SMS, field, value))
    assert not read.core.complete
    assert read.notes


@pytest.mark.parametrize("make", [exited_warps_core, illegal_address_core, hang_core])
@pytest.mark.parametrize("kind", [SectionType.DEVICES, SectionType.SMS, SectionType.CTAS, SectionType.WARPS,
                                  SectionType.LANES, SectionType.GRIDS])  # fmt: skip
def test_a_table_that_is_a_hole_never_reads_as_a_whole_one(make: Callable[[], bytes], kind: SectionType) -> None:
    """A full disk, or a copy of a file with holes, leaves zeros where rows were."""
    data = make()
    for table in (s for s in Elf(data).sections if s.type == kind):
        hole = data[: table.offset] + bytes(table.size) + data[table.offset + table.size :]
        read = decode_core(hole)
        doubts = [doubt for fault in read.faults for doubt in fault.doubts]
        assert decode_core(data).notes == () and (read.notes or doubts) and not is_clean(read)


@pytest.mark.parametrize(("field", "value"), [("type", 5), ("type", 99), ("link", 0), ("info", 3)])
def test_an_sm_table_that_no_row_links_is_found_by_its_name(field: str, value: int) -> None:
    read = decode_core(damaged(exited_warps_core(), SectionType.SMS, field, value))
    assert [fault.exception.code for fault in read.faults] == [14]


def test_a_block_table_below_the_wrong_table_is_found_by_its_name() -> None:
    data = illegal_address_core()
    read = decode_core(damaged(data, SectionType.CTAS, "link", section(data, SectionType.DEVICES).number))
    assert [fault.threads for fault in read.faults] == [32]
    assert any("ctatbl.dev0.sm0" in note for note in read.notes)


def test_a_device_without_sm_rows_is_not_complete() -> None:
    read = read_core(damaged(idle_core(), SectionType.SMS, "size", 0))
    assert not read.complete
    assert "device 0 has 132 SMs and no row of them: it may have faulted" in read.notes


def test_a_register_section_of_no_thread_is_noted() -> None:
    read = read_core(damaged(illegal_address_core(), SectionType.REGISTERS, "info", 999))
    assert any("sections of registers belong to no thread" in note for note in read.notes)


def test_unknown_and_unread_sections_are_named() -> None:
    device = DeviceSpec(modules=[sample_module()], blocks=[BlockSpec()], global_memory={0x7000: bytes(64)})
    data = build_core(CoreSpec(devices=[device]))
    (memory,) = read_core(data).unused
    assert (memory.kind, memory.count, memory.bytes) == ("global memory", 1, 64)
    read = read_core(damaged(data, SectionType.GLOBAL_MEMORY, "type", 0x80000042))
    assert read.unused[0].kind == "type 0x80000042"
    assert not read.complete


@pytest.mark.parametrize("data", [illegal_address_core(), hang_core(), exited_warps_core()])
def test_a_whole_core_is_complete_and_without_doubt(data: bytes) -> None:
    read = decode_core(data)
    assert (read.core.complete, read.notes, [fault.doubts for fault in read.faults if fault.doubts]) == (True, (), [])


def test_a_lane_takes_the_error_pc_of_its_sm() -> None:
    block = BlockSpec(warps=[WarpSpec(offset=0x150, exception=14, marked=0b1000), WarpSpec()])
    (fault,) = faults(core(block, sms={0: SmSpec(exception=14, error_offset=0x140)}))
    assert (fault.scope, fault.precise, fault.threads) == (Scope.LANE, True, 1)
    assert fault.location
    assert fault.location.offset == 0x140


def test_marks_in_lanes_in_a_warp_and_in_an_sm_are_one_fault() -> None:
    lanes = WarpSpec(offset=0x150, error_offset=0x140, exception=14, marked=1)
    blocks = [BlockSpec(sm=0, warps=[lanes]), BlockSpec(block=(1, 0, 0), sm=1, warps=[FAULTING])]
    mark = SmSpec(exception=14, error_offset=0x140)
    (fault,) = faults(core(*blocks, sms={0: mark, 1: mark, 2: mark}))
    assert (fault.scope, fault.precise, fault.threads, fault.warps, fault.sms) == (Scope.LANE, True, 33, 2, (0, 1, 2))


def test_a_trapped_warp_does_not_take_its_neighbours_exception() -> None:
    trapped = WarpSpec(offset=0x100, broken=True)
    data = core(BlockSpec(warps=[FAULTING, trapped]), sms={0: SmSpec(exception=14, error_offset=0x140)})
    assert [(f.exception.code, f.pc and f.pc & 0xFFF) for f in faults(data)] == [(14, 0x140), (None, 0x100)]


def test_a_broken_warp_alone_on_its_sm_has_the_exception_of_it() -> None:
    data = core(
        BlockSpec(warps=[WarpSpec(offset=0x150, broken=True)]), sms={0: SmSpec(exception=12, error_offset=0x140)}
    )
    (fault,) = faults(data)
    assert (fault.exception.code, fault.precise, fault.threads) == (12, True, 32)


def test_rows_of_zeros_are_no_threads() -> None:
    lane = struct.calcsize("<QQIIIIIIIIII")
    data = bytearray(core(BlockSpec(warps=[WarpSpec(valid=0xFF, active=0xFF, offset=0x150, exception=14)])))
    table = section(bytes(data), SectionType.LANES)
    data[table.offset : table.offset + 7 * lane] = bytes(7 * lane)
    (fault,) = faults(bytes(data))
    assert fault.first
    assert (fault.threads, fault.first.at.thread, fault.first.row_index) == (1, (7, 0, 0), 7)
    assert [group.threads for group in group_warps(read_core(bytes(data)))] == [1]


def test_active_lanes_with_state_0_have_not_exited() -> None:
    warp = WarpSpec(thread_state=0, active=0xFFFF, waiting_offset=0x150)
    states = {group.state: group.threads for group in group_warps(read_core(core(BlockSpec(warps=[warp]))))}
    assert states == {"running": 16, "exited": 16}


def test_the_driver_says_in_its_own_words_what_a_warp_waits_for() -> None:
    waiting = WarpSpec(barrier_scope=3, barrier_words="barrier 1, 96 of 128 threads arrived")
    device = DeviceSpec(modules=[sample_module()], blocks=[BlockSpec(warps=[waiting, WarpSpec(barrier_scope=3)])])
    groups = group_warps(read_core(build_core(CoreSpec(devices=[device], branch="r590"))))
    assert {group.barrier_words for group in groups} == {"barrier 1, 96 of 128 threads arrived", None}


@pytest.mark.parametrize(
    ("code", "phrase", "constant"),
    [
        (20, "Warp Tensor Memory Access Check", "WARP_TMEM_ACCESS_CHECK"),
        (21, "Warp Tensor Memory Leak", "WARP_TMEM_LEAK"),
        (25, "Warp Misaligned Register", "WARP_MISALIGNED_REG"),
        (26, "Warp Illegal Instruction Encoding", "WARP_ILLEGAL_INSTR_ENCODING"),
        (27, "Warp Illegal Instruction Parameter", "WARP_ILLEGAL_INSTR_PARAM"),
        (29, "Warp Invalid Constant Address", "WARP_INVALID_CONST_ADDR_LDC"),
        (31, "Warp Barrier Arrival Mismatch", "WARP_ARRIVE"),
        (32, "Cluster Shared Memory Issue", "CLUSTER_POISON"),
    ],
)
def test_exceptions_have_the_phrase_of_cuda_gdb_and_the_constant_of_the_header(
    code: int, phrase: str, constant: str
) -> None:
    exception = GpuException(code=code)
    assert (exception.name, exception.identifier) == (phrase, f"CUDBG_EXCEPTION_{constant}")


def test_a_launch_whose_entry_is_no_kernel_is_doubted() -> None:
    data = illegal_address_core()
    grid = section(data, SectionType.GRIDS).offset + 24
    read = decode_core(data[:grid] + struct.pack("<Q", 0x7FFFD9000010) + data[grid + 8 :])
    assert any("names and lines may be wrong" in note for note in read.notes)
    assert read.faults[0].doubts


def test_a_renamed_kernel_is_doubted() -> None:
    module = sample_module()
    image = Elf(module.image)
    strings = image.sections[image.sections_of(frozenset({2}))[0].link]
    at = strings.offset + bytes(image.contents(strings)).index(b"\0_Z4kernIfEvPT_iS0_\0") + 4
    data = illegal_address_core()
    held = section(data, SectionType.RELOCATED_IMAGE).offset
    (fault,) = faults(data[: held + at] + b"b" + data[held + at + 1 :])
    assert fault.kernel != "_Z4kernIfEvPT_iS0_"
    assert fault.doubts


def mutations(data: bytes, count: int, start: int, end: int) -> Iterator[bytes]:
    chance = random.Random(11)
    for _ in range(count):
        at = chance.randrange(start, end)
        yield data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def wrong_and_silent(
    data: bytes, count: int, start: int, end: int, answer: Callable[[DecodedCore], object] | None = None
) -> list[str]:
    """Return the answers of mutated cores that differ in a name, a chain or the rows of SMs without a word."""
    answer = answer or whole
    right = answer(decode_core(data))
    silent = []
    for mutated in mutations(data, count, start, end):
        try:
            read = decode_core(mutated)
        except UnreadableBinary:
            continue
        if answer(read) != right and not read.notes and read.core.complete:
            silent.append(str(answer(read)))
    return silent


def kernels_only(read: DecodedCore) -> object:
    return len(read.faults), [(f.kernel, f.location and f.location.function) for f in read.faults]


def whole(read: DecodedCore) -> object:
    shown = [(f.kernel, f.location and f.location.chain) for f in read.faults]
    return len(read.core.devices), [len(device.sms) for device in read.core.devices], shown


@pytest.mark.parametrize("make", [exited_warps_core, illegal_address_core, hang_core])
def test_no_mutation_of_the_section_table_loses_rows_silently(make: Callable[[], bytes]) -> None:
    data = make()
    table = int.from_bytes(data[40:48], "little")
    rows = Elf(data).sections[:12]
    silent = wrong_and_silent(data, 80, table + 64, table + 64 * len(rows))
    assert silent == []


def test_no_mutation_of_an_image_names_another_kernel_silently() -> None:
    data = illegal_address_core()
    image = section(data, SectionType.RELOCATED_IMAGE)
    silent = wrong_and_silent(data, 80, image.offset, image.offset + image.size, kernels_only)
    assert silent == []


def test_an_inlined_function_whose_name_is_damaged_is_doubted() -> None:
    data = illegal_address_core()
    image = section(data, SectionType.RELOCATED_IMAGE)
    at = data.index(b"_Z10store_leafIfLi0EEvPT_iS0_\0", image.offset) + 2
    (fault,) = faults(data[:at] + b"9" + data[at + 1 :])
    assert fault.doubts == ("the line table has no sound name for an inlined function",)


@pytest.mark.long
@pytest.mark.parametrize("make", [exited_warps_core, illegal_address_core, hang_core])
def test_no_mutation_of_any_byte_loses_rows_or_renames_a_kernel_silently(make: Callable[[], bytes]) -> None:
    data = make()
    sms = section(data, SectionType.SMS)

    def rows(read: DecodedCore) -> object:
        named = {fault.kernel for fault in read.faults if fault.kernel} | {"_Z4kernIfEvPT_iS0_"}
        return [len(device.sms) for device in read.core.devices], named

    silent = wrong_and_silent(data, 3400, 64, sms.offset, rows)
    silent += wrong_and_silent(data, 3400, sms.offset + sms.size, len(data), rows)
    assert silent == []
