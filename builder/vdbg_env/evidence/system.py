"""Read what the kernel and the driver say: Xid reports, other driver errors, memory kills, starts that failed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from gpucore.arming import GENERATION_FLAGS
from gpucore.mangling import demangle, short_name
from vdbg_env.common.console import counted
from vdbg_env.evidence.finding import EndedBy, Finding, HowKnown, Level, NextStep, Observation
from vdbg_env.evidence.log_line import LogLine, plain

Severity = Literal["software", "follow-up", "check", "hardware"]


@dataclass(frozen=True, kw_only=True)
class XidMeaning:
    """One Xid: its short name, how severe it is, and what to do about it."""

    code: int
    name: str
    severity: Severity
    action: str


FIND_THE_KERNEL = "the program's fault in nearly every case: find the kernel (vdbg-env runbook illegal-memory-access)"
_DRAIN = "take the GPU out of service, reset it when idle, and run dcgmi diag -r 3"

_LINK = "see the peer GPU's Xid and nvidia-smi nvlink -e; check the fabric"
_NVLINK_UNITS = {144: "SAW", 145: "RLW", 146: "TLW", 147: "TREX", 148: "NVLPW_CTRL", 149: "NETIR", 150: "MSE"}

_COMPARE = NextStep("compare the time of the line (dmesg -T) with that of this run's failure")

# What Xid 154 says the GPU needs, with what to do about it.
_MORE_MEMORY = NextStep("raise the memory limit of the container, or load the model with less host memory")
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
        XidMeaning(code=11, name="invalid push buffer stream", severity="software", action=FIND_THE_KERNEL),
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
        XidMeaning(code=13, name="graphics engine exception", severity="software", action=FIND_THE_KERNEL),
        XidMeaning(code=31, name="GPU memory page fault (MMU fault)", severity="software", action=FIND_THE_KERNEL),
        XidMeaning(code=32, name="corrupted push buffer stream", severity="check", action="check PCIe and the driver"),
        XidMeaning(code=38, name="driver firmware error", severity="check", action="update the driver"),
        XidMeaning(code=43, name="GPU stopped processing, channel reset", severity="software", action=FIND_THE_KERNEL),
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
        XidMeaning(code=69, name="graphics engine class error", severity="software", action=FIND_THE_KERNEL),
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


# Read the NVIDIA driver's lines in the kernel log: Xid reports old and new, and its other errors.
#
# Old drivers give no `pid=` and `name=`; addresses carry an underscore (`0x7f29_5b8c9000`); the pid is the host's, not
# the container's. With MIG the GPU instance follows the bus address (`PCI:0000:01:00 GPU-I:05`). Stamps are
# `[seconds]`, `[Fri Aug 30 11:43:09 2024]` or the journal's.


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
    action that an Xid 154 asks for. `address` is that of a page, `access` what the GPU wanted there: read, write ...
    """

    code: int
    bus: str
    line: int
    pid: int | None = None
    process: str | None = None
    channel: str | None = None
    address: int | None = None
    fault: str | None = None
    access: str | None = None
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


OwnerOf: TypeAlias = Callable[[Xid], tuple[tuple[str, ...], Mapping[str, Any] | None]]

