"""Writes a triage verdict: for people and for programs."""

from __future__ import annotations

from typing import Any

from vdbg_env.evidence.triage.verdict import Alternative, Triage

SCHEMA = "vdbg-env/triage/v1"
_SHOWN = 200


def triage_document(triage: Triage) -> dict[str, Any]:
    """Return the verdict as the JSON document `vdbg-env triage --json` promises; `line` is 1-based."""
    root = triage.root_cause
    return {
        "schema": SCHEMA,
        "class": triage.failure.name,
        "runbook": triage.failure.runbook,
        "confidence": triage.confidence,
        "root_cause": None
        if root is None
        else {
            "line": root.line,
            "text": root.text,
            "file": root.file,
            "rule": root.rule,
            "source": root.origin,
            "how_known": root.how_known,
        },
        "rank": triage.rank,
        "process": triage.process,
        "kernel": triage.kernel,
        "alternatives": [_alternative(other) for other in triage.alternatives],
        "notes": list(triage.notes),
        "logs": [{"file": log.file, "lines": log.lines} for log in triage.logs],
    }


def triage_text(triage: Triage, runbook: str | None) -> str:
    """Return the verdict as lines for a terminal, the answer first; `runbook` is the one at hand to start."""
    root, failure = triage.root_cause, triage.failure
    lines = [f"{failure.name}  ({failure.title}; confidence {triage.confidence:.0%})"]
    if root:
        lines += ["", f"  {root.file}:{root.line}", f"    {_short(root.text)}"]
        lines.append(f"  known from {root.how_known}; wording of {root.origin}")
    for name, value in (("rank", triage.rank), ("process", triage.process), ("kernel", triage.kernel)):
        if value is not None:
            lines.append(f"  {name}: {value}")
    if triage.alternatives:
        lines += ["", "also seen or possible:", *(f"  {_told(other)}" for other in triage.alternatives)]
    if triage.notes:
        lines += ["", *(f"note: {note}" for note in triage.notes)]
    if runbook:
        lines += ["", f"next: vdbg-env runbook {runbook} -- COMMAND"]
    elif failure.runbook:
        lines += ["", f"next: do what would settle it; no runbook is called {failure.runbook} here"]
    return "\n".join(lines) + "\n"


def _alternative(other: Alternative) -> dict[str, Any]:
    return {
        "class": other.failure,
        "confidence": other.confidence,
        "effect": other.effect,
        "file": other.file,
        "line": other.line,
        "text": other.text,
    }


def _told(other: Alternative) -> str:
    where = f"  {other.file}:{other.line}" if other.file else ""
    why = "an effect of the above" if other.effect else f"confidence {other.confidence:.0%}"
    return f"{other.failure} ({why}){where}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
