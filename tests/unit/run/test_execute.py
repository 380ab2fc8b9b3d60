"""A run of real processes, killed, interrupted and taken up again."""

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import small_run
from tests.support.killing import (
    EVENTS,
    PLACES,
    STARTS,
    STEPS,
    Killing,
    check_killed_and_resumed,
    killed_at,
    killing_execution,
    ledger,
    left_running,
    outcome,
    run,
)
from tests.support.patience import patience
from tests.support.runbooks import changed
from vdbg_env.common.errors import HostNotAble
from vdbg_env.evidence.finding import EndedBy, Observation
from vdbg_env.record.event_log import Event, read_events
from vdbg_env.record.progress import Progress
from vdbg_env.run import execute
from vdbg_env.run.execute import Execution
from vdbg_env.run.placement import StartedStep
from vdbg_env.runbook import machine
from vdbg_env.runbook.model import Builtin, Status, Uses
from vdbg_env.runbook.state import Facts, Invocation, StepResult, UseBuiltin, Verdict
from vdbg_env.supervisor import control_files

SAMPLE = (1, 3, 4, 5, 6, 9, 14, PLACES)


def test_a_run_walks_every_kind_of_decision_and_writes_each_down(tmp_path: Path) -> None:
    end = run(tmp_path / "run")
    assert [step for step, _ in outcome(end)] == STEPS
    assert end.finish and end.finish.verdict is Verdict.REPRODUCED
    assert ledger(tmp_path / "run") == STARTS
    assert [e.kind for e in read_events(tmp_path / "run" / "events.jsonl")] == EVENTS
    folders = sorted(str(p.relative_to(tmp_path / "run")) for p in (tmp_path / "run" / "steps").glob("*/*/*"))
    assert folders == [f"steps/{s}/localhost-0" for s in ("again/1", "baseline/1", "baseline/2", "blocking/1")]


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first, second = run(tmp_path / "run"), run(tmp_path / "run")
    assert outcome(first) == outcome(second)
    assert first.finish == second.finish
    assert ledger(tmp_path / "run") == STARTS


def test_the_places_to_die_are_counted_right(tmp_path: Path) -> None:
    killing = Killing(0)
    run(tmp_path / "run", killing_execution(tmp_path / "run", killing))
    assert killing.places == PLACES


@pytest.mark.parametrize("place", SAMPLE)
def test_an_engine_killed_anywhere_is_resumed_to_the_same_end(tmp_path: Path, place: int) -> None:
    check_killed_and_resumed(tmp_path / "run", place)


