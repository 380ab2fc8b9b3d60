"""Read the stacks that were taken of a silent process tree: the kernel's own (/proc) and py-spy's.

py-spy's shape: `src/main.rs` of benfred/py-spy: `Process PID: CMD`, `Thread ID (state): "NAME"`, frames innermost
first as `    function (file:line)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from vdbg_env.cuda.lines.source_frame import SourceFrame

_PROCESS = re.compile(r"process (?P<pid>\d+) (?P<name>.+) \(parent \d+, state (?P<state>\w)\)$")
_PY_PROCESS = re.compile(r"Process (?P<pid>\d+): (?P<command>.+)$")
_THREAD = re.compile(r'Thread (?P<id>\S+) \((?P<state>[\w+]+)\)(?:: "(?P<name>.*)")?$')
_FRAME = re.compile(r"    (?P<function>.+) \((?P<file>.+?)(?::(?P<line>\d+))?\)$")
# Where a process waits on behalf of its caller: the standard library, zmq, event loops.
_IDLE = re.compile(
    r"(?:^|/)(?:threading|queue|selectors|socket|ssl|subprocess|shmem|contextlib)\.py$"
    r"|(?:^|/)(?:zmq|asyncio|uvloop|anyio|multiprocessing|concurrent/futures)/"
)


@dataclass(frozen=True, kw_only=True)
class PythonThread:
    """One thread as py-spy saw it, innermost frame first; `active` when it was running rather than waiting."""

    pid: int
    name: str
    active: bool
    frames: tuple[SourceFrame, ...]

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
