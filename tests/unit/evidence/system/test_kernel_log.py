"""The NVIDIA driver's lines in the kernel log."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.evidence.finding import Level
from vdbg_env.evidence.system import XIDS, kernel_log_findings, parse_kernel_log, split_at, xid_meaning

FAULT = (
    "[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:0a:00): 31, pid=13332, name=VLLM::EngineCor, Ch 00000010, "
    "intr 00000000. MMU Fault: ENGINE CE2 HUBCLIENT_CE0 faulted @ 0x7f29_5b8c9000. "
    "Fault is of type FAULT_PRIV_VIOLATION ACCESS_TYPE_VIRT_READ"
)
FOLLOW_UP = "[12.5] NVRM: Xid (PCI:0000:0a:00): 45, pid='<unknown>', name=<unknown>, Ch 00000008"
HARDWARE = "Nov 21 07:00:00 node kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."


def test_a_page_fault_has_its_process_address_and_kind() -> None:
    (xid,) = parse_kernel_log(FAULT).xids
    assert (xid.code, xid.bus, xid.pid, xid.process) == (31, "0000:0a:00", 13332, "VLLM::EngineCor")
    assert (xid.address, xid.fault, xid.channel) == (0x7F295B8C9000, "FAULT_PRIV_VIOLATION", "00000010")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("NVRM: Xid (PCI:0000:03:00): 13, Graphics Exception: ESR 0x57c730=0xc04000b", 13),
        ("NVRM: Xid (0000:03:00): 43, Ch 00000010", 43),
        (
            "NVRM: Xid (PCI:0000:cb:00): 109, pid=17, name=pt_main_thread, Ch 08, errorString CTX SWITCH TIMEOUT",
            109,
        ),
        ("NVRM: GPU at PCI:0000:cb:00: Xid (PCI:0000:cb:00): 48, pid=17", 48),
    ],
)
def test_old_and_new_forms_are_read(line: str, code: int) -> None:
    assert [x.code for x in parse_kernel_log(line).xids] == [code]


def test_with_mig_the_instance_follows_the_address() -> None:
    (xid,) = parse_kernel_log("NVRM: Xid (PCI:0000:01:00 GPU-I:03): 94, pid=7194, Contained: CE User Channel").xids
    assert (xid.code, xid.bus, xid.instance, xid.pid) == (94, "0000:01:00", 3, 7194)
    assert "GPU instance 3" in kernel_log_findings(parse_kernel_log(xid.text))[0].message


@pytest.mark.parametrize("code", range(144, 151))
def test_an_error_of_a_link_has_its_unit_and_is_hardware_only_when_fatal(code: int) -> None:
    line = f"NVRM: Xid (PCI:0018:01:00): {code}, SOME_UNIT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001)"
    (xid,) = parse_kernel_log(line).xids
    assert xid.nvlink is not None
    assert (xid.nvlink.unit, xid.nvlink.link, xid.nvlink.fatal, xid.severity) == ("SOME_UNIT", 3, False, "check")
    assert parse_kernel_log(line.replace("Nonfatal", "Fatal   ")).xids[0].severity == "hardware"
    assert xid.meaning.name.startswith("NVLink")


def test_an_xid_that_names_another_as_its_cause_is_a_follow_up() -> None:
    text = (
        "NVRM: Xid (PCI:0008:01:00): 145, RLW_SRC Nonfatal XC1 i0 Link 12 (0x0)\n"
        "NVRM: Xid (PCI:0008:01:00): 43, pid=7, name=python3, channel 0x0000001a caused by previous Xid 145\n"
    )
    log = parse_kernel_log(text)
    assert (log.xids[1].caused_by, log.xids[1].channel, log.root and log.root.code) == (145, "0000001a", 145)
    assert [f.rule for f in kernel_log_findings(log)] == ["xid-145"]


def test_the_recovery_that_a_gpu_needs_is_reported_with_the_cause() -> None:
    text = (
        FAULT
        + "\nNVRM: Xid (PCI:0000:0a:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"
    )
    first, second = kernel_log_findings(parse_kernel_log(text))
    assert (first.rule, second.rule) == ("xid-31", "xid-154")
    assert "Drain and Reset" in second.message
    assert "reset it" in str(second.next_step)


def test_a_follow_up_is_not_told_beside_its_cause() -> None:
    log = parse_kernel_log(FAULT + "\n" + FOLLOW_UP)
    assert [f.rule for f in kernel_log_findings(log)] == ["xid-31"]
    assert [f.rule for f in kernel_log_findings(parse_kernel_log(FOLLOW_UP))] == ["xid-45"]


def test_hardware_comes_before_what_software_did() -> None:
    root = parse_kernel_log(FAULT + "\n" + HARDWARE).root
    assert root is not None
    assert root.code == 79


def test_the_out_of_memory_killer_is_seen() -> None:
    log = parse_kernel_log("Memory cgroup out of memory: Killed process 4242 (VLLM::Worker_TP) total-vm:1kB")
    assert log.killed_for_memory == ((4242, "VLLM::Worker_TP"),)
    (finding,) = kernel_log_findings(log)
    assert (finding.rule, finding.level) == ("kernel-log-oom-kill", Level.WARNING)
    assert finding.confidence < 0.5, "the log is the whole machine's, and the process may be another container's"


def test_the_log_is_parted_by_its_stamps_and_a_line_without_one_stays_with_the_one_before() -> None:
    text = "old\n[   99.9] a\n  more of a\n<4>[  100.000000] b\n[Fri Aug 30 11:43:09 2024] more of b\n[100.5] c\n"
    before, after = split_at(text, 100.0)
    assert before == "old\n[   99.9] a\n  more of a\n"
    assert before + after == text


def test_other_complaints_of_the_driver_are_kept() -> None:
    log = parse_kernel_log("[1.0] NVRM: API mismatch: the client has the version 570.1, but this kernel module 550.2")
    assert log.driver_errors[0][1].startswith("NVRM: API mismatch")


def test_every_xid_of_the_design_is_in_the_table() -> None:
    assert {13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 109, 119, 120, 185} <= set(XIDS)
    assert xid_meaning(999).severity == "check"


@given(st.lists(st.sampled_from([FAULT, FOLLOW_UP, HARDWARE]) | st.text(max_size=40)).map("\n".join))
def test_any_text_is_read(text: str) -> None:
    kernel_log_findings(parse_kernel_log(text))


def test_the_lines_of_an_h100_name_process_exception_and_page_where_the_driver_knows_them() -> None:
    """From driver 580: the pages of what was not armed are the planted ones; beside UNRECOGNIZED_FAULT stands none."""
    text = (Path(__file__).parents[3] / "data" / "kernel_log_h100_r580.txt").read_text()
    xids = parse_kernel_log(text).xids
    assert len(xids) == len(text.splitlines())
    pages = {x.pid: (x.address, x.fault, x.access) for x in xids if x.code == 31}
    planted = {752: 0x7FC208A01000, 1037: 0x7FDA8DF00000}
    assert {pid: found for pid, found in pages.items() if found != (None, None, None)} == {
        pid: (page, "FAULT_PDE", "WRITE") for pid, page in planted.items()
    }
    assert set(pages) == {489, 603, 752, 1037, 1080, 1129}
    warps = {x.fault for x in xids if x.code == 13 and x.fault}
    assert warps == {
        "MMU Fault", "Out Of Range Address", "Illegal Instruction Encoding", "Illegal Instruction Parameter",
        "Misaligned Address", "Invalid Address Space",
    }  # fmt: skip
    (first, *_) = kernel_log_findings(parse_kernel_log(next(x.text for x in xids if x.fault == "Misaligned Address")))
    assert first.message.endswith("graphics engine exception, Misaligned Address")


def test_what_a_line_without_a_process_says_weighs_less_than_the_workloads_own_words() -> None:
    named = kernel_log_findings(parse_kernel_log(FAULT))[0]
    unnamed = kernel_log_findings(parse_kernel_log(FAULT.replace("pid=13332, name=VLLM::EngineCor, ", "")))[0]
    assert unnamed.confidence < 0.7 < named.confidence
