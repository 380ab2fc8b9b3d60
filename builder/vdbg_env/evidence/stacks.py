"""Read the stacks that were taken of a silent process tree: the kernel's own (/proc) and py-spy's.

py-spy's shape: `src/main.rs` of benfred/py-spy: `Process PID: CMD`, `Thread ID (state): "NAME"`, frames innermost
first as `    function (file:line)`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never

from gpucore.dwarf import SourceFrame
from vdbg_env.evidence.finding import Finding, HowKnown, Level, NextStep
from vdbg_env.evidence.log_line import rank_of_process
from vdbg_env.evidence.process_death import depth_of

_PROCESS = re.compile(
    r"process (?P<pid>\d+) (?P<name>.+) \(parent \d+, state (?P<state>\w)"
    r"(?:, (?P<used>[\d.]+) s of processor time in (?P<span>[\d.]+) s)?\)$"
)
_KERNEL_THREAD = re.compile(r"  thread \d+ .*: state (?P<state>\w)")
_PY_PROCESS = re.compile(r"Process (?P<pid>\d+): (?P<command>.+)$")
_THREAD = re.compile(r'Thread (?P<id>\S+) \((?P<state>[\w+]+)\)(?:: "(?P<name>.*)")?$')
_FRAME = re.compile(r"    (?P<function>.+) \((?P<file>.+?)(?::(?P<line>\d+))?\)$")
# Where a process waits on behalf of its caller: the standard library, zmq, event loops.
_IDLE = re.compile(
    r"(?:^|/)(?:threading|queue|selectors|socket|ssl|subprocess|shmem|contextlib)\.py$"
    r"|(?:^|/)(?:zmq|asyncio|uvloop|anyio|multiprocessing|concurrent/futures)/"
)


# What a rank is in while it waits for the others: torch.distributed, and what vLLM and others put around it.
_COLLECTIVE = re.compile(
    r"(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|(?:batch_)?i?send_recv|i?recv)"
    r"(?:_\w+)?$"
)
_DISTRIBUTED = re.compile(r"(?:^|/)(?:torch/distributed|distributed)/|nccl|gloo")


# Where a process waits for another one of the workload: vLLM's queues, zmq, an event loop, a future, a child.
_FOR_ANOTHER = re.compile(
    r"(?:^|/)(?:shm_broadcast|shmem|selectors)\.py$|(?:^|/)(?:zmq|asyncio|uvloop|anyio|multiprocessing|concurrent/futures)/"
)
_LOOKED_AT = 4  # frames, from the innermost: a queue's own generator and context manager are above it
_BUSY = 0.5  # of one processor, since the last progress


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """A process when the hang was seen: its state as proc(5) has it, seconds of processor time used in `span_s`."""

    pid: int
    name: str
    state: str
    used_s: float | None = None
    span_s: float | None = None

    @property
    def busy(self) -> bool | None:
        """Whether it used a processor without making progress, None where that is not known."""
        return None if self.used_s is None or not self.span_s else self.used_s >= _BUSY * self.span_s


@dataclass(frozen=True, kw_only=True)
class PythonThread:
    """One thread as py-spy saw it, innermost frame first; `active` when it was running rather than waiting."""

    pid: int
    name: str
    active: bool
    frames: tuple[SourceFrame, ...]

    @property
    def collective(self) -> str | None:
        """The collective that the thread is in, by the names of its frames."""
        inside = (f for f in self.frames if _DISTRIBUTED.search(f.file) and _COLLECTIVE.search(f.function or ""))
        return next((frame.function for frame in inside), None)

    @property
    def waits_for_another(self) -> bool:
        """Whether it only waits for another process of the workload."""
        return bool(self.collective) or any(_FOR_ANOTHER.search(frame.file) for frame in self.frames[:_LOOKED_AT])

    @property
    def own_frame(self) -> SourceFrame | None:
        """The innermost Python frame outside of what only waits: the standard library, zmq, event loops."""
        own = (frame for frame in self.frames if frame.line and not _IDLE.search(frame.file))
        return next(own, self.frames[0] if self.frames else None)


@dataclass(frozen=True, kw_only=True)
class HostStacks:
    """All processes of the tree (pid -> name), and the Python threads of those that py-spy could read."""

    processes: dict[int, str]
    threads: tuple[PythonThread, ...]
    states: Mapping[int, ProcessState] = field(default_factory=dict)

    @property
    def mains(self) -> tuple[PythonThread, ...]:
        """The main thread of each Python process; all its threads where none is called so, or has its number."""
        found: dict[int, list[PythonThread]] = {}
        for thread in self.threads:
            found.setdefault(thread.pid, []).append(thread)
        return tuple(
            thread
            for threads in found.values()
            for thread in ([t for t in threads if t.name in {"MainThread", str(t.pid)}] or threads)
        )

    @property
    def waiting_in(self) -> tuple[str, ...]:
        """The place of each Python process's main thread, as `name (pid): file:line in function`."""
        places = ((thread, thread.own_frame) for thread in self.mains)
        return tuple(f"{self.processes.get(t.pid, 'python')} ({t.pid}): {frame}" for t, frame in places if frame)


