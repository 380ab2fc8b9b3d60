"""`runbooks fmt` changes the order of keys and nothing else; `runbooks new` writes what lint accepts."""

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.command_line import vdbg_env
from tests.support.shipped import RUNBOOKS
from vdbg_env.common import yaml_source
from vdbg_env.runbook.parse import formatted, skeleton

FILES = [*sorted(RUNBOOKS.glob("*.yaml")), *sorted(RUNBOOKS.glob("lib/*.yaml"))]
MIXED = """\
# the file
kind: Runbook  # of this kind
apiVersion: vdbg-env/v1
spec:
  steps:
    # about the step
    - run: workload
      # about its name

      name: A name
      id: baseline
      outcomes:
        - unresolved:
            next: end
            message: >-
              folded
              text
    - from: report
      id: last
  # about the inputs
  inputs:
    zeta: {type: int}
    alpha: {type: int}
metadata: {title: T, name: n}
"""
SORTED = """\
# the file
apiVersion: vdbg-env/v1
kind: Runbook  # of this kind
metadata: {title: T, name: n}
spec:
  # about the inputs
  inputs:
    zeta: {type: int}
    alpha: {type: int}
  steps:
    # about the step
    - id: baseline
      # about its name

      name: A name
      run: workload
      outcomes:
        - unresolved:
            message: >-
              folded
              text
            next: end
    - id: last
      from: report
"""


def layout(text: str) -> str:
    return formatted(yaml_source.read(text.encode(), "x.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_shipped_file_is_in_order(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert formatted(yaml_source.read(text.encode(), str(file))) == text


def test_keys_are_put_in_order_and_comments_move_with_them() -> None:
    assert layout(MIXED) == SORTED


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_formatted_file_says_the_same_and_is_not_formatted_again(path: Path) -> None:
    before = path.read_text()
    after = layout(before)
    assert yaml_source.read(after.encode(), "x").value == yaml_source.read(before.encode(), "x").value
    assert layout(after) == after
    assert sorted(line.strip() for line in after.splitlines()) == sorted(line.strip() for line in before.splitlines())


@given(st.randoms(use_true_random=False))
def test_whatever_the_order_of_its_keys_a_step_is_formatted_alike(order: random.Random) -> None:
    keys = {
        "id": "one",
        "name": "A name  # of it",
        "if": "inputs.deep",
        "run": "workload",
        "env": '\n        # why\n        A: "1"',
        "timeout": "5m",
        "outcomes": "\n        - unresolved: {next: end}",
    }
    shuffled = list(keys)
    order.shuffle(shuffled)
    lines = [f"{key}: {keys[key]}" if keys[key][0] != "\n" else f"{key}:{keys[key]}" for key in shuffled]
    text = "kind: Runbook\nspec:\n  steps:\n    - " + "\n      ".join(lines) + "\n"
    after = layout(text)
    assert [line.strip(" -").partition(":")[0] for line in after.splitlines()[3:] if line[6:7].strip()] == [
        *("id", "name", "if", "run", "timeout", "env", "outcomes"),
    ]
    assert layout(after) == after


def test_a_new_runbook_passes_lint_is_formatted_and_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = vdbg_env("runbooks", "new", "my-crash")
    assert (made.status, made.stdout) == (0, "my-crash.yaml\n")
    assert "runbooks lint ./my-crash.yaml" in made.stderr
    assert vdbg_env("runbooks", "lint", "./my-crash.yaml").stdout.endswith("0 problems found\n")
    assert vdbg_env("runbooks", "fmt", "--check", "my-crash.yaml").status == 0
    again = vdbg_env("runbooks", "new", "my-crash")
    assert (again.status, "exists already" in again.stderr) == (2, True)
    assert vdbg_env("runbooks", "new", "Not A Name").status == 2
    assert vdbg_env("runbooks", "new", "other", "deep/er").stdout == "deep/er/other.yaml\n"
    assert skeleton("other", "s").count("other") == 1


def test_fmt_writes_what_is_out_of_order_and_check_only_reports_it(tmp_path: Path) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text(MIXED)
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    told = vdbg_env("runbooks", "fmt", "--check", str(link))
    assert (told.status, path.read_text()) == (2, MIXED)
    assert vdbg_env("runbooks", "fmt", str(link)).status == 0
    assert (path.read_text(), link.is_symlink()) == (SORTED, True)
    assert vdbg_env("runbooks", "fmt", "--check", str(path)).status == 0


def test_fmt_refuses_what_is_not_yaml_and_leaves_the_other_files(tmp_path: Path) -> None:
    broken, right = tmp_path / "broken.yaml", tmp_path / "mixed.yaml"
    broken.write_text("a: [")
    right.write_text(MIXED)
    assert vdbg_env("runbooks", "fmt", str(right), str(broken)).status == 2
    assert right.read_text() == MIXED
    assert vdbg_env("runbooks", "fmt", str(tmp_path / "missing.yaml")).status == 2
    shutil.rmtree(tmp_path)
