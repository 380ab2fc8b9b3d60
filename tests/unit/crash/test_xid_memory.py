"""An Xid 31 line alone: twenty as drivers print them, and whose memory the page is by a map."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import memory_maps, reports
from tests.support.command_line import vdbg_env
from tests.support.memory_maps import KEYS, LAYER_BYTES, WINDOW, encoded
from tests.support.schemas import Contract
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.crash.memory_files import owner_of_fault
from vdbg_env.crash.memory_map import read_memory_map
from vdbg_env.evidence.system import kernel_log_findings, parse_kernel_log
from vdbg_env.report import pages
from vdbg_env.report.model import report_json

END = KEYS + LAYER_BYTES

# Bus, what names the process, the channel, engine with its client, fault and access. The forms are those of
# doitsujin/dxvk#1027, #1799 and #2495, ValveSoftware/Proton#9426, NVIDIA/open-gpu-kernel-modules#1030, #1134, #1208 and
# #1370, of articles on Xid 31, and of logs from vLLM; buses, processes and addresses are made up.
FORMS = (
    ("PCI:0000:01:00", "", "Ch 0000005a, intr 10000000. ", "GRAPHICS GPCCLIENT_T1_1", "PDE", "READ"),
    ("PCI:0000:0c:00", "pid=11, ", "Ch 00000053, intr 10000000. ", "GRAPHICS GPCCLIENT_T1_2", "PDE", "READ"),
    ("PCI:0000:c1:00", "pid=12, ", "Ch 0000003b, intr 00000000. ", "HOST0 HUBCLIENT_HOST_CPU", "PDE", "VIRT_WRITE"),
    ("PCI:0000:c1:00", "pid=12, ", "Ch 0000003e, intr 00000000. ", "GRAPHICS HUBCLIENT_SCC", "PTE", "VIRT_READ"),
    ("PCI:0000:0a:00", "pid=13, name=VLLM::EngineCor, ", "Ch 00000010, intr 00000000. ",
     "GRAPHICS GPCCLIENT_T1_2", "PDE", "VIRT_READ"),
    ("PCI:0000:0a:00", "pid=13, name=python3, ", "Ch 00000010, intr 00000000. ", "CE2 HUBCLIENT_CE0",
     "PRIV_VIOLATION", "VIRT_READ"),
    ("PCI:0000:01:00", "pid=14, name=a.exe, ", "channel 0x0000005c, intr 00000000. ",
     "GRAPHICS GPC2 GPCCLIENT_PROP_0", "PDE", "VIRT_READ"),
    ("PCI:0000:2b:00", "pid=15, name=app, ", "channel 0x0000000c, intr 00000000. ",
     "GRAPHICS GPC6 GPCCLIENT_T1_13", "PDE", "VIRT_WRITE"),
    ("PCI:0000:c1:00", "pid=16, name=python, ", "channel 0x0000001a, intr 00000000. ",
     "GRAPHICS GPC10 GPCCLIENT_T1_5", "PDE", "VIRT_READ"),
    ("PCI:0000:01:00", "pid=17, name=python3, ", "channel 0x00000002, intr 00000000. ",
     "GRAPHICS GPC0 GPCCLIENT_T1_0", "PDE", "VIRT_READ"),
    ("PCI:0000:00:07", "name=app, ", "channel 0x00000005, ", "CE0 HUBCLIENT_CE1", "PDE", "VIRT_READ"),
    ("PCI:0000:41:00", "pid=18, name=app, ", "Ch 00000008, intr 00000000. ", "CE2 HUBCLIENT_CE0", "PDE", "VIRT_WRITE"),
    ("PCI:0000:41:00", "pid=18, name=app, ", "Ch 00000008, intr 00000000. ", "GR0_PBDMA0 HUBCLIENT_ESC", "PTE",
     "VIRT_READ"),
    ("PCI:0000:41:00", "pid=19, name=app, ", "channel 0x0000000a, intr 00000000. ", "GRAPHICS HUBCLIENT_FE", "PDE",
     "VIRT_WRITE"),
    ("PCI:0000:3b:00 GPU-I:05", "pid=20, name=app, ", "Ch 00000012, intr 00000000. ", "GRAPHICS GPCCLIENT_T1_0", "PDE",
     "VIRT_READ"),
    ("PCI:0000:3b:00", "pid='<unknown>', name=<unknown>, ", "Ch 00000012, intr 00000000. ", "GRAPHICS GPCCLIENT_T1_0",
     "PTE", "VIRT_WRITE"),
    ("PCI:0000:3b:00", "pid=21, name=VLLM::Worker_TP, ", "Ch 0000000e, intr 00000000. ", "GRAPHICS GPCCLIENT_GCC",
     "RO_VIOLATION", "VIRT_WRITE"),
    ("PCI:0000:3b:00", "pid=22, name=sglang::schedul, ", "channel 0x00000014, intr 00000000. ",
     "GRAPHICS GPC3 GPCCLIENT_T1_4", "PTE", "VIRT_ATOMIC"),
    ("PCI:0000:3b:00", "pid=23, name=ray::IDLE, ", "Ch 00000009, intr 00000000. ", "GRAPHICS GPCCLIENT_T1_0", "PDE",
     "VIRT_ATOMIC_STRONG"),
    ("0000:03:00", "", "Ch 00000010, engmask 00000101, intr 10000000. ", "GRAPHICS GPCCLIENT_T1_3", "PDE", "READ"),
)  # fmt: skip


def line_of(form: tuple[str, ...], address: int, stamp: str = "[ 1451.785035] ") -> str:
    bus, process, channel, engine, fault, access = form
    at = f"{address >> 32:#x}_{address & 0xFFFFFFFF:08x}"
    return (
        f"{stamp}NVRM: Xid ({bus}): 31, {process}{channel}MMU Fault: ENGINE {engine} faulted @ {at}. "
        f"Fault is of type FAULT_{fault} ACCESS_TYPE_{access}"
    )


def test_there_are_twenty_forms() -> None:
    assert len(set(FORMS)) == 20


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_read_and_its_page_named(form: tuple[str, ...]) -> None:
    (xid,) = parse_kernel_log(line_of(form, END + 75_776)).xids
    assert (xid.code, xid.address, xid.fault) == (31, END + 75_776, f"FAULT_{form[4]}")
    assert xid.access == form[5].removeprefix("VIRT_")
    (line,), document = owner_of_fault(xid, [read_memory_map(encoded())])
    Contract("owner-v1").check({"schema": "vdbg-env/owner/v1", **(document or {})})
    assert f"page {END + 75_776:#x}: 75,776 bytes past the end of the key cache of layer 17" in line


def test_the_map_of_the_process_that_the_line_names_counts_alone() -> None:
    own = read_memory_map(encoded(process={"pid": 13, "rank": 1}))
    other = read_memory_map(encoded(process={"pid": 99, "rank": 0}, tensors=[]))
    (xid,) = parse_kernel_log(line_of(FORMS[4], KEYS)).xids
    (line,), _ = owner_of_fault(xid, [other, own])
    assert "key cache of layer 17" in line
    assert owner_of_fault(xid, []) == ((), None)


def test_a_finding_says_why_its_address_was_bad() -> None:
    log = parse_kernel_log(line_of(FORMS[0], WINDOW))
    (finding,) = kernel_log_findings(log, lambda xid: owner_of_fault(xid, [read_memory_map(encoded())]))
    assert finding.why == (
        f"Xid 31, read at page {WINDOW:#x}: inside rank 3's custom all-reduce data by the memory map; the access "
        "failed: that memory was freed or unmapped since",
    )
    assert finding.owner and finding.owner["region"]["rank"] == 3
    document = json.loads(report_json(replace(reports.FULL, findings=(finding,))))
    Contract("run-v1").check(document)
    assert document["findings"][0]["owner"] == finding.owner


def test_the_page_says_it_of_a_finding_without_a_source_line() -> None:
    log = parse_kernel_log(line_of(FORMS[0], WINDOW))
    findings = kernel_log_findings(log, lambda xid: owner_of_fault(xid, [read_memory_map(encoded())]))
    template = (SHIPPED_DATA / "templates" / "report.html.j2").read_text()
    page = pages.as_html(replace(reports.FULL, findings=tuple(findings)), template=template, style="")
    assert f"read at page {WINDOW:#x}: inside rank 3&#39;s custom all-reduce data" in page


def test_triage_of_a_log_with_nothing_but_the_line(tmp_path: Path) -> None:
    log, memory = tmp_path / "dmesg.log", tmp_path / "memory-map.json"
    log.write_text(line_of(FORMS[8], END + 96) + "\n")
    memory.write_text(json.dumps(memory_maps.document()))
    ran = vdbg_env("triage", str(log), "--memory-map", str(memory))
    assert ran.status == 3
    assert "96 bytes past the end of the key cache of layer 17" in ran.stdout
