"""What is decided about steps in containers without an engine: their ends, and the engine's refusals in plain words."""

from dataclasses import replace
from typing import Any

import pytest

from vdbg_env.evidence.finding import Ended, EndedBy, Observation
from vdbg_env.evidence.system import memory_kill_findings
from vdbg_env.run.attempt import LOST
from vdbg_env.run.container import ContainerEnd, told_by_engine

KILLED = ContainerEnd(known=True, code=137)
OUT_OF_MEMORY = ContainerEnd(known=True, code=137, out_of_memory=True)


def seen(by: EndedBy, **ended: Any) -> Observation:
    return Observation(step="s", attempt=1, rank=0, host="h", ended=Ended(by=by, **ended), duration_s=1.0)


def test_what_the_engine_has_nothing_to_say_of_is_left_as_it_was_seen() -> None:
    crash = seen(EndedBy.SIGNAL, signal=11)
    assert told_by_engine(crash, ContainerEnd(known=True, code=0), memory=None, unasked=True) == crash


@pytest.mark.parametrize(
    "ended",
    [
        Ended(by=EndedBy.SIGNAL, signal=9),
        Ended(by=EndedBy.EXIT, code=137),
        Ended(by=EndedBy.ENGINE_LOST, message=LOST),
    ],
)
def test_a_kill_for_lack_of_memory_is_named_and_is_a_finding(ended: Ended) -> None:
    told = told_by_engine(replace(seen(EndedBy.EXIT), ended=ended), OUT_OF_MEMORY, memory=64 << 20, unasked=True)
    assert told.ended.by is ended.by
    assert "out of memory" in str(told.ended.message) and "the 64 MiB of --memory" in str(told.ended.message)
    assert [finding.rule for finding in memory_kill_findings((told,))] == ["memory-kill"]


def test_a_program_that_outlived_the_kill_of_its_child_keeps_its_own_end() -> None:
    told = told_by_engine(seen(EndedBy.EXIT, code=1), OUT_OF_MEMORY, memory=None, unasked=True)
    assert (told.ended.code, told.ended.message) == (1, None)
    assert any("the machine's memory" in note for note in told.notes)


def test_an_end_that_nobody_here_asked_for_is_no_cancel_of_the_users() -> None:
    stopped = seen(EndedBy.CANCEL, message="its end was requested")
    outside = told_by_engine(stopped, ContainerEnd(known=True, code=0), memory=None, unasked=True)
    assert (outside.ended.by, "docker stop" in str(outside.ended.message)) == (EndedBy.ENGINE_LOST, True)
    assert told_by_engine(stopped, ContainerEnd(known=True, code=0), memory=None, unasked=False) == stopped


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (KILLED, "its container was killed before"),
        (ContainerEnd(known=True, code=1), "its container was ended with status 1 before"),
        (ContainerEnd(), "its container is gone"),
    ],
)
def test_a_lost_supervisor_is_told_with_what_the_engine_knows(end: ContainerEnd, words: str) -> None:
    told = told_by_engine(seen(EndedBy.ENGINE_LOST, message=LOST), end, memory=None, unasked=True)
    assert words in str(told.ended.message)


def test_a_fault_of_the_supervisor_itself_is_not_talked_over() -> None:
    fault = seen(EndedBy.ENGINE_LOST, message="the supervisor failed: KeyError")
    assert told_by_engine(fault, ContainerEnd(known=True, code=1), memory=None, unasked=True) == fault
