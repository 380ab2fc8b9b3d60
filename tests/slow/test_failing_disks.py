"""A disk that fails within a run: every access, every write, or only what was thought to be written (a thin disk).

Whatever it took away, nothing is lost without a word: `--resume` repeats an attempt whose end is not there, once.
"""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slow.failing_disk import FailingDisk, failing_disk
from tests.slow.test_chaos import check_same_end
from tests.support import small_run
from tests.support.killing import ledger, left_running, run
from vdbg_env.common.errors import HostNotAble
from vdbg_env.evidence.finding import EndedBy
from vdbg_env.record.event_log import Event, read_events
from vdbg_env.record.progress import Progress
from vdbg_env.run.placement import StartedStep
from vdbg_env.runbook.state import Invocation

pytestmark = pytest.mark.slow

HOW = ["EIO", "EROFS", "thin"]
OUTPUT = b"CUDA error: an illegal memory access\n"


class FailingAt:
    """A runner and a listener that make the disk fail at one moment of the second attempt of `baseline`."""

    def __init__(self, disk: FailingDisk, how: str, moment: str) -> None:
        self._fail: Callable[[], None] = lambda: disk.fail(how)
        self._moment = moment
        self._runner = small_run.local(disk.path / "run", _environment(disk, nap="0.4"))
        self._starts = 0

    def start(self, invocation: Invocation, directory: Path) -> StartedStep:
        self._starts += 1
        if self._starts == 2 and self._moment == "before its supervisor":
            self._fail()
        step = self._runner.start(invocation, directory)
        if self._starts == 2 and self._moment == "at its start":
            self._fail()
        if self._starts == 2 and self._moment == "in its middle":
            threading.Timer(0.2, self._fail).start()
        return step

    def adopt(self, invocation: Invocation, directory: Path) -> StartedStep | None:
        return self._runner.adopt(invocation, directory)

    def event(self, event: Event, _progress: Progress) -> None:
        if event.kind == "attempt_ended" and self._moment == "at its end" and self._starts == 2:
            self._fail()


def _environment(disk: FailingDisk, nap: str = "0.05") -> dict[str, str]:
    return {"LEDGER": str(disk.path.parent / "ledger"), "NAP": nap}


@pytest.mark.parametrize("moment", ["before its supervisor", "at its start", "in its middle", "at its end"])
@pytest.mark.parametrize("how", HOW)
def test_nothing_is_lost_without_a_word_and_the_run_is_resumed_to_the_same_end(
    tmp_path: Path, how: str, moment: str
) -> None:
    with failing_disk(tmp_path) as disk:
        path = disk.path / "run"
        failing = FailingAt(disk, how, moment)
        with pytest.raises(HostNotAble) as caught:
            run(path, small_run.execution(path, runner=failing, listener=failing.event))
        assert "disk" in (caught.value.cause or "") or "supervisor of a step could not be started" in caught.value.what
        assert left_running(path) == []
        disk.repaired()

        check_same_end(path, small_run.execution(path, env=_environment(disk)))
        for end in path.glob("steps/*/*/*/ended.json"):
            printed = json.loads(end.read_bytes())["output"]["stdout"]["bytes"]
            assert ((end.parent / "stdout").read_bytes(), printed) == (OUTPUT, len(OUTPUT)), "an end without its output"
        ends = [
            (seen["attempt"], seen["ended"]["by"])
            for event in read_events(path / "events.jsonl")
            if (seen := event.data.get("observation")) and seen["step"] == "baseline"
        ]
        lost = [number for number, by in ends if by == EndedBy.ENGINE_LOST]
        assert lost in ([], [2])
        assert [(number, by) for number, by in ends if number not in lost] == [(1, "exit"), (2 + len(lost), "exit")]
        assert len(ledger(path.parent)) <= 4 + len(lost)
