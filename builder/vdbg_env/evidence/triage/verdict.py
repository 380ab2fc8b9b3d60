"""Finds the root among all that the logs of one run showed.

The earliest sighting is the first suspect. A class that may be an *effect* of another (NCCL's failure of an illegal
access on some rank) gives way to that other one, whichever line came first, since ranks write at their own pace. Then
the line of that class that says most is shown: the driver's or the kernel's own report before an exception, an
exception before one that only passes it on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vdbg_env.evidence.triage.rules import NO_FAILURE, FailureClass
from vdbg_env.evidence.triage.sighting import LogEvidence, Sighting


@dataclass(frozen=True, kw_only=True)
class RootCause:
    """The line that says so: its log, 1-based number and text, the rule it met and the source of that rule."""

    file: str
    line: int
    text: str
    rule: str
    origin: str
    how_known: str


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Another class that was seen or comes into question; `effect`: it is explained by the root."""

    failure: str
    confidence: float
    effect: bool = False
    file: str | None = None
    line: int | None = None
    text: str | None = None


@dataclass(frozen=True, kw_only=True)
class Triage:
    """The verdict on one run's logs; `confidence` runs from 0 to 1, `rank` and `kernel` are None when no line says."""

    failure: FailureClass
    confidence: float
    root_cause: RootCause | None = None
    rank: int | None = None
    process: str | None = None
    kernel: str | None = None
    alternatives: tuple[Alternative, ...] = ()
    notes: tuple[str, ...] = ()
    evidence: tuple[Sighting, ...] = ()
    logs: tuple[LogEvidence, ...] = ()


def judge(logs: Sequence[LogEvidence], classes: Mapping[str, FailureClass]) -> Triage:
    """Weigh the evidence of all logs of one run; never raises, whatever the logs held."""
    seen = _in_order(logs)
    at_exit = [s for s in seen if s.exiting and classes[s.failure].at_exit]
    suspects = [s for s in seen if s not in at_exit]
    suspects = [s for s in suspects if not s.weak] or suspects
    if not suspects:
        return _without_suspect(logs, at_exit, classes)
    first = _deepest(suspects, classes)
    same = [s for s in suspects if s.failure == first.failure]
    root = max(same, key=lambda s: s.rule.precision)  # of equals, the first in order
    failure = classes[root.failure]
    others = _others(suspects, failure, classes)
    return Triage(
        failure=failure,
        confidence=_confidence(root, same, others, logs),
        root_cause=_root_cause(root),
        rank=next((s.rank for s in (root, *same) if s.rank is not None), None),
        process=root.process,
        kernel=root.kernel or next((s.kernel for s in same if s.kernel), None),
        alternatives=others + _asked(same, others, failure),
        notes=_notes(root, failure, logs, suspects),
        evidence=tuple(seen[:50]),
        logs=tuple(logs),
    )


def _in_order(logs: Sequence[LogEvidence]) -> list[Sighting]:
    """All sightings by time: by their stamps where every one has a stamp of the same form, else log by log."""
    seen = [s for log in logs for s in log.sightings]
    forms = {len(s.stamp[:19]) if s.stamp else 0 for s in seen}
    if len(logs) > 1 and len(forms) == 1 and forms != {0}:
        return sorted(seen, key=lambda s: s.stamp or "")
    return seen


def _deepest(suspects: Sequence[Sighting], classes: Mapping[str, FailureClass]) -> Sighting:
    """Start from the earliest suspect and go on to whatever it may be an effect of."""
    current = suspects[0]
    passed = {current.failure}
    while True:
        follows = classes[current.failure].follows
        deeper = next((s for s in suspects if s.failure in follows and s.failure not in passed), None)
        if deeper is None:
            return current
        current = deeper
        passed.add(current.failure)


