"""Read what the CUDA driver prints while it writes a GPU core dump (CUDA_COREDUMP_SHOW_PROGRESS=1).

Shapes: the cuda-gdb manual's "GPU core dump support" and the vLLM posts of August and December 2025. The time stamp is
absent on older drivers, the case of the lane masks differs, and any process label may precede a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.logs.log_line import LogLine


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

    `begun`: a newer driver only said that a dump begins, because CUDA_COREDUMP_SHOW_PROGRESS is off.
    """

    exceptions: tuple[DriverException, ...] = ()
    files: tuple[str, ...] = ()
    finished: int = 0
    global_memory_bytes: int | None = None
    unknown_flags: tuple[str, ...] = ()
    valid_flags: tuple[str, ...] = ()
    begun: bool = False

    @property
    def cut_short(self) -> bool:
        """Whether fewer dumps were finished than begun: something killed the process while it wrote."""
        return len(self.files) > self.finished


_BEGUN = "Starting GPU coredump generation"
_LINE = re.compile(r"(?:\[\d\d:\d\d:\d\d\.\d+\] )?coredump:(.*)")
_EXCEPTION = re.compile(r"\s*Detected an exception of type (\w+) \((\d+)\)")
_PLACE = re.compile(r"\s*- (Device|SM|Warp): (.*)")
_PC = re.compile(r"\s*- PC:? (0x[0-9a-fA-F]+)")
_MASKS = re.compile(r"\s*Stack trace \(lane masks: active (0x[0-9a-fA-F]+), valid (0x[0-9a-fA-F]+)\)")
_FRAME = re.compile(r"\s*#(\d+)\s+(0x[0-9a-fA-F]+)\s+(\S.*)")
_FILE = re.compile(r"\s*Writing ELF file to (.+)")
_GLOBAL = re.compile(r"\s*Writing out global memory \((\d+) bytes\)")
_UNKNOWN_FLAG = re.compile(r"Ignoring unknown coredump flag '([^']*)'")
_VALID_FLAGS = re.compile(r"Valid flags are: (\w+(?:, \w+)*)")


@dataclass
class _Reader:
    """Takes lines; exceptions are kept per process label, since several ranks may write into one log at once."""

    done: list[DriverException] = field(default_factory=list)
    current: dict[tuple[str | None, int | None], int] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    finished: int = 0
    global_memory: int | None = None
    unknown: list[str] = field(default_factory=list)
    valid: tuple[str, ...] = ()
    begun: bool = False

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
        who = (line.process, line.pid)
        if found := _EXCEPTION.match(said):
            self.current[who] = len(self.done)
            self.done.append(
                DriverException(name=found[1], code=int(found[2]), line=number, process=line.process, rank=line.rank)
            )
        elif found := _FILE.match(said):
            self.files.append(found[1].strip())
        elif found := _GLOBAL.match(said):
            self.global_memory = (self.global_memory or 0) + int(found[1])
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
        global_memory_bytes=reader.global_memory,
        unknown_flags=tuple(dict.fromkeys(reader.unknown)),
        valid_flags=reader.valid,
        begun=reader.begun,
    )


def driver_findings(progress: DriverProgress) -> tuple[Finding, ...]:
    """Return one finding per exception, a note where a dump was cut short, and one for flags the driver refused."""
    findings = [_exception_finding(exception) for exception in progress.exceptions]
    if progress.begun and not findings:
        findings.append(
            Finding(
                rule="driver-gpu-exception",
                level=Level.ERROR,
                message="a kernel raised a GPU exception, and the driver began a core dump without naming it",
                how_known=HowKnown.DRIVER,
                confidence=0.8,
                next_step="read the dump: vdbg-env core FILE",
            )
        )
    if progress.cut_short:
        findings.append(
            Finding(
                rule="driver-dump-cut-short",
                level=Level.WARNING,
                message=f"{len(progress.files)} GPU core dump(s) were begun and {progress.finished} finished",
                how_known=HowKnown.DRIVER,
                confidence=0.8,
                artifact=progress.files[-1],
                next_step="give the process longer before it is killed: VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS=300",
            )
        )
    if progress.unknown_flags:
        findings.append(
            Finding(
                rule="driver-unknown-coredump-flag",
                level=Level.WARNING,
                message=f"this driver does not know the core-dump flag(s) {', '.join(progress.unknown_flags)}",
                how_known=HowKnown.DRIVER,
                confidence=1.0,
                next_step="keep to the flags it lists: " + ",".join(progress.valid_flags)
                if progress.valid_flags
                else "leave the flag out, or update the driver",
            )
        )
    return tuple(findings)


def _exception_finding(exception: DriverException) -> Finding:
    where = f" at PC {exception.pc:#x}" if exception.pc is not None else ""
    in_kernel = f" in {exception.kernel}" if exception.kernel else ""
    late = " (seen after the warp had exited)" if exception.warp_exited else ""
    return Finding(
        rule="driver-gpu-exception",
        level=Level.ERROR,
        message=f"{exception.name} ({exception.code}){where}{in_kernel}{late}",
        how_known=HowKnown.DRIVER,
        # Sure as it is, it must not lead over the core it announces, which names kernel, offset and threads besides.
        confidence=0.88,
        kernel=exception.kernel,
        next_step="read the dump: vdbg-env core FILE",
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
