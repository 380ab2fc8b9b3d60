"""The report says what was tried and what that did to the fault."""

import dataclasses

from tests.support.reports import BARE, FULL, STEPS
from vdbg_env.report.model import Effect, changes, delta
from vdbg_env.runbook.model import Status


def effects(*outcomes: Status) -> list[Effect]:
    trials = [dataclasses.replace(STEPS[1], id=f"s{n}", outcome=outcome) for n, outcome in enumerate(outcomes)]
    return [change.effect for change in changes(dataclasses.replace(BARE, steps=tuple(trials)))]


def test_the_first_trial_is_what_the_others_are_held_against() -> None:
    assert effects(Status.REPRODUCED, Status.REPRODUCED, Status.NOT_REPRODUCED) == [
        Effect.BASELINE,
        Effect.SAME,
        Effect.GONE,
    ]


def test_a_hang_in_place_of_a_crash_is_another_failure() -> None:
    assert effects(Status.REPRODUCED, Status.HANG, Status.UNRESOLVED) == [
        Effect.BASELINE,
        Effect.DIFFERENT,
        Effect.UNKNOWN,
    ]


def test_nothing_is_gone_when_it_never_showed() -> None:
    assert effects(Status.NOT_REPRODUCED, Status.NOT_REPRODUCED) == [Effect.BASELINE, Effect.UNKNOWN]


def test_steps_that_only_read_are_no_trial() -> None:
    assert [c.step for c in changes(FULL)] == ["baseline", "blocking", "cudagraph-none", "coredump"]
    assert [c.rate for c in changes(FULL)] == ["1 of 2", "1 of 1", "0 of 1", "1 of 1"]


def test_a_run_without_steps_has_no_changes() -> None:
    assert changes(BARE) == ()


def test_a_delta_names_variables_set_and_unset_and_words_added() -> None:
    assert delta(STEPS[2]) == ("CUDA_LAUNCH_BLOCKING=1",)
    assert delta(STEPS[3]) == ("+ -cc.cudagraph_mode=NONE",)
    assert "unset PYTHONHASHSEED" in delta(STEPS[4])
