"""Everything is killed at once or in turn: runs end as they would have, nothing is left running, nothing is lost.

VDBG_TEST_TREES says how many detached processes are started in all, a thousand where it is not set.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slow.small_disk import mounted
from tests.support import small_run
from tests.support.killing import STARTS, STEPS, ledger, left_running, outcome, run
from tests.support.patience import patience
from tests.support.steps import place, runner
from tests.workloads.trees import KINDS
from vdbg_env.common.errors import HostNotAble
from vdbg_env.evidence.finding import EndedBy
from vdbg_env.record.event_log import Event, read_events
from vdbg_env.record.progress import Progress
from vdbg_env.run.execute import Execution
from vdbg_env.run.placement import StartedStep
from vdbg_env.runbook.model import KillPolicy
from vdbg_env.runbook.state import Invocation
from vdbg_env.supervisor import control_files, process_tree
from vdbg_env.supervisor.proc import process

pytestmark = pytest.mark.slow

TREES = Path(__file__).parents[1] / "workloads" / "trees.py"
OUTCOMES = ["pass", "reproduced", "yes", "reproduced", "reproduced"]


@dataclass
class KillingSupervisors:
    """A runner whose supervisor of one start is killed some time after it; `engine` dies in the same moment."""

    path: Path
    start_number: int
    after_s: float
    engine: bool
    started: int = 0

    def start(self, invocation: Invocation, directory: Path) -> StartedStep:
        step = small_run.local(self.path, {"NAP": "0.3"}).start(invocation, directory)
        self.started += 1
        if self.started == self.start_number:
            time.sleep(self.after_s)
            supervisor = control_files.lock_holder(str(directory.resolve()))
            if supervisor:
                os.kill(supervisor.pid, signal.SIGKILL)
            if self.engine:
                os.kill(os.getpid(), signal.SIGKILL)
        return step

    def adopt(self, invocation: Invocation, directory: Path) -> StartedStep | None:
        return small_run.local(self.path).adopt(invocation, directory)


def in_a_process_of_its_own(path: Path, killing: KillingSupervisors) -> int:
    """Run there, and return its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            run(path, small_run.execution(path, runner=killing))
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def check_same_end(path: Path, execution: Execution | None = None) -> None:
    """Resume a run, or read one that is over, and expect the end that it would have had."""
    end = run(path, execution)
    assert [step for step, _ in outcome(end)] == STEPS
    assert [word for _, word in outcome(end)] == OUTCOMES
    assert left_running(path) == []
    events = list(read_events(path / "events.jsonl"))
    assert [e.seq for e in events] == list(range(1, len(events) + 1))


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2, 0.35])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_supervisor_killed_in_any_step_at_any_time_changes_no_end(
    tmp_path: Path, number: int, after_s: float
) -> None:
    path = tmp_path / "run"
    run(path, small_run.execution(path, runner=KillingSupervisors(path, number, after_s, engine=False)))
    check_same_end(path)
    assert len(ledger(path)) <= len(STARTS) + 1, "one attempt was repeated at most"


@pytest.mark.parametrize("boot", ["the same boot", "a reboot"])
@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2, 0.35])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_engine_and_supervisor_killed_together_change_no_end(
    tmp_path: Path, number: int, after_s: float, boot: str
) -> None:
    path = tmp_path / "run"
    killing = KillingSupervisors(path, number, after_s, engine=True)
    assert in_a_process_of_its_own(path, killing) == signal.SIGKILL
    if boot == "a reboot":
        end_of_the_machine(path)
    check_same_end(path)
    assert len(ledger(path)) <= len(STARTS) + 1


def end_of_the_machine(path: Path) -> None:
    """End every process of a run, and have its lists of processes name those of an earlier boot: all strangers now."""
    limit = time.monotonic() + patience(10)
    while (left := left_running(path)) and time.monotonic() < limit:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    assert left == []
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        for listed in path.rglob(process_tree.LISTED):
            lines = listed.read_text().splitlines()
            listed.write_text("\n".join(["an-earlier-boot", f"{stranger.pid} 1", *lines[1:], ""]))
        check_same_end(path)
        assert stranger.poll() is None, "a process of this boot was taken for one of the run"
    finally:
        stranger.kill()
        stranger.wait()


