"""Write which records `runs prune` removes: as text and as JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from vdbg_env.application.host.stored_runs import PrunedRuns, RetiredRun
from vdbg_env.common.printable import printable
from vdbg_env.common.size import size_text
from vdbg_env.report.codec.document import Document, field


def as_text(found: PrunedRuns) -> str:
    """Return what goes and why, what stays whatever the rules say, and how to make it so."""
    width = max((len(one.run.path) for one in found.runs), default=0)
    lines = [f"{one.run.path:<{width}}  {size_text(one.run.size):>10}  {one.why}" for one in found.runs]
    verb = "removed" if found.removed else "would remove"
    count = f"{len(found.runs)} run{'' if len(found.runs) == 1 else 's'}"
    freed = size_text(sum(one.run.size for one in found.runs))
    lines.append(f"{found.place}: {verb} {count}, {freed}" if found.runs else f"{found.place}: nothing to remove")
    lines += [f"stays: {name}, a process works on it" for name in found.running]
    lines += [f"stays: {name}, its record cannot be read" for name in found.unreadable]
    if found.runs and not found.removed:
        lines.append("nothing was removed yet: the same command with --yes does it")
    return "".join(f"{printable(line)}\n" for line in lines)


class RetiredRunDocument(Document, of=RetiredRun):
    """A run that retention removes, and the rule that says so."""

    run: str = field("run.path")
    runbook: str = field("run.runbook")
    size: int = field("run.size")
    modified: str = field(lambda one, _: datetime.fromtimestamp(one.run.modified, UTC).isoformat(timespec="seconds"))
    why: str


class PrunedRunsDocument(Document, of=PrunedRuns):
    """What retention removes from the folder of all runs; `removed` is false while it was only looked at."""

    schema: Literal["vdbg-env/runs-prune/v1"]
    place: str
    removed: bool
    bytes: int = field(lambda found, _: sum(one.run.size for one in found.runs))
    runs: list[RetiredRunDocument]
    running: list[str] = field(doc="Left because a process works on them.")
    unreadable: list[str] = field(doc="Left because their records cannot be read.")
