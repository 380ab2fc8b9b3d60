"""Every shipped runbook: one for each class of failure, sound, and true to today's flags."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpucore.arming import CORE_SIZES, GENERATION_FLAGS
from tests.support.shipped import RUNBOOKS, library, shipped
from vdbg_env.evidence.knowledge import shipped_knowledge
from vdbg_env.evidence.triage_rules import rule_book
from vdbg_env.runbook import machine
from vdbg_env.runbook.machine import final_inputs
from vdbg_env.runbook.model import Run, Runbook
from vdbg_env.runbook.state import Facts
from vdbg_env.runbook.workload import as_flags

NAMES = sorted(path.stem for path in RUNBOOKS.glob("*.yaml"))
# What goes wrong while a failure is looked into: no log names these, so no class of triage leads here.
TROUBLE_WITH_THE_SEARCH = {
    "no-core-dump", "core-dump-too-large", "missing-source-lines", "model-download-hangs", "slow-file-system",
}  # fmt: skip
# What runs once, in production, has no limit on its time, and is no search for a failure of one class.
PRODUCTION = {"guard"}
LINES = yaml.safe_load((Path(__file__).parents[3] / "data" / "runbook-lines.yaml").read_text())


def lines_of(runbook: str, matcher: str) -> tuple[str, ...]:
    """Return the lines that a matcher of a runbook is meant to take."""
    lines = LINES.get(runbook, {}).get(matcher) or LINES["every"].get(matcher, ())
    return (lines,) if isinstance(lines, str) else tuple(lines)


@pytest.mark.parametrize("name", NAMES)
def test_it_lints_clean(name: str) -> None:
    assert [str(c) for _, complaints in library().lint([name]) for c in complaints] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_pattern_takes_the_line_it_is_meant_for(name: str) -> None:
    runbook = shipped(name)
    matchers = {m.name: m for m in runbook.matchers.values()}
    if name == "illegal-memory-access":
        matchers = {key: m for key, m in matchers.items() if lines_of(name, key)}
    for matcher in matchers.values():
        lines = lines_of(name, matcher.name)
        assert lines, f"no line in tests/data/runbook-lines.yaml for {name}: {matcher.name}"
        for line in lines:
            assert re.search(matcher.pattern, line), (matcher.name, line)


@pytest.mark.parametrize("name", NAMES)
def test_its_variables_and_flags_are_todays(name: str) -> None:
    """No step sets what the newest vLLM does not read, and no remedy names a flag or variable of vLLM that is gone."""
    knowledge = shipped_knowledge()
    told = [knowledge.judge_name(word) for word in sorted(set(_words_of(shipped(name))))]
    assert [j.message for j in told if j.level == "error"] == []


@pytest.mark.parametrize("name", sorted(set(NAMES) - PRODUCTION))
def test_each_run_step_may_be_run_long_enough_and_is_ended_at_last(name: str) -> None:
    for step in shipped(name).steps:
        if isinstance(step, Run):
            assert step.timeout_s is not None, step.id
            assert step.kill.grace_s <= 600, step.id


def test_each_class_of_failure_has_its_runbook() -> None:
    classes = rule_book().classes.values()
    assert {failure.runbook for failure in classes if failure.runbook} == set(
        NAMES
    ) - TROUBLE_WITH_THE_SEARCH - PRODUCTION


def _words_of(runbook: Runbook) -> Iterator[str]:
    """Yield the variables a runbook sets, the flags of its engine arguments, and all of vLLM's that its texts name."""
    for step in runbook.steps:
        if isinstance(step, Run):
            yield from (name for name, value in step.env.items() if value is not None)
            yield from (word.partition("=")[0] for word in as_flags((), step.engine_args) if word.startswith("-"))
        for text in (step.explanation, *(t for o in step.outcomes for t in (o.message, o.next_step) if t)):
            yield from re.findall(r"\bVLLM_[A-Z0-9_]+", text)
            yield from (flag for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+[a-z]", text) if flag not in NOT_OF_VLLM)


# Flags of docker, conda, huggingface_hub and apt in remedies.
NOT_OF_VLLM = {"--ipc", "--shm-size", "--gpus", "--force-download", "--lineinfo"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [*CORE_SIZES, "the alias of full", "not said"])
def test_a_core_is_armed_with_the_flags_of_its_size(name: str, size: str) -> None:
    runbook = shipped(name)
    if name == "core-dump-too-large":  # armed with the smallest, whatever another run was armed with
        size = "the alias of full" if size == "full" else size if size == "the alias of full" else "light"
    elif "core_size" not in runbook.inputs:
        assert "GENERATION_FLAGS" not in (RUNBOOKS / f"{name}.yaml").read_text()
        return
    given = {"the alias of full": {"full_core": "true"}, "not said": {}}.get(size, {"core_size": size})
    wanted = GENERATION_FLAGS[next((s for s in CORE_SIZES if s == size), "full" if given else "default")]
    given = {key: value for key, value in given.items() if key in runbook.inputs}
    planned = machine.plan(runbook, final_inputs(runbook, given, ["vllm", "serve", "M"], {}), Facts(on="plan"))
    armed = {
        step.invocation.env.get("CUDA_COREDUMP_GENERATION_FLAGS")
        for step in planned.steps
        if step.invocation and step.step.id not in {"probe", "packed"}  # of a fixed size, the smallest
    }
    assert armed - {None} == {",".join(wanted)}
