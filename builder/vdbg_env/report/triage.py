"""Write a triage verdict: for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gpucore.dwarf import LinesByName
from vdbg_env.common.printable import printable
from vdbg_env.evidence.triage import verdict
from vdbg_env.evidence.triage.remedy import Remedy
from vdbg_env.evidence.triage.sighting import LogEvidence
from vdbg_env.evidence.triage.verdict import Triage
from vdbg_env.report.codec import document as doc
from vdbg_env.report.codec.document import Document, Hex, field
from vdbg_env.report.core.json_parts import Frame, Shown
from vdbg_env.report.core.source_chain import chain_lines

_SHOWN = 200


class RootCause(Document, of=verdict.RootCause):
    """The line that says so: its log, 1-based number and text, the rule it met and the source of that rule."""

    line: int
    text: str
    file: str
    rule: str
    source: str = field("origin")
    how_known: str


class Alternative(Document, of=verdict.Alternative):
    """Another class that was seen or is possible; `effect`: it is explained by the root cause."""

    class_: str = field("failure")
    confidence: float
    effect: bool
    file: str | None
    line: int | None
    text: str | None


class Log(Document, of=LogEvidence):
    """A log that was read."""

    file: str
    lines: int


class NamedLines(Document, of=LinesByName):
    """Lines of a place that the log names by function and offset."""

    how_known: str
    function: str
    offset: Hex
    archs: list[str]
    build: str
    pack: str
    chain: list[Frame]


class TriageDocument(Document, of=Triage):
    """Which failure the logs of a run show; `confidence` is from 0 to 1. Fields are only ever added."""

    schema: Literal["vdbg-env/triage/v1"]
    class_: str = field("failure.name")
    runbook: str | None = field("failure.runbook")
    confidence: float
    root_cause: RootCause | None
    title: str | None = field(doc="What happened, where the class is too wide to say it.")
    next: str | None = field("fix", doc="What to type or to change, where the line leaves no doubt.")
    rank: int | None
    process: str | None
    kernel: str | None
    lines: list[NamedLines] = field(
        doc="Lines of the kernel and offset that the log names, by line packs: one for each build that differs."
    )
    alternatives: list[Alternative]
    notes: list[str]
    remedies: list[Remedy] = field(
        doc="By the lines that were met, for the release of vLLM that the logs name; else by the class."
    )
    logs: list[Log]


def triage_json(triage: Triage) -> str:
    """Return the verdict as the JSON document that `vdbg-env triage --json` prints."""
    return doc.render(triage, TriageDocument, Shown(sources={}))


def triage_text(triage: Triage, runbook: str | None) -> str:
    """Return the verdict as lines for a terminal, the answer first, and `runbook` to start it if it is not None."""
    root, failure = triage.root_cause, triage.failure
    lines = [f"{failure.name}  ({triage.title or failure.title}; confidence {triage.confidence:.0%})"]
    if root:
        lines += ["", f"  {root.file}:{root.line}", f"    {_short(root.text)}"]
        lines.append(f"  known from {root.how_known}; wording of {root.origin}")
    for name, value in (("rank", triage.rank), ("process", triage.process), ("kernel", triage.kernel)):
        if value is not None:
            lines.append(f"  {name}: {value}")
    lines += _by_packs(triage)
    if triage.alternatives:
        lines += ["", "also seen or possible:", *(f"  {_alternative(other)}" for other in triage.alternatives)]
    if triage.remedies:
        lines += ["", *(f"try: {r.do}  ({r.releases}; {r.source})" for r in triage.remedies)]
    if triage.notes:
        lines += ["", *(f"note: {note}" for note in triage.notes)]
    if triage.fix:
        lines += ["", f"next: {triage.fix}"]
    if runbook:
        lines += ["", f"next: vdbg-env runbook {runbook} -- COMMAND"]
    elif failure.runbook and not triage.fix:
        lines += ["", f"next: do what would settle it; no runbook is called {failure.runbook} here"]
    return "".join(f"{printable(line)}\n" for line in lines)  # a name of a log may have a line break


def _by_packs(triage: Triage) -> Iterator[str]:
    for found in triage.lines:
        yield ""
        yield f"  +{found.offset:#x} on {', '.join(found.archs)}, by the line table of {found.build}:"
        yield from chain_lines(found.chain, {}, indent="    ")
        yield "    by name and offset alone: the code that ran was not compared; a core dump would be"


def _alternative(other: verdict.Alternative) -> str:
    where = f"  {other.file}:{other.line}" if other.file else ""
    why = "an effect of the above" if other.effect else f"confidence {other.confidence:.0%}"
    return f"{other.failure} ({why}){where}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
