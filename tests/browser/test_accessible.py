"""The site and a real run's report in a true browser: axe finds nothing, nothing is complained of, nothing overflows.

axe-core and the tools of the site are fetched by scripts/prepare-tests.
"""

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Page, chromium, program
from tests.support import reports
from vdbg_env.report.pages import write_report

ROOT = Path(__file__).parents[2]
AXE = ROOT / ".cache" / "axe" / "axe.min.js"
PAGES = ("", "get-started/", "guides/explain-a-core/", "guides/many-ranks/", "failures/", "reference/commands/")
VIOLATIONS = """axe.run(document, {resultTypes: ["violations"]}).then(found => JSON.stringify(
    found.violations.map(v => `${v.id}: ${v.nodes.length} times, first ${v.nodes[0].target.join(" ")}`)))"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(program() is None, reason="no Chromium on PATH (Debian: apt-get install chromium)"),
    pytest.mark.skipif(not AXE.exists(), reason="no axe-core in .cache/axe: scripts/prepare-tests fetches it with npm"),
]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(program() or "", tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not all(importlib.util.find_spec(name) for name in ("mkdocs", "material", "mkdocs_click", "mkdocstrings")):
        pytest.skip("no mkdocs here: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def is_clean(page: Page, url: str, name: str) -> None:
    for width in (390, 1000, 1600):
        for scheme in ("light", "dark"):
            page.window(width)
            page.media("dark" if scheme == "dark" else "light")
            page.open(url)
            where = f"{name} at {width} pixels, {scheme}"
            page.value(AXE.read_text() + "; 0")
            asked = page.ask("Runtime.evaluate", expression=VIOLATIONS, awaitPromise=True, returnByValue=True)
            assert json.loads(asked["result"]["value"]) == [], where
            assert page.complaints == [], where
            assert page.value("document.documentElement.scrollWidth") <= width, where
            colour = page.value("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, colour[4:-1].split(","))) < 300) is (scheme == "dark"), where
            if folder := os.environ.get("SCREENSHOTS"):
                page.screenshot(Path(folder) / f"{name}-{width}-{scheme}.png")


@pytest.mark.parametrize("path", PAGES)
def test_the_pages_of_the_site_are_clean(page: Page, site: str, path: str) -> None:
    is_clean(page, site + path, path.strip("/").replace("/", "-") or "home")
    foreign = [url for url in page.requests if not url.startswith((site, "data:"))]
    assert not foreign, "a page asks for something of another site"


def test_the_report_of_the_demo_is_clean(page: Page, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "vdbg_env", "demo"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "builder"), "VDBG_ENV_RUNS": str(tmp_path)}
    ran = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 3, ran.stderr
    (report,) = tmp_path.glob("*/report.html")
    is_clean(page, report.as_uri(), "demo-report")


def test_a_report_with_every_picture_is_clean(page: Page, tmp_path: Path) -> None:
    assert write_report(reports.PICTURES, tmp_path, ["html"]) == ("report.html",)
    is_clean(page, (tmp_path / "report.html").as_uri(), "pictures-report")
