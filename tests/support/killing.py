"""An engine that is killed at a place of one's choice, and taken up again."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.support import small_run
from tests.support.patience import patience
from vdbg_env.evidence.finding import Observation
from vdbg_env.record.event_log import Event, read_events
from vdbg_env.record.progress import Progress
from vdbg_env.run.execute import Execution
from vdbg_env.run.placement import StartedStep, StepRunner
from vdbg_env.runbook.state import Invocation, Verdict
from vdbg_env.supervisor.helpers import MARK
from vdbg_env.supervisor.proc import environment

Made = Callable[[Path], StepRunner]

STEPS = ["check", "baseline", "ask", "blocking", "again"]
STARTS = ["baseline", "baseline", "blocking", "again"]
EVENTS = [
    *("run_started", "step_finished"),
    *("attempt_started", "attempt_ended", "attempt_started", "attempt_ended", "step_finished"),
    *("step_finished", "attempt_started", "attempt_ended", "step_finished"),
    *("branched", "attempt_started", "attempt_ended", "step_finished", "run_finished"),
]


def run(path: Path, execution: Execution | None = None) -> Execution:
    """Run to the end and return what has run."""
    execution = execution or small_run.execution(path)
    with execution.directory.locked():
        execution.to_its_end()
    return execution


def ledger(path: Path) -> list[str]:
    return (path.parent / "ledger").read_text().split()


def left_running(path: Path) -> list[int]:
    mine = f"{path}/".encode()
    pids = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]
    return [p for p in pids if p != os.getpid() and _mark(p).startswith(mine)]


def _mark(pid: int) -> bytes:
    found = environment(pid)
    return (found.variables or {}).get(MARK.encode(), b"") if found else b""


def outcome(end: Execution) -> list[tuple[str, str]]:
    return [(w.step.id, str(w.record.outcome or w.record.choice)) for w in end.progress.visits]


class Killing:
    """Counts the places where an engine may die, and dies at one of them."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.places = 0

    def here(self) -> None:
        self.places += 1
        if self.places == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def event(self, _event: Event, _walk: Progress) -> None:
        self.here()


class KillingRunner:
    """A real runner with places to die before and after each start, and before an end is written down."""

    def __init__(self, real: StepRunner, killing: Killing) -> None:
        self._real = real
        self._killing = killing

    def start(self, invocation: Invocation, directory: Path) -> StartedStep:
        self._killing.here()
        step = KillingStep(self._real.start(invocation, directory), self._killing)
        self._killing.here()
        return step

    def adopt(self, invocation: Invocation, directory: Path) -> StartedStep | None:
        return self._real.adopt(invocation, directory)


class KillingStep:
    def __init__(self, real: StartedStep, killing: Killing) -> None:
        self._real = real
        self._killing = killing

    def wait(self, timeout_s: float | None = None) -> Observation | None:
        seen = self._real.wait(timeout_s)
        if seen:
            self._killing.here()
        return seen

    def cancel(self, *, firmly: bool = False) -> None:
        self._real.cancel(firmly=firmly)


def killing_execution(path: Path, killing: Killing, made: Made = small_run.local) -> Execution:
    return small_run.execution(path, runner=KillingRunner(made(path), killing), listener=killing.event)


PLACES = len(EVENTS) + 3 * len(STARTS)


def killed_at(path: Path, place: int, made: Made = small_run.local) -> None:
    """Run in a process of its own that dies at `place`."""
    pid = os.fork()
    if pid == 0:
        try:
            run(path, killing_execution(path, Killing(place), made))
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


def check_killed_and_resumed(path: Path, place: int, made: Made = small_run.local, *, within_s: float = 5.0) -> None:
    """Kill an engine at a place, resume its run, and hold the end to be right; `made` makes the runner of each."""
    killed_at(path, place, made)
    began = time.monotonic()
    end = run(path, small_run.execution(path, runner=made(path)))
    assert [step for step, _ in outcome(end)] == STEPS, place
    assert [word for _, word in outcome(end)] == ["pass", "reproduced", "yes", "reproduced", "reproduced"], place
    assert end.finish and end.finish.verdict is Verdict.REPRODUCED
    assert ledger(path) == STARTS, f"place {place}: a step was run twice, or not at all"
    assert left_running(path) == []
    assert time.monotonic() - began < patience(within_s)
    events = list(read_events(path / "events.jsonl"))
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert [e.kind for e in events if e.kind != "run_resumed"] == EVENTS
