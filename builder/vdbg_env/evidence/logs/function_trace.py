"""Read vLLM's function trace (VLLM_TRACE_FUNCTION=1): one line for each Python call and return of a worker thread.

Shape: `vllm/logger.py`, `_trace_calls`: `STAMP Call to F in FILE:LINE from G in FILE:LINE`, and `Return from ... to`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpucore.dwarf import SourceFrame

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
