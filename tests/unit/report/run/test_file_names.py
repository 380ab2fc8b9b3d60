"""A file that a workload left may have any name: no report fails for it, and none shows it as markup."""

import dataclasses
import json

import pytest

from tests.support import reports
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.evidence.finding import Artifact
from vdbg_env.report import pages
from vdbg_env.report.model import Report, report_json

NAMES = [b"\xff\xfe.art", b"a\nb\x1b[31m.art", b"<img src=x onerror=alert(1)>.art"]


def leaving(name: bytes) -> Report:
    left = Artifact(name="files", path="steps/s/1/h-0/" + name.decode("utf-8", "surrogateescape"), size=1)
    return dataclasses.replace(reports.FULL, steps=(dataclasses.replace(reports.STEPS[4], artifacts=(left,)),))


def as_page(report: Report) -> str:
    template = (SHIPPED_DATA / "templates" / "report.html.j2").read_text()
    return pages.as_html(report, template=template, style="")


@pytest.mark.parametrize("name", NAMES)
def test_every_report_can_be_written(name: bytes) -> None:
    report = leaving(name)
    json.loads(report_json(report).encode("utf-8", "replace"))
    page, notes = as_page(report), pages.as_markdown(report)
    assert "<img" not in page and "`steps/s/1/h-0/" in notes
    assert "\x1b" not in page + notes


def test_a_link_leads_to_the_bytes_of_the_name() -> None:
    assert 'href="./steps/s/1/h-0/%FF%FE.art"' in as_page(leaving(NAMES[0]))
