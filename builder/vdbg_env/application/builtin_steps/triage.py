"""`builtin/triage@v1`: which failure the workload's own log shows, and which runbook is the one for it.

A workload that fails seldom fails as expected: the question is then the one `vdbg-env triage` answers, and the answer
decides which runbook goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from vdbg_env.application.builtin_steps.context import BuiltinContext, BuiltinResult
from vdbg_env.application.triage_log import rule_book
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
    """Triage the last attempt that ended badly, all its ranks together; nothing to tell where each ended well."""
    bad = [seen for seen in context.observations if not seen.ended.clean and seen.ended.by not in _OURS]
    last = max((seen.attempt for seen in bad), default=None)
    if last is None:
        return BuiltinResult()
    book = _book()
    folders = [seen.directory for seen in bad if seen.attempt == last]
    logs = [
        log
        for folder in folders
        for name in _LOGS
        for log in _evidence(context.run_directory / folder / name, f"{folder}/{name}", book)
    ]
    told = judge(logs, book.classes)
    return BuiltinResult(results=_results(told), notes=told.notes)


@cache
def _book() -> RuleBook:
    return rule_book()


def _evidence(path: Path, name: str, book: RuleBook) -> Iterator[LogEvidence]:
    """Yield what one log shows; nothing for a stream that was not kept."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    classifier = LogClassifier(book, name)
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
