"""Read tracebacks, and the stacks of Python's fault handler, of the kernel, of py-spy and of vLLM's function trace.

Several processes may write at once. Lines of one process belong together by the label vLLM puts before them. Chained
exceptions ("direct cause", "During handling") are separate tracebacks. PEP 657's caret lines are passed over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never

from gpucore.dwarf import SourceFrame
from vdbg_env.evidence.finding import Finding, HowKnown, Level, NextStep
from vdbg_env.evidence.log_line import CudaError, LogLine, depth_of, parse_cuda_error, rank_of_process

_HEAD = re.compile(r"\s*(?:\+ |\| )*Traceback \(most recent call last\):")
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
_ERROR = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_OTHERS = re.compile(r"/(?:torch|triton|numpy|contextlib\.py|threading\.py|concurrent/futures)(?:/|$)|^<")
# An exception that only says that another process had one, or ended this one: vLLM's front, its engine after a worker,
# torchrun after a signal.
_PASSED_ON = re.compile(
    r"SignalException|EngineDeadError|EngineCore encountered an issue|Engine core initialization failed"
    r"|please check the stack trace above|See root cause above|died unexpectedly|Worker failed with error"
)
# What a process raises because it is being ended.
_AT_THE_END = {
    "KeyboardInterrupt",
    "SystemExit",
    "CancelledError",
    "EOFError",
    "BrokenPipeError",
    "ConnectionResetError",
}
_LONGEST = 500  # frames; a recursion without end shows its pattern long before


@dataclass(frozen=True, kw_only=True)
class Traceback:
    """One traceback, outermost frame first; `line` is the 1-based line of its error, `cuda` the CUDA error in it."""

    error: str
    message: str
    frames: tuple[SourceFrame, ...]
    line: int
    process: str | None = None
    pid: int | None = None
    rank: int | None = None
    cuda: CudaError | None = None

    @property
    def stops_others(self) -> bool:
        """Whether the others may wait for ever because of it: vLLM's worker goes on after it has reported it."""
        return "Worker" in (self.process or "") and self.error.rpartition(".")[2] not in _AT_THE_END

    @property
    def own_frame(self) -> SourceFrame | None:
        """The innermost frame outside of torch, triton and the standard library, or the innermost of all."""
        own = (frame for frame in reversed(self.frames) if not _OTHERS.search(frame.file))
        return next(own, self.frames[-1] if self.frames else None)


@dataclass
class _Open:
    frames: list[SourceFrame] = field(default_factory=list)


def read_tracebacks(lines: Iterable[LogLine]) -> Iterator[Traceback]:
    """Yield every traceback that has an error line, in the order of those lines."""
    opened: dict[tuple[str | None, int | None, int | None], _Open] = {}
    for number, line in enumerate(lines, 1):
        who = (line.process, line.pid, line.rank if line.mark else None)  # a message may name another rank
        if _HEAD.match(line.text):
            opened[who] = _Open()
        elif who in opened:
            if frame := _FRAME.match(line.text):
                opened[who].frames[_LONGEST:] = []
                place = SourceFrame(function=frame["function"], file=frame["file"], line=int(frame["line"]))
                opened[who].frames.append(place)
            elif line.text[:1].isspace() or not line.text:
                continue  # the source line of a frame, its carets, or an empty line
            elif error := _ERROR.match(line.text):
                frames = tuple(opened.pop(who).frames)
                yield Traceback(
                    error=error["type"],
                    message=error["message"] or "",
                    frames=frames,
                    line=number,
                    process=line.process,
                    pid=line.pid,
                    rank=line.rank,
                    cuda=parse_cuda_error(line.text),
                )
            else:
                del opened[who]


def telling(tracebacks: Iterable[Traceback]) -> Traceback | None:
    """Return the traceback to look at: the first that reports a CUDA error firsthand, else the last firsthand one.

    What follows the first is the cascade: watchdogs, dead engines, clients whose server went away.
    """
    found = list(tracebacks)
    cuda = (t for t in found if t.cuda and not t.cuda.messenger)
    own = firsthand(found) or found
    return next(cuda, own[-1] if own else None)


def raised_finding(raised: Traceback) -> Finding:
    """Return the finding of an exception for which the others still waited when the hang was judged."""
    which = f"{raised.process}{'' if raised.rank is None else f' (rank {raised.rank})'}"
    return Finding(
        rule="raised-before-hang",
        level=Level.ERROR,
        message=f"{which} raised {raised.error}: {raised.message}".rstrip(": ") + "; the others waited for it",
        how_known=HowKnown.LOG,
        confidence=0.83,
        location=None if raised.cuda else raised.own_frame,  # a CUDA error is noticed at some later call
        process=raised.process,
        rank=raised.rank,
    )


