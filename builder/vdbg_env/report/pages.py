"""Write a run report as Markdown, ready to be pasted into an upstream issue: a short top, the details folded.

The text goes where it mentions people and links issues by accident, so everything from the workload is
in code spans or fenced blocks, and the rest is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import DictLoader, FileSystemBytecodeCache, StrictUndefined, Template
from jinja2.bccache import Bucket
from jinja2.sandbox import SandboxedEnvironment
from markupsafe import Markup

from gpucore.dwarf import Chain, SourceFrame
from gpucore.mangling import short_name
from vdbg_env import __version__
from vdbg_env.common.console import duration, printable, size_text
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.evidence.finding import Finding, around_lines
from vdbg_env.record.run_directory import replacement
from vdbg_env.report import model
from vdbg_env.report.assemble import advised
from vdbg_env.report.model import (
    RANKS_SHOWN,
    REPORT_FILES,
    Attempt,
    Change,
    Report,
    SourceExcerpt,
    StepReport,
    StepStatus,
    WarpHistogram,
    attempt_lengths,
    changes,
    delta,
    ended,
    headline,
    how_known,
    incident,
    is_cause,
    is_guards,
    outcome,
    place,
    provenance,
    ranks,
    shown_steps,
    sureness,
    verdict,
)
from vdbg_env.runbook.model import Status
from vdbg_env.runbook.state import Verdict


def as_markdown(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown that ends with a newline."""
    parts = (
        _top(report),
        _fault(report),
        _incident(report),
        _hangs(report),
        _tried(report),
        _next(report),
        _folded("Commands and environment, step by step", _steps(report)),
        _folded("Log lines that decided", _lines(report)),
        _folded("Other findings", _others(report)),
        _folded("Environment", _environment(report)),
        _foot(report),
    )
    return "\n\n".join(text for text in ("\n".join(part) for part in parts) if text) + "\n"


def _top(report: Report) -> Iterator[str]:
    lead = report.lead
    where = f" at {code(place(lead.location.file, lead.location.line))}" if lead and lead.location else ""
    kernel = f" in {code(short_name(lead.kernel))}" if lead and lead.kernel else ""
    yield f"### {escaped(report.title or report.runbook)}{kernel}{where}"
    warning = provenance(report)
    if warning:
        yield f"\n> **{escaped(warning)}**"
    if report.workload:
        yield "\n" + fenced(shlex.join(report.workload), "console")


def _fault(report: Report) -> Iterator[str]:
    lead = report.lead
    if lead is None:
        yield f"**{escaped(verdict(report)).capitalize()}.** {escaped(report.why or '')}".rstrip()
        return
    yield f"**{escaped(headline(report))}**\n"
    chain = lead.chain or ((lead.location,) if lead.location else ())
    if chain:
        yield fenced("\n".join(_chain_lines(report, chain)), "")
    if lead.why:
        what = "Why the address was bad" if lead.address else "What these warps wait for"
        yield f"\n{what}:\n\n" + fenced("\n".join(lead.why), "")
    if lead.around:
        yield "\nThe blocks of the grid:\n\n" + fenced("\n".join(around_lines(lead.around)), "")
    yield f"\nKnown from {how_known(lead)}; {sureness(lead)} sure."


def _chain_lines(report: Report, chain: Chain) -> Iterator[str]:
    for depth, frame in enumerate(chain):
        word = "at  " if depth == 0 else "from"
        yield f"{word} {frame.file}:{frame.line}" + (f"  {frame.function}" if frame.function else "") + frame.mark
        excerpt = report.excerpt(frame.file, frame.line)
        if excerpt and excerpt.first <= frame.line < excerpt.first + len(excerpt.lines):
            yield f"         {excerpt.lines[frame.line - excerpt.first].strip()}"


def _incident(report: Report) -> Iterator[str]:
    found = incident(report)
    if found is None:
        return
    if found.line and report.lead and found.line not in report.lead.message:
        yield fenced(found.line, "")
    if found.facts:
        yield "\n| | |\n| --- | --- |"
    yield from (f"| {escaped(name)} | {cell(text)} |" for name, text in found.facts)
    yield from (f"\n{title}:\n\n{fenced(chr(10).join(stack), '')}" for title, stack in found.stacks)


