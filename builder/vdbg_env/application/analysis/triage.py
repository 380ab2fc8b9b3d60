"""Which failure is this: read the logs, weigh what they show."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vdbg_env.application.line_packs.by_name import lines_by_name, named_place
from vdbg_env.application.line_packs.lookup import PackedLines
from vdbg_env.application.ports.files import LogFile, LogSource
from vdbg_env.common.errors import BAD_INPUT, BadInput
from vdbg_env.common.resources import data_dir, read_tables
from vdbg_env.evidence.knowledge.shipped import shipped_knowledge
from vdbg_env.evidence.triage.classifier import LogClassifier
from vdbg_env.evidence.triage.rules import RuleBook, read_rule_book
from vdbg_env.evidence.triage.sighting import LogEvidence
from vdbg_env.evidence.triage.verdict import Triage, judge

_NAME = re.compile(r"(?<!\S)(?:--[a-z][\w.-]*|-[a-z]{2,3}\b|[A-Z][A-Z0-9_]{3,})")

# The runbook of an illegal access also finds other exceptions of kernels, and hangs: it dumps and reads both.
_ONE_RUNBOOK = "illegal-memory-access"
_ALSO_FOUND = frozenset({"misaligned-address", "device-side-assert", "kernel-hang"})


@dataclass(frozen=True, kw_only=True)
class TriageRequest:
    """The logs of one run, as paths (`-` is the standard input), and a folder of rules, None for the shipped ones."""

    targets: tuple[str, ...]
    rules: Path | None = None


def triage_logs(request: TriageRequest, source: LogSource, lines: PackedLines | None = None) -> Triage:
    """Name the failure of one run from its logs; raises BadInput when none of them can be read.

    Where they name a kernel with an offset, `lines` are asked for its lines; packs are fetched only from addresses
    that are configured, a few of each.
    """
    book = rule_book(request.rules)
    evidence = [_read(log, book) for log in source.open(request.targets)]
    _refuse_if_nothing_was_read(evidence)
    verdict = judge(evidence, book.classes)
    problems = tuple(note for log in evidence for note in log.notes or _empty(log))
    verdict = replace(verdict, notes=(*problems, *verdict.notes, *_stale(evidence)))
    return _with_lines(verdict, lines, _release(evidence)) if lines else verdict


def _with_lines(verdict: Triage, lines: PackedLines, release: str | None) -> Triage:
    """Add the lines of the kernel that the logs name: by packs on this machine, else by those of the addresses."""
    place = named_place(verdict.kernel_text) if verdict.kernel_text else None
    if place is None:
        return verdict
    found = lines_by_name(lines.local_packs(), place)
    found = found or lines_by_name(lines.fetched_packs(place.name or "", release), place)
    return replace(verdict, lines=found, notes=(*verdict.notes, *lines.notes))


def _release(evidence: Sequence[LogEvidence]) -> str | None:
    """Return the release of vLLM that the logs name."""
    return next((log.release for log in evidence if log.release), None)


def _stale(evidence: Sequence[LogEvidence]) -> Iterator[str]:
    """Yield what replaced the flags and variables that the logs report as unknown."""
    release = _release(evidence)
    said = " ".join(text for log in evidence for text in log.settings)
    for name in dict.fromkeys(_NAME.findall(said)):
        judged = shipped_knowledge().judge_name(name, release)
        if judged.level == "error" and judged.replaced_by:
            yield f"has no effect: {judged.message}" + (f" ({judged.source})" if judged.source else "")


def runbook_to_start(name: str | None, available: Collection[str]) -> str | None:
    """Return the available runbook for a class that names the runbook `name`, or None."""
    if name in available:
        return name
    return _ONE_RUNBOOK if name in _ALSO_FOUND and _ONE_RUNBOOK in available else None


def rule_book(folder: Path | None = None) -> RuleBook:
    """Read the rules of a folder, or the shipped ones; raises BadDocument where one is wrong, BadInput without any."""
    folder = folder or data_dir("runbooks") / "triage"
    files = read_tables(folder)
    if not files:
        raise BadInput(f"{folder} holds no triage rules", next_step="leave --rules out to use the shipped ones")
    return read_rule_book(files)


def _read(log: LogFile, book: RuleBook) -> LogEvidence:
    """Read one log to its end. A log that breaks off (a damaged archive) still counts as far as it went."""
    classifier = LogClassifier(book, log.name)
    problem: tuple[str, ...] = ()
    read = 0
    try:
        for chunk in log.chunks:
            read += len(chunk)
            classifier.feed(chunk)
    except BAD_INPUT as error:
        problem = (f"{error.what}; only what could be read was looked at",)
    found = replace(classifier.finish(), notes=problem)
    return found if read else replace(found, lines=0)


def _empty(log: LogEvidence) -> tuple[str, ...]:
    """Say of a log that it is empty: that it names no failure is then no word for the run."""
    return () if log.lines else (f"{log.file} is empty",)


def _refuse_if_nothing_was_read(evidence: Sequence[LogEvidence]) -> None:
    broken = [log for log in evidence if log.notes]
    if broken and len(broken) == len(evidence) and not any(log.sightings or log.lines > 1 for log in evidence):
        raise BadInput(broken[0].notes[0].split(";", 1)[0])
