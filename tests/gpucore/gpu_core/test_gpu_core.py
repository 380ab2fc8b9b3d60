"""GPU core dumps of every shape: where the fault is, what stands where, and what a damaged file still tells."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from gpucore.core import Fault, Scope, find_faults, group_warps, read_registers
from gpucore.core_reader import CoreSections, read_core
from gpucore.elf import CUDA_13, Elf, Identity
from gpucore.errors import UnreadableBinary
from tests.builders.core_builder import (
    BRANCHES,
    BlockSpec,
    CoreSpec,
    DeviceSpec,
    LaunchSpec,
    SmSpec,
    WarpSpec,
    build_core,
    exited_warps_core,
    hang_core,
    illegal_address_core,
    sample_module,
)

CORES = Path(__file__).parents[2] / "data" / "cores"


def sample(name: str) -> bytes:
    return gzip.decompress((CORES / f"{name}.nvcudmp.gz").read_bytes())


def only_fault(data: bytes) -> Fault:
    (fault,) = find_faults(read_core(data))
    return fault


def lines(fault: Fault) -> list[int]:
    return [frame.line for frame in fault.location.chain] if fault.location else []


def one_warp(warp: WarpSpec, **sm: int | None) -> bytes:
    sms = {0: SmSpec(exception=sm.get("exception") or 0, error_offset=sm.get("error_offset"))}
    device = DeviceSpec(modules=[sample_module()], blocks=[BlockSpec(warps=[warp])], sms=sms)
    return build_core(CoreSpec(devices=[device]))


@pytest.mark.parametrize("branch", BRANCHES)
def test_every_row_layout_gives_the_same_fault(branch: str) -> None:
    fault = only_fault(illegal_address_core(branch=branch))
    assert (fault.exception.name, fault.scope, fault.precise, fault.threads) == (
        "Warp Illegal Address", Scope.LANE, True, 32,
    )  # fmt: skip
    assert fault.kernel == "_Z4kernIfEvPT_iS0_"
    assert fault.location and fault.location.offset == 0x140
    assert lines(fault) == [3, 13, 8, 19]
    assert fault.first and (fault.first.at.block, fault.first.at.thread) == ((3, 0, 0), (32, 0, 0))


def test_the_fault_is_the_one_cuda_gdb_found() -> None:
    told = (CORES / "synthetic_sm90_r575_layout.cuda-gdb-12.4.txt").read_text()
    fault = only_fault(sample("synthetic_sm90_r575_layout"))
    assert f"CUDA Exception: {fault.exception.name}\n" in told
    assert f"triggered at PC {fault.pc:#x} (cudk.cu:3 in _Z10store_leaf" in told
    assert fault.first and fault.grid
    at = fault.first.at
    assert f"block ({at.block[0]},0,0), thread ({at.thread[0]},0,0), device 0, sm 0, warp 1, lane {at.lane}]" in told
    assert fault.location and str(fault.location.chain[0]).endswith(
        "cudk.cu:3 in void store_leaf<float, 0>(float*, int, float)"
    )


def test_without_line_info_kernel_and_offset_stay() -> None:
    fault = only_fault(sample("synthetic_sm90_nolines"))
    assert fault.location and (fault.location.chain, fault.location.offset) == ((), 0x140)
    assert fault.kernel == "_Z4kernIfEvPT_iS0_"


def test_exited_warps_leave_their_fault_in_the_sm_row() -> None:
    core = read_core(exited_warps_core(words="Illegal address at 0x10"))
    (fault,) = find_faults(core)
    assert (fault.scope, fault.sms, fault.threads, fault.first) == (Scope.SM, (5,), 0, None)
    assert fault.exception_string == "Illegal address at 0x10"
    assert fault.kernel == "_Z4kernIfEvPT_iS0_"  # by its PC: such a core has no launch
    assert lines(fault) == [3, 13, 8, 19]
    assert group_warps(core) == ()


def test_a_warp_with_an_error_pc_takes_the_exception_of_its_sm() -> None:
    fault = only_fault(one_warp(WarpSpec(offset=0x150, error_offset=0x140), exception=6, error_offset=0x140))
    assert (fault.scope, fault.exception.name, fault.threads) == (Scope.WARP, "Warp Misaligned Address", 32)


def test_a_lane_without_error_pc_is_imprecise() -> None:
    fault = only_fault(one_warp(WarpSpec(offset=0x150, exception=1, marked=0b1000)))
    assert (fault.scope, fault.precise, fault.threads) == (Scope.LANE, False, 1)
    assert fault.first and fault.first.at.lane == 3
    assert fault.location and fault.location.offset == 0x150


def test_a_broken_warp_without_exception_is_a_trap() -> None:
    fault = only_fault(one_warp(WarpSpec(offset=0x150, broken=True)))
    assert (fault.exception.code, fault.exception.name, fault.precise) == (None, "Trap Or Breakpoint", False)


def test_an_exited_fault_beside_a_living_one_is_not_lost() -> None:
    data = one_warp(WarpSpec(offset=0x150, error_offset=0x140, exception=14), exception=6, error_offset=0x20)
    assert [(f.scope, f.exception.code) for f in find_faults(read_core(data))] == [(Scope.LANE, 14), (Scope.SM, 6)]


def test_an_exited_fault_names_its_launch_when_there_is_only_one() -> None:
    device = DeviceSpec(
        modules=[sample_module()], sms={3: SmSpec(exception=14, error_offset=0x140)}, blocks=[BlockSpec(sm=1)]
    )
    fault = only_fault(build_core(CoreSpec(devices=[device])))
    assert fault.scope is Scope.SM
    assert fault.grid and fault.grid.block_x == 64


@pytest.mark.parametrize("code", [22, 36, 99, 0xFFFFFFFF])
def test_an_exception_nobody_knows_keeps_its_number(code: int) -> None:
    exception = only_fault(illegal_address_core(exception=code)).exception
    assert exception.code == code
    assert (exception.name, exception.identifier) == {
        22: ("Warp Call Requires Newer Driver", "CUDBG_EXCEPTION_WARP_CALL_REQUIRES_NEWER_DRIVER"),
        36: ("TMA Syscall", "CUDBG_EXCEPTION_TMA_SYSCALL"),
        99: ("Exception 99", None),
        0xFFFFFFFF: ("Unknown Exception", "CUDBG_EXCEPTION_UNKNOWN"),
    }[code]


def test_threads_of_one_fault_are_counted_together() -> None:
    warp = WarpSpec(offset=0x150, error_offset=0x140, exception=14)
    blocks = [BlockSpec(block=(x, 0, 0), sm=x, warps=[warp, warp]) for x in (9, 2, 5)]
    fault = only_fault(build_core(CoreSpec(devices=[DeviceSpec(modules=[sample_module()], blocks=blocks)])))
    assert (fault.threads, fault.warps, fault.blocks, fault.sms) == (192, 6, 3, (2, 5, 9))
    assert fault.first and fault.first.at.block == (2, 0, 0)


def test_two_devices_each_have_their_fault() -> None:
    warp = WarpSpec(offset=0x150, error_offset=0x140, exception=14)
    device = DeviceSpec(modules=[sample_module()], blocks=[BlockSpec(warps=[warp])])
    quiet = replace(device, name="NVIDIA B200", blocks=[BlockSpec()])
    core = read_core(build_core(CoreSpec(devices=[quiet, device])))
    assert [d.name for d in core.devices] == ["NVIDIA B200", "NVIDIA H200"]
    assert [f.device.index for f in find_faults(core)] == [1]
    assert {s.device.index for s in group_warps(core)} == {0, 1}


def test_modules_of_one_name_are_told_apart_by_their_row() -> None:
    first = sample_module()
    second = sample_module("shared_leaf_sm90", base=0x7FFFE0000000, handle=0xDEF0)
    blocks = [BlockSpec(launch=1, warps=[WarpSpec(offset=0x50, error_offset=0x40, exception=14)])]
    launches = [LaunchSpec(), LaunchSpec(kernel="pick_both", module=1, grid_id=8)]
    device = DeviceSpec(modules=[first, second], launches=launches, blocks=blocks)
    fault = only_fault(build_core(CoreSpec(devices=[device])))
    assert fault.kernel == "_Z9pick_bothPfPKfS1_"
    assert lines(fault) == [2, 8, 14]


def test_a_module_without_image_leaves_the_pc() -> None:
    warp = WarpSpec(offset=0x150, error_offset=0x140, exception=14)
    device = DeviceSpec(modules=[sample_module(keep="none")], blocks=[BlockSpec(warps=[warp])])
    fault = only_fault(build_core(CoreSpec(devices=[device])))
    assert (fault.pc, fault.kernel, fault.location) == (0x7FFFD9001140, None, None)


def test_a_hang_shows_where_every_warp_stands_and_what_it_waits_for() -> None:
    core = read_core(hang_core())
    assert find_faults(core) == ()
    group = [(s.warps, s.state, s.barrier, s.location.offset if s.location else None) for s in group_warps(core)]
    assert group == [
        (12, "waiting at a block barrier", "block", 0x100),
        (4, "running", None, 0x80),
        (1, "diverged, waiting its turn", None, 0x150),
    ]
    assert group_warps(core)[0].thread_states == (("blocked collective", 384),)


def test_a_hang_before_r575_has_no_states() -> None:
    (group,) = group_warps(read_core(sample("synthetic_sm90_hang")))
    assert (group.warps, group.threads, group.state) == (4, 128, "running")
    old = group_warps(read_core(hang_core(branch="r570")))
    assert [(s.state, s.thread_states) for s in old] == [
        ("running", ()), ("running", ()), ("diverged, waiting its turn", ()),
    ]  # fmt: skip


def test_extended_section_numbering_is_followed() -> None:
    assert find_faults(read_core(illegal_address_core(extended_numbering=True)))
    many = hang_core(extended_numbering=True)  # the first section's size is then their count, and no contents
    assert len(Elf(many).sections) > 1000 and read_core(many).notes == ()


def test_the_generator_and_its_settings_are_told() -> None:
    metadata = read_core(illegal_address_core()).metadata
    assert metadata and metadata.generator == "vdbg-env core builder (synthetic)"
    assert (metadata.row.driver_major, metadata.row.driver_minor, metadata.row.timestamp) == (580, 95, 1763696000)


@pytest.mark.parametrize(("identity", "notes"), [(CUDA_13, 0), (Identity(os_abi=0x51, abi_version=9), 1)])
def test_another_identity_is_read_and_an_unknown_one_is_told(identity: Identity, notes: int) -> None:
    core = read_core(illegal_address_core(identity=identity))
    assert len(core.notes) == notes
    assert find_faults(core)


def test_registers_of_the_first_thread_are_found() -> None:
    warp = WarpSpec(offset=0x150, error_offset=0x140, exception=14, registers={8: 0xDEAD0000, 9: 0x7F})
    data = one_warp(warp)
    first = only_fault(data).first
    assert first
    registers = read_registers(CoreSections(data), first)
    assert (registers.general[8], registers.general[9], len(registers.general)) == (0xDEAD0000, 0x7F, 32)
    assert (len(registers.uniform), len(registers.predicates), registers.backtrace) == (63, 7, ())


def test_a_core_cut_before_its_section_table_still_names_what_was_loaded() -> None:
    core = read_core(sample("truncated"))
    assert core.truncated
    assert [f.name for m in core.stray_modules if m.code for f in m.code.kernels] == [
        "_Z4kernIdEvPT_iS0_", "_Z4kernIfEvPT_iS0_",
    ]  # fmt: skip
    assert "the section table ends at 0x16af0, the file at 0x7530" in core.notes[0]


def test_a_cut_after_the_section_table_reads_as_far_as_it_goes() -> None:
    whole = illegal_address_core(table_first=True)
    fault = only_fault(whole)
    seen = []
    for length in range(64, len(whole), 997):
        core = read_core(whole[:length])
        assert core.truncated
        assert core.notes[0].startswith("truncated: ")
        seen.append([(f.pc, f.threads) for f in find_faults(core)])
    assert {pc for faults in seen for pc, _ in faults} == {fault.pc}
    threads = [sum(count for _, count in faults) for faults in seen]
    assert threads == sorted(threads), "a longer piece of the file never tells less"
    assert threads[-1] == 32


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "the file is empty"),
        (b"\x1f\x8b\x08\x00", "gzip data"),
        (b"hello, this is text" * 9, "no ELF header"),
        (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x04\x00\x3e\x00" + bytes(44), "of a host process"),
        (sample_module().cubin, "a cubin, not a GPU core dump"),
    ],
)
def test_what_is_no_gpu_core_is_called_what_it_is(data: bytes, what: str) -> None:
    with pytest.raises(UnreadableBinary, match=what):
        read_core(data)


def test_tables_that_overlap_do_not_multiply_memory() -> None:
    data = bytearray(illegal_address_core())
    table = int.from_bytes(data[40:48], "little")
    rows = range(table, len(data), 64)
    for row in rows:
        if data[row + 4] == 0x0F:  # every lane table now claims the whole file
            data[row + 24 : row + 32] = bytes(8)
            data[row + 32 : row + 40] = len(data).to_bytes(8, "little")
    core = read_core(bytes(data))
    assert any("overlap" in note for note in core.notes)