def test_a_log_cut_at_any_byte_leads_to_the_same_end(tmp_path: Path) -> None:
    """At every border of two events, in the middle of each, and after its first byte: 48 cuts."""
    path = tmp_path / "run"
    run(path)
    whole = (path / "events.jsonl").read_bytes()
    cuts, at = [], 0
    for line in whole.splitlines(keepends=True):
        cuts += [at + 1, at + len(line) // 2, at + len(line)]
        at += len(line)
    assert len(cuts) == 48
    for cut in cuts:
        (path / "events.jsonl").write_bytes(whole[:cut])
        check_same_end(path)


def test_a_thousand_trees_of_every_kind_leave_no_process(tmp_path: Path) -> None:
    """Half of the attempts are ended by their time limit, the other half by the end of a killed supervisor."""
    wanted = int(os.environ.get("VDBG_TEST_TREES", "1000"))
    for number in range(-(-wanted // len(KINDS))):
        home = tmp_path / str(number)
        directory = place(home)
        kill = KillPolicy(grace_s=0.05)
        limit = 600.0 if number % 2 else 2.0
        argv = (sys.executable, str(TREES), str(home))
        steps = runner(home, cwd=tmp_path)
        step = steps.start(Invocation(step="step", attempt=1, argv=argv, timeout_s=limit, kill=kill), directory)
        if number % 2:
            until_ready(directory)
            supervisor = control_files.lock_holder(str(directory.resolve()))
            assert supervisor
            os.kill(supervisor.pid, signal.SIGKILL)
        seen = step.wait(patience(60))
        assert seen is not None
        assert seen.ended.by is (EndedBy.ENGINE_LOST if number % 2 else EndedBy.TIMEOUT)
        assert [note for note in seen.notes if "could not be killed" in note] == []
        pids = [int(pid) for pid in (home / "pids").read_text().split()]
        assert len(pids) == len(KINDS) or not number % 2
        alive = [pid for pid in pids if (found := process(pid)) and found.state not in "ZX"]
        assert alive == []


def until_ready(directory: Path) -> None:
    """Wait until a step's trees are all there, and the supervisor has seen them."""
    limit = time.monotonic() + patience(30)
    while b"ready" not in ((directory / "stdout").read_bytes() if (directory / "stdout").exists() else b""):
        assert time.monotonic() < limit
        time.sleep(0.02)
    pids = (directory.parents[4] / "pids").read_text().split()
    while not all(f"\n{pid} " in (directory / process_tree.LISTED).read_text() for pid in pids):
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.fixture
def few_inodes(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for bytes, but hardly any files."""
    with mounted(tmp_path / "disk", "size=64m,nr_inodes=120") as disk:
        yield disk


@pytest.mark.parametrize("moment", ["attempt_ended", "step_finished"])
def test_a_disk_without_a_free_inode_costs_no_event_and_the_run_can_be_resumed(few_inodes: Path, moment: str) -> None:
    path = few_inodes / "run"

    def take_all(event: Event, _progress: Progress) -> None:
        if event.kind == moment and not (few_inodes / "taken").exists():
            (few_inodes / "taken").mkdir()
            while os.statvfs(few_inodes).f_favail:
                (few_inodes / "taken" / str(os.statvfs(few_inodes).f_favail)).touch()

    with pytest.raises(HostNotAble, match="No space left"):
        run(path, small_run.execution(path, listener=take_all))
    written = len(list(read_events(path / "events.jsonl")))
    for file in (few_inodes / "taken").iterdir():
        file.unlink()
    check_same_end(path)
    assert len(list(read_events(path / "events.jsonl"))) > written
