"""Write a run report for a terminal: the fault first, how it is known, what to try next, then what was tried."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from itertools import repeat

from gpucore.dwarf import SourceFrame
from gpucore.toolkit import own_frame
from vdbg_env.common.console import duration, printable, shortened
from vdbg_env.evidence.finding import Finding, Level, around_lines
from vdbg_env.report.model import (
    RANKS_SHOWN,
    Change,
    Effect,
    Report,
    SourceExcerpt,
    StepReport,
    StepStatus,
    WarpHistogram,
    changes,
    delta,
    ended,
    headline,
    how_known,
    incident,
    is_cause,
    is_guards,
    outcome,
    provenance,
    ranks,
    sureness,
    verdict,
)
from vdbg_env.runbook.state import Verdict

_LABEL = 11
_MOST_FRAMES = 12  # of a stack; report.md has all
_MARKED_CONTEXT = 2
_LONGEST_WORD = 60
_LONGEST_TEXT = 500  # of what a step found: the name of a kernel of PyTorch has a thousand characters
_MISSING = ("was not found", "is not at hand")  # today's message, and that of releases before 0.2
_NARROW = 60  # columns of a terminal where the table of steps becomes a list


class Paint:
    """Puts ANSI colours around text, or leaves it alone."""

    def __init__(self, on: bool) -> None:
        self._on = on

    def __call__(self, codes: str, text: str) -> str:
        return f"\x1b[{codes}m{text}\x1b[0m" if self._on and text else text

    def bold(self, text: str) -> str:
        return self("1", text)

    def dim(self, text: str) -> str:
        return self("2", text)

    def level(self, level: Level, text: str) -> str:
        return self({Level.ERROR: "1;31", Level.WARNING: "33", Level.NOTE: "36"}[level], text)


def render(report: Report, *, colour: bool = False, width: int = 100) -> str:
    """Return the report as text of at most `width` columns; single words, commands and source lines may be longer."""
    paint = Paint(colour)
    parts = (
        _head(report, paint, width),
        _fault(report, paint, width),
        _hangs(report, paint, width),
        _next(report, paint, width),
        _tried(report, paint, width),
        _ranks(report, paint, width),
        _others(report, paint, width),
        _environment(report, paint, width),
        _foot(report, paint, width),
    )
    return "\n\n".join(text for text in ("\n".join(part) for part in parts) if text) + "\n"


def _head(report: Report, paint: Paint, width: int) -> Iterator[str]:
    bad, good = {Verdict.REPRODUCED, Verdict.HANG, Verdict.FAILED}, {Verdict.PASSED, Verdict.NOT_REPRODUCED}
    codes = "1;31" if report.verdict in bad else "1;32" if report.verdict in good else "1;33"
    badge = paint(codes, verdict(report).upper())
    took = f" in {duration(report.duration_s)}" if report.duration_s is not None else ""
    title = printable(report.title or report.runbook)
    fits = len(verdict(report)) + len(title) + len(report.run) + len(took) + 4 <= width
    yield f"{badge}  {title}  {paint.dim(printable(report.run) + took)}" if fits else badge
    if not fits:
        yield from _wrap(title, width)
        yield from (paint.dim(line) for line in _wrap(report.run + took, width))
    warning = provenance(report)
    if warning:
        yield from (paint("33", line) for line in _wrap(warning, width, first="! ", rest="  "))


def _fault(report: Report, paint: Paint, width: int) -> Iterator[str]:
    lead = report.lead
    if lead is None:
        yield from _wrap(report.why or "", width)
        return
    yield from (paint.bold(line) for line in _wrap(headline(report), width))
    yield ""
    if lead.kernel:
        yield from _row("kernel", _cut(lead.kernel), paint, width)
    chain = lead.chain or ((lead.location,) if lead.location else ())
    for depth, frame in enumerate(chain):
        yield from _frame("at" if depth == 0 else "from", frame, paint, width)
        excerpt = report.excerpt(frame.file, frame.line)
        if excerpt:
            yield from _excerpt(excerpt, paint, whole=depth == 0)
    for number, line in enumerate(lead.why):
        yield from _row("" if number else "why", line, paint, width)
    if lead.around:
        legend, *rows = around_lines(lead.around)
        yield from _row("blocks", legend, paint, width)
        yield from (f"  {'':{_LABEL}} {row}" for row in rows)
    found = incident(report)
    for number, line in enumerate(found.crashed_stack[:_MOST_FRAMES] if found else ()):
        yield from _row("" if number else "stack", line, paint, width)
    if found and not found.crashed_stack and not chain:
        for number, line in enumerate(reversed(found.traceback[-_MOST_FRAMES:])):
            yield from _row("" if number else "raised", line, paint, width)
    yield from _row("known", f"from {how_known(lead)}; {sureness(lead)} sure", paint, width)
    if lead.artifact:
        yield from _row("evidence", lead.artifact, paint, width)
    if report.fingerprint:
        yield from _row("fingerprint", f"{report.fingerprint.id}: {report.fingerprint}", paint, width)


def _next(report: Report, paint: Paint, width: int) -> Iterator[str]:
    if report.next_steps:
        yield paint.bold("Next")
    for number, step in enumerate(report.next_steps, 1):
        yield from _wrap(step.text, width, first=f"  {number}. ", rest="     ")
        if step.command:
            yield f"     {paint('36', '$ ' + printable(step.command))}"


def _tried(report: Report, paint: Paint, width: int) -> Iterator[str]:
    if not report.walked:
        return
    trials = {change.step: change for change in changes(report)}
    yield paint.bold("What was tried")
    done = [step for step in report.walked if step.status is not StepStatus.SKIPPED]
    names = max((len(step.id) for step in done), default=0)
    for step in done:
        # What guard sets is the same in each of its reports, and longer than what it found.
        change = None if is_guards(report) else trials.get(step.id)
        yield from _step(step, change, names, paint, width)
    skipped = [_skipped(step) for step in report.walked if step.status is StepStatus.SKIPPED]
    missed = [step.id for step in report.steps if step.status is StepStatus.NOT_REACHED]
    if is_guards(report):
        yield paint.dim("  what guard sets: vdbg-env guard --print-environment")
    for word, steps in (("skipped", skipped), ("not reached", missed)):
        if steps:
            yield from (paint.dim(line) for line in _wrap(f"{word}: {', '.join(steps)}", width, first="  ", rest="  "))


def _ranks(report: Report, paint: Paint, width: int) -> Iterator[str]:
    """Yield a row for each rank of the last attempt that had several, the cause first."""
    found = ranks(report)
    if found is None:
        return
    step, rows = found
    yield paint.bold(f"Ranks in step '{printable(step.id)}'")
    for row in rows[:RANKS_SHOWN]:
        took = duration(row.duration_s) if row.duration_s is not None else ""
        words = ended(row.ended)
        text = words if words.startswith(row.part) else f"{row.part}: {words}"
        head = f"  {row.rank:4} {printable(_cut(row.host, 24)):12} {took:>9}  "
        lines = _wrap(text, max(width - len(head), 30))
        yield head + paint("1;31" if is_cause(row) else "0", lines[0])
        yield from (" " * len(head) + line for line in lines[1:])
    rest = Counter(row.part for row in rows[RANKS_SHOWN:])
    if rest:
        yield paint.dim("  and " + ", ".join(f"{count} {part}" for part, count in rest.items()))


def _skipped(step: StepReport) -> str:
    """Name a skipped step; a condition that did not hold needs no words, a missing tool does."""
    missing = step.message and step.message.endswith(_MISSING)
    return f"{step.id} ({step.message})" if missing else step.id


def _step(step: StepReport, change: Change | None, names: int, paint: Paint, width: int) -> Iterator[str]:
    effect = change.effect.value if change and change.effect is not Effect.BASELINE else None
    said = effect or outcome(step)
    codes = {Effect.GONE.value: "1;32", Effect.SAME.value: "31", Effect.DIFFERENT.value: "33", "fail": "31"}
    rate = change.rate if change else ""
    took = "" if step.duration_s is None else duration(step.duration_s)
    head = f"  {printable(step.id):{names}}  {{}}  {rate:7}  {took:>11}  "
    column = len(head) - 2 + 14
    words = [
        ", ".join(map(_cut, delta(step), repeat(_LONGEST_WORD))) if change else "",
        *(shortened(text, _LONGEST_TEXT) for text in (step.message or "", *step.notes[:2])),
    ]
    shown = " · ".join(word for word in words if word)
    if width < _NARROW:
        facts = ", ".join(fact for fact in (said, rate, took) if fact)
        yield from _wrap(f"{step.id}: {facts}", width, first="  ", rest="    ")
        yield from _wrap(shown, width, first="    ", rest="    ")
        return
    text = _wrap(shown, max(width - column, 30))
    yield (head.format(paint(codes.get(said, "0"), f"{said:14}")) + (text[0] if text else "")).rstrip()
    yield from (" " * column + line for line in text[1:])


def _cut(text: str, limit: int = 200) -> str:
    """Cut a name or value without end: the JSON report and the run directory hold all of it."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _hangs(report: Report, paint: Paint, width: int) -> Iterator[str]:
    for histogram in report.histograms:
        yield from _histogram(histogram, paint, width)


