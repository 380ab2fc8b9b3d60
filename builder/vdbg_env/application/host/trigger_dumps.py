"""`vdbg-env dump`: makes every process of a hung tree write a GPU core dump, and says where they are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vdbg_env.application.ports.core_dumps import CorePipes, DumpFile, DumpTarget, FiredDump, PipeState
from vdbg_env.common.clock import Clock
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.common.size import size_text


@dataclass(frozen=True, kw_only=True)
class DumpRequest:
    """The root of the tree, and how many seconds to wait for all dumps together; 0 does not wait."""

    pid: int
    timeout_s: float = 600.0


class DumpStatus(StrEnum):
    """How it went for one process."""

    WRITTEN = "written"
    INCOMPLETE = "incomplete"  # the file is there, but not whole when time was up or the process ended
    FIRED = "fired"  # asked for and not waited for
    NO_FILE = "no-file"  # asked for, but no file was seen
    FAILED = "failed"  # the pipe could not be written
    STALE = "stale"
    NO_PIPE = "no-pipe"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, kw_only=True)
class ProcessDump:
    """One process and its dump; `why` explains what did not work, `pipe` is the path as the process sees it."""

    target: DumpTarget
    status: DumpStatus
    file: DumpFile | None = None
    written: int = 0
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class DumpReport:
    """Every process that was armed or could not be looked at, and how many were not armed."""

    pid: int
    processes: tuple[ProcessDump, ...]
    not_armed: int


def dump(request: DumpRequest, *, pipes: CorePipes, clock: Clock) -> DumpReport:
    """Fire every pipe of the tree first, for dumps of one moment; then wait for each to be whole.

    Raises BadInput when there is no such process, or none of the tree is armed.
    """
    targets = pipes.tree(request.pid)
    concerned = [t for t in targets if t.state is not PipeState.NOT_ARMED]
    if not concerned:
        raise _not_armed(request.pid, len(targets))
    fired = [(target, *_fire(target, pipes)) for target in concerned]
    deadline = clock.monotonic() + request.timeout_s
    processes = tuple(
        _finish(target, started, refusal, deadline - clock.monotonic(), wait=request.timeout_s > 0)
        for target, started, refusal in fired
    )
    return DumpReport(pid=request.pid, processes=processes, not_armed=len(targets) - len(concerned))


def line(process: ProcessDump) -> str:
    """Return in one line how it went for a process."""
    target, file = process.target, process.file
    inside = f", {target.namespace_pid} inside" if target.namespace_pid != target.pid else ""
    head = f"{target.pid} ({target.name}{inside}): {process.status.value}"
    where = f" {file.reachable}, {size_text(file.size)}" if file else ""
    return f"{head}{where}" + (f": {process.why}" if process.why else "")


def _fire(target: DumpTarget, pipes: CorePipes) -> tuple[FiredDump | None, str | None]:
    if target.state is not PipeState.READY:
        return None, None
    try:
        return pipes.fire(target), None
    except HostNotAble as error:
        return None, f"{error.what}; {error.cause}"


def _finish(
    target: DumpTarget, started: FiredDump | None, refusal: str | None, left_s: float, *, wait: bool
) -> ProcessDump:
    if started is None:
        status, why = _unfired(target, refusal)
        return ProcessDump(target=target, status=status, why=why)
    try:
        file = started.wait(max(0.0, left_s)) if wait else None
    finally:
        started.close()
    status, outcome = _outcome(file, waited=wait)
    return ProcessDump(target=target, status=status, file=file, written=started.written, why=outcome)


def _outcome(file: DumpFile | None, *, waited: bool) -> tuple[DumpStatus, str | None]:
    if not waited:
        return DumpStatus.FIRED, None
    if file is None:
        return DumpStatus.NO_FILE, "no dump appeared: the process ended first, or writes it under another name"
    if file.complete:
        return DumpStatus.WRITTEN, None
    return DumpStatus.INCOMPLETE, "still growing when the time was up, or the process ended before the dump did"


def _unfired(target: DumpTarget, refusal: str | None) -> tuple[DumpStatus, str]:
    match target.state:
        case PipeState.STALE:
            return DumpStatus.STALE, "there is a pipe without a reader: left by an earlier run, or CUDA has ended"
        case PipeState.MISSING:
            return DumpStatus.NO_PIPE, "armed, but it has made no pipe: CUDA has not started in it"
        case PipeState.FORBIDDEN:
            return DumpStatus.FORBIDDEN, "it may not be looked at: run as its user or as root"
        case PipeState.READY | PipeState.NOT_ARMED:
            return DumpStatus.FAILED, refusal or "its pipe could not be written"


def _not_armed(pid: int, count: int) -> BadInput:
    return BadInput(
        f"no process of the tree of {pid} ({count} in all) is armed for a dump on request",
        cause="CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1 must be in the environment before CUDA starts in each process",
        next_step='eval "$(vdbg-env dump --arm)", then start the program again',
    )
