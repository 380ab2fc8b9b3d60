"""Reads the NVIDIA driver's lines in the kernel log: Xid reports old and new, and its other errors.

Old drivers give no `pid=` and `name=`; addresses carry an underscore (`0x7f29_5b8c9000`); the pid is the host's, not
the container's. Stamps are `[seconds]`, `[Fri Aug 30 11:43:09 2024]` or the journal's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.logs.log_line import plain
from vdbg_env.evidence.system.xid import XidMeaning, xid_meaning


@dataclass(frozen=True, kw_only=True)
class Xid:
    """One Xid line; `pid` is the host's and None where the driver says <unknown> or nothing."""

    code: int
    bus: str
    line: int
    pid: int | None = None
    process: str | None = None
    channel: str | None = None
    address: int | None = None
    fault: str | None = None
    text: str = ""

    @property
    def meaning(self) -> XidMeaning:
        return xid_meaning(self.code)


@dataclass(frozen=True, kw_only=True)
class KernelLog:
    """What the kernel log says of NVIDIA's driver: Xids in order, other errors, and processes ended for memory."""

    xids: tuple[Xid, ...] = ()
    driver_errors: tuple[tuple[int, str], ...] = ()
    killed_for_memory: tuple[tuple[int, str], ...] = ()

    @property
    def root(self) -> Xid | None:
        """The Xid to look at first: hardware before software, and follow-ups only when nothing else is there."""
        order = {"hardware": 0, "check": 1, "software": 1, "follow-up": 2}
        return min(self.xids, key=lambda x: (order[x.meaning.severity], x.line), default=None)


_XID = re.compile(r"NVRM: (?:GPU at \S+: )?Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+)(?:, (.*))?$")
_BOOT_STAMP = re.compile(r"(?:<\d{1,3}>)?\[ {0,12}(\d{1,12}\.\d{1,9})\]")
_PID = re.compile(r"pid='?(\d+|<unknown>)'?")
_NAME = re.compile(r"name=([^,]+)")
_CHANNEL = re.compile(r"\b(?:Ch|channel) (?:0x)?([0-9a-fA-F]{1,16})\b")
_FAULT_ADDRESS = re.compile(r"faulted @ 0x([0-9a-fA-F_]+)")
_FAULT_TYPE = re.compile(r"Fault is of type (\w+)")
_OTHER = re.compile(
    r"NVRM: (?!.*Xid).*(?:failed|error|mismatch|fallen off|RmInitAdapter|API mismatch|GPU .* lost|not supported)",
    re.IGNORECASE,
)
_OOM_KILL = re.compile(r"(?:Out of memory|Memory cgroup out of memory): Killed process (\d+) \(([^)]{1,64})\)")


def parse_kernel_log(text: str) -> KernelLog:
    """Return what `text` (dmesg, journalctl -k, a serial console) says; other lines are passed over."""
    xids: list[Xid] = []
    others: list[tuple[int, str]] = []
    killed: list[tuple[int, str]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = plain(raw)
        if match := _XID.search(line):
            xids.append(_xid(match, number, line))
        elif match := _OOM_KILL.search(line):
            killed.append((int(match[1]), match[2]))
        elif match := _OTHER.search(line):
            others.append((number, line[match.start() :].strip()))
    return KernelLog(xids=tuple(xids), driver_errors=tuple(others), killed_for_memory=tuple(killed))


def split_at(text: str, boot_s: float) -> tuple[str, str]:
    """Return the kernel log before and from a moment, in seconds since the machine's start as its stamps tell them.

    A line without such a stamp belongs to the one before it; what comes before the first stamp is old.
    """
    before: list[str] = []
    after: list[str] = []
    part = before
    for line in text.splitlines(keepends=True):
        if stamp := _BOOT_STAMP.match(line):
            part = after if float(stamp[1]) >= boot_s else before
        part.append(line)
    return "".join(before), "".join(after)


def kernel_log_findings(log: KernelLog) -> tuple[Finding, ...]:
    """Return one finding per distinct Xid and GPU (follow-ups left out where their cause is there), then the rest."""
    seen: dict[tuple[int, str], Xid] = {}
    for xid in log.xids:
        seen.setdefault((xid.code, xid.bus), xid)
    causes = [x for x in seen.values() if x.meaning.severity != "follow-up"] or list(seen.values())
    findings = [_xid_finding(xid) for xid in causes]
    findings += [
        Finding(
            rule="kernel-log-driver-error",
            level=Level.WARNING,
            message=text,
            how_known=HowKnown.KERNEL_LOG,
            confidence=0.6,
            next_step="vdbg-env doctor",
        )
        for _, text in log.driver_errors[:5]
    ]
    findings += [
        Finding(
            rule="kernel-log-oom-kill",
            level=Level.ERROR,
            message=f"the kernel ended process {pid} ({name}) because the machine or its cgroup ran out of memory",
            how_known=HowKnown.KERNEL_LOG,
            confidence=0.95,
            next_step="raise the memory limit of the container, or load the model with less host memory",
        )
        for pid, name in log.killed_for_memory[:5]
    ]
    return tuple(findings)


def _xid_finding(xid: Xid) -> Finding:
    meaning = xid.meaning
    who = f" of process {xid.pid} ({xid.process})" if xid.pid else ""
    fault = f", {xid.fault} at {xid.address:#x}" if xid.fault and xid.address is not None else ""
    return Finding(
        rule=f"xid-{xid.code}",
        level=Level.WARNING if meaning.severity == "follow-up" else Level.ERROR,
        message=f"Xid {xid.code} on {xid.bus}{who}: {meaning.name}{fault}",
        how_known=HowKnown.KERNEL_LOG,
        confidence=0.9 if meaning.severity == "hardware" else 0.8,
        next_step=meaning.action,
    )


def _xid(match: re.Match[str], number: int, line: str) -> Xid:
    rest = match[3] or ""
    pid, name, channel = _PID.search(rest), _NAME.search(rest), _CHANNEL.search(rest)
    address, fault = _FAULT_ADDRESS.search(rest), _FAULT_TYPE.search(rest)
    process = name[1].strip() if name else None
    return Xid(
        code=int(match[2][:6]),
        bus=match[1],
        line=number,
        pid=int(pid[1]) if pid and pid[1].isdigit() else None,
        process=None if process == "<unknown>" else process,
        channel=channel[1] if channel else None,
        address=int(address[1].replace("_", "") or "0", 16) if address else None,
        fault=fault[1] if fault else None,
        text=line[match.start() :],
    )
