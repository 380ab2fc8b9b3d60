"""Read what Python's fault handler writes when a signal ends a process: the stack of the thread that got it.

The handler lists every thread, the newest first, and calls the one that got the signal `Current thread`: the first one
listed is mostly a bystander (CPython, Python/traceback.c, `_Py_DumpTracebackThreads`). It writes past any logger, so
lines of other processes may be in between.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpucore.dwarf import SourceFrame
from vdbg_env.evidence.logs.log_line import LogLine

_HEAD = re.compile(r"Fatal Python error: (?P<error>.+)")
_CURRENT = re.compile(r"Current thread .*\(most recent call first\):|Stack \(most recent call first\):")
_OTHER = re.compile(
    r"Thread 0x[0-9a-f]+ .*\(most recent call first\):|Extension modules: |Current thread's C stack trace"
)
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)')
# Where a call into native code is passed on, not made.
_PASSED_ON = re.compile(r"/(?:torch|triton|numpy|ctypes|cffi|contextlib\.py|threading\.py|multiprocessing)(?:/|$)|^<")
_LONGEST = 100  # frames; the handler itself stops there


@dataclass(frozen=True, kw_only=True)
class FatalError:
    """A process that a signal ended, and its thread's frames, the innermost first; `line` is that of the error."""

    error: str
    frames: tuple[SourceFrame, ...]
    line: int

    @property
    def own_frame(self) -> SourceFrame | None:
        """The innermost frame outside of torch, triton and ctypes, or the innermost of all."""
        own = (frame for frame in self.frames if not _PASSED_ON.search(frame.file))
        return next(own, self.frames[0] if self.frames else None)


def read_fatal_errors(lines: Iterable[LogLine]) -> Iterator[FatalError]:
    """Yield each error of the fault handler with the frames of its thread; none where that thread ran no Python."""
    error, at, inside = "", 0, False
    frames: list[SourceFrame] = []
    for number, line in enumerate(lines, 1):
        if head := _HEAD.search(line.text):
            if error:
                yield FatalError(error=error, frames=tuple(frames), line=at)
            error, at, inside, frames = head["error"].strip(), number, False, []
        elif _CURRENT.search(line.text):
            inside = bool(error)
        elif _OTHER.search(line.text):
            inside = False
        elif inside and len(frames) < _LONGEST and (frame := _FRAME.match(line.text)):
            frames.append(SourceFrame(function=frame["function"], file=frame["file"], line=int(frame["line"])))
    if error:
        yield FatalError(error=error, frames=tuple(frames), line=at)
