"""The HTML page stands alone and lets nothing in; what it looks like is tested in a true browser (tests/browser)."""

import base64
import dataclasses
import hashlib
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import reports
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.report.model import Report
from vdbg_env.report.pages import as_html as render

TEMPLATE = (SHIPPED_DATA / "templates" / "report.html.j2").read_text()
STYLE = (SHIPPED_DATA / "templates" / "report.css").read_text()
VOID = {"meta", "link", "img", "br", "path", "circle", "rect", "line"}


class Outline(HTMLParser):
    """Checks that every tag is closed in its order, and keeps tags, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, f"</{tag}> closes what is not open"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page(report: Report) -> str:
    return render(report, template=TEMPLATE, style=STYLE)


@pytest.mark.parametrize("report", [reports.FULL, reports.HANG, reports.BARE], ids=["full", "hang", "bare"])
def test_the_page_is_well_formed_and_needs_nothing_from_outside(report: Report) -> None:
    outline = Outline(page(report))
    names = {tag for tag, _ in outline.tags}
    assert not names & {"script", "img", "iframe", "object", "embed", "form"}
    for _, attributes in outline.tags:
        assert not {name for name in attributes if name.startswith("on") or name == "style"}
        assert not (attributes.get("href") or "").startswith(("http", "//", "javascript"))
    assert "@import" not in STYLE and "url(" not in STYLE


def test_the_policy_allows_this_style_sheet_and_nothing_else() -> None:
    text = page(reports.FULL)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert policy and style
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy[1].startswith(f"default-src 'none'; style-src 'sha256-{digest}';")


@given(st.text(), st.text())
def test_no_text_makes_a_tag(text: str, other: str) -> None:
    plain = [tag for tag, _ in Outline(page(planted("x", "y"))).tags]
    assert [tag for tag, _ in Outline(page(planted(text + "<b>", other + '"><i>'))).tags] == plain


def planted(text: str, other: str) -> Report:
    step = dataclasses.replace(reports.STEPS[4], message=text, argv=(text,), env={"X": other}, notes=(text,))
    found = dataclasses.replace(reports.FAULT, message=text, kernel=other, step=other, artifact=text)
    return dataclasses.replace(reports.FULL, title=text, run=other, steps=(step,), findings=(found,), origin=other)


def test_the_lead_comes_before_the_path() -> None:
    text = page(reports.FULL)
    assert text.index("Warp Illegal Address") < text.index('id="path"') < text.index('id="time"')


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(c * 2 for c in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(scheme: int) -> None:
    """WCAG 2.2, success criterion 1.4.3: a contrast of at least 4.5 to 1."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})", blocks[scheme]))
    pairs = [(tone, f"{tone}-tint") for tone in ("bad", "good", "warn", "calm")]
    pairs += [(ink, behind) for ink in ("ink", "soft", "link", "bad") for behind in ("paper", "card", "code")]
    pairs += [("ink", "marked"), ("soft", "marked"), ("ink", "calm-tint")]
    for ink, behind in pairs:
        light, dark = sorted((luminance(colours[ink]), luminance(colours[behind])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{ink} on {behind}"
