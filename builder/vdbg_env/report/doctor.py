"""Writes whether a machine is able to debug: each check with what was found, why it matters and what to type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, Literal

from typing_extensions import TypedDict  # pydantic makes the published schema of these only, before Python 3.12

from vdbg_env.application.host.doctor import Check, DoctorReport, Status

SCHEMA: Final = "vdbg-env/doctor/v1"

_MARKS: dict[Status, str] = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}


class CheckDocument(TypedDict):
    """One check; fix is null where there is nothing to type."""

    id: str
    title: str
    status: Status
    found: str
    why: str
    fix: str | None


class DoctorDocument(TypedDict):
    """The whole report; status is the worst of its checks."""

    schema: Literal["vdbg-env/doctor/v1"]
    status: Status
    checks: list[CheckDocument]


def document(report: DoctorReport) -> DoctorDocument:
    """Return the report as plain values."""
    return {
        "schema": SCHEMA,
        "status": report.status,
        "checks": [_document(check) for check in report.checks],
    }


def _document(check: Check) -> CheckDocument:
    return {
        "id": check.id,
        "title": check.title,
        "status": check.status,
        "found": check.found,
        "why": check.why,
        "fix": check.fix,
    }


def as_json(report: DoctorReport) -> str:
    """Return the report as indented JSON that ends with a newline."""
    return json.dumps(document(report), indent=2, ensure_ascii=False) + "\n"


def as_text(report: DoctorReport, *, colour: bool = False) -> str:
    """Return one line a check; what is not ok also says why it matters and what to type."""
    width = max((len(check.title) for check in report.checks), default=0)
    lines = [line for check in report.checks for line in _lines(check, width, colour)]
    counts = {status: sum(check.status == status for check in report.checks) for status in _MARKS}
    summary = f"{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failures"
    return "\n".join([*lines, "", summary, ""])


def _lines(check: Check, width: int, colour: bool) -> Iterator[str]:
    mark = _MARKS[check.status]
    if colour:
        mark = {"ok": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"}[check.status] + mark + "\x1b[0m"
    yield f"{mark}  {check.title:<{width}}  {check.found}"
    if check.status != "ok":
        yield f"      why: {check.why}"
        if check.fix:
            yield f"      try: {check.fix}"
