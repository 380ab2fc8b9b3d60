"""compute-sanitizer's reports, old form and new, judged by their SUMMARY line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucore.dwarf import SourceFrame
from vdbg_env.evidence.finding import Level
from vdbg_env.evidence.sanitizer import Tool, parse_sanitizer, sanitizer_findings

NEW = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at void kern<float>(float *, int)+0x120 in src/file.cu:46
=========     by thread (96,0,0) in block (44,1,0)
=========     Access to 0x763995f9f000 is out of bounds
=========     and is 1,241,911,296 bytes before the nearest allocation at 0x7639e0000000 of size 5,033,164,800 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: main [0x9544e] in repro
=========
========= ERROR SUMMARY: 1 error
"""
OLD = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 16 bytes
=========     at 0xda0 in fused_moe.py:175:fused_moe_kernel
=========     by thread (96,0,0) in block (44,0,0)
=========     Address 0x763995f9f000 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========     Host Frame: [0x2f26f0]
=========                in /usr/lib/x86_64-linux-gnu/libcuda.so.1
=========     Host Frame:PyObject_Call [0x22d1ab]
=========                in /usr/bin/python3
========= ERROR SUMMARY: 3 errors
"""
RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at RAW()+0xf0 in raceGroupBasic.cu:40
=========     and Read access at RAW()+0x280 in raceGroupBasic.cu:46 [4 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_the_new_form_names_line_thread_and_address() -> None:
    report = parse_sanitizer(NEW)
    (record,) = report.records
    assert (report.verdict, report.errors, report.tool) == ("errors", 1, Tool.MEMCHECK)
    assert record.places[0].offset == 0x120
    assert record.places[0].frame == SourceFrame(function="void kern<float>(float *, int)", file="src/file.cu", line=46)
    assert (record.thread, record.block, record.address) == ((96, 0, 0), (44, 1, 0), 0x763995F9F000)
    assert not any("Host Frame" in detail for detail in record.details)


def test_the_old_form_names_the_same() -> None:
    report = parse_sanitizer(OLD)
    (record,) = report.records
    assert record.places[0].frame == SourceFrame(function="fused_moe_kernel", file="fused_moe.py", line=175)
    assert (record.places[0].offset, report.errors) == (0xDA0, 3)
    assert not any("libcuda" in detail or "python3" in detail for detail in record.details)


def test_the_middle_form_has_a_colon_before_the_offset() -> None:
    text = "========= Invalid __global__ write of size 4 bytes\n=========     at unaligned_kernel():0x160 in m.cu:6\n"
    (record,) = parse_sanitizer(text).records
    assert record.places[0].frame == SourceFrame(function="unaligned_kernel()", file="m.cu", line=6)


def test_a_kernel_without_line_info_still_has_its_offset() -> None:
    text = "========= Invalid __shared__ read of size 2 bytes\n=========     at void k<int>(T1 *)+0x70\n"
    (record,) = parse_sanitizer(text).records
    assert (record.places[0].function, record.places[0].offset, record.places[0].frame) == (
        "void k<int>(T1 *)",
        0x70,
        None,
    )


def test_a_race_has_two_places_and_its_hazards() -> None:
    report = parse_sanitizer(RACE)
    (record,) = report.records
    assert (report.tool, report.verdict, record.hazards) == (Tool.RACECHECK, "errors", 4)
    assert [p.frame.line for p in record.places if p.frame] == [40, 46]


def test_the_finding_of_a_race_names_both_ends() -> None:
    (finding,) = sanitizer_findings(parse_sanitizer(RACE))
    assert finding.message == (
        "Error: Race reported between Write access at RAW()+0xf0 in raceGroupBasic.cu:40, "
        "and RAW()+0x280 in raceGroupBasic.cu:46"
    )
    assert finding.location and finding.location.line == 40


def test_warnings_alone_are_errors_of_level_warning() -> None:
    report = parse_sanitizer(
        RACE.replace("Error: Race", "WARN: Race").replace("(1 error, 0 warnings)", "(0 errors, 1 warning)")
    )
    assert (report.verdict, report.errors, report.warnings) == ("errors", 0, 1)
    assert [f.level for f in sanitizer_findings(report)] == [Level.WARNING]


def test_no_summary_line_means_that_the_tool_failed() -> None:
    report = parse_sanitizer(
        "========= COMPUTE-SANITIZER\n"
        "========= Error: process didn't terminate successfully\n"
        "========= Error: Target application terminated before first instrumented API call\n"
    )
    assert (report.verdict, report.errors, len(report.own_failures)) == ("tool-failed", None, 2)
    (finding,) = sanitizer_findings(report)
    assert "didn't terminate" in finding.message


def test_a_clean_run_has_no_finding() -> None:
    report = parse_sanitizer("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n")
    assert (report.verdict, sanitizer_findings(report)) == ("clean", ())


def test_summaries_of_several_processes_add_up() -> None:
    assert parse_sanitizer(NEW + OLD).errors == 4


def test_a_prefix_of_the_log_before_the_marks_is_no_hindrance() -> None:
    text = "\n".join("(EngineCore pid=1) " + line for line in NEW.splitlines())
    assert parse_sanitizer(text).records[0].places == parse_sanitizer(NEW).records[0].places


def test_an_access_inside_an_allocation_stays_an_error_and_names_what_may_be_wrong_with_it() -> None:
    text = NEW.replace("and is 1,241,911,296 bytes before the nearest", "and is inside the nearest")
    (finding,) = sanitizer_findings(parse_sanitizer(text))
    assert (finding.level, finding.confidence) == (Level.ERROR, 0.6)
    assert "expandable_segments" in str(finding.next_step)


@pytest.mark.parametrize(("allocated", "sure"), [("28", True), ("31", True), ("32", False), ("2,097,152", False)])
def test_an_access_that_leaves_the_allocation_it_begins_in_is_no_false_alarm(allocated: str, sure: bool) -> None:
    """16 bytes at offset 16: a vectorised load past the end of a small buffer, in the tool's words."""
    text = f"""\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 16 bytes
=========     at vectorised_copy(const float4 *, float4 *, int)+0xf0
=========     by thread (1,0,0) in block (0,0,0)
=========     Access to 0x7f2c34e00010 is out of bounds
=========     and is inside the nearest allocation at 0x7f2c34e00000 of size {allocated} bytes
========= ERROR SUMMARY: 1 error
"""
    (finding,) = sanitizer_findings(parse_sanitizer(text))
    assert (finding.confidence == 0.95, "false alarm" not in finding.message) == (sure, sure)