def _others(
    suspects: Sequence[Sighting], root: FailureClass, classes: Mapping[str, FailureClass]
) -> tuple[Alternative, ...]:
    others: dict[str, Alternative] = {}
    for sighting in suspects:
        if sighting.failure == root.name or sighting.failure in others:
            continue
        effect = root.name in classes[sighting.failure].follows
        others[sighting.failure] = Alternative(
            failure=sighting.failure,
            confidence=round(sighting.rule.confidence * (0.2 if effect else 0.5), 2),
            effect=effect,
            file=sighting.file,
            line=sighting.line,
            text=sighting.text,
        )
    return tuple(sorted(others.values(), key=lambda a: -a.confidence))


def _asked(same: Sequence[Sighting], others: Sequence[Alternative], root: FailureClass) -> tuple[Alternative, ...]:
    """What the rules themselves name as another reading of their line."""
    named = {s.rule.alternative for s in same if s.rule.alternative} - {root.name} - {a.failure for a in others}
    return tuple(Alternative(failure=name, confidence=0.3) for name in sorted(named))


def _confidence(
    root: Sighting, same: Sequence[Sighting], others: Sequence[Alternative], logs: Sequence[LogEvidence]
) -> float:
    value = root.rule.confidence * (0.6 if root.weak else 1.0)
    if len({s.rule.id for s in same}) > 1 or any(log.cascades for log in logs):
        value += 0.05
    value -= 0.1 * sum(not other.effect for other in others)
    return round(min(0.99, max(0.2, value)), 2)


def _root_cause(root: Sighting) -> RootCause:
    return RootCause(
        file=root.file,
        line=root.line,
        text=root.text,
        rule=root.rule.id,
        origin=root.rule.origin,
        how_known=root.rule.how_known.value,
    )


def _notes(
    root: Sighting, failure: FailureClass, logs: Sequence[LogEvidence], suspects: Sequence[Sighting]
) -> tuple[str, ...]:
    notes = [s.rule.note for s in (root, *suspects) if s.rule.note and s.failure == root.failure]
    if root.rule.role == "messenger":
        notes.append(
            "only a line that passes the error on was found; the log of the process that failed would say more"
        )
    if any(log.victims for log in logs):
        notes.append("processes that ended with -15 were ended by their parent: they are victims, not the cause")
    if root.weak:
        notes.append("the line is only a warning")
    notes.append(f"what would settle it: {failure.settle}")
    return tuple(dict.fromkeys(notes))


def _without_suspect(
    logs: Sequence[LogEvidence], at_exit: Sequence[Sighting], classes: Mapping[str, FailureClass]
) -> Triage:
    """No line names a failure: it was a clean end, a death without a word, or nothing of ours."""
    cascades = [s for log in logs for s in log.cascades]
    named = [s for s in cascades if s.rule.failure and not s.exiting]
    if named and not at_exit:
        root = named[0]
        return Triage(
            failure=classes[root.failure],
            confidence=root.rule.confidence,
            root_cause=_root_cause(root),
            rank=root.rank,
            process=root.process,
            alternatives=_asked(named, (), classes[root.failure]),
            notes=_notes(root, classes[root.failure], logs, ()),
            evidence=tuple(named[:50]),
            logs=tuple(logs),
        )
    notes: list[str] = []
    alternatives: tuple[Alternative, ...] = ()
    if at_exit:
        seen = at_exit[0]
        where = f"{seen.file}:{seen.line}"
        notes.append(f"{where} tells of {seen.failure}, but after an orderly shutdown had begun: that is no bug")
        alternatives = (
            Alternative(failure=seen.failure, confidence=0.2, file=seen.file, line=seen.line, text=seen.text),
        )
    elif cascades:
        notes.append(
            f"{cascades[0].file}:{cascades[0].line} says that the engine died, and no line of a known form why"
        )
        notes.append("give the whole log, with the output of every worker")
    read = any(log.lines for log in logs)  # logs that are empty say nothing of the run
    return Triage(
        failure=classes[NO_FAILURE],
        confidence=0.8 if at_exit else 0.5 if cascades else 0.9 if read else 0.0,
        alternatives=alternatives,
        notes=tuple(notes),
        logs=tuple(logs),
    )
