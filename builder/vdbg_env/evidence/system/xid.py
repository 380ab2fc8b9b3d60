"""The meaning of the NVIDIA driver's Xid numbers, as a table.

Source: NVIDIA's "Xid Errors" guide with its catalog (GPU deployment and management documents) and the kernel-log lines
collected in leptonai/gpud#46. `severity` says what to do first: `software` look at the program, `follow-up` look at the
Xid before it, `hardware` take the GPU out of use, `check` may be either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["software", "follow-up", "check", "hardware"]


@dataclass(frozen=True, kw_only=True)
class XidMeaning:
    """One Xid: its short name, how severe it is, and what to do about it."""

    code: int
    name: str
    severity: Severity
    action: str


_SOFTWARE = "the program's fault in nearly every case: find the kernel (vdbg-env runbook illegal-memory-access)"
_DRAIN = "take the GPU out of service, reset it when idle, and run dcgmi diag -r 3"

_LINK = "see the peer GPU's Xid and nvidia-smi nvlink -e; check the fabric"
_NVLINK_UNITS = {144: "SAW", 145: "RLW", 146: "TLW", 147: "TREX", 148: "NVLPW_CTRL", 149: "NETIR", 150: "MSE"}

# What Xid 154 says the GPU needs, with what to do about it.
RECOVERY_ACTIONS = {
    "None": "the GPU needs no recovery",
    "GPU Reset Required": "stop what uses the GPU, then have an administrator reset it",
    "Node Reboot Required": "drain the node and reboot it",
    "Drain P2P": "stop the jobs that use this GPU's NVLink; the GPU can then be reset",
    "Drain and Reset": "let running work end, give the GPU no new work, then reset it",
}

XIDS: dict[int, XidMeaning] = {
    meaning.code: meaning
    for meaning in (
        XidMeaning(code=11, name="invalid push buffer stream", severity="software", action=_SOFTWARE),
        XidMeaning(code=12, name="driver error handling a GPU exception", severity="check", action="update the driver"),
        XidMeaning(code=44, name="fault during context switch", severity="check", action="update the driver"),
        XidMeaning(code=46, name="GPU stopped processing", severity="check", action="reset when idle"),
        XidMeaning(code=54, name="auxiliary power is not connected", severity="hardware", action="connect the power"),
        XidMeaning(code=56, name="display engine error", severity="check", action="update the driver"),
        XidMeaning(code=57, name="memory interface programming error", severity="hardware", action=_DRAIN),
        XidMeaning(code=58, name="memory interface is unstable", severity="hardware", action=_DRAIN),
        XidMeaning(code=66, name="illegal access by the driver", severity="check", action="update the driver"),
        XidMeaning(code=67, name="illegal access by the driver", severity="check", action="update the driver"),
        XidMeaning(code=8, name="GPU stopped processing", severity="software", action="a kernel ran past a time limit"),
        XidMeaning(code=13, name="graphics engine exception", severity="software", action=_SOFTWARE),
        XidMeaning(code=31, name="GPU memory page fault (MMU fault)", severity="software", action=_SOFTWARE),
        XidMeaning(code=32, name="corrupted push buffer stream", severity="check", action="check PCIe and the driver"),
        XidMeaning(code=38, name="driver firmware error", severity="check", action="update the driver"),
        XidMeaning(code=43, name="GPU stopped processing, channel reset", severity="software", action=_SOFTWARE),
        XidMeaning(
            code=45, name="preemptive cleanup of a channel", severity="follow-up", action="see the Xid before it"
        ),
        XidMeaning(code=48, name="double-bit ECC error", severity="hardware", action=_DRAIN),
        XidMeaning(code=61, name="internal micro-controller halt", severity="hardware", action=_DRAIN),
        XidMeaning(
            code=62, name="internal micro-controller halt (thermal or power)", severity="hardware", action=_DRAIN
        ),
        XidMeaning(
            code=63, name="row remapping or page retirement recorded", severity="check", action="reset when idle"
        ),
        XidMeaning(code=64, name="row remapping or page retirement failed", severity="hardware", action=_DRAIN),
        XidMeaning(code=68, name="video processor exception", severity="check", action="update the driver"),
        XidMeaning(code=69, name="graphics engine class error", severity="software", action=_SOFTWARE),
        XidMeaning(
            code=74, name="NVLink error", severity="hardware", action="check nvidia-smi nvlink -e and the fabric"
        ),
        XidMeaning(code=79, name="GPU has fallen off the bus", severity="hardware", action="power-cycle the machine"),
        XidMeaning(
            code=92, name="high rate of single-bit ECC errors", severity="check", action="watch it; reset when idle"
        ),
        XidMeaning(code=94, name="contained ECC error", severity="hardware", action="restart the program; " + _DRAIN),
        XidMeaning(code=95, name="uncontained ECC error", severity="hardware", action=_DRAIN),
        XidMeaning(
            code=109, name="context switch timeout", severity="software", action="a kernel hangs: runbook kernel-hang"
        ),
        XidMeaning(code=110, name="security fault", severity="hardware", action="power-cycle the machine"),
        XidMeaning(
            code=119, name="GSP RPC timeout", severity="hardware", action="reset the GPU; update driver and firmware"
        ),
        XidMeaning(code=120, name="GSP error", severity="hardware", action="reset the GPU; update driver and firmware"),
        XidMeaning(code=121, name="chip-to-chip link error", severity="hardware", action=_DRAIN),
        XidMeaning(code=136, name="NVLink bring-up failed", severity="hardware", action="check the fabric manager"),
        XidMeaning(
            code=137, name="NVLink fault passed on to a peer", severity="check", action="see the peer GPU's Xid"
        ),
        XidMeaning(code=140, name="unrecovered ECC error", severity="hardware", action=_DRAIN),
        XidMeaning(code=143, name="GPU initialisation failed", severity="hardware", action="power-cycle the machine"),
        *(
            XidMeaning(code=code, name=f"NVLink: {unit} error", severity="check", action=_LINK)
            for code, unit in _NVLINK_UNITS.items()
        ),
        XidMeaning(code=154, name="recovery action changed", severity="follow-up", action="do what the line says"),
        XidMeaning(code=155, name="NVLink: software-defined error", severity="check", action=_LINK),
        XidMeaning(code=156, name="resource retirement recorded", severity="check", action="reset when idle"),
        XidMeaning(code=157, name="resource retirement failed", severity="hardware", action=_DRAIN),
        XidMeaning(code=158, name="GPU fatal timeout", severity="hardware", action=_DRAIN),
        XidMeaning(code=159, name="chip-to-chip interface error", severity="hardware", action=_DRAIN),
        XidMeaning(code=160, name="channel retirement recorded", severity="check", action="reset when idle"),
        XidMeaning(code=161, name="channel retirement failed", severity="hardware", action=_DRAIN),
        XidMeaning(
            code=185,
            name="an event that driver branch 620 added",  # its row of the catalogue has not been seen
            severity="check",
            action="read the driver's own words for it: nvidia-smi event-log; look it up in NVIDIA's Xid catalogue",
        ),
    )
}


def xid_meaning(code: int) -> XidMeaning:
    """Return what an Xid means; a number outside the table is worth a check."""
    unknown = XidMeaning(
        code=code, name="Xid not in the table", severity="check", action="look it up in NVIDIA's Xid guide"
    )
    return XIDS.get(code, unknown)
