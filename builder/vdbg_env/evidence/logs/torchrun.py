"""Read torchrun's own word on which of its processes failed first: the block `Root Cause (first observed failure)`.

Its shape: `torch/distributed/elastic/multiprocessing/errors/__init__.py` of pytorch/pytorch, seen with PyTorch 2.13.
With the decorator `@record` the block has the traceback of that process.
"""

from __future__ import annotations

import re

from vdbg_env.evidence.finding import RootCause

_BLOCK = re.compile(r"^Root Cause \(first observed failure\):\n\[\d+\]:\n(?P<fields>.*?)^=+$", re.MULTILINE | re.DOTALL)
_HOST = re.compile(r"^  host +: (\S+)$", re.MULTILINE)
_RANK = re.compile(r"^  rank +: (\d+) \(local_rank: (\d+)\)$", re.MULTILINE)
_END = re.compile(r"^  exitcode +: (-?\d+) \(pid: (\d+)\)(?: +\((\w+)\))?", re.MULTILINE)
_TRACEBACK = re.compile(r"^  traceback : Traceback .*?\n(?P<lines>.*)", re.MULTILINE | re.DOTALL)


def root_cause(text: str) -> RootCause | None:
    """Return what the last such block of a log says; None where there is none."""
    found = None
    for block in _BLOCK.finditer(text):
        fields = block["fields"]
        rank, end = _RANK.search(fields), _END.search(fields)
        if rank and end:
            host = _HOST.search(fields)
            found = RootCause(
                rank=int(rank[1]),
                local_rank=int(rank[2]),
                host=host[1] if host else "",
                pid=int(end[2]),
                code=int(end[1]),
                signal=end[3] or "",
                error=_error(fields),
            )
    return found


def _error(fields: str) -> str:
    """Return the last line of the traceback, which names the exception; empty without one."""
    traceback = _TRACEBACK.search(fields)
    lines = [line.strip() for line in traceback["lines"].splitlines() if line.strip()] if traceback else []
    return lines[-1] if lines else ""
