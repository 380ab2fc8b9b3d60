"""The page that a real walk of the ladder leaves, opened on a narrow and on a wide window.

Screenshots are left in the folder that SCREENSHOTS names, for a person to look at.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Page, chromium, program
from tests.support.ladder import RUNBOOK, lay_out
from vdbg_env.cli import main

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(program() is None, reason="no Chromium on PATH (Debian: apt-get install chromium)"),
]


@pytest.fixture(params=["graphs", "hang"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Walk the shipped runbook over the scripted vLLM, and return the run's folder."""
    fault: str = request.param
    for name, value in {**lay_out(tmp_path), "FAKE_VLLM": fault}.items():
        monkeypatch.setenv(name, value)
    if fault == "hang":
        monkeypatch.setenv("FAKE_VLLM_CORE", str(tmp_path / "hang.core"))
    monkeypatch.chdir(tmp_path)
    argv = ["runbook", RUNBOOK, "--batch", "--run-dir", fault, "--", "vllm", "bench", "throughput", "-tp", "2"]
    assert main(argv) == 3
    return tmp_path / fault


def in_sight(page: Page, selector: str) -> list[str]:
    script = f"""[...document.querySelectorAll({selector!r})]
        .filter(e => e.checkVisibility() && e.getBoundingClientRect().width > 0).map(e => e.innerText.trim())"""
    texts: list[str] = page.value(script)
    return texts


def test_the_page_of_a_real_run_is_whole_on_a_narrow_and_on_a_wide_window(run: Path, tmp_path: Path) -> None:
    report: dict[str, Any] = json.loads((run / "report.json").read_text())
    with chromium(program() or "", tmp_path / "profile") as page:
        for width in (400, 1400):
            page.window(width)
            page.media()
            page.open((run / "report.html").as_uri())
            if folder := os.environ.get("SCREENSHOTS"):
                page.screenshot(Path(folder) / f"run-{run.name}-{width}.png")
            assert page.complaints == []
            assert set(page.requests) <= {(run / "report.html").as_uri(), "data:,"}
            assert page.value("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
            cut = "[...document.querySelectorAll('.next pre')].filter(e => e.scrollWidth > e.clientWidth).length"
            assert page.value(cut) == 0, "a command to copy is cut off"
            assert in_sight(page, ".path .id") == [step["id"] for step in report["steps"]]
            lead = next(f for f in report["findings"] if f["id"] == report["lead"])
            place = f"{Path(lead['location']['file']).name}:{lead['location']['line']}"
            assert in_sight(page, ".chain .place")[0] == place
            tried = [c["step"] for c in report["changes"] if c["effect"] != "baseline"]
            assert in_sight(page, ".changes a") == tried
            assert len(in_sight(page, ".next li")) == len(report["next_steps"])
            assert bool(in_sight(page, ".warps .count")) is (run.name == "hang")
            twice = "[...document.querySelectorAll('[id]')].map(e => e.id).filter((x, i, all) => all.indexOf(x) !== i)"
            assert page.value(twice) == []
