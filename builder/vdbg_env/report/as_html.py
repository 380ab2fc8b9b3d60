"""Write a run report as one self-contained HTML page, with no script and no request, and the other files next to it.

The page's content security policy allows its own style sheet by hash and nothing else, and even a hole in the
escaping could neither run a script nor fetch anything.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import BaseLoader, StrictUndefined, Template
from jinja2.sandbox import SandboxedEnvironment
from markupsafe import Markup

from gpucore.dwarf import SourceFrame
from gpucore.mangling import short_name
from vdbg_env.common.console import duration, printable, size_text
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.evidence.finding import Finding
from vdbg_env.record.run_directory import replacement
from vdbg_env.report import as_markdown, model
from vdbg_env.report.as_markdown import command
from vdbg_env.report.assemble import advised
from vdbg_env.report.model import (
    REPORT_FILES,
    Change,
    Report,
    SourceExcerpt,
    StepReport,
    StepStatus,
    attempt_lengths,
    changes,
    delta,
    incident,
    is_guards,
    shown_steps,
)
from vdbg_env.runbook.model import Status
from vdbg_env.runbook.state import Verdict

_TICKS = 6
_LONGEST_LINE = 2000
_LONGEST_NAME = 400
_LONGEST_CHANGE = 100  # in the overview: the step itself shows all of it

Tone = str  # "bad", "good", "warn" or "calm": a class of the style sheet


@dataclass(frozen=True, kw_only=True)
class Node:
    """One stop of the escalation path, with all that is shown when it is opened; `anchor` is its own in the page."""

    anchor: str
    step: StepReport
    tone: Tone
    change: Change | None
    delta: tuple[str, ...]
    command: str
    findings: tuple[Finding, ...]
    open: bool


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One step on the time line; every span is (left, width) in percent of the whole run."""

    step: StepReport
    tone: Tone
    spans: tuple[tuple[float, float], ...]


def render(report: Report, *, template: str, style: str) -> str:
    """Return the page; `template` and `style` are the texts of templates/report.html.j2 and templates/report.css."""
    lead = report.lead
    return _compiled(template).render(
        report=report,
        style=Markup(style),  # our own file; it must reach the page byte for byte, or its hash would not hold
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        badge=model.verdict(report),
        tone=_verdict_tone(report.verdict),
        headline=model.headline(report),
        warning=model.provenance(report),
        lead=lead,
        chain=tuple(_chain(report, lead)) if lead else (),
        incident=incident(report),
        changes=() if is_guards(report) else changes(report),
        nodes=tuple(_nodes(report)),
        missed=tuple(step for step in report.steps if step.status is StepStatus.NOT_REACHED),
        bars=tuple(_bars(report)),
        ticks=tuple(_ticks(_length(report))),
        others=tuple((finding, advised(finding)) for finding in report.findings if finding is not lead),
    )


