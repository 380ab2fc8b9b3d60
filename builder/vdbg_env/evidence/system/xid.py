"""What the NVIDIA driver's Xid numbers mean, as a table.

Source: NVIDIA's "Xid Errors" guide (GPU deployment and management documents) and the kernel-log lines collected in
leptonai/gpud#46. `severity` says what to do first: `software` look at the program, `follow-up` look at the Xid before
it, `hardware` take the GPU out of use, `check` may be either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["software", "follow-up", "check", "hardware"]


@dataclass(frozen=True, kw_only=True)
class XidMeaning:
    """One Xid: its short name, how grave it is, and what to do about it."""

    code: int
    name: str
    severity: Severity
    action: str


_SOFTWARE = "the program's fault in nearly every case: find the kernel (vdbg-env runbook illegal-memory-access)"
_DRAIN = "take the GPU out of service, reset it when idle, and run dcgmi diag -r 3"

XIDS: dict[int, XidMeaning] = {
    meaning.code: meaning
    for meaning in (
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
        XidMeaning(code=144, name="NVLink: SAW error", severity="hardware", action="check the fabric; " + _DRAIN),
        XidMeaning(code=145, name="NVLink: RLW error", severity="check", action="see the peer GPU's Xid"),
        XidMeaning(code=154, name="recovery action changed", severity="follow-up", action="do what the line says"),
    )
}


def xid_meaning(code: int) -> XidMeaning:
    """Return what an Xid means; a number outside the table is worth a check."""
    unknown = XidMeaning(
        code=code, name="Xid not in the table", severity="check", action="look it up in NVIDIA's Xid guide"
    )
    return XIDS.get(code, unknown)
