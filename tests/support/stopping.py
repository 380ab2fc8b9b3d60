"""Stops a command in the middle of its work, by a signal or its time limit, and sees how it ends and what it leaves."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.patience import patience
from vdbg_env.supervisor.proc import Process, marked

ROOT = Path(__file__).parents[2]
_MARK = "VDBG_TEST_STOPPED"  # what all that a command starts inherits


@dataclass(frozen=True, kw_only=True)
class Running:
    """A command at work: its folder, its process, and the files that it writes its output to."""

    folder: Path
    process: "subprocess.Popen[bytes]"
    out: Path
    err: Path

    def left(self) -> list[Process]:
        """Return what still runs of all that was started."""
        return marked(_MARK.encode(), os.fsencode(self.folder))


@dataclass(frozen=True, kw_only=True)
class Work:
    """What to run in a folder, and how to see that it is at the work in which it is to be stopped.

    `whom` is who gets the signal, the command itself where it is None. Where nobody `listens`, its stderr is a pipe
    that is not read. `below_s` is less than the limit after which the command would go on by itself.
    """

    argv: Sequence[str]
    at: Callable[[Running], bool]
    env: Mapping[str, str] = field(default_factory=dict)
    whom: Callable[[Running], int] | None = None
    listens: bool = True
    below_s: float = 600.0


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended, and where."""

    folder: Path
    status: int
    out: str
    err: str


Begin = Callable[[Path, pytest.FixtureRequest], Work]
"""Prepares a folder; the request has other fixtures, and closes at its end what has to stay open meanwhile."""


def vdbg(*words: str | Path) -> list[str]:
    """Return the command line of a process of its own."""
    return [sys.executable, "-m", "vdbg_env", *map(str, words)]


def stopped(begin: Begin, request: pytest.FixtureRequest, how: signal.Signals | None, within_s: float) -> Ended:
    """Run it, stop it, and return how it ended: in time, without a traceback, and with all that it started.

    `how` is None where its own time limit is what stops it. `within_s` is for an idle machine.
    """
    tmp_path: Path = request.getfixturevalue("tmp_path")
    folder = tmp_path / "here"
    folder.mkdir()
    out, err = tmp_path / "stdout", tmp_path / "stderr"
    with ExitStack() as stack:
        work = begin(folder, request)
        env = {**os.environ, "PYTHONPATH": str(ROOT / "builder"), _MARK: str(folder), **work.env}
        process = stack.enter_context(
            subprocess.Popen(
                work.argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=stack.enter_context(out.open("wb")),
                stderr=stack.enter_context(err.open("wb")) if work.listens else unread(err, stack),
            )
        )  # fmt: skip
        stack.callback(process.kill)
        running = Running(folder=folder, process=process, out=out, err=err)
        until(lambda: work.at(running) or process.poll() is not None, 60.0)
        early = err.read_text() if process.poll() is not None and work.listens else ""  # a pipe would be waited for
        assert process.poll() is None, f"it ended before it was stopped: {early}"
        if how:
            os.kill(work.whom(running) if work.whom else process.pid, how)
        began = time.monotonic()
        status = process.wait(timeout=min(patience(within_s), work.below_s))
        print(f"it took {time.monotonic() - began:.2f} s to end, at load {os.getloadavg()[0]:.1f}")
        until(lambda: not running.left(), 20.0)  # what was killed is gone in a moment
    said = err.read_text(errors="replace") if work.listens else ""
    assert "Traceback" not in said, said
    return Ended(folder=folder, status=status, out=out.read_text(errors="replace"), err=said)


def unread(path: Path, stack: ExitStack) -> int:
    """Return the end of a pipe to write to, which nobody reads."""
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(path, os.O_WRONLY)
    stack.callback(os.close, reader)
    stack.callback(os.close, writer)
    return writer


def until(true: Callable[[], bool], limit_s: float) -> None:
    """Wait until something holds; fails where it does not in that time, on an idle machine."""
    limit = time.monotonic() + patience(limit_s)
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.02)


def ended_within(limit_s: float, process: "subprocess.Popen[str]", number: int) -> tuple[str, str]:
    """Send a signal, if not 0, to a run whose engine or controller does not respond, and return what it wrote."""
    process.send_signal(number)
    began = time.monotonic()
    try:
        out, err = process.communicate(timeout=limit_s)
    finally:
        process.kill()
    print(f"it took {time.monotonic() - began:.2f} s to end, at load {os.getloadavg()[0]:.1f}")
    assert "Traceback" not in err, err
    return out, err