def test_an_engine_killed_again_and_again_comes_to_the_same_end(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for place in (4, 3, 2, 5):
        killed_at(path, place)
    end = run(path)
    assert [step for step, _ in outcome(end)] == STEPS
    assert ledger(path) == STARTS


def test_the_time_of_an_engine_that_was_killed_counts_too(tmp_path: Path) -> None:
    path = tmp_path / "run"
    before_its_end_is_written = 6
    killed_at(path, before_its_end_is_written, lambda where: small_run.local(where, {"NAP": "1.5"}))
    run(path)
    began, ended = (
        next(event for event in read_events(path / "events.jsonl") if event.kind == kind)
        for kind in ("attempt_started", "attempt_ended")
    )
    assert ended.elapsed_s - began.elapsed_s > 1.4


class Pressed:
    """Ctrl-C, pressed when a first step runs."""

    def __init__(self, path: Path, *signals: int) -> None:
        self._ledger = path.parent / "ledger"
        self._signals = signals

    def pending(self) -> tuple[int, ...]:
        return self._signals if self._ledger.exists() else ()


@pytest.mark.parametrize("signals", [(signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)])
def test_an_interrupted_run_ends_its_step_keeps_its_record_and_goes_on_later(
    tmp_path: Path, signals: tuple[int, ...]
) -> None:
    path = tmp_path / "run"
    told: list[str] = []
    execution = small_run.execution(path, interrupts=Pressed(path, *signals), env={"NAP": "60"})
    end = run(path, replace(execution, notice=told.append))
    assert end.signal == signals[0]
    assert len(told) == 1 and told[0].endswith("Ctrl-C again kills them at once")
    assert left_running(path) == []
    kinds = [e.kind for e in read_events(path / "events.jsonl")]
    assert kinds[-2:] == ["attempt_ended", "run_interrupted"]
    last = list(read_events(path / "events.jsonl"))[-2]
    assert last.data["observation"]["ended"]["by"] == EndedBy.CANCEL

    end = run(path)
    assert [step for step, _ in outcome(end)] == STEPS
    assert ledger(path) == ["baseline", *STARTS]


def test_the_total_time_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run"
    end = run(path, small_run.execution(path, env={"NAP": "60"}, total_s=0.6))
    assert end.finish and end.finish.verdict is Verdict.OUT_OF_TIME
    assert (end.unfinished, end.signal) == (True, None)
    assert left_running(path) == []
    assert [step for step, _ in outcome(run(path))] == STEPS
    assert ledger(path)[-len(STARTS) :] == STARTS


def test_a_supervisor_that_others_end_cuts_the_run_short_and_a_resumption_repeats_its_attempt_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run"
    killer = threading.Thread(target=end_supervisor, args=(path / "steps" / "baseline" / "1" / "localhost-0",))
    killer.start()
    end = run(path, small_run.execution(path, env={"NAP": "60"}))
    killer.join()
    assert (end.unfinished, end.signal) == (True, None)
    assert end.finish and end.finish.why == (
        "step 'baseline' was cancelled from outside: by scancel, its job's time limit, preemption or a SIGTERM"
    )
    assert [(seen.attempt, seen.ended.by) for seen in end.progress.cancelled] == [(1, EndedBy.CANCEL)]
    end = run(path)
    assert [step for step, _ in outcome(end)] == STEPS
    assert ledger(path) == ["baseline", *STARTS]
    notes = end.progress.visits[1].record.notes
    assert "attempt 1 was cancelled and has been repeated: what was seen of it is in steps/baseline/1" in notes


def end_supervisor(folder: Path) -> None:
    """Send SIGTERM to the supervisor of an attempt once its workload runs."""
    while not (folder.parents[4] / "ledger").exists() or not (found := control_files.lock_holder(str(folder))):
        time.sleep(0.02)
    os.kill(found.pid, signal.SIGTERM)


class JumpingClock:
    """A wall clock that goes a day forward and back with every look."""

    def __init__(self) -> None:
        self._looks = 0

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        self._looks += 1
        return time.time() + (86400.0 if self._looks % 2 else -86400.0)


def test_a_clock_that_jumps_by_days_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    end = run(path, small_run.execution(path, clock=JumpingClock(), total_s=30.0))
    assert [step for step, _ in outcome(end)] == STEPS
    assert end.elapsed_s < 3600
    assert all(w.duration_s is None or 0 <= w.duration_s < 3600 for w in end.progress.visits)


class Slow(small_run.FakeBuiltins):
    """Built-ins that hang."""

    def use(self, order: UseBuiltin, progress: Progress) -> StepResult:
        time.sleep(60)
        return super().use(order, progress)


def test_a_built_in_that_outlasts_its_timeout_is_an_error_of_its_step_and_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    book = small_run.small_runbook()
    first = book.steps[0]
    assert isinstance(first, Uses)
    book = changed(book, steps=(changed(first, timeout_s=0.3), *book.steps[1:]))
    end = run(path, replace(small_run.execution(path), state=machine.start(book, {}, Facts())[0], builtins=Slow()))
    check = end.progress.visits[0].record
    assert (check.outcome, check.message) == (
        Status.ERROR,
        "it was not done within 0.3 s (the step's timeout is over)",
    )
    assert [step for step, _ in outcome(end)] == STEPS


class Deadly(small_run.FakeBuiltins):
    """Built-ins during which the engine is killed."""

    def use(self, order: UseBuiltin, progress: Progress) -> StepResult:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
        return super().use(order, progress)


def test_an_engine_killed_during_a_built_in_leaves_the_run_to_the_next_one_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run"
    engine_pid = os.fork()
    if engine_pid == 0:
        try:
            run(path, replace(small_run.execution(path), builtins=Deadly()))
        finally:
            os._exit(1)
    assert os.waitpid(engine_pid, 0)[1] == signal.SIGKILL
    end = run(path)
    assert [step for step, _ in outcome(end)] == STEPS
    assert ledger(path) == STARTS


def test_a_run_folder_that_becomes_a_link_on_the_way_is_not_followed(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()

    def swap(event: Event, _walk: Progress) -> None:
        if event.kind == "attempt_ended" and not path.is_symlink():
            path.rename(tmp_path / "moved")
            path.symlink_to(elsewhere)

    with pytest.raises(HostNotAble, match=r"leads to .*elsewhere.* now: it has been replaced by a link"):
        run(path, small_run.execution(path, listener=swap))
    assert list(elsewhere.iterdir()) == []
    assert left_running(path) == []


class Losing:
    """A runner whose supervisors are killed; with `engine` the process that runs the runbook dies with the first."""

    def __init__(self, path: Path, times: int, *, engine: bool = False) -> None:
        self._inner = small_run.local(path, {"NAP": "1"})
        self._path = path
        self._times = times
        self._engine = engine

    def start(self, invocation: Invocation, directory: Path) -> StartedStep:
        started = self._inner.start(invocation, directory)
        if invocation.step == "blocking" and self._times:
            self._times -= 1
            while "blocking" not in ledger(self._path):
                time.sleep(0.01)
            supervisor = control_files.lock_holder(str(directory.resolve()))
            assert supervisor
            os.kill(supervisor.pid, signal.SIGKILL)
            if self._engine:
                started.wait()  # its processes are gone with the machine
                raise Gone
        return started

    def adopt(self, invocation: Invocation, directory: Path) -> StartedStep | None:
        return self._inner.adopt(invocation, directory)


class Gone(BaseException):
    """The machine went down."""


def blocking(end: Execution) -> tuple[list[tuple[int, EndedBy]], tuple[str, ...]]:
    visit = next(visit for visit in end.progress.visits if visit.step.id == "blocking")
    return [(seen.attempt, seen.ended.by) for seen in visit.observations], visit.record.notes


@pytest.mark.parametrize("engine", [False, True], ids=["supervisor killed", "machine rebooted"])
def test_a_lost_attempt_is_repeated_once_and_the_record_says_both(tmp_path: Path, engine: bool) -> None:
    path = tmp_path / "run"
    execution = small_run.execution(path, runner=Losing(path, 1, engine=engine))
    if engine:
        with pytest.raises(Gone):
            run(path, execution)
        end = run(path)
    else:
        end = run(path, execution)
    assert [step for step, _ in outcome(end)] == STEPS
    attempts, notes = blocking(end)
    assert attempts == [(2, EndedBy.EXIT)]
    assert any(note.startswith("attempt 1 was lost and has been repeated: ") for note in notes)
    ends = [e.data["observation"] for e in read_events(path / "events.jsonl") if e.kind == "attempt_ended"]
    assert [(o["attempt"], o["ended"]["by"]) for o in ends if o["step"] == "blocking"] == [
        (1, "engine_lost"),
        (2, "exit"),
    ]
    assert left_running(path) == []


class FullDisk:
    """A runner on a disk that is below its floor the first `times` times that a step is started."""

    def __init__(self, path: Path, times: int) -> None:
        self._path = path
        self._times = times

    def start(self, invocation: Invocation, directory: Path) -> StartedStep:
        if invocation.step == "blocking" and self._times:
            self._times -= 1
            return small_run.local(self._path, {"NAP": "60"}, disk_floor=1 << 60).start(invocation, directory)
        return small_run.local(self._path).start(invocation, directory)

    def adopt(self, invocation: Invocation, directory: Path) -> StartedStep | None:
        return small_run.local(self._path).adopt(invocation, directory)


def test_a_full_disk_stops_the_run_and_resuming_repeats_the_attempt_once(tmp_path: Path) -> None:
    path = tmp_path / "run"
    runner = FullDisk(path, 1)
    end = run(path, small_run.execution(path, runner=runner))
    assert (end.unfinished, end.signal) == (True, None)
    assert end.finish and end.finish.why.startswith("the disk is full, or fails: ")
    assert left_running(path) == []
    end = run(path, small_run.execution(path, runner=runner))
    assert [step for step, _ in outcome(end)] == STEPS
    attempts, notes = blocking(end)
    assert attempts == [(2, EndedBy.EXIT)]
    assert any(note.startswith("attempt 1 was lost and has been repeated: ") and "the floor" in note for note in notes)
    ends = [e.data["observation"]["ended"]["by"] for e in read_events(path / "events.jsonl") if "observation" in e.data]
    assert "disk" in ends


def test_a_disk_that_is_still_full_counts_the_second_time(tmp_path: Path) -> None:
    path = tmp_path / "run"
    runner = FullDisk(path, 2)
    assert run(path, small_run.execution(path, runner=runner)).unfinished
    end = run(path, small_run.execution(path, runner=runner))
    assert blocking(end)[0] == [(2, EndedBy.DISK)]
    assert not end.unfinished


def test_an_attempt_that_is_lost_twice_counts(tmp_path: Path) -> None:
    path = tmp_path / "run"
    end = run(path, small_run.execution(path, runner=Losing(path, 2)))
    assert blocking(end)[0] == [(2, EndedBy.ENGINE_LOST)]
    assert [step for step, _ in outcome(end)][:4] == STEPS[:4]


class Reads(small_run.FakeBuiltins):
    """Its reader has much to read."""

    def read(self, reader: Builtin, observations: Sequence[Observation], progress: Progress) -> StepResult:
        time.sleep(600)
        return super().read(reader, observations, progress)


def test_readers_of_much_output_hold_up_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "_READ_HERE", 0)
    path = tmp_path / "run"
    book = small_run.small_runbook()
    readers = (Builtin(uses="builtin/triage@v1"),)
    book = changed(book, steps=(book.steps[0], changed(book.steps[1], readers=readers), *book.steps[2:]))
    limit_s = patience(2.0)
    state = machine.start(book, {}, Facts())[0]
    execution = replace(small_run.execution(path, total_s=limit_s), state=state, builtins=Reads())
    began = time.monotonic()
    end = run(path, execution)
    assert time.monotonic() - began < limit_s + patience(2.0)
    assert end.finish and end.finish.verdict is Verdict.OUT_OF_TIME
    assert ledger(path) == ["baseline", "baseline"]
    assert left_running(path) == []