def _hangs(report: Report) -> Iterator[str]:
    for histogram in report.histograms:
        yield f"**{histogram.title}** ({code(histogram.core)})\n"
        yield from _histogram(histogram)


def _histogram(histogram: WarpHistogram) -> Iterator[str]:
    yield "| warps | at | state |"
    yield "| ---: | --- | --- |"
    for group in histogram.groups:
        chain = " ← ".join(cell(f"{place(f.file, f.line)} {f.function or ''}{f.mark}".strip()) for f in group.chain)
        where = chain or cell(f"{group.kernel or 'unknown code'} {group.pc:#x}")
        yield f"| {group.count} | {where} | {escaped(group.state or '')} |"


def _tried(report: Report) -> Iterator[str]:
    tried = changes(report)
    if not tried or is_guards(report):
        return
    yield "**What was tried**\n"
    yield "| step | change | fault | effect |"
    yield "| --- | --- | ---: | --- |"
    steps = {step.id: step for step in report.steps}
    for change in tried:
        words = " ".join(cell(word) for word in delta(steps[change.step])) or "as given"
        yield f"| {escaped(change.step)} | {words} | {change.rate} | {change.effect.value} |"


def _next(report: Report) -> Iterator[str]:
    if report.next_steps:
        yield "**Next**\n"
    if where := _where_typed(report):
        yield f"{where}\n"
    for step in report.next_steps:
        yield f"- {escaped(step.text)}" + (f": {code(step.command)}" if step.command else "")


def _where_typed(report: Report) -> str:
    """Say where to type the commands that name files of the record: a folder of runs may be moved, or be another's."""
    named = any(re.search(r"\s'?steps/", step.command or "") for step in report.next_steps)
    return "In the folder of this report (cd there first):" if named else ""


def _steps(report: Report) -> Iterator[str]:
    for step in shown_steps(report):
        yield from _step(replace(step, env={}) if is_guards(report) else step)
    if is_guards(report):
        yield "What guard arms: `vdbg-env guard --print-environment`"


def _step(step: StepReport) -> Iterator[str]:
    took = f", {duration(step.duration_s)}" if step.duration_s is not None else ""
    yield f"**{escaped(step.id)}**: {escaped(outcome(step))}{took}\n"
    if step.message:
        yield f"{escaped(step.message)}\n"
    if step.argv:
        yield fenced(" \\\n  ".join(command(step)), "console") + "\n"
    for attempt in step.attempts:
        place = f" on {escaped(attempt.host)}: **{attempt.part}**" if attempt.part else ""
        yield f"- attempt {attempt.attempt}, rank {attempt.rank}{place}: {escaped(ended(attempt.ended))}"
        yield from (f"  - {escaped(note)}" for note in attempt.notes)
    for artifact in step.artifacts:
        yield f"- {code(artifact.path)} ({size_text(artifact.size)})"
    yield from (f"- {escaped(note)}" for note in step.notes)
    yield ""


def command(step: StepReport) -> Iterator[str]:
    """Yield the pieces of the command that does by hand what a step did, the environment's changes first."""
    unset = [name for name, value in step.env.items() if value is None]
    if unset:
        yield shlex.join(["env", *(word for name in unset for word in ("-u", name))])
    yield from (f"{name}={shlex.quote(value)}" for name, value in step.env.items() if value is not None)
    yield shlex.join(step.argv)


def _lines(report: Report) -> Iterator[str]:
    for step in report.walked:
        if step.evidence:
            lines = [f"{match.stream}:{match.line}: {match.text}" for match in step.evidence]
            yield f"{escaped(step.id)}\n\n{fenced(chr(10).join(lines), '')}\n"


def _others(report: Report) -> Iterator[str]:
    for finding in report.findings:
        if finding is not report.lead:
            yield from _other(finding)


def _other(finding: Finding) -> Iterator[str]:
    where = f" at {code(f'{finding.location.file}:{finding.location.line}')}" if finding.location else ""
    known = f"({finding.how_known.value}, {sureness(finding)})"
    yield f"- **{finding.level.value}** {code(finding.rule)}{where}: {escaped(finding.message)} {known}"


