"""Runbooks are found in order: files named, the project, the user, what is shipped."""

from pathlib import Path

import pytest

from tests.unit.runbook.lint.broken_runbooks import RIGHT
from vdbg_env.common.errors import BadInput
from vdbg_env.common.yaml_source import BadDocument
from vdbg_env.run.begin import RunbookRequest, prepare
from vdbg_env.run.library import Folder, RunbookLibrary, catalogue

STEP = (
    "apiVersion: vdbg-env/v1\nkind: Step\nmetadata: {name: mine, title: Mine}\nspec:\n"
    "  uses: builtin/collect-env@v1\n  outcomes: [{pass: {}}]\n"
)


def write(folder: Path, name: str, title: str = "A title") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(RIGHT.replace("name: right, title: A runbook that is right", f"name: {name}, title: {title}"))
    return path


def library(tmp_path: Path, *named: Path) -> RunbookLibrary:
    folders = [Folder(origin="project", path=tmp_path / "project"), Folder(origin="shipped", path=tmp_path / "shipped")]
    return RunbookLibrary(named, catalogue, folders=folders, project=tmp_path)


def test_the_first_of_a_name_is_taken(tmp_path: Path) -> None:
    write(tmp_path / "shipped", "one", "Shipped one")
    write(tmp_path / "shipped", "two", "Shipped two")
    write(tmp_path / "project", "two", "Project two")
    named = write(tmp_path / "elsewhere", "one", "Named one")
    found = library(tmp_path, named)
    assert [(x.name, x.origin) for x in found.entries] == [("one", "named"), ("two", "project")]
    assert (found.load("one").title, found.load("two").title) == ("Named one", "Project two")


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "elsewhere", "one")
    assert library(tmp_path).load(str(path)).name == "one"


def test_the_name_in_the_file_is_that_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "project", "one")
    path.rename(tmp_path / "project" / "other.yaml")
    with pytest.raises(BadDocument, match="1 problem"):
        library(tmp_path).load("other")


def test_shared_steps_beside_a_file_come_before_the_shipped_ones(tmp_path: Path) -> None:
    named = write(tmp_path / "elsewhere", "one")
    text = named.read_text()
    start = text.index("      uses: builtin/gpu-health@v1")
    end = text.index("    - id: baseline")
    named.write_text(text[:start] + "      from: mine\n      next: baseline\n" + text[end:])
    (tmp_path / "elsewhere" / "lib").mkdir()
    (tmp_path / "elsewhere" / "lib" / "mine.yaml").write_text(STEP)
    assert library(tmp_path, named).load("one").steps[0].title == "Mine"


def test_lint_tells_of_every_file(tmp_path: Path) -> None:
    write(tmp_path / "project", "one")
    bad = write(tmp_path / "project", "two")
    bad.write_text(bad.read_text().replace("run: workload", "run: wrokload"))
    results = {entry.name: len(complaints) for entry, complaints in library(tmp_path).lint([])}
    assert results == {"one": 0, "two": 2}


def request(**fields: object) -> RunbookRequest:
    return RunbookRequest(runbook="one", **fields)  # type: ignore[arg-type]


def test_without_a_command_line_that_of_the_project_is_taken(tmp_path: Path) -> None:
    write(tmp_path / "project", "one")
    (tmp_path / "vdbg.yaml").write_text("workload: {argv: [./crash, '1']}\ninputs: {tries: '5'}\n")
    _, inputs = prepare(request(), library(tmp_path), {})
    assert (inputs["argv"], inputs["tries"]) == (["./crash", "1"], 5)
    given = request(argv=("./other",), inputs={"tries": "2"})
    _, inputs = prepare(given, library(tmp_path), {})
    assert (inputs["argv"], inputs["tries"]) == (["./other"], 2)


def test_a_project_file_that_is_wrong_is_told_where(tmp_path: Path) -> None:
    write(tmp_path / "project", "one")
    (tmp_path / "vdbg.yaml").write_text("workload: {argv: ./crash}\n")
    with pytest.raises(BadDocument) as caught:
        prepare(request(), library(tmp_path), {})
    assert caught.value.complaints[0].line == 1


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("workload: {argv: [./crash]}\nimage: {}\n", 2, "image"),
        ("workload:\n  argv: [./crash]\n  env: {A: b}\n", 3, "env"),
        ("workload: {argv: [./crash]}\ninputs: {trise: '5'}\n", 2, "no runbook has an input 'trise'"),
    ],
)
def test_an_unknown_key_of_a_project_file_is_refused(tmp_path: Path, text: str, line: int, said: str) -> None:
    write(tmp_path / "project", "one")
    (tmp_path / "vdbg.yaml").write_text(text)
    with pytest.raises(BadDocument) as caught:
        prepare(request(), library(tmp_path), {})
    (complaint,) = caught.value.complaints
    assert complaint.line == line
    assert said in complaint.what


def test_an_input_of_another_runbook_may_be_in_a_project_file(tmp_path: Path) -> None:
    write(tmp_path / "project", "one")
    other = write(tmp_path / "project", "two")
    other.write_text(other.read_text().replace("tries", "chances"))
    (tmp_path / "vdbg.yaml").write_text("workload: {argv: [./crash]}\ninputs: {chances: '5'}\n")
    _, inputs = prepare(request(), library(tmp_path), {})
    assert "chances" not in inputs


def test_no_command_line_at_all_says_how_to_give_one(tmp_path: Path) -> None:
    write(tmp_path / "project", "one")
    with pytest.raises(BadInput, match="needs a command to run"):
        prepare(request(), library(tmp_path), {})
