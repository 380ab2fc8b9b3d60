"""Write what a capture recorded: as text and as JSON."""

from __future__ import annotations

from typing import Literal

from vdbg_env.application.host.capture import CaptureReport
from vdbg_env.common.printable import printable
from vdbg_env.common.size import size_text
from vdbg_env.report.codec.document import Document, field


class Captured(Document, of=CaptureReport):
    """How many requests of a server were recorded. Fields are only ever added."""

    schema: Literal["vdbg-env/capture/v1"]
    file: str = field(lambda of, _: str(of.file))
    kept: int = field(doc="How many requests the file has.")
    size: int = field(doc="Of the file, in bytes.")
    passed_on: int = field(doc="All requests, those that are never recorded included.")
    recorded: int
    reads: int = field(doc="GET, HEAD and OPTIONS: passed on and never recorded.")
    too_large: int = field(doc="Not recorded, because of their size.")
    not_redactable: int = field(doc="Not recorded: bodies were to be redacted, and theirs is not text.")
    dropped: int = field(doc="The oldest ones, removed to stay within the bounds.")
    unanswered: int = field(doc="The server could not be reached, or broke off before its answer began.")
    seconds: float
    problem: str | None = field(doc="Why the recording ended before the capture did.")


def as_text(report: CaptureReport) -> str:
    """Return what is kept, what is not and why, and the command that replays it."""
    lines = [f"{report.kept} requests in {report.file} ({size_text(report.size)})"]
    for count, what in (
        (report.dropped, "older ones dropped: --max-count, --max-size"),
        (report.too_large, "too large to keep: --max-body"),
        (report.not_redactable, "not kept: their bodies are not text, and could not be redacted"),
        (report.unanswered, "without an answer from the server"),
    ):
        lines += [f"  {count} {what}"] if count else []
    lines += [f"  the recording ended early: {report.problem}"] if report.problem else []
    lines += [f"replay: vdbg-env runbook NAME -i request={report.file} -- COMMAND"] if report.kept else []
    return "".join(printable(line) + "\n" for line in lines)
