"""Read Python tracebacks out of a log in which several processes may write at once.

Lines of one process belong together by the label vLLM puts before them; chained exceptions ("direct cause", "During
handling") are separate tracebacks. PEP 657's caret lines are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from vdbg_env.cuda.lines.source_frame import SourceFrame
from vdbg_env.evidence.logs.cuda_error import CudaError, parse_cuda_error
from vdbg_env.evidence.logs.log_line import LogLine

_HEAD = re.compile(r"\s*(?:\+ |\| )*Traceback \(most recent call last\):")
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
_ERROR = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_OTHERS = re.compile(r"/(?:torch|triton|numpy|contextlib\.py|threading\.py|concurrent/futures)(?:/|$)|^<")
# An exception that only says that another process had one: vLLM's front, its engine after a worker.
_PASSED_ON = re.compile(
    r"EngineDeadError|EngineCore encountered an issue|Engine core initialization failed"
    r"|please check the stack trace above|See root cause above|died unexpectedly"
)
_LONGEST = 500  # frames; a recursion without end shows its pattern long before


@dataclass(frozen=True, kw_only=True)
class Traceback:
    """One traceback, outermost frame first; `line` is the 1-based line of its error, `cuda` the CUDA error in it."""

    error: str
    message: str
    frames: tuple[SourceFrame, ...]
    line: int
    process: str | None = None
    rank: int | None = None
    cuda: CudaError | None = None

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
    firsthand = (t for t in found if t.cuda and not t.cuda.messenger)
    own = [t for t in found if not _PASSED_ON.search(f"{t.error}: {t.message}")] or found
    return next(firsthand, own[-1] if own else None)
