"""Every outcome of every step of the shipped runbooks is taken by some scenario of tests/data/walks."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpucore.core import Fault
from gpucore.core_reader import CoreSections, GpuCore
from tests.support.golden import assert_golden, rewriting
from tests.support.shipped import shipped
from tests.support.triage import Labelled, corpus
from tests.support.walk_files import rewrite_walks, runbooks_with_walks, scenarios
from tests.support.walk_text import report_of, walk_text
from tests.support.walks import Scenario, Told, branch_text, declared, walk_scenario
from vdbg_env.crash.places import AddressWhy, Explainer
from vdbg_env.evidence.triage_rules import rule_book

NAMES = runbooks_with_walks()
# No words of a workload's own: the kernel's log, a debugger's or the sanitizer's report, docker itself, lines that were
# folded on their way, and silence.
OTHERWISE_SEEN = {
    "dev/ima-xid-only.log", "dev/hang-xid-109.log", "dev/ima-cuda-gdb-transcript.log", "dev/ima-memcheck-new.log",
    "held-out/ima-sanitizer-report.log", "dev/wrong-initcheck.log", "held-out/wrong-racecheck.log",
    "dev/ima-folded-at-100.log", "dev/ima-folded-at-80-prefixless.log",
    "dev/hang-throughput-zero-v1.log", "held-out/hang-zero-throughput.log", "shapes/hang-throughput-fell-to-zero.log",
    "shapes/hang-py-spy-waits-for-the-device.log",
}  # fmt: skip
Mapped = Callable[[int, int], bool] | None
EXPLAINED: dict[tuple[object, ...], AddressWhy] = {}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is proven here does not hang on power cuts, and a thousand syncs take minutes on a busy disk."""
    monkeypatch.setattr(os, "fdatasync", lambda _file: None)
    monkeypatch.setattr(os, "fsync", lambda _file: None)


@pytest.fixture(autouse=True)
def one_explanation_of_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most scenarios leave the same few cores; why the address of one is bad takes longer than all else of a walk."""
    explain = Explainer.fault

    def known(
        self: Explainer, core: GpuCore, sections: CoreSections, fault: Fault, mapped: Mapped
    ) -> AddressWhy | None:
        key = (bytes(sections._elf.data), fault.pc, fault.sms)
        if key not in EXPLAINED and (why := explain(self, core, sections, fault, mapped)):
            EXPLAINED[key] = why
        return EXPLAINED.get(key)

    monkeypatch.setattr(Explainer, "fault", known)


def told(runbook: str, folder: Path) -> list[tuple[Scenario, Told]]:
    """Walk all scenarios of a runbook."""
    every = scenarios(runbook)
    return [(one, walk_scenario(one, shipped(runbook), folder / str(n))) for n, one in enumerate(every)]


def test_every_class_of_failure_has_scenarios() -> None:
    runbooks = {failure.runbook for failure in rule_book().classes.values() if failure.runbook}
    assert sorted(runbooks - set(NAMES)) == []


@pytest.mark.parametrize("log", [log for log in corpus() if log.file not in OTHERWISE_SEEN], ids=lambda log: log.file)
def test_a_runbook_recognises_every_log_of_its_failure(log: Labelled) -> None:
    """What `triage` sends to a runbook, its own pattern must see, or the walk would say that nothing failed."""
    runbook = rule_book().classes[log.failure].runbook
    if runbook is None:
        return
    pattern = shipped(runbook).matchers["failure"].pattern
    lines = log.read().decode("utf-8", "replace").splitlines()
    assert any(re.search(pattern, line) for line in lines), f"add its wording to `failure` of runbooks/{runbook}.yaml"


@pytest.mark.parametrize("runbook", NAMES)
def test_every_outcome_is_walked_and_tells_what_to_do_next(runbook: str, tmp_path: Path) -> None:
    walks = told(runbook, tmp_path)
    if rewriting():
        rewrite_walks(runbook, [walk for _, walk in walks])
        walks = [(replace(scenario, walks=walk.path, ends=walk.ends), walk) for scenario, walk in walks]
    for scenario, walk in walks:
        assert (walk.path, walk.ends) == (scenario.walks, scenario.ends), scenario.name
        following = report_of(walk).next_steps
        assert walk.handed_to or following, f"{scenario.name}: nothing to try next"
        typed = [step.command for step in following if step.command]
        prose = [re.sub(r"'[^']*'", "", command) for command in typed]  # without programs of Python in them
        assert not [command for command in prose if ", " in command or "; " in command], scenario.name
    walked = frozenset[tuple[str, int | str]]().union(*(walk.branches for _, walk in walks))
    missed = [branch_text(shipped(runbook), branch) for branch in declared(shipped(runbook)) - walked]
    assert sorted(missed) == [], f"write scenarios for these in tests/data/walks/{runbook}.yaml"
    assert_golden(f"walks/{runbook}.txt", "\n".join(walk_text(*one) for one in walks))
