"""Cores that a driver wrote on a GPU: what was planted is read from them, and every section is accounted for."""

import gzip
import lzma
from pathlib import Path

import pytest

from gpucore.code_map import CodeMap
from gpucore.core import DecodedCore, Fault, Scope, decode_core
from gpucore.core_layout import GpuException, generation_flags
from gpucore.core_reader import CoreSections
from gpucore.dwarf import Place
from gpucore.explain import Program, explain_hang, wait_text, why_text
from gpucore.explain.fault import explain_fault
from gpucore.explain.why import values_of_leaves
from gpucore.sass import decode

H100 = Path(__file__).parents[2] / "data" / "gpu" / "nvidia-h100-80gb-hbm3-driver-580-159-04" / "cores"
CUT = {"given-up"}
WHOLE = sorted({path.name.partition(".")[0] for path in H100.iterdir()} - CUT)


def contents(name: str) -> bytes:
    whole = H100 / f"{name}.nvcudmp.xz"
    if whole.exists():
        return lzma.decompress(whole.read_bytes())
    return gzip.decompress((H100 / f"{name}.nvcudmp.gz").read_bytes())


def genuine(name: str) -> DecodedCore:
    return decode_core(contents(name), parameters=True)


def planted(mark: str, number: int = 1) -> int:
    """Return the line of the first, or another, statement of states.cu that is marked as planted."""
    lines = (H100.parent / "states.cu").read_text().splitlines()
    return [n for n, line in enumerate(lines, 1) if line.endswith(f"// PLANTED {mark}")][number - 1]


def place(fault: Fault) -> int | None:
    return fault.location.chain[0].line if fault.location else None


@pytest.mark.parametrize("name", WHOLE)
def test_a_core_of_a_driver_is_read_to_its_last_section(name: str) -> None:
    read = genuine(name)
    assert read.core.complete and str(read.core.identity) == "0x33/7"
    assert read.core.metadata and read.core.metadata.row[1:5] == (580, 159, 13, 0)
    assert {kind.kind for kind in read.core.unused} <= {"global memory", "local memory", "shared memory"}
    assert [device.name for device in read.core.devices] == ["NVIDIA H100 80GB HBM3"]
    known = ("no line info", "no loaded code", "cooperative launches")
    assert not [note for note in read.notes if not any(words in note for words in known)]


def test_the_line_in_four_inlined_templates_is_found() -> None:
    (fault,) = genuine("inlined-templates").faults
    assert (fault.exception.code, fault.scope, fault.precise, fault.threads) == (14, Scope.LANE, True, 32)
    assert fault.first and fault.first.at.block == (5, 0, 0)
    assert fault.location and [frame.line for frame in fault.location.chain] == [13, 28, 34, 39]
    assert fault.location.chain[0].file == "/src/samples/inlined_templates.cu"


def test_parameters_are_there_without_constant_banks() -> None:
    read = genuine("inlined")
    assert read.core.metadata and "skip_constbank_memory" in generation_flags(read.core.metadata.row.flags)
    assert read.launches[0].parameters
    assert [one.value for one in read.launches[0].parameters.parameters[1:]] == ["1024", f"{1 << 34}"]


def test_a_warp_beside_the_mark_of_an_exited_one_has_not_failed() -> None:
    read = genuine("inlined")
    (fault,) = read.faults
    assert (fault.scope, fault.precise, fault.threads, fault.sms) == (Scope.SM, True, 0, (128,))
    assert place(fault) == planted("store")
    (left,) = read.warp_groups  # threads 96 to 127; thread 77 was the one
    assert (left.state, left.first.thread, left.first.sm) == ("running", (96, 0, 0), 128)