_XID = re.compile(r"NVRM: (?:GPU at \S+: )?Xid \((?:PCI:)?([0-9A-Fa-f:.]+)(?: GPU-I:(\d+))?\): (\d+)(?:, (.*))?$")
_CAUSED_BY = re.compile(r"caused by previous Xid (\d{1,6})")
_NVLINK = re.compile(r"(?P<unit>[A-Z][\w/]+)\s+(?P<fatal>Fatal|Nonfatal)\s.*?\bLink (?P<link>-?\d{1,4})")
_RECOVERY = re.compile(r"recovery action changed from .* to 0x[0-9a-fA-F]+ \(([^)]+)\)")
_BOOT_STAMP = re.compile(r"(?:<\d{1,3}>)?\[ {0,12}(\d{1,12}\.\d{1,9})\]")
_PID = re.compile(r"pid='?(\d+|<unknown>)'?")
_NAME = re.compile(r"name=([^,]+)")
_CHANNEL = re.compile(r"\b(?:Ch|[Cc]hannel(?: ID)?)[: ] ?(?:0x)?([0-9a-fA-F]{1,16})\b")
_FAULT_ADDRESS = re.compile(r"faulted @ 0x([0-9a-fA-F_]+)")
_FAULT_TYPE = re.compile(r"Fault is of type (\w+)(?:\s+ACCESS_TYPE_(?:VIRT_|PHYS_)?(\w+))?")
# What driver 580 prints on an H100 for every process that is armed for core dumps. The address beside it is none: with
# a known truth it was 0x1827..., 0x1867... or 0, where unarmed processes had the very page, and FAULT_PDE.
_NOT_TOLD = "UNRECOGNIZED_FAULT"
_WARP = re.compile(r"SM Warp Exception on \([^)]{1,60}\): (\w[\w /-]{0,60})")
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


