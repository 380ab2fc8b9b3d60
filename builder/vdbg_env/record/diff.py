"""What differs between two runs in meaning: outcomes, ends, findings, deltas and versions, never times or paths.

Works on the runs' report documents (`report.json`, schema vdbg-env/run/v1), so runs of older releases compare too. It
has its own module because a list of runs loads it, and that must not take the time to load runbooks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Document = Mapping[str, Any]
_FOLDER_OF_ATTEMPT = re.compile(r"(steps/\w+/)\d+(?=/)")
Kind = Literal["verdict", "step", "outcome", "ended", "reproduced", "finding", "command", "variable", "environment"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that is not the same; None on a side that lacks it."""

    kind: Kind
    where: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        match (self.before, self.after):
            case (None, after):
                return f"+ {self.kind} {self.where}: {after}"
            case (before, None):
                return f"- {self.kind} {self.where}: {before}"
        return f"~ {self.kind} {self.where}: {self.before} -> {self.after}"


def diff(before: Document, after: Document) -> tuple[Difference, ...]:
    """Return what differs, the gravest first: verdict, findings, steps, then versions."""
    return (
        *_pair("verdict", "of the run", before.get("verdict"), after.get("verdict")),
        *_tables("finding", _findings(before), _findings(after)),
        *_steps(before, after),
        *_tables("environment", before.get("environment") or {}, after.get("environment") or {}),
    )


def _findings(document: Document) -> dict[str, str]:
    """Return the findings by fingerprint: the rule, and the place or kernel it was found at."""
    return {
        f"{f['rule']} {_place(f) or f.get('kernel') or f.get('step') or ''}".strip(): f["message"]
        for f in document.get("findings", [])
    }


def _place(finding: Mapping[str, Any]) -> str | None:
    location = finding.get("location")
    return f"{location['file']}:{location['line']}" if location else None


def _steps(before: Document, after: Document) -> Iterator[Difference]:
    old, new = ({step["id"]: step for step in d.get("steps", [])} for d in (before, after))
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new:
            yield from _pair("step", name, _summary(old.get(name)), _summary(new.get(name)))
            continue
        a, b = old[name], new[name]
        yield from _pair("outcome", name, a.get("outcome") or a.get("status"), b.get("outcome") or b.get("status"))
        yield from _pair("ended", name, end_in_words(a.get("ended")), end_in_words(b.get("ended")))
        yield from _pair("reproduced", name, _reproduced(a), _reproduced(b))
        yield from _pair("command", name, _command(a), _command(b))
        yield from _tables("variable", a.get("env") or {}, b.get("env") or {}, prefix=f"{name} ")


def _summary(step: Mapping[str, Any] | None) -> str | None:
    return None if step is None else str(step.get("outcome") or step.get("status"))


def end_in_words(ended: Mapping[str, Any] | None) -> str | None:
    """Return how a recorded process ended: `exit 1`, `signal 6`, or what ended it where it did not by itself."""
    if not ended:
        return None
    by = "hung" if ended["by"] == "watch" else ended["by"].replace("_", " ")
    number = ended.get("signal") if ended.get("signal") is not None else ended.get("code")
    return by if number is None or ended["by"] == "watch" else f"{by} {number}"


def _reproduced(step: Mapping[str, Any]) -> str | None:
    attempts = step.get("attempts")
    if not isinstance(attempts, list) or not attempts:
        return None
    shown = [a.get("reproduced") for a in attempts]
    return f"{sum(x is True for x in shown)} of {len(shown)}" if any(x is not None for x in shown) else None


def _tables(
    kind: Kind, before: Mapping[str, Any], after: Mapping[str, Any], *, prefix: str = ""
) -> Iterator[Difference]:
    for name in dict.fromkeys([*before, *after]):
        old, new = (_text(table, name) for table in (before, after))
        yield from _pair(kind, f"{prefix}{name}", old, new)


def _text(table: Mapping[str, Any], name: str) -> str | None:
    if name not in table:
        return None
    return "(unset)" if table[name] is None else _any_attempt(str(table[name]))


def _command(step: Mapping[str, Any]) -> str:
    return _any_attempt(" ".join(step.get("argv") or ()))


def _any_attempt(text: str) -> str:
    """Take the number of the attempt out of its folder: it is a path, and says only how often a step was started."""
    return _FOLDER_OF_ATTEMPT.sub(r"\1N", text)


def _pair(kind: Kind, where: str, before: str | None, after: str | None) -> Iterator[Difference]:
    if (before or None) != (after or None):
        yield Difference(kind=kind, where=where, before=before or None, after=after or None)
