"""The HTML page stands alone and lets nothing in; what it looks like is tested in a true browser (tests/browser)."""

import base64
import dataclasses
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import SandboxedEnvironment

from tests.support import reports
from tests.support.memory_maps import KEYS, WINDOW, document
from vdbg_env.common.console import size_text
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.crash.memory_map import owner_json, owner_of, read_memory_map
from vdbg_env.report import pages
from vdbg_env.report.model import Report, report_document
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


@pytest.mark.parametrize(
    "report",
    [reports.FULL, reports.HANG, reports.BARE, reports.PICTURES],
    ids=["full", "hang", "bare", "pictures"],
)
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


def drawn(report: Report, start: str, end: str) -> Outline:
    """Return what is drawn between two marks of the page."""
    return Outline(re.findall(f"{start}.*?{end}", page(report), re.DOTALL)[0])


def test_the_timelines_show_the_seconds_of_the_json() -> None:
    document = report_document(reports.PICTURES)
    steps = [step for step in document["steps"] if step["duration_s"] is not None]
    whole = max(step["started_s"] + step["duration_s"] for step in steps)
    bars = [a for tag, a in drawn(reports.PICTURES, '<section id="time"', "</section>").tags if tag == "rect"]
    first = [bars[sum(len(s["attempts"]) or 1 for s in steps[:n])] for n in range(5)]
    assert [float((bar["x"] or "")[:-1]) for bar in first] == [
        pytest.approx(step["started_s"] / whole * 100, abs=0.01) for step in steps[:5]
    ]
    ranks = document["steps"][-1]["attempts"]
    lanes = drawn(reports.PICTURES, '<section id="ranks"', "</section>")
    widths = [float((a["width"] or "")[:-1]) for tag, a in lanes.tags if tag == "rect"]
    shown = [5, *(rank for rank in range(18) if rank != 5)][:16]  # the first failure leads
    assert widths == [pytest.approx(ranks[rank]["duration_s"] / 40 * 100, abs=0.01) for rank in shown]
    assert "rank 5: first failure after 30 s" in [a.get("aria-label") for _, a in lanes.tags]
    assert "and 2 victim, 2 well" in " ".join("".join(lanes.text).split())


def test_the_grid_shows_the_blocks_of_the_json() -> None:
    around = report_document(reports.PICTURES)["findings"][0]["around"]
    grid = drawn(reports.PICTURES, '<figure class="grid"', "</figure>")
    squares = [(a["x"], a["y"], a["class"]) for tag, a in grid.tags if tag == "rect" and a["class"] != "first"]
    names = {"X": "faulted", "o": "resident", ".": "absent"}
    assert squares == [
        (str(x * 18), str(y * 18), names[mark]) for y, row in enumerate(around["rows"]) for x, mark in enumerate(row)
    ]
    (ring,) = [a for _, a in grid.tags if a.get("class") == "first"]
    faulted = around["first"][0] - around["from"][0], around["first"][1] - around["from"][1]
    assert (int(ring["x"] or 0) + 1, int(ring["y"] or 0) + 1) == (faulted[0] * 18, faulted[1] * 18)
    assert "x 84-116 of 0-4095, z 1 of 0-1" in str(next(a for tag, a in grid.tags if tag == "svg")["aria-label"])


def test_the_ruler_shows_the_address_between_the_regions_of_the_json() -> None:
    owner = report_document(reports.PICTURES)["findings"][0]["address"]["owner"]
    ruler = drawn(reports.PICTURES, '<figure class="ruler"', "</figure>")
    text = " ".join("".join(ruler.text).split())
    for region in (owner["region"], owner["above"]):
        assert f"{region['address']} {region['name']}" in text
    end = int(owner["region"]["address"], 16) + owner["region"]["bytes"]
    gap = int(owner["above"]["address"], 16) - end
    assert f"between them {size_text(gap)} the address" in text
    stretches = [(float(str(a["x"])[:-1]), float(str(a["width"])[:-1])) for tag, a in ruler.tags if tag == "rect"]
    (mark,) = [float(str(a["x1"])[:-1]) for tag, a in ruler.tags if tag == "line"]
    left, width = stretches[1]
    share = (int(owner["address"], 16) - end) / gap
    assert mark == pytest.approx(left + share * width, abs=0.01)
    assert f"{owner['address']}: {owner['sentence']}" in text


@pytest.mark.parametrize(
    ("address", "says"), [(KEYS - 16, "before it 16 bytes"), (WINDOW + (8 << 20) + 4, "past it 4 bytes")]
)
def test_the_ruler_ends_at_an_address_outside_of_every_region(address: int, says: str) -> None:
    known = read_memory_map(json.dumps({**document(), "tensors": document()["tensors"][:1], "segments": []}).encode())
    owner = owner_json(owner_of(known, address))
    found = dataclasses.replace(reports.FAULT, address=None, owner=owner)
    ruler = drawn(dataclasses.replace(reports.FULL, findings=(found,)), '<figure class="ruler"', "</figure>")
    assert f"{says} the address" in " ".join("".join(ruler.text).split())


def test_the_compiled_page_is_kept_where_that_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def anew(folder: Path) -> str:
        monkeypatch.setattr(pages, "_BYTECODE", folder)
        pages._compiled.cache_clear()
        return page(reports.FULL)

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = anew(tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert anew(tmp_path / "absent") == made
    assert anew(tmp_path) == made
    (kept,) = tmp_path.iterdir()
    monkeypatch.setattr(SandboxedEnvironment, "compile", None)
    assert anew(tmp_path) == made
    monkeypatch.undo()
    kept.write_bytes(kept.read_bytes()[:-9])
    assert anew(tmp_path) == made
