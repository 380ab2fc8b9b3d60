"""`builtin/triage@v1`: which failure the workload's own log shows, and which runbook is the one for it.

A workload that fails seldom fails as expected: the question is then the one `vdbg-env triage` answers, and the answer
decides which runbook goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from vdbg_env.application.analysis.triage import rule_book
from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.evidence.observation import EndedBy
from vdbg_env.evidence.triage.classifier import LogClassifier
from vdbg_env.evidence.triage.rules import RuleBook
from vdbg_env.evidence.triage.sighting import LogEvidence
from vdbg_env.evidence.triage.verdict import Triage, judge
from vdbg_env.runbook.state import ResultValue

_LOGS = ("stdout", "stderr", "kernel.log")
_CHUNK = 1 << 20
# We ended these on purpose: what such a log says in passing is no failure.
_OURS = {EndedBy.MATCH, EndedBy.CANCEL, EndedBy.NOT_STARTED}


def work(context: BuiltinContext) -> BuiltinResult:
    """Triage the last attempt that ended badly, all its ranks together; nothing to tell where each ended well.

    A server whose engine has died shuts down in good order and may end with status 0: its own words count then.
    """
    attempts = sorted({seen.attempt for seen in context.observations}, reverse=True)
    for attempt in attempts:
        ranks = [seen for seen in context.observations if seen.attempt == attempt and seen.ended.by not in _OURS]
        logs = [log for seen in ranks for log in _evidence(context.run_directory, seen.directory)]
        if any(not seen.ended.clean for seen in ranks) or any(log.cascades for log in logs):
            told = judge(logs, _book().classes)
            return BuiltinResult(results=_results(told), notes=told.notes)
    return BuiltinResult()


@cache
def _book() -> RuleBook:
    return rule_book()


def _evidence(run: Path, folder: str) -> Iterator[LogEvidence]:
    """Yield what each log of one rank shows; a stream that was not kept is left out."""
    for name in _LOGS:
        try:
            file = (run / folder / name).open("rb")
        except FileNotFoundError:
            continue
        classifier = LogClassifier(_book(), f"{folder}/{name}")
        with file:
            while chunk := file.read(_CHUNK):
                classifier.feed(chunk)
        yield classifier.finish()


def _results(told: Triage) -> dict[str, ResultValue]:
    results: dict[str, ResultValue] = {
        "failure": told.failure.name,
        "title": told.failure.title,
        "confidence": told.confidence,
    }
    results |= {"runbook": told.failure.runbook} if told.failure.runbook else {}
    if told.root_cause:
        results |= {"text": told.root_cause.text, "line": told.root_cause.line}
    results |= {"rank": told.rank} if told.rank is not None else {}
    return results | ({"kernel": told.kernel} if told.kernel else {})