def firsthand(tracebacks: Iterable[Traceback]) -> list[Traceback]:
    """Return the tracebacks that do not only say that another process had one."""
    return [t for t in tracebacks if not _PASSED_ON.search(f"{t.error}: {t.message}")]


# Python's fault handler lists every thread when a signal ends its process, the newest first. `Current thread` got the
# signal; the first one listed is mostly a bystander (CPython, Python/traceback.c, `_Py_DumpTracebackThreads`). It
# writes past any logger, so lines of other processes may be in between.


_FATAL_HEAD = re.compile(r"Fatal Python error: (?P<error>.+)")
_CURRENT = re.compile(r"Current thread .*\(most recent call first\):|Stack \(most recent call first\):")
_OTHER = re.compile(
    r"Thread 0x[0-9a-f]+ .*\(most recent call first\):|Extension modules: |Current thread's C stack trace"
)
_FATAL_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)')
# Where a call into native code is passed on, not made.
_PASSING_ON = re.compile(r"/(?:torch|triton|numpy|ctypes|cffi|contextlib\.py|threading\.py|multiprocessing)(?:/|$)|^<")
_LONGEST_FATAL = 100  # frames; the handler itself stops there


@dataclass(frozen=True, kw_only=True)
class FatalError:
    """A process that a signal ended, and its thread's frames, the innermost first; `line` is that of the error."""

    error: str
    frames: tuple[SourceFrame, ...]
    line: int

    @property
    def own_frame(self) -> SourceFrame | None:
        """The innermost frame outside of torch, triton and ctypes, or the innermost of all."""
        own = (frame for frame in self.frames if not _PASSING_ON.search(frame.file))
        return next(own, self.frames[0] if self.frames else None)


def read_fatal_errors(lines: Iterable[LogLine]) -> Iterator[FatalError]:
    """Yield each error of the fault handler with the frames of its thread; none where that thread ran no Python."""
    error, at, inside = "", 0, False
    frames: list[SourceFrame] = []
    for number, line in enumerate(lines, 1):
        if head := _FATAL_HEAD.search(line.text):
            if error:
                yield FatalError(error=error, frames=tuple(frames), line=at)
            error, at, inside, frames = head["error"].strip(), number, False, []
        elif _CURRENT.search(line.text):
            inside = bool(error)
        elif _OTHER.search(line.text):
            inside = False
        elif inside and len(frames) < _LONGEST_FATAL and (frame := _FATAL_FRAME.match(line.text)):
            frames.append(SourceFrame(function=frame["function"], file=frame["file"], line=int(frame["line"])))
    if error:
        yield FatalError(error=error, frames=tuple(frames), line=at)


# Read the stacks that were taken of a silent process tree: the kernel's own (/proc) and py-spy's.
#
# py-spy's shape: `src/main.rs` of benfred/py-spy: `Process PID: CMD`, `Thread ID (state): "NAME"`, frames innermost
# first as `    function (file:line)`.


_PROCESS = re.compile(
    r"process (?P<pid>\d+) (?P<name>.+) \(parent \d+, state (?P<state>\w)"
    r"(?:, (?P<used>[\d.]+) s of processor time in (?P<span>[\d.]+) s)?\)$"
)
_KERNEL_THREAD = re.compile(r"  thread \d+ .*: state (?P<state>\w)")
_PY_PROCESS = re.compile(r"Process (?P<pid>\d+): (?P<command>.+)$")
_THREAD = re.compile(r'Thread (?P<id>\S+) \((?P<state>[\w+]+)\)(?:: "(?P<name>.*)")?$')
_PY_SPY_FRAME = re.compile(r"    (?P<function>.+) \((?P<file>.+?)(?::(?P<line>\d+))?\)$")
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
                return f"{which} waits, and the others wait for it{time}"
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
        "runs": (
            "look at the loop at that line, and at what it waits to change"
            if stuck.place
            else "pip install py-spy, which shows the line that a process runs, and run it again"
        ),
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
        elif inside and (frame := _PY_SPY_FRAME.match(line)):
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
    places = "; ".join(
        f"rank {rank} never arrived: it is at {', '.join(_places(read[rank])[:2]) or 'no line of Python'}"
        for rank in missing[:4]
    )
    more = f"; {len(missing) - 4} more never arrived" if len(missing) > 4 else ""
    return (
        Finding(
            rule="ranks-missing-from-collective",
            level=Level.ERROR,
            message=f"{waits}; {places}{more}",
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