def kernel_log_findings(
    log: KernelLog, owner: OwnerOf = lambda _: ((), None), *, numbers_known: bool = True, others: bool = False
) -> tuple[Finding, ...]:
    """Return one finding per distinct Xid and GPU, then the rest; `owner` says whose memory its address is.

    Without `numbers_known` the log counts processes otherwise than the run, as outside of a container. With `others` it
    has lines of programs of other runs too, so one that names no process may be theirs.
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
    findings = []
    for xid in causes:
        lines, document = owner(xid)
        findings.append(replace(_xid_finding(xid, numbers_known, others), why=lines, owner=document))
    findings += [
        Finding(
            rule="kernel-log-driver-error",
            level=Level.WARNING,
            message=text,
            how_known=HowKnown.KERNEL_LOG,
            confidence=0.6,
            next_step=NextStep("", "vdbg-env doctor"),
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
            next_step=_MORE_MEMORY,
        )
        for pid, name in log.killed_for_memory[:5]
    ]
    return tuple(findings)


def _xid_finding(xid: Xid, numbers_known: bool, others: bool) -> Finding:
    meaning = xid.meaning
    who = f" of process {xid.pid} ({xid.process})" if xid.pid else ""
    # About any program of the GPU, it may be: what the workload itself says goes before it.
    anyones = xid.severity in {"software", "follow-up"} and not (xid.pid and numbers_known)
    if xid.pid and anyones:
        who += ", in this run or another: process numbers are not comparable here"
    unclaimed = anyones and others and not xid.pid
    if unclaimed:
        who = ", which names no process and may be of another program that faulted at the time"
    fault = f", {xid.fault}{f' at {xid.address:#x}' if xid.address is not None else ''}" if xid.fault else ""
    if xid.nvlink:
        fatal = "fatal" if xid.nvlink.fatal else "not fatal"
        fault = f", {xid.nvlink.unit} on link {xid.nvlink.link} ({fatal})"
    if xid.recovery:
        fault = f", the GPU needs: {xid.recovery}"
    instance = f" GPU instance {xid.instance}" if xid.instance is not None else ""
    return Finding(
        rule=f"xid-{xid.code}",
        level=Level.WARNING if xid.severity == "follow-up" or unclaimed else Level.ERROR,
        message=f"Xid {xid.code} on {xid.bus}{instance}{who}: {meaning.name}{fault}",
        how_known=HowKnown.KERNEL_LOG,
        confidence=0.9 if xid.severity == "hardware" else 0.4 if unclaimed else 0.6 if anyones else 0.8,
        next_step=_COMPARE if unclaimed else NextStep(RECOVERY_ACTIONS.get(xid.recovery or "", meaning.action)),
    )


def _xid(match: re.Match[str], number: int, line: str) -> Xid:
    rest = match[4] or ""
    caused_by, recovery, nvlink = _CAUSED_BY.search(rest), _RECOVERY.search(rest), _NVLINK.search(rest)
    pid, name, channel = _PID.search(rest), _NAME.search(rest), _CHANNEL.search(rest)
    address, fault, warp = _FAULT_ADDRESS.search(rest), _FAULT_TYPE.search(rest), _WARP.search(rest)
    if fault and fault[1] == _NOT_TOLD:
        address = fault = None
    process = name[1].strip() if name else None
    return Xid(
        code=int(match[3][:6]),
        bus=match[1],
        line=number,
        pid=int(pid[1]) if pid and pid[1].isdigit() else None,
        process=None if process == "<unknown>" else process,
        channel=channel[1] if channel else None,
        address=int(address[1].replace("_", "") or "0", 16) if address else None,
        fault=fault[1] if fault else warp[1] if warp else None,
        access=fault[2] if fault else None,
        text=line[match.start() :],
        instance=int(match[2]) if match[2] else None,
        caused_by=int(caused_by[1]) if caused_by else None,
        nvlink=NvlinkError(unit=nvlink["unit"], link=int(nvlink["link"]), fatal=nvlink["fatal"] == "Fatal")
        if nvlink
        else None,
        recovery=recovery[1] if recovery else None,
    )


# Reads out of how attempts ended whether the kernel took memory back from them: no log need say so.


_SIGKILL = 9
_STATUS = 128 + _SIGKILL  # what a shell gives for a child that SIGKILL ended


def memory_kill_findings(observations: Sequence[Observation]) -> tuple[Finding, ...]:
    """Return one finding for the attempt that says most of it; none when nothing points to a lack of memory.

    The kernel's log names the processes, where it can be read. Its counters name none: those of the step's cgroup are
    sure enough where the log is closed, as in a container, which has a cgroup for itself; those of the whole machine
    are only when a process of the step was ended as the kernel ends them.
    """
    found = (finding for seen in observations if (finding := _finding(seen)))
    return tuple(sorted(found, key=lambda finding: -finding.confidence)[:1])


def _finding(seen: Observation) -> Finding | None:
    kills, killed = seen.memory_kills, _was_killed(seen)
    if kills.processes:
        return _told(Level.ERROR, 0.97, f"the kernel OOM-killed {', '.join(kills.processes)} of this step")
    if kills.cgroup and kills.processes is not None:
        what = f"the kernel OOM-killed {_processes(kills.cgroup)} of the cgroup that this step is in"
        return _told(Level.WARNING, 0.5, f"{what}; its log names none of this step's")
    if kills.cgroup:
        return _told(Level.ERROR, 0.95, f"the kernel OOM-killed {_processes(kills.cgroup)} of this step's cgroup")
    if kills.machine and killed and kills.processes is None:
        return _told(Level.ERROR, 0.85, "the kernel OOM-killed a process of this step")
    if kills.machine and kills.processes is None:
        return _told(
            Level.WARNING,
            0.5,
            f"while this step ran, the kernel OOM-killed {_processes(kills.machine)} of this machine; "
            "it need not have been the workload",
        )
    if killed:
        return _told(
            Level.WARNING,
            0.4,
            "the workload was ended by a SIGKILL that is not ours: mostly the limit of a cluster or of a service that "
            "guards the memory",
        )
    return None


def _was_killed(seen: Observation) -> bool:
    """Whether the first process ended by SIGKILL, or gave the status of a child that did, and not through us."""
    ended = seen.ended
    by_signal = ended.by is EndedBy.SIGNAL and ended.signal == _SIGKILL
    return by_signal or (ended.by is EndedBy.EXIT and ended.code == _STATUS)


def _processes(count: int) -> str:
    return "a process" if count == 1 else f"{count} processes"


def _told(level: Level, confidence: float, message: str) -> Finding:
    return Finding(
        rule="memory-kill",
        level=level,
        message=message,
        how_known=HowKnown.HOST_CHECK,
        confidence=confidence,
        next_step=_MORE_MEMORY,
    )


# Says that the command of a step could not be started: nothing of what was looked for can have been seen.


NOT_STARTED: Final = "not-started"
_UNDRIVEN: Final = "no request could be sent"  # as the supervisor words it
_TAKEN: Final = re.compile(r"port \d+ is taken: |no request could be sent: the server at \S+ is not proven")
_NO_SCRATCH: Final = "--scratch cannot be used"  # as a rank words it


def not_started_findings(observations: Sequence[Observation]) -> tuple[Finding, ...]:
    """Return one finding with the system's message when an attempt could not be started, else none."""
    refused = next((seen for seen in observations if seen.ended.by is EndedBy.NOT_STARTED), None)
    if refused is None:
        return ()
    return (
        Finding(
            rule=NOT_STARTED,
            level=Level.WARNING,
            message=_message(refused.ended.message or "no reason was given"),
            how_known=HowKnown.HOST_CHECK,
            confidence=1.0,
            next_step=NextStep(_way_out(refused.ended.message or "")),
        ),
    )


