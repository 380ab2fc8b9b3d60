"""slurmctld stops responding under a run: told to stop, the run ends all the same, and is resumed to its outcome."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Allocated, Cluster, until
from tests.slurm.runs import VDBG, ends, resumed
from tests.slurm.test_runs import words
from tests.support.stopping import ended_within

BELOW_OWN_LIMIT_S = 25.0  # a program of Slurm is waited for longer
# One of Slurm's programs, whose controller is stopped before the call of this number.
STOPPING = """#!/bin/sh
echo >> {stopped}.calls
if [ $(wc -l < {stopped}.calls) = {at} ]; then kill -STOP {controller}; touch {stopped}; fi
exec {program} "$@"
"""


@pytest.fixture
def controller(cluster: Cluster) -> Iterator[int]:
    pid = int((cluster.folder / "pid" / "slurmctld").read_text().split()[0])
    yield pid
    os.kill(pid, signal.SIGCONT)


def ended(process: "subprocess.Popen[str]") -> str:
    """End a run whose controller is still stopped, and return what it said."""
    _, said = ended_within(BELOW_OWN_LIMIT_S, process, signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM, said
    return said


def check_resumed(folder: Path, allocation: Allocated) -> None:
    (folder / "go").touch()
    again = resumed(folder / "run", allocation)
    assert again.returncode == 3, again.stderr
    report = json.loads((folder / "run" / "report.json").read_text())
    assert [ends(report, step) for step in ("first", "second")] == [["exit"] * 3] * 2
    assert len(list((folder / "run" / "steps" / "first").iterdir())) <= 2, "one attempt was repeated at most"


def begun(folder: Path, allocation: Allocated, first: Path | None = None) -> "subprocess.Popen[str]":
    path = f"{first}:{os.environ['PATH']}" if first else os.environ["PATH"]
    return subprocess.Popen(
        [VDBG, "runbook", *words(folder)], env={**os.environ, **allocation.environment, "PATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("program", "at"), [("scontrol", 1), ("squeue", 1), ("squeue", 2), ("scontrol", 3), ("srun", 1)], ids=str
)
def test_a_run_ends_while_its_controller_does_not_respond(
    tmp_path: Path, allocation: Allocated, controller: int, program: str, at: int
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    stopping = programs / program
    real = shutil.which(program)
    stopping.write_text(STOPPING.format(stopped=tmp_path / "stopped", at=at, controller=controller, program=real))
    stopping.chmod(0o755)
    process = begun(tmp_path, allocation, programs)
    until((tmp_path / "stopped").exists, 60.0)
    time.sleep(0.3)
    said = ended(process)
    os.kill(controller, signal.SIGCONT)
    if (tmp_path / "run" / "events.jsonl").exists():
        assert "ended without waiting" in said
        check_resumed(tmp_path, allocation)


def test_ranks_that_run_are_ended_without_their_controller(
    tmp_path: Path, allocation: Allocated, controller: int
) -> None:
    process = begun(tmp_path, allocation)
    until(lambda: len(list(tmp_path.glob("runs-*"))) == 3, 60.0)
    os.kill(controller, signal.SIGSTOP)
    ended(process)
    os.kill(controller, signal.SIGCONT)
    check_resumed(tmp_path, allocation)
