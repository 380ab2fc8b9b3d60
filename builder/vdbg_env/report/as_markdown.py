"""Write a run report as Markdown, ready to be pasted into an upstream issue: a short top, the details folded.

The text goes where it mentions people and links issues by accident, so everything from the workload is
in code spans or fenced blocks, and the rest is escaped.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpucore.dwarf import Chain
from gpucore.mangling import short_name
from vdbg_env.common.console import duration, printable, size_text
from vdbg_env.evidence.finding import Finding
from vdbg_env.report.model import (
    Report,
    StepReport,
    WarpHistogram,
    changes,
    delta,
    ended,
    headline,
    how_known,
    incident,
    is_guards,
    outcome,
    place,
    provenance,
    shown_steps,
    sureness,
    verdict,
)


def render(report: Report) -> str:
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
    yield f"\nKnown from {how_known(lead.how_known)}; {sureness(lead)} sure."


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
    for name, stack in (("Traceback, the innermost call last", found.traceback), ("Native stack", found.native_stack)):
        if stack:
            yield f"\n{name}:\n\n{fenced(chr(10).join(stack), '')}"


def _hangs(report: Report) -> Iterator[str]:
    for histogram in report.histograms:
        yield f"**Where the {histogram.total} warps are** ({code(histogram.core)})\n"
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
    for step in report.next_steps:
        yield f"- {escaped(step.text)}" + (f": {code(step.command)}" if step.command else "")


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
    cause = f", cause {report.fingerprint.id}" if report.fingerprint else ""
    yield f"<sub>vdbg-env{version}, {named}{when}: {verdict(report)}{cause}</sub>"


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