def _message(why: str) -> str:
    return (
        why
        if why.startswith((_UNDRIVEN, _NO_SCRATCH)) or _TAKEN.match(why)
        else f"the command could not be started: {why}"
    )


def _way_out(why: str) -> str:
    if _TAKEN.match(why):
        return (
            "leave that server alone and give the step's own a free port: -i port=auto; requests go only to a process "
            "that COMMAND started on this machine"
        )
    if why.startswith(_UNDRIVEN):
        return "name the server and the requests: -i url=http://HOST:PORT -i request=FILE"
    if why.startswith(_NO_SCRATCH):
        return "name a folder that each node has and that this user may write in, as in --scratch /tmp"
    if "Permission denied" in why:
        return "make the program executable (chmod +x), or start it by its interpreter: python3 FILE"
    if "Exec format error" in why:
        return "compare what `file PROGRAM` and `uname -m` print: a program of another machine cannot run on this one"
    return (
        "check the path or activate its environment; `runbook --image` runs it where only an image has it, and a "
        "container sees its image and what --mount names"
    )


# What the CUDA driver prints while it writes a GPU core dump (CUDA_COREDUMP_SHOW_PROGRESS=1). Shapes: the cuda-gdb
# manual's "GPU core dump support" and the vLLM posts of August and December 2025. The time stamp is absent on older
# drivers, the case of the lane masks differs, and any process label may precede a line.


@dataclass(frozen=True, kw_only=True)
class DriverFrame:
    """One row of the driver's stack trace; `function` is mangled as the driver prints it."""

    level: int
    pc: int
    function: str


@dataclass(frozen=True, kw_only=True)
class DriverException:
    """One exception the driver saw. `warp_exited`: it was detected after the warp had left, so there is no stack."""

    name: str
    code: int
    line: int
    process: str | None = None
    rank: int | None = None
    device: int | None = None
    sm: int | None = None
    warp: int | None = None
    warp_exited: bool = False
    pc: int | None = None
    active_lanes: int | None = None
    valid_lanes: int | None = None
    stack: tuple[DriverFrame, ...] = ()

    @property
    def kernel(self) -> str | None:
        """The outermost function of the stack, mangled; None when the warp had exited."""
        return self.stack[-1].function if self.stack else None


@dataclass(frozen=True, kw_only=True)
class DriverProgress:
    """All core-dump progress of one log: exceptions in order, files named, dumps finished, flags the driver refused.

    `begun`: the driver said that a dump begins. It says no more while CUDA_COREDUMP_SHOW_PROGRESS is off. `silent`: it
    was on, and nothing followed. `at_constants`: a dump ended at the constant banks.
    """

    exceptions: tuple[DriverException, ...] = ()
    files: tuple[str, ...] = ()
    finished: int = 0
    unknown_flags: tuple[str, ...] = ()
    valid_flags: tuple[str, ...] = ()
    begun: bool = False
    silent: bool = False
    at_constants: bool = False

    @property
    def cut_short(self) -> bool:
        """Whether fewer dumps were finished than begun: the process was killed, or the driver gave up."""
        return len(self.files) > self.finished


