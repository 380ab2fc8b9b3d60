"""Lint tells everything that is wrong with a runbook, at its line and column, with the nearest known word."""

import re
from pathlib import Path

import pytest

from tests.support.golden import assert_golden
from tests.support.shipped import RUNBOOKS, library
from tests.unit.runbook.lint.broken_runbooks import BROKEN, RIGHT, broken
from vdbg_env.common import yaml_source
from vdbg_env.common.yaml_source import BadDocument
from vdbg_env.run.library import catalogue
from vdbg_env.runbook.lint import load
from vdbg_env.runbook.model import Catalogue
from vdbg_env.runbook.parse import Library

# Of the built-ins only some: the golden does not change with each new one.
SOME = {
    *("gpu-health", "decode-gpu-core", "locate", "collect-env", "core-sizes", "core-lines", "report"),
    *("triage", "python-traceback", "sanitizer-report", "nccl-log", "coredump-progress", "function-trace"),
}
BUILTINS = Catalogue(contracts=tuple(contract for contract in catalogue().contracts if contract.name in SOME))
KNOWN = ["illegal-memory-access", "kernel-hang"]


def refusal(text: str, steps: Library | None = None) -> str:
    with pytest.raises(BadDocument) as caught:
        load(yaml_source.read(text, "broken.yaml"), steps or library().steps, BUILTINS, runbooks=KNOWN)
    return "\n".join(line for complaint in caught.value.complaints for line in complaint.lines())


def test_the_runbook_the_broken_ones_are_made_of_is_right() -> None:
    assert load(yaml_source.read(RIGHT, "right.yaml"), library().steps, BUILTINS, runbooks=KNOWN).name == "right"


def test_the_runbook_the_docs_begin_with_is_right() -> None:
    page = (RUNBOOKS.parent / "docs" / "guides" / "write-a-runbook.md").read_text()
    example = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0]
    assert (
        load(yaml_source.read(example, "my-crash.yaml"), library().steps, BUILTINS, runbooks=KNOWN).name == "my-crash"
    )


def test_each_way_to_be_wrong_is_told_as_its_golden() -> None:
    told = [f"# {name}\n{refusal(broken(name))}\n" for name in BROKEN]
    assert_golden("runbook/lint.txt", "\n".join(told))


@pytest.mark.parametrize("name", BROKEN)
def test_every_complaint_points_into_the_file(name: str) -> None:
    with pytest.raises(BadDocument) as caught:
        load(yaml_source.read(broken(name), "broken.yaml"), library().steps, BUILTINS, runbooks=KNOWN)
    lines = broken(name).splitlines()
    for complaint in caught.value.complaints:
        assert 1 <= complaint.line <= len(lines)
        assert 1 <= complaint.column <= len(lines[complaint.line - 1]) + 1


def test_all_complaints_are_told_at_once() -> None:
    text = RIGHT.replace("inputs.tries > 2", "inputs.tires > 2").replace("next: report}", "next: reprot}")
    told = refusal(text.replace("builtin/report@v1", "builtin/report@v9"))
    assert [word in told for word in ("'tires'", "'reprot'", "@v9")] == [True, True, True]


def test_a_complaint_about_a_borrowed_part_points_into_the_shared_step() -> None:
    shared = (
        "apiVersion: vdbg-env/v1\nkind: Step\nmetadata: {name: s, title: S}\nspec:\n  run: workload\n"
        '  outcomes:\n    - reproduced: {when: "has(matched.nothing)"}\n    - unresolved: {}\n'
    )
    steps = Library({"s": yaml_source.read(shared, "lib/s.yaml")})
    text = RIGHT.replace("uses: builtin/gpu-health@v1", "from: s").replace(
        """      outcomes:
        - fail: {when: "results.gpus == 0", rule: R1, level: error, message: "none, ${{ inputs.tries }}", next: end}
        - pass: {next: baseline}
""",
        "      next: baseline\n",
    )
    assert refusal(text, steps).startswith("lib/s.yaml:7:39: 'matched' has no member 'nothing'; known: failure")


def test_a_folded_text_is_complained_about_in_the_line_that_is_wrong() -> None:
    text = RIGHT.replace('message: "saw ${{ matched.failure.groups.what }}", next: ask}', "next: ask}").replace(
        "prompt: Again?", "prompt: >-\n          It failed\n          in ${{ inputs.tires }} tries. Again?"
    )
    assert "broken.yaml:39:25: 'inputs' has no member 'tires'" in refusal(text)


@pytest.mark.parametrize(
    "path", [*sorted(RUNBOOKS.glob("*.yaml")), *sorted(RUNBOOKS.glob("lib/*.yaml"))], ids=lambda p: p.stem
)
def test_every_shipped_file_names_its_schema_in_the_first_line(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    name = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / name).resolve() == RUNBOOKS / "runbook-v1.schema.json"


def test_every_shipped_runbook_is_right() -> None:
    assert [complaints for _, complaints in library().lint([]) if complaints] == []


def test_every_shared_step_is_taken_by_some_runbook() -> None:
    taken = {word for path in RUNBOOKS.glob("*.yaml") for word in path.read_text().split()}
    assert set(library().steps.names) - taken == set()
