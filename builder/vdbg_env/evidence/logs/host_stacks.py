"""Read the stacks that were taken of a silent process tree: the kernel's own (/proc) and py-spy's.

py-spy's shape: `src/main.rs` of benfred/py-spy: `Process PID: CMD`, `Thread ID (state): "NAME"`, frames innermost
first as `    function (file:line)`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vdbg_env.cuda.lines.source_frame import SourceFrame
from vdbg_env.evidence.finding import Finding, HowKnown, Level

_PROCESS = re.compile(r"process (?P<pid>\d+) (?P<name>.+) \(parent \d+, state (?P<state>\w)\)$")
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
    def own_frame(self) -> SourceFrame | None:
        """The innermost Python frame outside of what only waits: the standard library, zmq, event loops."""
        own = (frame for frame in self.frames if frame.line and not _IDLE.search(frame.file))
        return next(own, self.frames[0] if self.frames else None)


@dataclass(frozen=True, kw_only=True)
class HostStacks:
    """All processes of the tree (pid -> name), and the Python threads of those that py-spy could read."""

    processes: dict[int, str]
    threads: tuple[PythonThread, ...]

    @property
    def waiting_in(self) -> tuple[str, ...]:
        """The place of each Python process's main thread, as `name (pid): file:line in function`."""
        mains = [thread for thread in self.threads if thread.name == "MainThread"] or list(self.threads)
        places = ((thread, thread.own_frame) for thread in mains)
        return tuple(f"{self.processes.get(t.pid, 'python')} ({t.pid}): {frame}" for t, frame in places if frame)


def parse_host_stacks(lines: Iterable[str]) -> HostStacks:
    """Return the processes and threads of a text; a process that py-spy could not read has no threads."""
    processes: dict[int, str] = {}
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
        elif python := _PY_PROCESS.match(line):
            close()
            inside, pid = False, int(python["pid"])
            processes.setdefault(pid, python["command"].split()[0].rpartition("/")[2])
        elif thread := _THREAD.match(line):
            close()
            inside, frames = True, []
            name, active = thread["name"] or thread["id"], thread["state"].startswith("active")
        elif inside and (frame := _FRAME.match(line)):
            place = SourceFrame(function=frame["function"], file=frame["file"], line=int(frame["line"] or 0))
            frames.append(place)
    close()
    return HostStacks(processes=processes, threads=tuple(threads))


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
            next_step="look at what the missing ranks do: their whole stacks are in hang.txt of their folders",
        ),
    )


def _collectives(stacks: HostStacks) -> set[str]:
    return {name for thread in stacks.threads if (name := thread.collective)}


def _places(stacks: HostStacks) -> list[str]:
    """Return where the running threads of a rank are, else its main threads."""
    mains = [thread for thread in stacks.threads if thread.name == "MainThread"]
    busy = [thread for thread in mains if thread.active]
    return [f"{frame} ({stacks.processes.get(t.pid, 'python')})" for t in busy or mains if (frame := t.own_frame)]