@cache
def _compiled(template: str) -> Template:
    environment = SandboxedEnvironment(
        loader=BaseLoader(), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= _FILTERS
    return environment.from_string(template)


def _chain(report: Report, lead: Finding) -> Iterator[tuple[SourceFrame, SourceExcerpt | None]]:
    for frame in lead.chain or ((lead.location,) if lead.location else ()):
        yield frame, report.excerpt(frame.file, frame.line)


def _nodes(report: Report) -> Iterator[Node]:
    tried = {change.step: change for change in changes(report)}
    visits = Counter(step.id for step in shown_steps(report))
    for step in shown_steps(report):
        # A runbook that was branched to may visit a step of the same name: links mean the last visit.
        visits[step.id] -= 1
        findings = tuple(finding for finding in report.findings if finding.step == step.id)
        yield Node(
            anchor=f"step-{step.id}" + (f"-{visits[step.id]}-more" if visits[step.id] else ""),
            step=step,
            tone=_tone(step),
            change=tried.get(step.id),
            delta=() if is_guards(report) else delta(step),
            command=" \\\n  ".join(command(replace(step, env={}) if is_guards(report) else step)) if step.argv else "",
            findings=findings,
            open=report.lead in findings,
        )


def _tone(step: StepReport) -> Tone:
    match step.outcome:
        case Status.REPRODUCED | Status.HANG | Status.FAIL:
            return "bad"
        case Status.PASS | Status.NOT_REPRODUCED:
            return "good"
        case Status.WARN | Status.UNRESOLVED | Status.ERROR:
            return "warn"
        case None:
            return "warn" if step.status is StepStatus.INTERRUPTED else "calm"


def _verdict_tone(verdict: Verdict) -> Tone:
    match verdict:
        case Verdict.REPRODUCED | Verdict.HANG | Verdict.FAILED:
            return "bad"
        case Verdict.PASSED | Verdict.NOT_REPRODUCED:
            return "good"
        case Verdict.WARNED | Verdict.INCONCLUSIVE | Verdict.OUT_OF_TIME:
            return "warn"


def _length(report: Report) -> float:
    ends = [step.started_s + (step.duration_s or 0) for step in report.walked if step.started_s is not None]
    return max([*ends, report.duration_s or 0])


def _bars(report: Report) -> Iterator[Bar]:
    whole = _length(report)
    for step in report.walked:
        if step.started_s is not None and step.duration_s is not None and whole > 0:
            spans = ((left / whole * 100, max(width / whole * 100, 0.25)) for left, width in _spans(step))
            yield Bar(step=step, tone=_tone(step), spans=tuple(spans))


def _spans(step: StepReport) -> Iterator[tuple[float, float]]:
    """Yield start and length, in seconds, of every attempt; ranks of one attempt ran together."""
    start = step.started_s or 0.0
    lengths = attempt_lengths(step.attempts)
    if not lengths:
        yield start, step.duration_s or 0.0
    for length in lengths:
        yield start, length
        start += length


def _ticks(whole: float) -> Iterator[tuple[float, str]]:
    """Yield (percent, label) at round distances: 1, 2 or 5 times a power of ten seconds, or whole minutes."""
    if whole <= 0:
        return
    rough = whole / _TICKS
    rounds = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 36000, 86400]
    distance = next((step for step in rounds if step >= rough), math.ceil(rough / 86400) * 86400)
    for number in range(int(whole / distance) + 1):
        label = duration(number * distance).removesuffix(" 00 s").removesuffix(" 00 min")
        yield number * distance / whole * 100, label if number else "0"


def _href(path: str) -> str:
    """Return a link to a file next to the page; never a scheme, whatever the name."""
    return "./" + quote(path.lstrip("/"), errors="surrogateescape")


def _clip(text: str) -> str:
    return text if len(text) <= _LONGEST_LINE else text[: _LONGEST_LINE - 1] + "…"


def _shown(text: Any) -> str:
    """Return text without control characters and without the marks that turn the reading direction."""
    return printable(_clip(str(text).expandtabs(4)), keep="\n")


_FILTERS: dict[str, Any] = {
    "shown": _shown,
    "clipped": lambda text: text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…",
    "brief_change": lambda text: text if len(text) <= _LONGEST_CHANGE else text[: _LONGEST_CHANGE - 1] + "…",
    "href": _href,
    "duration": duration,
    "size": size_text,
    "ended": model.ended,
    "how_known": model.how_known,
    "sureness": model.sureness,
    "outcome": model.outcome,
    "brief": short_name,
    "place": lambda frame: model.place(frame.file, frame.line),
    "hex": hex,
}


# Write a run's report in every format, next to the record.


def write_report(report: Report, directory: Path, formats: Iterable[str] = REPORT_FILES) -> tuple[str, ...]:
    """Write the report in each format named, whole files only, and return their names."""
    names = []
    for name in formats:
        text = _WRITERS[name](report)
        with replacement(directory / REPORT_FILES[name]) as file:
            file.write(text.encode("utf-8", "replace"))
        names.append(REPORT_FILES[name])
    return tuple(names)


def _html(report: Report) -> str:
    folder = SHIPPED_DATA / "templates"
    texts = [(folder / name).read_text(encoding="utf-8") for name in ("report.html.j2", "report.css")]
    return render(report, template=texts[0], style=texts[1])


_WRITERS: Final[Mapping[str, Callable[[Report], str]]] = {
    "html": _html,
    "markdown": as_markdown.render,
    "json": model.report_json,
}
