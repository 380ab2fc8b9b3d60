"""Read the NVIDIA driver's lines in the kernel log: Xid reports old and new, and its other errors.

Old drivers give no `pid=` and `name=`; addresses carry an underscore (`0x7f29_5b8c9000`); the pid is the host's, not
the container's. With MIG the GPU instance follows the bus address (`PCI:0000:01:00 GPU-I:05`). Stamps are `[seconds]`,
`[Fri Aug 30 11:43:09 2024]` or the journal's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.logs.log_line import plain
from vdbg_env.evidence.system.xid import RECOVERY_ACTIONS, Severity, XidMeaning, xid_meaning


@dataclass(frozen=True, kw_only=True)
class NvlinkError:
    """The unit of the link that an NVLink Xid (144 to 150) names, the link's number, and whether it is fatal."""

    unit: str
    link: int
    fatal: bool


@dataclass(frozen=True, kw_only=True)
class Xid:
    """One Xid line; `pid` is the host's and None where the driver prints <unknown> or nothing.

    `instance` is the GPU instance with MIG, `caused_by` the Xid that the driver names as the cause, `recovery` the
    action that an Xid 154 asks for.
    """

    code: int
    bus: str
    line: int
    pid: int | None = None
    process: str | None = None
    channel: str | None = None
    address: int | None = None
    fault: str | None = None
    text: str = ""
    instance: int | None = None
    caused_by: int | None = None
    nvlink: NvlinkError | None = None
    recovery: str | None = None

    @property
    def meaning(self) -> XidMeaning:
        return xid_meaning(self.code)

    @property
    def severity(self) -> Severity:
        """That of its number, unless the line itself says more."""
        if self.caused_by is not None:
            return "follow-up"
        return "hardware" if self.nvlink and self.nvlink.fatal else self.meaning.severity


@dataclass(frozen=True, kw_only=True)
class KernelLog:
    """The kernel log's lines of NVIDIA's driver: Xids in order, other errors, and OOM-killed processes."""

    xids: tuple[Xid, ...] = ()
    driver_errors: tuple[tuple[int, str], ...] = ()
    killed_for_memory: tuple[tuple[int, str], ...] = ()
    killed_by_limit: frozenset[int] = frozenset()  # those of them that the limit of a memory cgroup ended

    @property
    def of_the_machine(self) -> KernelLog:
        """The same without what the limit of a memory cgroup ended, a container's mostly: the machine was not short."""
        kept = tuple(one for one in self.killed_for_memory if one[0] not in self.killed_by_limit)
        return replace(self, killed_for_memory=kept)

    @property
    def root(self) -> Xid | None:
        """The Xid to look at first: hardware before software, and follow-ups only when nothing else is there."""
        order = {"hardware": 0, "check": 1, "software": 1, "follow-up": 2}
        return min(self.xids, key=lambda x: (order[x.severity], x.line), default=None)


_XID = re.compile(r"NVRM: (?:GPU at \S+: )?Xid \((?:PCI:)?([0-9A-Fa-f:.]+)(?: GPU-I:(\d+))?\): (\d+)(?:, (.*))?$")
_CAUSED_BY = re.compile(r"caused by previous Xid (\d{1,6})")
_NVLINK = re.compile(r"(?P<unit>[A-Z][\w/]+)\s+(?P<fatal>Fatal|Nonfatal)\s.*?\bLink (?P<link>-?\d{1,4})")
_RECOVERY = re.compile(r"recovery action changed from .* to 0x[0-9a-fA-F]+ \(([^)]+)\)")
_BOOT_STAMP = re.compile(r"(?:<\d{1,3}>)?\[ {0,12}(\d{1,12}\.\d{1,9})\]")
_PID = re.compile(r"pid='?(\d+|<unknown>)'?")
_NAME = re.compile(r"name=([^,]+)")
_CHANNEL = re.compile(r"\b(?:Ch|[Cc]hannel(?: ID)?)[: ] ?(?:0x)?([0-9a-fA-F]{1,16})\b")
_FAULT_ADDRESS = re.compile(r"faulted @ 0x([0-9a-fA-F_]+)")
_FAULT_TYPE = re.compile(r"Fault is of type (\w+)")
_OTHER = re.compile(
    r"NVRM: (?!.*Xid).*(?:failed|error|mismatch|fallen off|RmInitAdapter|API mismatch|GPU .* lost|not supported)",
    re.IGNORECASE,
)
_OOM_KILL = re.compile(r"(?:Out of memory|Memory cgroup out of memory): Killed process (\d+) \(([^)]{1,64})\)")


