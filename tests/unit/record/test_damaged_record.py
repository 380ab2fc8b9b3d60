"""A record whose lines are JSON and yet no events is told as damaged: by the walk, and by what lists runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from vdbg_env.common.errors import BadInput
from vdbg_env.record.event_log import Event
from vdbg_env.record.progress import at_start, replay
from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.run.history import recorded
from vdbg_env.runbook.model import Runbook
from vdbg_env.runbook.state import BranchTo, Facts, Finish, RunState, Verdict
from vdbg_env.runbook.workload import Inputs

DAMAGED: list[tuple[str, dict[str, Any]]] = [
    ("attempt_started", {"step": "s"}),
    ("attempt_ended", {"observation": None}),
    ("step_finished", {}),
    ("branched", {"runbook": "x"}),
    ("run_finished", {"finish": {}}),
    ("run_finished", {"finish": "x"}),
]


@pytest.mark.parametrize(("kind", "data"), DAMAGED)
def test_an_event_that_lacks_what_its_kind_has_is_named(kind: str, data: dict[str, Any]) -> None:
    finish = Finish(verdict=Verdict.PASSED, why="well")
    state = RunState(runbook=Runbook(name="b", title="B", steps=()), inputs=Inputs({}), facts=Facts(), decision=finish)

    def no_branch(branch: BranchTo) -> RunState:
        raise AssertionError(branch)

    with pytest.raises(BadInput, match=f"event 1 .{kind}. does not say"):
        replay(at_start(state), [Event(seq=1, kind=kind, at="", elapsed_s=0.0, data=data)], no_branch)


@pytest.mark.parametrize(("kind", "data"), [DAMAGED[2], DAMAGED[5]])
def test_a_run_with_such_an_event_is_not_listed_as_one(tmp_path: Path, kind: str, data: dict[str, Any]) -> None:
    run = RunDirectory(tmp_path)
    run.write_head(RunHead(run="r", runbook="b"))
    run.events.write_text(json.dumps({"seq": 1, "at": "", "elapsed_s": 0.0, "kind": kind, **data}) + "\n")
    with pytest.raises(BadInput, match="damaged"):
        recorded(run)


@pytest.mark.parametrize("name", ["run", "runbook_file", "workload", "inputs", "facts", "pseudonyms"])
def test_a_head_with_a_value_of_another_kind_is_named(tmp_path: Path, name: str) -> None:
    run = RunDirectory(tmp_path)
    run.write_head(RunHead(run="r", runbook="b"))
    head = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**head, name: 5}))
    with pytest.raises(BadInput, match=f"damaged: {name}: "):
        run.read_head()


def test_what_is_nested_without_end_is_no_record(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    (tmp_path / "run.json").write_text("[" * 200_000)
    with pytest.raises(BadInput, match="is not a run"):
        run.read_head()
    run.write_head(RunHead(run="r", runbook="b", workload=("a", "b")))
    assert run.read_head() == RunHead(run="r", runbook="b", workload=("a", "b"))
    run.events.write_text("[" * 200_000 + "\n{}\n")
    with pytest.raises(BadInput, match="line 1 is damaged"):
        recorded(run)