def _environment(report: Report) -> Iterator[str]:
    if report.environment:
        yield "| | |\n| --- | --- |"
    yield from (f"| {escaped(name)} | {cell(value)} |" for name, value in report.environment.items())


def _foot(report: Report) -> Iterator[str]:
    yield from (f"> {escaped(note)}\n" for note in report.notes)
    version = f" {report.tool_version}" if report.tool_version else ""
    when = f", {report.started}" if report.started else ""
    named = f"runbook {escaped(report.runbook)}, run {escaped(report.run)}"
    fingerprint = f", fingerprint {report.fingerprint.id}" if report.fingerprint else ""
    yield f"<sub>vdbg-env{version}, {named}{when}: {verdict(report)}{fingerprint}</sub>"


def _folded(title: str, lines: Iterable[str]) -> Iterator[str]:
    body = "\n".join(lines).strip()
    if body:
        yield f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is: no markup, no HTML, no one mentioned, no issue linked."""
    plain = printable(" ".join(text.split()))
    marked = re.sub(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w))", r"\\\1", plain)
    marked = marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    marked = re.sub(r"^(\d+)([.)])", r"\1\\\2", re.sub(r"^([#+=-])", r"\\\1", marked))
    # An empty comment keeps GitHub from reading @name as a person and #1 as an issue; a backslash does not.
    return re.sub(r"([@#])(?=\w)", r"\1<!-- -->", marked)


def code(text: str) -> str:
    """Return a code span that holds any text."""
    plain = printable(" ".join(text.split())) or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", plain)), default=0) + 1)
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def cell(text: str) -> str:
    """Return a code span for a table cell, where a bar would start the next cell even inside the span."""
    return code(text).replace("|", "\\|")


def fenced(text: str, language: str) -> str:
    """Return a fenced block that no text inside it can end."""
    plain = printable(text.expandtabs(4), keep="\n")
    fence = "`" * max(3, max((len(run) for run in re.findall("`+", plain)), default=0) + 1)
    return f"{fence}{language}\n{plain}\n{fence}"


# Write a run report as one self-contained HTML page, with no script and no request, and the other files next to it.
#
# The page's content security policy allows its own style sheet by hash and nothing else, and even a hole in the
# escaping could neither run a script nor fetch anything.


_TICKS = 6
_BYTECODE = Path(__file__).with_name("__pycache__")
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


def as_html(report: Report, *, template: str, style: str) -> str:
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
        ranks=_ranks(report),
        blocks=lead and lead.around and _blocks(lead.around),
        around_lines=around_lines,
        owner=_owner(lead),
        ruler=tuple(_ruler(lead)),
        others=tuple((finding, advised(finding)) for finding in report.findings if finding is not lead),
    )


class _Bytecode(FileSystemBytecodeCache):
    """Keeps the compiled page next to Python's own bytecode: to compile it took a tenth of a guard."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        if not sys.dont_write_bytecode:
            with suppress(OSError):  # a folder of packages that cannot be written
                super().dump_bytecode(bucket)