def parse_kernel_log(text: str) -> KernelLog:
    """Return the content of `text` (dmesg, journalctl -k, a serial console); other lines are passed over."""
    xids: list[Xid] = []
    others: list[tuple[int, str]] = []
    killed: list[tuple[int, str]] = []
    by_limit: set[int] = set()
    for number, raw in enumerate(text.splitlines(), 1):
        line = plain(raw)
        if match := _XID.search(line):
            xids.append(_xid(match, number, line))
        elif match := _OOM_KILL.search(line):
            killed.append((int(match[1]), match[2]))
            by_limit |= {int(match[1])} if match[0].startswith("Memory cgroup") else set()
        elif match := _OTHER.search(line):
            others.append((number, line[match.start() :].strip()))
    return KernelLog(
        xids=tuple(xids),
        driver_errors=tuple(others),
        killed_for_memory=tuple(killed),
        killed_by_limit=frozenset(by_limit),
    )


def split_at(text: str, boot_s: float) -> tuple[str, str]:
    """Return the kernel log before and from a moment, in seconds since the machine's start by its stamps.

    A line without such a stamp belongs to the one before it; lines before the first stamp are old.
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
    """Return one finding per distinct Xid and GPU, then the rest.

    A follow-up is left out if its cause is there, except for one that says what recovery the GPU needs.
    """
    seen: dict[tuple[int, str, int | None], Xid] = {}
    for xid in log.xids:
        key = (xid.code, xid.bus, xid.instance)
        known = seen.get(key)
        graver = known is None or (xid.severity == "hardware" and known.severity != "hardware")
        if graver or xid.recovery:  # of the recovery actions the last one counts
            seen[key] = xid
    causes = [x for x in seen.values() if x.severity != "follow-up"] or list(seen.values())
    causes += [x for x in seen.values() if x.recovery not in {None, "None"} and x not in causes]
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
            # The log is the whole machine's: other containers' processes are in it, under numbers of another namespace.
            # Whether one was the workload's, its cgroup and its end say (`memory_kill`).
            level=Level.WARNING,
            message=f"the kernel ended process {pid} ({name}) because the machine or its cgroup ran out of memory",
            how_known=HowKnown.KERNEL_LOG,
            confidence=0.4,
            next_step="raise the memory limit of the container, or load the model with less host memory",
        )
        for pid, name in log.killed_for_memory[:5]
    ]
    return tuple(findings)


def _xid_finding(xid: Xid) -> Finding:
    meaning = xid.meaning
    who = f" of process {xid.pid} ({xid.process})" if xid.pid else ""
    fault = f", {xid.fault} at {xid.address:#x}" if xid.fault and xid.address is not None else ""
    if xid.nvlink:
        fatal = "fatal" if xid.nvlink.fatal else "not fatal"
        fault = f", {xid.nvlink.unit} on link {xid.nvlink.link} ({fatal})"
    if xid.recovery:
        fault = f", the GPU needs: {xid.recovery}"
    instance = f" GPU instance {xid.instance}" if xid.instance is not None else ""
    return Finding(
        rule=f"xid-{xid.code}",
        level=Level.WARNING if xid.severity == "follow-up" else Level.ERROR,
        message=f"Xid {xid.code} on {xid.bus}{instance}{who}: {meaning.name}{fault}",
        how_known=HowKnown.KERNEL_LOG,
        confidence=0.9 if xid.severity == "hardware" else 0.8,
        next_step=RECOVERY_ACTIONS.get(xid.recovery, meaning.action) if xid.recovery else meaning.action,
    )


def _xid(match: re.Match[str], number: int, line: str) -> Xid:
    rest = match[4] or ""
    caused_by, recovery, nvlink = _CAUSED_BY.search(rest), _RECOVERY.search(rest), _NVLINK.search(rest)
    pid, name, channel = _PID.search(rest), _NAME.search(rest), _CHANNEL.search(rest)
    address, fault = _FAULT_ADDRESS.search(rest), _FAULT_TYPE.search(rest)
    process = name[1].strip() if name else None
    return Xid(
        code=int(match[3][:6]),
        bus=match[1],
        line=number,
        pid=int(pid[1]) if pid and pid[1].isdigit() else None,
        process=None if process == "<unknown>" else process,
        channel=channel[1] if channel else None,
        address=int(address[1].replace("_", "") or "0", 16) if address else None,
        fault=fault[1] if fault else None,
        text=line[match.start() :],
        instance=int(match[2]) if match[2] else None,
        caused_by=int(caused_by[1]) if caused_by else None,
        nvlink=NvlinkError(unit=nvlink["unit"], link=int(nvlink["link"]), fatal=nvlink["fatal"] == "Fatal")
        if nvlink
        else None,
        recovery=recovery[1] if recovery else None,
    )