@dataclass(frozen=True, kw_only=True)
class Stuck:
    """The process that the others wait for: `how` is stopped, runs or waits, `place` where its main thread is."""

    process: ProcessState
    how: Literal["stopped", "runs", "waits"]
    place: SourceFrame | None = None

    @property
    def name(self) -> str:
        """The name of the process."""
        return self.process.name.removeprefix("VLLM::")

    @property
    def rank(self) -> int | None:
        """Its own rank, where its name has it."""
        return rank_of_process(self.name)

    def __str__(self) -> str:
        which = self.name + (f" (rank {self.rank})" if self.rank is not None else "")
        one = self.process
        time = "" if one.used_s is None else f": {one.used_s:.0f} s of processor time in {one.span_s:.0f} s"
        match self.how:
            case "stopped":
                return f"{which} is stopped (state {one.state}): by SIGSTOP, a debugger or a terminal"
            case "runs":
                return f"{which} runs and makes no progress{time}"
            case "waits":
                return f"{which} waits, and the others for it{time}"
        assert_never(self.how)


def stuck_process(stacks: HostStacks) -> Stuck | None:
    """Return the process that holds up the others; None where each waits for another one.

    A stopped process first. Then one that runs and is not in a queue, an event loop or a collective, by the processor
    time that it used since the last progress; then one that waits for something else. A worker is before the engine,
    which waits for it.
    """
    stopped = [one for one in stacks.states.values() if one.state in {"T", "t"}]
    if stopped:
        first = max(stopped, key=_weight)
        return Stuck(process=first, how="stopped", place=_place(stacks, first.pid))
    own = {thread.pid: thread for thread in reversed(stacks.mains) if thread.frames and not thread.waits_for_another}
    found = [(one, thread) for pid, thread in own.items() if (one := stacks.states.get(pid))]
    runs = [(one, thread) for one, thread in found if one.busy or (one.busy is None and thread.active)]
    if runs or found:
        process, thread = max(runs or found, key=lambda pair: _weight(pair[0]))
        return Stuck(process=process, how="runs" if runs else "waits", place=thread.own_frame)
    if stacks.threads:
        return None
    busy = [one for one in stacks.states.values() if one.busy]
    return Stuck(process=max(busy, key=_weight), how="runs") if busy else None


def stuck_finding(stuck: Stuck) -> Finding:
    """Return the finding of the process that the others wait for."""
    sure = {"stopped": 0.9, "runs": 0.85 if stuck.place else 0.72, "waits": 0.75}
    steps = {
        "stopped": "find who stopped it (a debugger, kill -STOP, its terminal); kill -CONT lets it continue",
        "runs": "look at the loop at that line, and at what it waits to change",
        "waits": "look at who holds the lock, or should answer, at that line",
    }
    return Finding(
        rule="hanging-process",
        level=Level.ERROR,
        message=str(stuck),
        how_known=HowKnown.LOG,
        confidence=sure[stuck.how],
        location=stuck.place,
        next_step=NextStep(steps[stuck.how]),
        process=stuck.name,
        rank=stuck.rank,
    )


def _weight(one: ProcessState) -> tuple[int, float]:
    return depth_of(one.name), one.used_s or 0.0


def _place(stacks: HostStacks, pid: int) -> SourceFrame | None:
    return next((thread.own_frame for thread in stacks.mains if thread.pid == pid), None)


def parse_host_stacks(lines: Iterable[str]) -> HostStacks:
    """Return the processes and threads of a text; a process that py-spy could not read has no threads."""
    processes: dict[int, str] = {}
    states: dict[int, ProcessState] = {}
    threads: list[PythonThread] = []
    pid = 0
    name, active, frames = "", False, list[SourceFrame]()
    inside = False

    def close() -> None:
        if inside:
            threads.append(PythonThread(pid=pid, name=name, active=active, frames=tuple(frames)))

    for line in lines:
        if seen := _PROCESS.match(line):
            processes[int(seen["pid"])] = seen["name"]
            states[int(seen["pid"])] = ProcessState(
                pid=int(seen["pid"]),
                name=seen["name"],
                state=seen["state"],
                used_s=float(seen["used"]) if seen["used"] else None,
                span_s=float(seen["span"]) if seen["span"] else None,
            )
        elif python := _PY_PROCESS.match(line):
            close()
            inside, pid = False, int(python["pid"])
            title = python["command"].split()[0].rpartition("/")[2]
            if title.startswith(processes.setdefault(pid, title)) and pid in states:  # the kernel cuts names
                processes[pid], states[pid] = title, replace(states[pid], name=title)
        elif thread := _THREAD.match(line):
            close()
            inside, frames = True, []
            name, active = thread["name"] or thread["id"], thread["state"].startswith("active")
        elif inside and (frame := _FRAME.match(line)):
            place = SourceFrame(function=frame["function"], file=frame["file"], line=int(frame["line"] or 0))
            frames.append(place)
    close()
    return HostStacks(processes=processes, threads=tuple(threads), states=states)