def _histogram(histogram: WarpHistogram, paint: Paint, width: int) -> Iterator[str]:
    yield paint.bold(histogram.title) + paint.dim(f"  {printable(histogram.core)}")
    fullest = max((group.count for group in histogram.groups), default=1)
    for group in histogram.groups:
        bar = "█" * max(1, round(group.count / fullest * 20))
        own = own_frame(group.chain)
        place = str(own) if own is not None else f"{group.kernel or 'unknown code'} at {group.pc:#x}"
        state = f"  ({group.state})" if group.state else ""
        drawn = f"{paint('33', f'{bar:20}')}  " if width >= _NARROW else ""
        indent = " " * (32 if drawn else 10)
        yield f"  {group.count:6}  {drawn}{printable(place + state)}"
        at = group.chain.index(own) if own is not None else 0
        yield from (f"{indent}in {printable(str(frame))}" for frame in group.chain[:at])
        yield from (f"{indent}from {printable(str(frame))}" for frame in group.chain[at + 1 :])


def _others(report: Report, paint: Paint, width: int) -> Iterator[str]:
    others = [finding for finding in report.findings if finding is not report.lead]
    if others:
        yield paint.bold("Also found")
    for finding in others:
        yield from _other(finding, paint, width)


def _other(finding: Finding, paint: Paint, width: int) -> Iterator[str]:
    level = f"{finding.level.value:7}"
    text = _wrap(f"{finding.message} ({finding.how_known.value}, {sureness(finding)})", width - 11)
    for number, line in enumerate(text):
        yield f"  {paint.level(finding.level, level) if number == 0 else ' ' * 7}  {line}"
    if finding.next_step:
        yield f"           {paint('36', printable(str(finding.next_step)))}"


