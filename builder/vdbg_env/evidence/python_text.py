"""Read what Python writes of its own end: tracebacks, and the stacks of its fault handler.

Several processes may write at once. Lines of one process belong together by the label vLLM puts before them. Chained
exceptions ("direct cause", "During handling") are separate tracebacks. PEP 657's caret lines are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpucore.dwarf import SourceFrame
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.log_line import CudaError, LogLine, parse_cuda_error

_HEAD = re.compile(r"\s*(?:\+ |\| )*Traceback \(most recent call last\):")
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
_ERROR = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_OTHERS = re.compile(r"/(?:torch|triton|numpy|contextlib\.py|threading\.py|concurrent/futures)(?:/|$)|^<")
# An exception that only says that another process had one: vLLM's front, its engine after a worker.
_PASSED_ON = re.compile(
    r"EngineDeadError|EngineCore encountered an issue|Engine core initialization failed"
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
        who = (line.process, line.pid, line.rank)
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