@cache
def _compiled(template: str) -> Template:
    name = f"report-{__version__}"
    environment = SandboxedEnvironment(
        loader=DictLoader({name: template}),
        bytecode_cache=_Bytecode(str(_BYTECODE)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= _FILTERS
    return environment.get_template(name)


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


@dataclass(frozen=True, kw_only=True)
class RankBars:
    """The ranks of one attempt, the cause first; every row is (rank, tone, width in percent of the longest)."""

    step: StepReport
    rows: tuple[tuple[Attempt, Tone, float], ...]
    ticks: tuple[tuple[float, str], ...]
    rest: tuple[tuple[str, int], ...]  # how many are left out, by what became of them


_RANK_TONES: Final[Mapping[str, Tone]] = {"well": "good", "failed": "bad", "lost": "warn"}


def _ranks(report: Report) -> RankBars | None:
    found = ranks(report)
    whole = max((rank.duration_s or 0 for rank in found[1]), default=0) if found else 0
    if found is None or whole <= 0:
        return None
    step, rows = found
    return RankBars(
        step=step,
        rows=tuple(
            (rank, "bad" if is_cause(rank) else _RANK_TONES.get(rank.part, "calm"), rank.duration_s / whole * 100)
            for rank in rows[:RANKS_SHOWN]
        ),
        ticks=tuple(_ticks(whole)),
        rest=tuple(Counter(rank.part for rank in rows[RANKS_SHOWN:]).items()),
    )


_BLOCK = 18  # pixels of a block of the grid and what is between it and the next

Square = tuple[int, int, str]


def _blocks(around: Mapping[str, Any]) -> dict[str, Any]:
    """Return the picture of the grid: a square (x, y, class) for each block, in pixels, and the labels of its axes."""
    (x, y), rows = around["from"], around["rows"]
    names = {"X": "faulted", "o": "resident", ".": "absent"}
    squares: list[Square] = [
        (column * _BLOCK, row * _BLOCK, names[mark])
        for row, marks in enumerate(rows)
        for column, mark in enumerate(marks)
    ]
    return {
        "squares": squares,
        "first": ((around["first"][0] - x) * _BLOCK, (around["first"][1] - y) * _BLOCK),
        "width": len(rows[0]) * _BLOCK,
        "height": len(rows) * _BLOCK,
        "columns": [(n * _BLOCK, x + n) for n in range(0, len(rows[0]), 4)],
        "lines": [(n * _BLOCK, y + n) for n in range(len(rows))],
    }


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A stretch of the ruler: a region of memory, or what is between two; `left` and `width` in percent."""

    region: Mapping[str, Any] | None
    bytes: int
    left: float
    width: float
    address: float | None  # where in the picture the address is, when it is in this stretch


def _owner(lead: Finding | None) -> Mapping[str, Any] | None:
    return ((lead.address or {}).get("owner") or lead.owner) if lead else None


def _ruler(lead: Finding | None) -> Iterator[Stretch]:
    """Yield what is around the bad address, by address; stretches are as wide as can be read, not to scale."""
    owner = _owner(lead)
    if not owner:
        return
    at = int(owner["address"], 16)
    regions: list[Mapping[str, Any]] = []
    for region in (owner["region"], owner["lies_in"], owner.get("below"), owner.get("above")):
        if region and all(_end(region) <= _start(other) or _end(other) <= _start(region) for other in regions):
            regions.append(region)
    regions.sort(key=_start)
    pieces: list[tuple[int, int, Mapping[str, Any] | None]] = []
    for region in regions:
        if pieces and pieces[-1][1] < _start(region):
            pieces.append((pieces[-1][1], _start(region), None))
        pieces.append((_start(region), _end(region), region))
    if pieces and at >= pieces[-1][1]:
        pieces.append((pieces[-1][1], at + 1, None))
    if pieces and at < pieces[0][0]:
        pieces.insert(0, (at, pieces[0][0], None))
    shares = [3 if region else 2 for _, _, region in pieces]
    for number, (start, end, region) in enumerate(pieces):
        left, width = (part / sum(shares) * 100 for part in (sum(shares[:number]), shares[number]))
        inside = start <= at < end
        size = at - start if region is None and number == len(pieces) - 1 else end - start
        yield Stretch(
            region=region, bytes=size, left=left, width=width,
            address=left + (at - start) / (end - start) * width if inside else None,
        )  # fmt: skip


def _start(region: Mapping[str, Any]) -> int:
    return int(region["address"], 16)


def _end(region: Mapping[str, Any]) -> int:
    return _start(region) + int(region["bytes"])


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
    "where_typed": _where_typed,
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
    "named": lambda region: region["name"] or f"{region['kind']} block",
    "bytes": lambda count: f"{count:,} bytes" if count < 1 << 20 else size_text(count),
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
    return as_html(report, template=texts[0], style=texts[1])


_WRITERS: Final[Mapping[str, Callable[[Report], str]]] = {
    "html": _html,
    "markdown": as_markdown,
    "json": model.report_json,
}
