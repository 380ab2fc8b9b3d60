"""The driver's core-dump progress, old and new."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.transcripts import parse_driver_progress
from vdbg_env.evidence.system import driver_findings

NEW = """\
[06:43:15.209195] coredump: Detected an exception of type CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS (14)
[06:43:15.209202] coredump:   - Device: 0
[06:43:15.209206] coredump:   - SM: 124
[06:43:15.209208] coredump:   - Warp: 0
[06:43:15.209210] coredump:   - PC 0x7462c3bac310
[06:43:15.209477] coredump: Stack trace (lane masks: active 0xFFFFFFFF, valid 0xffffffff):
[06:43:15.209486] coredump:   #0\t0x7462c3bac620\t_Z25illegalMemoryAccessKernelPii
[06:43:15.3] coredump: Writing ELF file to /dumps/c.node.7.1764236276
[06:43:15.4] coredump: Writing out global memory (1073741824 bytes)
[06:43:19.0] coredump: All done (took 00s)
"""


def test_the_exception_its_place_and_its_kernel_are_read() -> None:
    progress = parse_driver_progress(NEW)
    (seen,) = progress.exceptions
    assert (seen.name, seen.code, seen.device, seen.sm, seen.warp) == (
        "CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS",
        14,
        0,
        124,
        0,
    )
    assert (seen.pc, seen.active_lanes, seen.valid_lanes) == (0x7462C3BAC310, 0xFFFFFFFF, 0xFFFFFFFF)
    assert seen.kernel == "_Z25illegalMemoryAccessKernelPii"
    assert progress.files == ("/dumps/c.node.7.1764236276",)
    assert (progress.finished, progress.cut_short) == (1, False)


def test_the_finding_names_the_kernel_as_its_source_does() -> None:
    (finding,) = driver_findings(parse_driver_progress(NEW))
    assert (
        finding.message == "CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS (14) at PC 0x7462c3bac310 in illegalMemoryAccessKernel"
    )
    assert finding.kernel == "_Z25illegalMemoryAccessKernelPii", "the field keeps the driver's own word"


def test_old_drivers_print_no_stamp() -> None:
    old = "\n".join(line.split("] ", 1)[1] for line in NEW.splitlines())
    assert parse_driver_progress(old) == parse_driver_progress(NEW)


def test_a_warp_that_had_left_has_no_stack() -> None:
    text = NEW.replace("Warp: 0", "Warp: exception was detected after the warp has exited").replace("#0", "-")
    (seen,) = parse_driver_progress(text).exceptions
    assert seen.warp_exited
    assert seen.warp is None
    assert seen.kernel is None


def test_two_processes_that_write_at_once_are_told_apart() -> None:
    text = (
        "(Worker_TP0 pid=1) coredump: Detected an exception of type CUDBG_EXCEPTION_WARP_ASSERT (12)\n"
        "(Worker_TP1 pid=2) coredump: Detected an exception of type CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS (14)\n"
        "(Worker_TP0 pid=1) coredump:   - SM: 3\n"
        "(Worker_TP1 pid=2) coredump:   - SM: 9\n"
    )
    first, second = parse_driver_progress(text).exceptions
    assert (first.sm, first.rank, second.sm, second.rank) == (3, 0, 9, 1)


def test_a_dump_that_was_begun_and_not_ended_is_said() -> None:
    progress = parse_driver_progress(NEW.replace("All done", "95%"))
    assert progress.cut_short
    assert [f.rule for f in driver_findings(progress)] == ["driver-gpu-exception", "driver-dump-cut-short"]


def test_flags_the_driver_does_not_know_are_named_with_those_it_knows() -> None:
    progress = parse_driver_progress(
        "WARNING: Ignoring unknown coredump flag 'log_only'\nValid flags are: skip_abort, gzip_compress\n"
    )
    assert (progress.unknown_flags, progress.valid_flags) == (("log_only",), ("skip_abort", "gzip_compress"))
    (finding,) = driver_findings(progress)
    assert "log_only" in finding.message
    assert "skip_abort,gzip_compress" in str(finding.next_step)


@given(st.lists(st.sampled_from([*NEW.splitlines(), "coredump:", "coredump: #0", "", "x"])).map("\n".join))
def test_lines_in_any_order_are_read(text: str) -> None:
    driver_findings(parse_driver_progress(text))


def test_a_newer_driver_says_only_that_a_dump_begins() -> None:
    progress = parse_driver_progress(
        "Starting GPU coredump generation, set the CUDA_COREDUMP_SHOW_PROGRESS environment variable to 1 to enable more"
    )
    assert (progress.begun, progress.exceptions, progress.cut_short) == (True, (), False)
    (finding,) = driver_findings(progress)
    assert finding.level.value == "error"