def stopped_and_running(lines: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the processes that were stopped, and those of which a thread ran, each as `NAME (PID)`.

    A process that only waits for others has no thread that runs.
    """
    stopped: dict[str, None] = {}
    running: dict[str, None] = {}
    process = ""
    for line in lines:
        if seen := _PROCESS.match(line):
            process = f"{seen['name']} ({seen['pid']})"
            if seen["state"] in "Tt":
                stopped[process] = None
            elif seen["state"] == "R":
                running[process] = None
        elif process and (thread := _KERNEL_THREAD.match(line)):
            if thread["state"] == "R":
                running[process] = None
        elif line.startswith("# ") and process:
            break  # what follows is of debuggers, which stop what they look at
    return tuple(stopped), tuple(name for name in running if name not in stopped)


def missing_ranks(stacks: Mapping[int, HostStacks]) -> tuple[Finding, ...]:
    """Return which ranks are not in the collective that others wait in; `stacks` are those of each rank.

    A rank whose threads could not be read is not judged.
    """
    read = {rank: one for rank, one in stacks.items() if one.threads}
    inside = {rank: found for rank, one in read.items() if (found := _collectives(one))}
    missing = [rank for rank in sorted(read) if rank not in inside]
    if not inside or not missing:
        return ()
    name = Counter(name for names in inside.values() for name in names).most_common(1)[0][0]
    waits = f"{len(inside)} of {len(read)} ranks wait in {name}"
    places = "; ".join(f"rank {rank} is at {', '.join(_places(read[rank])[:2]) or 'no line'}" for rank in missing[:4])
    more = f", and {len(missing) - 4} more" if len(missing) > 4 else ""
    return (
        Finding(
            rule="ranks-missing-from-collective",
            level=Level.ERROR,
            message=f"{waits}, and {'it is' if len(missing) == 1 else 'these are'} missing: {places}{more}",
            how_known=HowKnown.LOG,
            confidence=0.8,
            next_step=NextStep(
                "look at what the missing ranks do: their whole stacks are in hang.txt of their folders"
            ),
        ),
    )


def _collectives(stacks: HostStacks) -> set[str]:
    return {name for thread in stacks.threads if (name := thread.collective)}


def _places(stacks: HostStacks) -> list[str]:
    """Return where the running threads of a rank are, else its main threads."""
    mains = [thread for thread in stacks.threads if thread.name == "MainThread"]
    busy = [thread for thread in mains if thread.active]
    return [f"{frame} ({stacks.processes.get(t.pid, 'python')})" for t in busy or mains if (frame := t.own_frame)]


# Read vLLM's function trace (VLLM_TRACE_FUNCTION=1): one line for each Python call and return of a worker thread.
#
# Shape: `vllm/logger.py`, `_trace_calls`: `STAMP Call to F in FILE:LINE from G in FILE:LINE`, and `Return from ... to`.


_EVENT = re.compile(
    r"(?P<what>Call to|Return from) (?P<function>\S+) in (?P<file>.+?):(?P<line>\d+)"
    r" (?:from|to) (?P<outer>\S*) in (?P<outer_file>.*?):(?P<outer_line>\d+)\s*$"
)


@dataclass(frozen=True, kw_only=True)
class OpenCalls:
    """The calls that were entered and not left when the trace ends, innermost first."""

    calls: tuple[SourceFrame, ...]


def parse_function_trace(lines: Iterable[str]) -> OpenCalls:
    """Return the calls still open at the end of a trace; its beginning may be missing, a torn last line is dropped."""
    stack: list[SourceFrame] = []
    for line in lines:
        event = _EVENT.search(line)
        if event is None:
            continue
        outer = SourceFrame(function=event["outer"], file=event["outer_file"], line=int(event["outer_line"]))
        if event["what"] == "Call to":
            # A call has the current line of its caller, which completes a caller that began before the trace.
            stack[-1:] = [outer]
            stack.append(SourceFrame(function=event["function"], file=event["file"], line=int(event["line"])))
        else:
            del stack[-1:]
            stack[-1:] = [outer]
    return OpenCalls(calls=tuple(reversed(stack)))
