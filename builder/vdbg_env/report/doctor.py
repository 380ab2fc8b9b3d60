"""Write whether a machine is able to debug: each check with what was found, why it matters and what to type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from vdbg_env.application.host.doctor import Check, DoctorReport, Status
from vdbg_env.report.codec.document import Document

_MARKS: dict[Status, str] = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}


class DoctorDocument(Document, of=DoctorReport):
    """The whole report; status is the worst of its checks."""

    schema: Literal["vdbg-env/doctor/v1"]
    status: Status
    checks: list[Check]


def as_text(report: DoctorReport, *, colour: bool = False) -> str:
    """Return one line a check; what is not ok also says why it matters and what to type, then how to try it all."""
    width = max((len(check.title) for check in report.checks), default=0)
    lines = [line for check in report.checks for line in _lines(check, width, colour)]
    counts = {status: sum(check.status == status for check in report.checks) for status in _MARKS}
    summary = f"{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failures"
    trial = (
        []
        if counts["fail"]
        else ["next: vdbg-env runbook illegal-memory-access tries the whole path, with a bundled crash"]
    )
    return "\n".join([*lines, "", summary, *trial, ""])


def _lines(check: Check, width: int, colour: bool) -> Iterator[str]:
    mark = _MARKS[check.status]
    if colour:
        mark = {"ok": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"}[check.status] + mark + "\x1b[0m"
    yield f"{mark}  {check.title:<{width}}  {check.found}"
    if check.status != "ok":
        yield f"      why: {check.why}"
        if check.fix:
            yield f"      try: {check.fix}"
