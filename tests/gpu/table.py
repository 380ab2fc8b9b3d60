"""The tables at the end of the GPU suite: each planted fault and whether it was found, then each measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.gpu.samples import Sample, samples


@dataclass(frozen=True, kw_only=True)
class Judged:
    """How a planted fault was looked for, and `found`, `NOT FOUND: why` or `not judged: why`."""

    by: str
    verdict: str


def render(
    heading: str, rows: Sequence[tuple[str, str]], judged: Mapping[str, Judged], seconds: Mapping[str, float]
) -> str:
    """Return the whole table as Markdown."""
    lines = [f"# {heading}", "", summary(heading, judged), ""]
    lines += ["| sample | planted | judged by | verdict |", "| --- | --- | --- | --- |"]
    lines += [_row(sample, judged.get(sample.name)) for sample in samples()]
    lines += ["", "| what | result |", "| --- | --- |", *(f"| {_cell(name)} | {_cell(text)} |" for name, text in rows)]
    if seconds:
        slowest = sorted(seconds.items(), key=lambda item: -item[1])[:10]
        lines += ["", f"The tests took {sum(seconds.values()):.0f} s; the longest:", ""]
        lines += [f"- {name}: {spent:.1f} s" for name, spent in slowest]
    return "\n".join(lines) + "\n"


def summary(heading: str, judged: Mapping[str, Judged]) -> str:
    """Say in a sentence how many planted faults were found, were not, and were not looked for."""
    verdicts = [each.verdict for each in judged.values()]
    found, missed = verdicts.count("found"), sum(verdict.startswith("NOT FOUND") for verdict in verdicts)
    rest = len(samples()) - found - missed
    where = "REHEARSAL" if heading.startswith("REHEARSAL") else "On this GPU"
    return f"{where}: {found} of {len(samples())} planted faults found, {missed} not found, {rest} not judged."


def _row(sample: Sample, judged: Judged | None) -> str:
    planted = f"{sample.planted_in.name}:{sample.planted}" if sample.planted else "nothing"
    by, verdict = (judged.by, judged.verdict) if judged else ("", "not judged: its test was not run")
    return f"| {sample.name} | {planted} | {by} | {_cell(verdict)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
