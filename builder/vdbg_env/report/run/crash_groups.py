"""Write crashes by their cause, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vdbg_env.application.guard.groups import CrashGroup
from vdbg_env.cuda.symbols.demangling import short_name
from vdbg_env.report.plain_text import printable

_RUNS_SHOWN = 5


def as_text(groups: Sequence[CrashGroup]) -> str:
    """Return one paragraph for each cause."""
    return "\n".join("".join(f"{printable(line)}\n" for line in _lines(group)) for group in groups)


def as_documents(groups: Sequence[CrashGroup]) -> list[dict[str, Any]]:
    """Return the groups as JSON values."""
    return [
        {
            "cause": group.telling.cause,
            "base": group.telling.base,
            "exception": group.telling.exception,
            "kernel": group.telling.kernel,
            "place": group.telling.place,
            "found": group.telling.found,
            "crashes": len(group.crashes),
            "first": group.crashes[0].started,
            "last": group.crashes[-1].started,
            "hosts": list(group.hosts),
            "ranks": list(group.ranks),
            "runs": [crash.run for crash in group.crashes],
        }
        for group in groups
    ]


def _lines(group: CrashGroup) -> Iterator[str]:
    best, count = group.telling, len(group.crashes)
    where = f" in {short_name(best.kernel)}" if best.kernel else ""
    at = f" at {best.place}" if best.place else ""
    yield f"{count:>4} x {best.cause}  {best.exception}{where}{at}"
    when = group.crashes[0].started if count == 1 else f"{group.crashes[0].started} to {group.crashes[-1].started}"
    ranks = f", ranks {', '.join(map(str, group.ranks))}" if len(group.ranks) > 1 else ""
    yield f"       {when}, on {', '.join(group.hosts) or 'an unknown host'}{ranks}"
    if best.found:
        yield f"       {best.found}"
    newest = [crash.run for crash in reversed(group.crashes)][:_RUNS_SHOWN]
    more = f" and {count - len(newest)} more" if count > len(newest) else ""
    yield f"       {', '.join(newest)}{more}"