def test_a_misaligned_access_inside_an_allocation_is_a_sure_error() -> None:
    text = NEW.replace("is out of bounds", "is misaligned").replace(
        "and is 1,241,911,296 bytes before", "and is inside"
    )
    (finding,) = sanitizer_findings(parse_sanitizer(text))
    assert (finding.level, finding.confidence) == (Level.ERROR, 0.95)


def test_errors_that_were_not_printed_are_counted_once() -> None:
    said = (
        "========= ERROR SUMMARY: 40 errors\n========= ERROR SUMMARY: 39 errors were not printed. Use --print-limit\n"
    )
    assert parse_sanitizer(NEW.replace("========= ERROR SUMMARY: 1 error\n", said)).errors == 40


def test_initcheck_reports_of_unused_memory_and_of_the_host_are_records() -> None:
    text = (
        "========= Unused memory in allocation 0x7f1100000000 of size 64 bytes\n"
        "=========     Not written 32 bytes at offset 0x20 (0x7f1100000020)\n"
        "=========\n"
        "========= Host API memory access error at host access to 0x7f1100000400 of size 128 bytes\n"
        "=========     Uninitialized access at 0x7f1100000440 on access by cudaMemcpy source.\n"
        "=========     Host Frame: cuMemcpyDtoH_v2 [0x29200c]\n"
        "=========                in libcuda.so.1\n"
        "========= ERROR SUMMARY: 1 error\n"
    )
    unused, host = parse_sanitizer(text).records
    assert (unused.tool, host.tool) == (Tool.INITCHECK, Tool.INITCHECK)
    assert host.details == ("Uninitialized access at 0x7f1100000440 on access by cudaMemcpy source.",)


def test_faults_of_managed_memory_are_records() -> None:
    text = (
        "========= Fatal UVM GPU fault of type invalid pde due to invalid address\n"
        "=========     during write access to address 0x20be00000\n"
    )
    (record,) = parse_sanitizer(text).records
    assert record.tool is Tool.MEMCHECK


def test_a_hazard_between_threads_of_a_warp_is_a_warning_with_both_places() -> None:
    text = (
        "========= WARN:(Warp Level Programming) Potential RAW hazard detected at __shared__ 0x10 in block (1, 0, 0)\n"
        "=========     Write Thread (3, 0, 0) at 0x000001a8 in warp.cu:9:sum(float*)\n"
        "=========     Read Thread (4, 0, 0) at 0x00000170 in warp.cu:11:sum(float*)\n"
        "=========     Current Value : 0, Incoming Value : 1\n"
        "========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)\n"
    )
    (record,) = parse_sanitizer(text).records
    assert (record.level, record.tool) == ("warning", Tool.RACECHECK)
    assert [place.frame.line for place in record.places if place.frame] == [9, 11]


def test_a_file_on_a_line_of_its_own_belongs_to_the_place_above() -> None:
    text = (
        "========= Error: Race reported between Write access at blend(float *, int)+0x580\n"
        "=========     in blend.cu:25\n"
        "=========     and Read access at blend(float *, int)+0x5f0 [12 hazards]\n"
        "=========     in blend.cu:27\n"
    )
    (record,) = parse_sanitizer(text).records
    assert [place.frame.line for place in record.places if place.frame] == [25, 27]


def test_a_probe_for_an_entry_point_is_named_as_a_false_alarm() -> None:
    report = parse_sanitizer(
        '========= Program hit CUDA_ERROR_INVALID_VALUE (error 1) due to "invalid argument" on CUDA API call to'
        " cuGetProcAddress_v2.\n========= ERROR SUMMARY: 1 error\n"
    )
    assert report.records[0].api_call == "cuGetProcAddress_v2"
    assert sanitizer_findings(report)[0].level is Level.NOTE


def test_initcheck_synccheck_and_tensor_memory_are_known() -> None:
    text = (
        "========= Uninitialized __global__ memory read of size 4 bytes\n"
        "========= Barrier error detected. Divergent thread(s) in block.\n"
        "========= Tensor Memory column 32 being accessed by instruction tcgen05.ld is not allocated.\n"
    )
    assert [r.tool for r in parse_sanitizer(text).records] == [Tool.INITCHECK, Tool.SYNCCHECK, Tool.MEMCHECK]


def test_the_same_report_by_many_threads_is_one_finding() -> None:
    many = "".join(
        NEW.split("=========\n")[0].split("COMPUTE-SANITIZER\n")[1].replace("(96,", f"({i},") for i in range(50)
    )
    assert len(sanitizer_findings(parse_sanitizer(many + "========= ERROR SUMMARY: 50 errors\n"))) == 1


LINES = (NEW + OLD + RACE).splitlines()


@given(st.lists(st.sampled_from(LINES) | st.text(max_size=30)).map("\n".join))
def test_any_lines_give_a_report(text: str) -> None:
    report = parse_sanitizer(text)
    sanitizer_findings(report)
    assert (report.verdict == "tool-failed") == (report.errors is None)
