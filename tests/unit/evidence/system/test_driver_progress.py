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


# As driver 580.159.04 wrote it on an H100: constant banks alone, of which the last 256 bytes cannot be read.
AT_CONSTANTS = """\
[01:06:00.844542] coredump: Detected an exception of type CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS (14)
[01:06:00.844547] coredump:   - Device: 0
[01:06:00.996214] coredump: Writing ELF file to /tmp/cores/a-neg1.nvcudmp
[01:06:00.996230] coredump: Current working directory is /tmp/cwd
[01:06:00.996275] coredump: Writing out global memory (69120 bytes)
[01:06:00.997043] coredump: 95%...
CUDA error: an illegal memory access was encountered
"""


def test_a_driver_that_gave_up_at_the_constant_banks_is_told_from_a_process_that_was_killed() -> None:
    exception, cut = driver_findings(parse_driver_progress(AT_CONSTANTS))
    assert exception.next_step is None, "there is no dump to read"
    assert cut.message == "0 of 1 GPU core dump finished: the driver gave up at the constant banks"
    assert cut.next_step is not None
    assert cut.next_step.command is not None
    assert cut.next_step.command.endswith("=skip_nonrelocated_elf_images,skip_global_memory,skip_constbank_memory")


def test_memory_in_whole_pages_and_finished_dumps_are_no_constant_banks() -> None:
    killed = parse_driver_progress(AT_CONSTANTS.replace("69120", str(14 << 20)))
    assert (killed.cut_short, killed.at_constants) == (True, False)
    assert "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS" in str(driver_findings(killed)[1].next_step)
    whole = parse_driver_progress(AT_CONSTANTS + "coredump: Writing out device table\ncoredump: All done (took 00s)\n")
    assert (whole.cut_short, whole.at_constants) == (False, False)
    (finding,) = driver_findings(whole)
    assert finding.next_step is not None


def test_a_dump_that_another_rank_finished_is_still_to_be_read() -> None:
    both = NEW + AT_CONSTANTS
    first, second, cut = driver_findings(parse_driver_progress(both))
    assert first.next_step == second.next_step
    assert first.next_step is not None
    assert cut.message.startswith("1 of 2 GPU core dumps finished")


def test_a_driver_that_says_nothing_after_it_began_has_given_up() -> None:
    begun = "[01:09:36.549050] coredump: Starting GPU coredump generation\n"
    (finding,) = driver_findings(parse_driver_progress(begun + "CUDA error: misaligned address\n"))
    assert finding.message == "a kernel raised a GPU exception, and the driver gave up its core dump at once"
    assert "core FILE" not in str(finding.next_step)
    collecting = parse_driver_progress(begun + "[01:09:36.6] coredump: SM 1/132 has finished state collection\n")
    assert not collecting.silent


# As driver 580.159.04 wrote it on an H100 of a kernel that spins, with the states of 132 SMs left out.
ASKED_FOR = """\
[02:02:04.734300] coredump: Starting GPU coredump generation
[02:02:04.743884] coredump: Device 1/1 has finished state collection
[02:02:04.744566] coredump: Writing ELF file to /dumps/core.cuda.vm.5765.1795744913
[02:02:04.744630] coredump: Writing out global memory (0 bytes)
[02:02:04.746899] coredump: All done (took 00s)
"""


def test_a_dump_that_was_asked_for_is_no_exception() -> None:
    (finding,) = driver_findings(parse_driver_progress(ASKED_FOR))
    assert (finding.rule, finding.level.value) == ("driver-dump-without-exception", "warning")
    assert "raised" not in finding.message
