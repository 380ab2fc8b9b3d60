"""Whatever a workload prints or leaves behind, a step's time limit and a cancel are obeyed within two seconds."""

import time
from pathlib import Path

import pytest

from tests.support.patience import patience
from tests.support.steps import place, python, runner
from vdbg_env.evidence.finding import EndedBy, Observation
from vdbg_env.record.masking import mask_file
from vdbg_env.run.attempt import READ_MORE_S
from vdbg_env.run.execute import POLL_S
from vdbg_env.run.placement import StartedStep
from vdbg_env.runbook.model import ArtifactRule, Matcher

SLOW = Matcher(name="slow", pattern="foo.*bar.*baz.*qux")
BAIT = "import time\nfor _ in range(4000): print('foobarbaz' * 800, flush=True)\ntime.sleep(60)"
HUGE = 40 << 30


def ended(step: StartedStep) -> Observation:
    """Wait as an engine does, a little at a time."""
    while (seen := step.wait(0.1)) is None:
        pass
    return seen


def test_a_pattern_that_takes_hours_holds_up_no_time_limit(tmp_path: Path) -> None:
    began = time.monotonic()
    step = runner(tmp_path, libraries=()).start(python(BAIT, matchers=(SLOW,), timeout_s=1.0), place(tmp_path))
    seen = ended(step)
    assert time.monotonic() - began < patience(1.0 + 0.4 + 2.0)
    assert seen.ended.by is EndedBy.TIMEOUT
    assert any("matcher slow: its pattern took too long" in note for note in seen.notes)


def test_a_supervisor_of_this_machine_searches_with_re2(tmp_path: Path) -> None:
    code = "print('foobarbaz' * 800)\nprint('foo bar baz and qux')"
    observed = ended(runner(tmp_path).start(python(code, matchers=(SLOW,)), place(tmp_path)))
    assert (observed.notes, [match.line for match in observed.matched["slow"]]) == ((), [2])


def test_nor_a_cancel(tmp_path: Path) -> None:
    step = runner(tmp_path, libraries=()).start(python(BAIT, matchers=(SLOW,)), place(tmp_path))
    assert step.wait(0.6) is None
    began = time.monotonic()
    step.cancel()
    assert ended(step).ended.by is EndedBy.CANCEL
    assert time.monotonic() - began < patience(0.4 + 2.0)


@pytest.mark.parametrize("bait", ["-eyJ"])  # a token's header that never ends: the rule that was slow last
def test_output_that_begins_many_secrets_holds_nothing_up(tmp_path: Path, bait: str) -> None:
    code = f"import time\nprint({bait!r} * 80000, flush=True)\nprint('after', flush=True)\ntime.sleep(60)"
    began = time.monotonic()
    step = runner(tmp_path).start(python(code, timeout_s=1.5), (folder := place(tmp_path)))
    seen = ended(step)
    assert time.monotonic() - began < patience(1.5 + 0.4 + 2.0)
    assert seen.ended.by is EndedBy.TIMEOUT
    assert (folder / "stdout").read_bytes().endswith(b"after\n")


@pytest.mark.parametrize("when", ["cancelled while it is read", "cancelled before"])
def test_a_core_of_many_gigabytes_holds_up_no_cancel(tmp_path: Path, when: str) -> None:
    rule = ArtifactRule(name="core", glob="core.*")
    waits = "import time; time.sleep(60)" if when == "cancelled before" else ""
    step = runner(tmp_path).start(python(waits, artifacts=(rule,)), (folder := place(tmp_path)))
    with (folder / "core.1").open("wb") as core:
        core.truncate(HUGE)
    assert step.wait(2.0) is None
    began = time.monotonic()
    step.cancel()
    seen = ended(step)
    assert time.monotonic() - began < patience(0.4 + 2.0)
    assert seen.artifacts == {}
    assert seen.notes == ("core.1 is left where it is: the run was being ended before it was read",)


def test_holes_are_not_searched_for_secrets(tmp_path: Path) -> None:
    core = tmp_path / "core"
    with core.open("wb") as file:
        for at in (5000, 7 << 30, HUGE):
            file.seek(at)
            file.write(b"known-literal")
    began = time.monotonic()
    assert mask_file(core, (b"known-literal",)) == 3
    assert time.monotonic() - began < patience(1.0)


def test_what_is_waited_for_between_a_signal_and_the_report_is_half_a_second() -> None:
    assert POLL_S + READ_MORE_S <= 0.5