_BEGUN = "Starting GPU coredump generation"
_LINE = re.compile(r"(?:\[\d\d:\d\d:\d\d\.\d+\] )?coredump:(.*)")
_EXCEPTION = re.compile(r"\s*Detected an exception of type (\w+) \((\d+)\)")
_PLACE = re.compile(r"\s*- (Device|SM|Warp): (.*)")
_PC = re.compile(r"\s*- PC:? (0x[0-9a-fA-F]+)")
_MASKS = re.compile(r"\s*Stack trace \(lane masks: active (0x[0-9a-fA-F]+), valid (0x[0-9a-fA-F]+)\)")
_FRAME = re.compile(r"\s*#(\d+)\s+(0x[0-9a-fA-F]+)\s+(\S.*)")
_FILE = re.compile(r"\s*Writing ELF file to (.+)")
_MEMORY = re.compile(r"\s*Writing out global memory \((\d+) bytes\)")
_PAGE = 2 << 20  # global memory is written in whole pages; what is no multiple of one is constant banks
_UNKNOWN_FLAG = re.compile(r"Ignoring unknown coredump flag '([^']*)'")
_VALID_FLAGS = re.compile(r"Valid flags are: (\w+(?:, \w+)*)")


@dataclass
class _Reader:
    """Takes lines; exceptions are kept per process label, since several ranks may write into one log at once."""

    done: list[DriverException] = field(default_factory=list)
    current: dict[tuple[str | None, int | None], int] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    finished: int = 0
    unknown: list[str] = field(default_factory=list)
    valid: tuple[str, ...] = ()
    begun: bool = False
    silent: bool = False
    memory: dict[tuple[str | None, int | None], int] = field(default_factory=dict)  # what is being written

    def take(self, number: int, line: LogLine) -> None:
        if flag := _UNKNOWN_FLAG.search(line.text):
            self.unknown.append(flag[1])
        if flags := _VALID_FLAGS.search(line.text):
            self.valid = tuple(flags[1].split(", "))
        self.begun |= _BEGUN in line.text
        match = _LINE.search(line.text)
        if match is None:
            return
        said = match[1]
        self.silent = _BEGUN in said
        who = (line.process, line.pid)
        if found := _EXCEPTION.match(said):
            self.current[who] = len(self.done)
            self.done.append(
                DriverException(name=found[1], code=int(found[2]), line=number, process=line.process, rank=line.rank)
            )
        elif found := _FILE.match(said):
            self.files.append(found[1].strip())
        elif found := _MEMORY.match(said):
            self.memory[who] = int(found[1])
        elif said.lstrip().startswith("Writing out device table"):
            self.memory.pop(who, None)
        elif said.lstrip().startswith("All done"):
            self.finished += 1
        elif who in self.current:
            index = self.current[who]
            self.done[index] = _with_detail(self.done[index], said)


def read_driver_progress(lines: Iterable[LogLine]) -> DriverProgress:
    """Return the content of the driver's `coredump:` lines; other lines are passed over."""
    reader = _Reader()
    for number, line in enumerate(lines, 1):
        reader.take(number, line)
    return DriverProgress(
        exceptions=tuple(reader.done),
        files=tuple(dict.fromkeys(reader.files)),
        finished=reader.finished,
        unknown_flags=tuple(dict.fromkeys(reader.unknown)),
        valid_flags=reader.valid,
        begun=reader.begun,
        silent=reader.silent,
        at_constants=any(size % _PAGE for size in reader.memory.values()),
    )


