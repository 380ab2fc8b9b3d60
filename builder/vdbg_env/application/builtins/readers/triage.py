"""`builtin/triage@v1`: which failure the workload's own log shows, and which runbook is the one for it.

A workload rarely fails as expected: `vdbg-env triage` names the failure, and that decides which runbook continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from vdbg_env.application.analysis.triage import rule_book
from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.evidence.observation import EndedBy, Observation
from vdbg_env.evidence.triage.classifier import LogClassifier
from vdbg_env.evidence.triage.rules import RuleBook
from vdbg_env.evidence.triage.sighting import LogEvidence
from vdbg_env.evidence.triage.verdict import Triage, judge
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

_LOGS = ("stdout", "stderr", "kernel.log")
# Ends that this program caused: what such a log says in passing is not a failure.
_FAILURE = "failure"  # the matcher by which each runbook says what its failure looks like
_OURS = {EndedBy.MATCH, EndedBy.CANCEL, EndedBy.PEER, EndedBy.NOT_STARTED}

CONTRACT = BuiltinContract(
    name="triage",
    version=1,
    role="reader",
    does="Names the failure that the log of the last attempt that ended badly shows, and the runbook for it.",
    results={
        "failure": "string",
        "runbook": "string",
        "title": "string",
        "text": "string",
        "line": "int",
        "confidence": "float",
        "rank": "int",
        "kernel": "string",
    },
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Triage the last attempt that ended badly, all its ranks together; no result where each ended well.

    A server whose engine has died shuts down in order and may exit with status 0: then its log counts.
    """
    attempts = sorted({seen.attempt for seen in context.observations}, reverse=True)
    for attempt in attempts:
        ranks = [seen for seen in context.observations if seen.attempt == attempt and not _ended_by_us(seen)]
        logs = [log for seen in ranks for log in _evidence(context, seen.directory)]
        if any(not seen.went_well for seen in ranks) or any(log.cascades for log in logs):
            verdict = judge(logs, _book().classes)
            return BuiltinResult(results=_results(verdict), notes=verdict.notes)
    return BuiltinResult()


def _ended_by_us(seen: Observation) -> bool:
    """Return whether it was ended while nothing had failed; a server that lived on after its failure had failed."""
    return seen.ended.by in _OURS and not (seen.ended.by is EndedBy.MATCH and _FAILURE in seen.matched)


@cache
def _book() -> RuleBook:
    return rule_book()


def _evidence(context: BuiltinContext, folder: str) -> Iterator[LogEvidence]:
    """Yield what each log of one rank shows; a stream that was not kept is left out."""
    for name in _LOGS:
        path = context.files.inside(f"{folder}/{name}")
        if context.files.exists(path):
            classifier = LogClassifier(_book(), f"{folder}/{name}")
            for chunk in context.files.chunks(path):
                classifier.feed(chunk)
            yield classifier.finish()


def _results(verdict: Triage) -> dict[str, ResultValue]:
    results: dict[str, ResultValue] = {
        "failure": verdict.failure.name,
        "title": verdict.failure.title,
        "confidence": verdict.confidence,
    }
    results |= {"runbook": verdict.failure.runbook} if verdict.failure.runbook else {}
    if verdict.root_cause:
        results |= {"text": verdict.root_cause.text, "line": verdict.root_cause.line}
    results |= {"rank": verdict.rank} if verdict.rank is not None else {}
    return results | ({"kernel": verdict.kernel} if verdict.kernel else {})
