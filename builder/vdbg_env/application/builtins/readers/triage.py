"""`builtin/triage@v1`: which failure the workload's own log shows, and which runbook is the one for it.

A workload rarely fails as expected: `vdbg-env triage` names the failure, and that decides which runbook continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from vdbg_env.application.analysis.triage import rule_book
from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.evidence.observation import EndedBy, Observation
from vdbg_env.evidence.system.ranks import first_failure, is_victim
from vdbg_env.evidence.triage.classifier import LogClassifier
from vdbg_env.evidence.triage.rules import RuleBook
from vdbg_env.evidence.triage.sighting import LogEvidence
from vdbg_env.evidence.triage.verdict import RootCause, Triage, judge
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

_KERNEL_LOG = "kernel.log"
_LOGS = ("stdout", "stderr", _KERNEL_LOG)
_SEGFAULT = b"segfault at "  # arch/x86/mm/fault.c, show_signal_msg
_FAILURE = "failure"  # the matcher by which each runbook says what its failure looks like
_EFFECT = "nccl-failure"  # ranks whose peer has died say so, each of them
# Ends that this program caused: what such a log says in passing is not a failure.
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
        "reason": "string",
        "fix": "string",
        "process": "string",
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
    verdict = _verdict(context)
    return BuiltinResult(results=_results(verdict), notes=verdict.notes) if verdict else BuiltinResult()


def root_cause(context: BuiltinContext) -> RootCause | None:
    """Return the line that names the failure of that attempt; None where no line does."""
    verdict = _verdict(context)
    return verdict.root_cause if verdict else None


def _verdict(context: BuiltinContext) -> Triage | None:
    attempts = sorted({seen.attempt for seen in context.observations}, reverse=True)
    for attempt in attempts:
        ranks = [seen for seen in context.observations if seen.attempt == attempt and not _ended_by_us(seen)]
        logs = [log for seen in ranks for log in _evidence(context, seen)]
        if any(not seen.went_well for seen in ranks) or any(log.cascades for log in logs):
            verdict = judge(logs, _book().classes)
            return _of_first_failure(context, ranks) or verdict if verdict.failure.name == _EFFECT else verdict
    return None


def _of_first_failure(context: BuiltinContext, ranks: Sequence[Observation]) -> Triage | None:
    """Return what the rank that failed first shows, where that is another failure than that of ranks that waited."""
    first = first_failure(ranks)
    if first is None or len(ranks) == 1 or is_victim(first):
        return None
    verdict = judge(list(_evidence(context, first)), _book().classes)
    return verdict if verdict.failed and verdict.root_cause and verdict.failure.name != _EFFECT else None


def _ended_by_us(seen: Observation) -> bool:
    """Return whether it was ended while nothing had failed; a server that lived on after its failure had failed."""
    return seen.ended.by in _OURS and not (seen.ended.by is EndedBy.MATCH and _FAILURE in seen.matched)


@cache
def _book() -> RuleBook:
    return rule_book()


def _evidence(context: BuiltinContext, seen: Observation) -> Iterator[LogEvidence]:
    """Yield what each log of one rank shows; a stream that was not kept is left out."""
    for name in _LOGS:
        path = context.files.inside(f"{seen.directory}/{name}")
        if context.files.exists(path):
            classifier = LogClassifier(_book(), f"{seen.directory}/{name}")
            chunks = context.files.chunks(path)
            for chunk in _of_the_workload(chunks, seen) if name == _KERNEL_LOG else chunks:
                classifier.feed(chunk)
            yield classifier.finish()


def _of_the_workload(chunks: Iterable[bytes], seen: Observation) -> Iterator[bytes]:
    """Yield the kernel's log without the segfaults of others: where no process of the workload was ended by a signal.

    The kernel logs those of the whole machine, with process numbers that are others in a container.
    """
    died = seen.ended.signal is not None or any(one.signal is not None for one in seen.deaths)
    left = b""
    for chunk in chunks:
        *lines, left = (left + chunk).split(b"\n")
        yield b"".join(line + b"\n" for line in lines if died or _SEGFAULT not in line)
    yield b"" if _SEGFAULT in left and not died else left


def _results(verdict: Triage) -> dict[str, ResultValue]:
    results: dict[str, ResultValue] = {
        "failure": verdict.failure.name,
        "title": verdict.title or verdict.failure.title,
        "confidence": verdict.confidence,
    }
    results |= {"runbook": verdict.failure.runbook} if verdict.failure.runbook else {}
    if verdict.root_cause:
        results |= {"text": verdict.root_cause.text, "line": verdict.root_cause.line}
    if verdict.root_cause and verdict.failed:
        text = verdict.root_cause.text.strip()
        results["reason"] = f"{verdict.title}: {text}" if verdict.title else text
    results |= {"fix": verdict.fix} if verdict.fix else {}
    results |= {"process": verdict.process} if verdict.process else {}
    results |= {"rank": verdict.rank} if verdict.rank is not None else {}
    return results | ({"kernel": verdict.kernel} if verdict.kernel else {})