def test_the_arguments_of_a_warp_that_has_exited_are_those_of_the_one_launch() -> None:
    data, (fault,) = contents("inlined"), genuine("inlined").faults
    why = explain_fault(genuine("inlined").core, CoreSections(data), fault, program_at)
    assert why is not None
    assert why.numbers is None
    (line,) = [line for line in why_text(why) if line.startswith("its threads are not known")]
    said = "its threads are not known; the launch of this kernel that the core lists has "
    assert line.startswith(f"{said}argument3 = 0x400000000, argument1 = 0x7")


def test_a_warp_that_runs_on_behind_its_store_is_marked() -> None:
    read = genuine("lives_on")
    (fault,) = read.faults
    assert (fault.scope, fault.threads, place(fault)) == (Scope.LANE, 32, planted("store", 2))
    assert fault.first and fault.first.at.thread == (32, 0, 0)  # thread 40 was the one
    assert sorted(group.state for group in read.warp_groups) == ["faulted", "running"]


def test_a_mark_of_the_kernel_before_is_not_the_next_kernels() -> None:
    """In a graph, the warps of the next kernel stood at its first instruction when the store before it failed."""
    read = genuine("graph")
    (fault,) = read.faults
    assert fault.kernel and "inlined" in fault.kernel
    assert (fault.scope, fault.threads, fault.doubts, place(fault)) == (Scope.SM, 0, (), planted("store"))
    assert [(group.kernel, group.state) for group in read.warp_groups] == [("_Z5scalePfi", "running")]


@pytest.mark.parametrize(
    ("name", "mark", "code", "threads"),
    [("gather", "load", 7, 32), ("trapped", "trap", None, 1), ("asserted", "assert", 12, 32)],
)
def test_a_thread_that_stops_is_shown_at_the_statement_that_stopped_it(
    name: str, mark: str, code: int | None, threads: int
) -> None:
    (fault,) = genuine(name).faults
    assert (fault.exception.code, fault.precise, fault.threads) == (code, True, threads)
    assert place(fault) == planted(mark)


def test_a_full_stack_is_an_address_out_of_range() -> None:
    (fault,) = genuine("recursive").faults
    assert (fault.exception.code, fault.threads) == (5, 1)
    assert fault.location and fault.location.function and "deep" in fault.location.function.name
    assert fault.exception.meaning and "a stack that is full" in fault.exception.meaning
    why = explain_fault(genuine("recursive").core, CoreSections(contents("recursive")), fault, program_at)
    assert why and why_text(why) == [
        "thread (0,0,0) of block (0,0,0) wrote 4 bytes of local memory",
        "local memory is the thread's own stack, and that is full: deep, which calls itself, and what called it need "
        "more than it has (cudaLimitStackSize)",
    ]


def test_a_call_through_a_bad_pointer_is_shown_at_the_call() -> None:
    """The driver wrote where the thread returns to as an offset in its kernel, without the address."""
    (fault,) = genuine("bad-function-pointer").faults
    assert (fault.calls_out, fault.location and fault.location.chain[0].line) == (1, 584)
    assert fault.grid and [call.return_pc - fault.grid.function_entry for call in fault.calls] == [0xD0]


def test_the_text_of_an_assert_is_looked_for_where_cuda_writes_it() -> None:
    (fault,) = genuine("asserted").faults
    assert fault.exception.meaning and fault.exception.meaning.endswith("the program's standard error")


def test_an_h100_calls_misuse_of_an_mbarrier_an_illegal_instruction_and_a_wild_pointer_out_of_range() -> None:
    """As it did for mbarriers that were uninitialised, misaligned or given too much, and for 0xdeadbeefdeadbee0."""
    illegal, out_of_range = GpuException(code=4).meaning, GpuException(code=5).meaning
    assert illegal and "mbarrier" in illegal and "tensor map" in illegal
    assert out_of_range and "a pointer that no memory has" in out_of_range


def test_lanes_that_wait_for_others_of_their_warp_do_not_run() -> None:
    waiting, running = genuine("in_warp").warp_groups
    assert (waiting.state, waiting.threads) == ("waiting for other threads of its warp", 108)
    assert (running.state, running.threads) == ("running", 20)