def _environment(report: Report, paint: Paint, width: int) -> Iterator[str]:
    if report.environment:
        known = ", ".join(f"{name} {value}" for name, value in report.environment.items())
        yield from (paint.dim(line) for line in _wrap(known, width))


def _foot(report: Report, paint: Paint, width: int) -> Iterator[str]:
    for text in report.notes:
        yield from (paint.dim(line) for line in _wrap(text, width, first="note: ", rest="      "))


def _row(label: str, text: str, paint: Paint, width: int) -> Iterator[str]:
    for number, line in enumerate(_wrap(text, width - _LABEL - 3)):
        yield f"  {paint.dim(f'{label if number == 0 else str():{_LABEL}}')} {line}"


def _frame(label: str, frame: SourceFrame, paint: Paint, width: int) -> Iterator[str]:
    place = printable(f"{frame.file}:{frame.line}")
    function = printable(_cut(frame.function)) if frame.function else ""
    fits = _LABEL + 5 + len(place) + len(function) <= width
    yield f"  {paint.dim(f'{label:{_LABEL}}')} {paint.bold(place)}" + (f"  {function}" if function and fits else "")
    if function and not fits:
        yield from _row("", function, paint, width)
    if frame.headers:
        yield from _row("", printable(str(frame.headers)), paint, width)


def _excerpt(excerpt: SourceExcerpt, paint: Paint, *, whole: bool) -> Iterator[str]:
    for number, line in enumerate(excerpt.lines, excerpt.first):
        marked = number == excerpt.marked
        if not marked and (not whole or abs(number - excerpt.marked) > _MARKED_CONTEXT):
            continue
        text = f"{'>' if marked else ' '} {number:5} | {printable(line.expandtabs(4))}".rstrip()
        yield f"  {'':{_LABEL}} {paint('1;31', text) if marked else paint.dim(text)}"


def _wrap(text: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(
        printable(" ".join(text.split())), max(width, 20), initial_indent=first, subsequent_indent=rest,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
