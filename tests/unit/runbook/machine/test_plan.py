"""The plan shows each step's final command line and variables, and starts nothing."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.support.command_line import vdbg_env
from tests.support.golden import assert_file, assert_golden
from tests.support.runbooks import changed
from tests.support.shipped import RUNBOOKS, shipped
from vdbg_env.common.errors import BadInput
from vdbg_env.report.runbooks import as_text, plan_json
from vdbg_env.runbook import machine
from vdbg_env.runbook.machine import final_inputs
from vdbg_env.runbook.model import SCHEMA_FILE, json_schema
from vdbg_env.runbook.state import Facts

RUNBOOK = shipped("illegal-memory-access")
FACTS = Facts(on="plan", data_dir="/runbooks")
WORKLOADS = {
    "serve": ("vllm", "serve", "M", "-tp", "2", "-cc", '{"cudagraph_mode": "FULL", "mode": 3}'),
    "script": ("python", "offline.py", "--model", "a b"),
    "program": ("./a.out", "--size=3"),
}


def planned(argv: tuple[str, ...], **given: str) -> machine.Plan:
    return machine.plan(RUNBOOK, final_inputs(RUNBOOK, given, argv, {}), FACTS)


def relative(text: str) -> str:
    return text.replace(str(RUNBOOKS), "runbooks")


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_plan_reads_as_its_golden(name: str) -> None:
    assert_golden(f"runbook/plan-{name}.txt", relative(as_text(planned(WORKLOADS[name]))))


def test_the_plan_as_a_document_reads_as_its_golden() -> None:
    document = plan_json(planned(WORKLOADS["serve"]))
    document["runbook"] = "left out here: its digest changes with every word"
    assert_golden("runbook/plan-serve.json", json.dumps(document, indent=2) + "\n")


def test_the_published_schema_is_that_of_the_code_and_takes_the_shipped_files() -> None:
    from vdbg_env.common import yaml_source

    published = json.loads(json.dumps(json_schema()))
    assert_file(RUNBOOKS / SCHEMA_FILE, json.dumps(published, indent=2, ensure_ascii=False) + "\n")
    Draft202012Validator.check_schema(published)
    for path in (RUNBOOKS / "illegal-memory-access.yaml", *sorted((RUNBOOKS / "lib").glob("*.yaml"))):
        value = yaml_source.read(path.read_bytes(), path.name).value
        assert list(Draft202012Validator(published).iter_errors(value)) == [], path.name


def test_the_command_line_prints_plan_and_document(tmp_path: object) -> None:
    told = vdbg_env(
        "runbook", "illegal-memory-access", "--plan", "--json", "-i", "request=r", "--", "./a.out", "-x", "--"
    )
    assert told.status == 0
    document = json.loads(told.stdout)
    assert document["schema"] == "vdbg-env/runbook-plan/v1"
    baseline = next(step for step in document["steps"] if step["id"] == "baseline")
    assert baseline["argv"] == ["./a.out", "-x", "--"]
    assert {step["id"]: step["runs"] for step in document["steps"]}["graphs_off"] == "no"


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (("illegal-memory-access", "--ranks", "3"), "runs up to 3 times, on 3 ranks, at most 40m each; "),
        (("host-crash", "--on", "slurm", "--ranks", "4", "--nodes", "2"), "on 4 ranks of 2 nodes, at most 40m each; "),
        (("host-crash", "--on", "slurm", "--nodes", "2"), "on 2 nodes, at most 40m each; "),
        (("guard",), "runs for any time; ended by"),
    ],
    ids=["ranks", "ranks-of-nodes", "nodes", "no-limit"],
)
def test_a_plan_says_on_how_many_ranks_and_for_how_long_a_step_runs(flags: tuple[str, ...], shown: str) -> None:
    ran = vdbg_env("runbook", *flags, "--plan", "--", "python3", "x.py")
    assert shown in ran.stdout
    assert "0ms" not in ran.stdout


def test_a_sensitive_input_is_masked_in_the_plan() -> None:
    wanted = changed(RUNBOOK.inputs["url"], sensitive=True)
    runbook = changed(RUNBOOK, inputs={**RUNBOOK.inputs, "url": wanted})
    document = plan_json(machine.plan(runbook, final_inputs(runbook, {"url": "http://h:1"}, ("x",), {}), FACTS))
    assert document["inputs"]["url"] == "***"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("runbook", "ilegal-memory-access", "--plan", "--", "x"), "did you mean 'illegal-memory-access'?"),
        (("runbook", "illegal-memory-access", "--plan", "-i", "depp=1", "--", "x"), "did you mean 'deep'?"),
        (
            ("runbook", "illegal-memory-access", "--plan", "-i", "deep=maybe", "--", "x"),
            "is true or false, not 'maybe'",
        ),
        (
            ("runbook", "illegal-memory-access", "--plan", "-i", "core_size=lite", "--", "x"),
            "input 'core_size' is one of light, default, full, not 'lite'",
        ),
        (("runbook", "illegal-memory-access", "--plan", "-i", "deep", "--", "x"), "'deep' is not NAME=VALUE"),
        (("runbook", "nowhere/x.yaml", "--plan", "--", "x"), "nowhere/x.yaml cannot be read: No such file"),
        (("runbook", "illegal-memory-access", "--total-time", "5", "--", "x"), "'5' is not a duration"),
        (("runbooks", "explain", "illegal-memory-access", "nope"), "has no step 'nope'"),
        (("runbooks", "show", "nope-nope"), "no runbook 'nope-nope'"),
    ],
)
def test_wrong_words_are_met_with_the_nearest(argv: tuple[str, ...], expected: str) -> None:
    told = vdbg_env(*argv)
    assert told.status == 2
    assert expected in told.stderr


def test_a_runbook_of_this_folder_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("x")
    assert "did you mean './mine.yaml'?" in vdbg_env("runbook", "mine", "--plan", "--", "x").stderr


def test_a_plan_without_a_command_line_says_how_to_give_one() -> None:
    with pytest.raises(BadInput) as caught:
        final_inputs(RUNBOOK, {}, (), {})
    assert caught.value.next_step == "vdbg-env runbook illegal-memory-access -- COMMAND ..."


@pytest.mark.parametrize(
    "argv",
    [
        ("runbooks", "list"), ("runbooks", "show", "illegal-memory-access"),
        ("runbooks", "explain", "illegal-memory-access", "coredump"), ("runbooks", "explain", "gpu-coredump"),
    ],
    ids=["list", "show", "explain-step", "explain-shared"],
)  # fmt: skip
def test_what_is_told_of_runbooks_names_them(argv: tuple[str, ...]) -> None:
    told = vdbg_env(*argv)
    assert told.status == 0
    assert {"list": "illegal-memory-access", "show": "analyse"}.get(
        argv[1], "GPU core dump at the exception"
    ) in told.stdout


def test_the_rule_of_a_finding_is_explained_where_it_is_made() -> None:
    told = vdbg_env("runbooks", "explain", "VDBG007")
    assert told.status == 0
    assert "it was ended by signal" in told.stdout and "illegal-memory-access baseline" in told.stdout
    unknown = vdbg_env("runbooks", "explain", "VDBG9ZZ")
    assert (unknown.status, "nothing is known here of" in unknown.stderr) == (2, True)


def test_the_json_of_list_show_and_lint_have_their_schemas() -> None:
    for argv in (("list",), ("show", "illegal-memory-access"), ("lint",)):
        told = vdbg_env("runbooks", *argv, "--json")
        assert json.loads(told.stdout)["schema"] == f"vdbg-env/runbooks-{argv[0]}/v1"


def test_a_step_that_would_not_run_needs_no_workload() -> None:
    book = shipped("core-dump-too-large")
    steps = {one.step.id: one for one in machine.plan(book, final_inputs(book, {}, (), {}), Facts(on="plan")).steps}
    assert (steps["light"].runs, steps["light"].invocation) == ("no", None)
    assert "light" in as_text(machine.plan(book, final_inputs(book, {}, (), {}), Facts(on="plan")))
    document = plan_json(machine.plan(book, final_inputs(book, {}, (), {}), Facts(on="plan")))
    assert len(document["steps"]) == len(book.steps)
    assert "kind" not in next(step for step in document["steps"] if step["id"] == "light")
