"""The HTML report in a true browser: nothing asked of the network, nothing complained of, everything in sight.

Screenshots are left in the folder that SCREENSHOTS names, for a person to look at.
"""

import dataclasses
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Page, chromium, program
from tests.support import reports
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.evidence.finding import NextStep
from vdbg_env.report.model import Report
from vdbg_env.report.pages import as_html as render

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(program() is None, reason="no Chromium on PATH (Debian: apt-get install chromium)"),
]
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>\"'>&amp;{{ 7*7 }}<style>*{display:none}</style>"
    "\x1b]8;;http://example.invalid\x07 javascript:alert(3) \u202e</details></pre></code>"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(program() or "", tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def show(page: Page, report: Report, folder: Path, *, width: int = 1280) -> None:
    template, style = ((SHIPPED_DATA / "templates" / name).read_text() for name in ("report.html.j2", "report.css"))
    file = folder / "report.html"
    file.write_text(render(report, template=template, style=style))
    page.window(width)
    page.media()
    page.open(file.as_uri())


def keep(page: Page, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(Path(folder) / f"{name}.png")


@pytest.mark.parametrize("name", ["full", "hang", "bare", "pictures"])
@pytest.mark.parametrize("width", [320, 390, 768, 1280, 1920])
def test_no_request_no_complaint_and_no_sideways_scrolling(page: Page, tmp_path: Path, name: str, width: int) -> None:
    show(
        page,
        {"full": reports.FULL, "hang": reports.HANG, "bare": reports.BARE, "pictures": reports.PICTURES}[name],
        tmp_path,
        width=width,
    )
    keep(page, f"{name}-{width}")
    assert page.requests == [(tmp_path / "report.html").as_uri(), "data:,"] or page.requests == [
        (tmp_path / "report.html").as_uri()
    ]
    assert page.complaints == []
    assert page.value("document.documentElement.scrollWidth") <= width


def in_sight(page: Page, selector: str) -> list[str]:
    """Return the text of every element that has a place on the page."""
    script = f"""[...document.querySelectorAll({selector!r})]
        .filter(e => e.checkVisibility() && e.getBoundingClientRect().width > 0).map(e => e.innerText.trim())"""
    texts: list[str] = page.value(script)
    return texts


def test_every_step_and_the_whole_chain_are_in_sight(page: Page, tmp_path: Path) -> None:
    show(page, reports.FULL, tmp_path)
    assert in_sight(page, ".path .id") == [step.id for step in reports.FULL.walked]
    assert in_sight(page, ".chain .place") == ["rope.cu:5", "rope.cu:9", "rope.cu:13"]
    assert [text.split(maxsplit=1)[1] for text in in_sight(page, ".source .marked")] == [
        "p[i] = v;",
        "if (row < rows) store_row<T, N>(q, row, T(row));",
    ]
    assert in_sight(page, ".missed code") == ["sanitizer"]
    assert "CUDA_LAUNCH_BLOCKING=1" in in_sight(page, ".delta code")


def test_the_warps_of_a_hang_are_in_sight(page: Page, tmp_path: Path) -> None:
    show(page, reports.HANG, tmp_path)
    assert in_sight(page, ".warps .count") == ["5", "3"]
    assert "hang.cu:5" in in_sight(page, ".warps .leaf")[0]
    assert in_sight(page, ".banner")[0].startswith("Synthetic recording")


def test_the_evidence_opens_with_the_keyboard_alone(page: Page, tmp_path: Path) -> None:
    show(page, reports.FULL, tmp_path)
    page.press("Tab", 9)
    assert page.value("document.activeElement.className") == "skip"
    page.value("document.querySelector('#step-blocking summary').focus()")
    page.ask("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    page.ask("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter", windowsVirtualKeyCode=13)
    assert page.value("document.querySelector('#step-blocking details').open") is True
    assert any("illegal memory access" in text for text in in_sight(page, "#step-blocking pre"))


def test_a_screen_reader_finds_landmarks_headings_and_named_things(page: Page, tmp_path: Path) -> None:
    show(page, reports.FULL, tmp_path)
    tree = page.ask("Accessibility.getFullAXTree")["nodes"]
    named = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in tree if not n["ignored"]]
    roles = {role for role, _ in named}
    assert {"banner", "main", "navigation", "contentinfo", "complementary", "heading", "meter"} <= roles
    nameless = [role for role, name in named if role in {"link", "image", "region", "meter"} and not name.strip()]
    assert nameless == []
    levels = page.value("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels[0] == 1 and all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_every_link_leads_somewhere_beside_the_page_or_inside_it(page: Page, tmp_path: Path) -> None:
    show(page, reports.FULL, tmp_path)
    dead = """[...document.querySelectorAll('a[href^="#"]')].map(a => a.getAttribute('href').slice(1))
        .filter(id => !document.getElementById(decodeURIComponent(id)) && !document.getElementById(id))"""
    assert page.value(dead) == []
    schemes = page.value("[...document.querySelectorAll('a')].map(a => new URL(a.href).protocol)")
    assert set(schemes) == {"file:"}


@pytest.mark.parametrize("width", [390, 1280])
def test_dark_is_dark(page: Page, tmp_path: Path, width: int) -> None:
    show(page, reports.FULL, tmp_path, width=width)
    light = page.value("getComputedStyle(document.body).backgroundColor")
    page.media("dark")
    keep(page, f"full-{width}-dark")
    dark = page.value("getComputedStyle(document.body).backgroundColor")
    brightness = [sum(map(int, colour[4:-1].split(","))) for colour in (light, dark)]
    assert brightness[0] > 700 and brightness[1] < 100


def test_print_shows_the_folded_evidence(page: Page, tmp_path: Path) -> None:
    show(page, reports.FULL, tmp_path)
    page.media(kind="print")
    keep(page, "full-print")
    assert any("illegal memory access" in text for text in in_sight(page, "#step-blocking pre"))
    assert in_sight(page, "nav a") == []


def test_hostile_text_stays_text(page: Page, tmp_path: Path) -> None:
    step = dataclasses.replace(
        reports.STEPS[4],
        id=HOSTILE,
        name=HOSTILE,
        message=HOSTILE,
        notes=(HOSTILE,),
        argv=(HOSTILE,),
        env={HOSTILE: HOSTILE},
        results={HOSTILE: [HOSTILE]},
        evidence=(dataclasses.replace(reports.IMA, text=HOSTILE, stream=HOSTILE),),
        artifacts=tuple(
            dataclasses.replace(a, path="javascript:alert(4)//" + HOSTILE) for a in reports.STEPS[4].artifacts
        ),
    )
    frame = dataclasses.replace(reports.LEAF, file=HOSTILE, function=HOSTILE)
    found = dataclasses.replace(
        reports.FAULT,
        message=HOSTILE,
        kernel=HOSTILE,
        step=HOSTILE,
        location=frame,
        chain=(frame,),
        artifact="javascript:alert(5)",
    )
    report = dataclasses.replace(
        reports.FULL,
        title=HOSTILE,
        run=HOSTILE,
        workload=(HOSTILE,),
        steps=(step,),
        findings=(found, found),
        environment={HOSTILE: HOSTILE},
        next_steps=(NextStep(text=HOSTILE, command=HOSTILE),),
        notes=(HOSTILE,),
    )
    show(page, report, tmp_path)
    assert page.complaints == []
    assert page.requests[0] == (tmp_path / "report.html").as_uri() and set(page.requests[1:]) <= {"data:,"}
    assert page.value("document.querySelectorAll('script, img, iframe, object').length") == 0
    assert page.value("document.querySelectorAll('style').length") == 1
    assert set(page.value("[...document.querySelectorAll('a')].map(a => new URL(a.href).protocol)")) == {"file:"}
    assert "{{ 7*7 }}" in page.value("document.body.innerText")


@pytest.mark.parametrize("width", [320, 400, 1400])
def test_a_word_without_end_runs_out_of_no_window(page: Page, tmp_path: Path, width: int) -> None:
    word = "/opt/" + "very-long-folder_name/" * 12 + "file.py:88"
    step = dataclasses.replace(reports.STEPS[2], message=f"raised at {word}", name=word)
    finding = dataclasses.replace(
        reports.FAULT, message=f"CUDBG_{'X' * 80} at {word}", next_step=NextStep("read it", f"vdbg-env core {word}")
    )
    report = dataclasses.replace(reports.FULL, steps=(*reports.FULL.steps, step), findings=(reports.FAULT, finding))
    show(page, report, tmp_path, width=width)
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size") == page.value(
        "document.querySelectorAll('[id]').length"
    )  # the step was visited twice, and each visit has an anchor of its own