@pytest.mark.parametrize(
    ("name", "grid", "said"),
    [
        ("cooperative", (4, 1, 1), "(4,1,1) is by constant bank 0"),
        ("in_grid", (0, 0, 0), "the size of the grid is not known"),
    ],
)
def test_the_grid_of_a_cooperative_launch_is_not_the_one_of_the_launch_table(
    name: str, grid: tuple[int, int, int], said: str
) -> None:
    read = genuine(name)
    (launch,) = read.launches
    assert (launch.grid.grid_x, launch.grid.grid_y, launch.grid.grid_z) == grid
    (note,) = (note for note in read.notes if "cooperative" in note)
    assert "block (3,0,0) ran, which the launch table's grid (1,1,1) does not have" in note and note.endswith(said)


def test_a_register_of_the_warp_that_one_of_its_threads_wrote_contradicts_no_other_thread() -> None:
    """Thread 0 alone arrived at the barrier of the grid, and a uniform register has what it computed there."""
    data, read = contents("cooperative"), genuine("cooperative")
    why = explain_fault(read.core, CoreSections(data), read.faults[0], program_at)
    assert why and why.numbers and why.numbers.disagree == 0 and why.numbers.agree > 600
    assert [value for a, value in values_of_leaves(why) if a.kind == "wide"] == [1 << 32]


def test_a_fault_of_an_unloaded_module_is_no_jump_to_nowhere() -> None:
    read = genuine("unloaded-module")
    (fault,) = read.faults
    assert (fault.scope, fault.location, read.launches) == (Scope.SM, None, ())
    assert any("the module was unloaded" in note for note in read.notes)


def test_what_a_core_without_global_memory_holds_of_it_is_the_drivers_own() -> None:
    read = genuine("inlined-templates")
    assert next(kind for kind in read.core.unused if kind.kind == "global memory").bytes == 68_608
    assert CoreSections(contents("inlined-templates")).global_memory() == ()


def test_a_core_that_the_driver_did_not_finish_is_no_core_without_a_fault() -> None:
    read = genuine("given-up")
    assert read.core.truncated and not read.core.complete and not read.core.devices


@pytest.mark.parametrize(
    ("name", "whose", "absent", "mark"),
    [("then_compute", "block", 1, 6), ("in_cluster", "cluster", 2, None)],
)
def test_warps_at_a_barrier_wait_for_the_others(name: str, whose: str, absent: int, mark: int | None) -> None:
    read = genuine(name)
    waits = [explain_hang(read.core, CoreSections(contents(name)), group, program_at) for group in read.warp_groups]
    at = [(wait.barriers, wait.absent, wait.program.line(wait.offset)) for wait in waits if wait and wait.absent]
    assert [(barriers, count) for barriers, count, _ in at] == [((f"a {whose} barrier",), absent)] * len(at) != []
    if mark is not None:
        assert f"states.cu:{planted('barrier', mark)}" in [line for _, _, line in at]
    others = [wait for wait in waits if wait and not wait.absent]
    assert all(wait.polled for wait in others) and len(others) + len(at) == len(waits)


def test_warps_at_named_barriers_are_at_theirs_with_who_is_there() -> None:
    """Those that wait at the second line stand at the first instruction of the other branch."""
    read = genuine("named")
    waits = [explain_hang(read.core, CoreSections(contents("named")), group, program_at) for group in read.warp_groups]
    lines = [line for wait in waits if wait is not None for line in wait_text(wait)]
    first = planted("barrier", 9)
    assert lines == [
        f"waits at barrier 4 at states.cu:{first + 1}: it takes 96 threads, 64 are there",
        f"waits at barrier 3 at states.cu:{first}: it takes 128 threads, 64 are there",
    ]


def program_at(code: CodeMap, where: Place) -> Program:
    section = code.elf.sections[where.section]
    return Program(code, where.section, decode(code.elf.contents(section), 90))