def driver_findings(progress: DriverProgress) -> tuple[Finding, ...]:
    """Return one finding per exception, a note where a dump was cut short, and one for flags the driver refused."""
    unread = progress.cut_short and not progress.finished
    findings = [_exception_finding(exception, dumped=not unread) for exception in progress.exceptions]
    if progress.begun and not findings:
        findings.append(_UNNAMED if progress.files else _never_named(silent=progress.silent))
    if progress.cut_short:
        why = ": the driver gave up at the constant banks" if progress.at_constants else ""
        findings.append(
            Finding(
                rule="driver-dump-cut-short",
                level=Level.WARNING,
                message=f"{progress.finished} of {counted(len(progress.files), 'GPU core dump')} finished{why}",
                how_known=HowKnown.DRIVER,
                confidence=0.8,
                artifact=progress.files[-1],
                next_step=_NO_CONSTANTS if progress.at_constants else _LEAST,
            )
        )
    if progress.unknown_flags:
        findings.append(
            Finding(
                rule="driver-unknown-coredump-flag",
                level=Level.WARNING,
                message=f"this driver does not know these core-dump flags: {', '.join(progress.unknown_flags)}",
                how_known=HowKnown.DRIVER,
                confidence=1.0,
                next_step=NextStep(
                    "keep to the flags it lists: " + ",".join(progress.valid_flags)
                    if progress.valid_flags
                    else "leave the flag out, or update the driver"
                ),
            )
        )
    return tuple(findings)


_READ: Final = NextStep("read the dump", "vdbg-env core FILE")
# Driver 580 names no exception where a dump was asked for, and none where the code trapped.
_UNNAMED: Final = Finding(
    rule="driver-dump-without-exception",
    level=Level.WARNING,
    message="the driver made a core dump and named no exception: it was asked for, or the code trapped",
    how_known=HowKnown.DRIVER,
    confidence=0.5,
    next_step=_READ,
)
_NO_DUMP: Final = NextStep("find the access without a dump", "compute-sanitizer --tool memcheck COMMAND")
_LEAST: Final = NextStep(
    "ask for the smallest core, which is written soonest (guard --core light, runbook -i core_size=light); where the "
    "process was killed meanwhile, give it longer (VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS=300)",
    f"CUDA_COREDUMP_GENERATION_FLAGS={','.join(GENERATION_FLAGS['light'])}",
)
_NO_CONSTANTS: Final = NextStep(
    "leave constant banks out: the arguments are kept without them",
    f"CUDA_COREDUMP_GENERATION_FLAGS={','.join(GENERATION_FLAGS['default'])}",
)


def _never_named(*, silent: bool) -> Finding:
    gave_up = "gave up its core dump at once" if silent else "began a core dump without naming it"
    return Finding(
        rule="driver-gpu-exception",
        level=Level.ERROR,
        message=f"a kernel raised a GPU exception, and the driver {gave_up}",
        how_known=HowKnown.DRIVER,
        confidence=0.8,
        next_step=_NO_DUMP if silent else _READ,
    )


def _exception_finding(exception: DriverException, *, dumped: bool) -> Finding:
    where = f" at PC {exception.pc:#x}" if exception.pc is not None else ""
    in_kernel = f" in {short_name(demangle(exception.kernel))}" if exception.kernel else ""
    late = " (seen after the warp had exited)" if exception.warp_exited else ""
    return Finding(
        rule="driver-gpu-exception",
        level=Level.ERROR,
        message=f"{exception.name} ({exception.code}){where}{in_kernel}{late}",
        how_known=HowKnown.DRIVER,
        # Sure as it is, it must not lead over the core it announces, which names kernel, offset and threads besides.
        confidence=0.88,
        kernel=exception.kernel,
        next_step=_READ if dumped else None,
    )


def _with_detail(exception: DriverException, said: str) -> DriverException:
    if match := _PLACE.match(said):
        value = match[2].strip()
        number = int(value) if value.isdigit() else None
        match match[1]:
            case "Device":
                return replace(exception, device=number)
            case "SM":
                return replace(exception, sm=number)
            case _:
                return replace(exception, warp=number, warp_exited="has exited" in value)
    if match := _PC.match(said):
        return replace(exception, pc=int(match[1], 16))
    if match := _MASKS.match(said):
        return replace(exception, active_lanes=int(match[1], 16), valid_lanes=int(match[2], 16))
    if match := _FRAME.match(said):
        frame = DriverFrame(level=int(match[1]), pc=int(match[2], 16), function=match[3].strip())
        return replace(exception, stack=(*exception.stack, frame))
    return exception
