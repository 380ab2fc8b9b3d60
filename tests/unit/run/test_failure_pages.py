"""The pages of docs/failures are what the runbooks say today, and can be followed by hand."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env
from tests.support.golden import assert_file
from tests.support.shipped import RUNBOOKS, library, shipped
from vdbg_env.run.failure_pages import INDEX, failure_pages, render_all
from vdbg_env.runbook.model import Manual, Run

FOLDER = Path(__file__).parents[3] / "docs" / "failures"
NAMES = sorted({path.stem for path in RUNBOOKS.glob("*.yaml")} - {"guard"})  # which looks into no failure


@cache
def pages() -> dict[str, str]:
    return dict(render_all(failure_pages(library())))


@pytest.mark.parametrize("file", [INDEX, *(f"{name}.md" for name in NAMES)])
def test_the_page_is_that_of_the_runbook_of_today(file: str) -> None:
    assert_file(FOLDER / file, pages()[file])


def test_there_is_no_page_of_a_runbook_that_is_gone() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(pages())


@pytest.mark.parametrize("name", NAMES)
def test_every_remedy_is_on_its_page_or_on_the_index(name: str) -> None:
    page, runbook = pages()[f"{name}.md"], shipped(name)
    assert page.startswith(f"# {runbook.title}\n")
    assert len(page.split()) < 600
    flat = " ".join((page + pages()[INDEX]).replace("`", "").split())
    for step in runbook.steps:
        for outcome in () if isinstance(step, Manual) else step.outcomes:
            says = re.sub(r"\$\{\{.*?\}\}", "", outcome.message or step.title).split()
            if outcome.rule and outcome.next_step and "${{" not in outcome.next_step and len(says) > 3:
                assert " ".join(outcome.next_step.replace("`", "").split()) in flat, (step.id, outcome.next_step)


@pytest.mark.parametrize("name", NAMES)
def test_every_change_that_a_runbook_tries_is_on_its_page(name: str) -> None:
    page = " ".join(pages()[f"{name}.md"].replace("`", "").split())
    for step in shipped(name).steps:
        if isinstance(step, Run):
            assert step.title.rstrip(".") in page


def test_markdown_takes_no_underscores_of_a_name() -> None:
    assert "`python3 -c 'import vllm; print(vllm.__file__)'`" in " ".join(pages()["missing-source-lines.md"].split())
    for name, page in pages().items():
        words = re.sub(r"^ {4,}.*$|^.*https?://.*$", "", page, flags=re.MULTILINE)
        assert not re.search(r"\b__|__\b", re.sub(r"`[^`]*`", "", words)), name


@pytest.mark.parametrize("name", NAMES)
def test_a_page_holds_nothing_that_only_the_tool_can_fill(name: str) -> None:
    page = pages()[f"{name}.md"]
    assert "${{" not in page
    assert "rank.dir" not in page
    assert all(len(line) <= 200 for line in page.splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_its_command_lines_are_whole(name: str) -> None:
    typed = re.findall(r"^ {6}(.+)$", pages()[f"{name}.md"].replace(" \\\n", " "), re.MULTILINE)
    assert typed
    for line in typed:
        assert shlex.split(line, comments=True), line


def test_the_index_links_to_every_page() -> None:
    # It is no failure page: it names all of them, and has once what most of them share.
    assert len(pages()[INDEX].split()) < 700
    assert sorted(re.findall(r"\]\(([a-z-]+)\.md\)", pages()[INDEX])) == NAMES


def test_the_command_writes_them(tmp_path: Path) -> None:
    ran = vdbg_env("runbooks", "docs", str(tmp_path / "pages"))
    assert ran.status == 0
    assert (tmp_path / "pages" / "README.md").read_text().startswith("# Failures, one page each\n")
    (tmp_path / "file").touch()
    assert vdbg_env("runbooks", "docs", str(tmp_path / "file")).status == 2
