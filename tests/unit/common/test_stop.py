"""What may never answer is waited for no longer than a moment after a signal."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from vdbg_env.common import stop
from vdbg_env.common.programs import Programs
from vdbg_env.common.stop import SignalInterrupts, ToldToStop, each_waited, limited, stoppable, waiting


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[SignalInterrupts]:
    with SignalInterrupts() as interrupts:
        yield interrupts


def silent() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def test_a_wait_that_is_answered_after_a_signal_goes_on() -> None:
    ours, theirs = silent()
    with ours, theirs, waiting():
        os.kill(os.getpid(), signal.SIGTERM)
        answer = threading.Timer(0.05, theirs.sendall, (b"x",))
        answer.start()
        assert ours.recv(1) == b"x"
        answer.join()


def test_a_wait_without_an_answer_ends_after_a_signal_and_no_other_is_begun() -> None:
    ours, theirs = silent()
    with ours, theirs:
        with pytest.raises(ToldToStop), waiting():
            os.kill(os.getpid(), signal.SIGTERM)
            ours.recv(1)
        with pytest.raises(ToldToStop), waiting():
            pytest.fail("another wait was begun")


def test_a_wait_that_begins_after_the_signal_ends_too() -> None:
    ours, theirs = silent()
    os.kill(os.getpid(), signal.SIGTERM)
    with ours, theirs, pytest.raises(ToldToStop), waiting():
        ours.recv(1)


def test_a_wait_ends_with_a_time_limit() -> None:
    ours, theirs = silent()
    with ours, theirs, limited(0.01), pytest.raises(ToldToStop), waiting():
        ours.recv(1)


def test_a_signal_at_the_beginning_of_what_can_be_left_undone_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(stop._Waits):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "raises" and value:
                os.kill(os.getpid(), signal.SIGTERM)  # one step before the handler would raise
            super().__setattr__(name, value)

    monkeypatch.setattr(stop, "_waits", Told())
    with pytest.raises(ToldToStop), stoppable():
        pytest.fail("it was begun")


def test_a_limit_is_over_with_its_work() -> None:
    with limited(0.0):
        pass
    with waiting():
        time.sleep(stop.PATIENCE_S + 0.1)


def test_pieces_that_stop_coming_are_not_waited_for() -> None:
    ours, theirs = silent()
    with ours, theirs, closing(theirs.makefile("rb")) as file, pytest.raises(ToldToStop):
        ours.sendall(b"one\n")
        for _ in each_waited(file):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_program_that_hangs_is_ended_with_what_it_started() -> None:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(ToldToStop):
        Programs().run(["sh", "-c", f"sleep 5{os.getpid()} & wait"], timeout_s=60)
    assert subprocess.run(["pgrep", "-f", f"sleep 5{os.getpid()}"], check=False).returncode == 1


def test_what_can_be_left_undone_stops_at_once_and_cleans_up() -> None:
    cleaned = []
    with pytest.raises(ToldToStop), stoppable():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("it was not stopped")
        finally:
            with waiting():
                cleaned.append(True)
    assert cleaned
    with pytest.raises(ToldToStop), stoppable():
        pytest.fail("it was begun after that")


def test_another_thread_waits_on() -> None:
    ended = stop.in_background(lambda: _waited())
    os.kill(os.getpid(), signal.SIGTERM)
    assert ended.result() == "waited"


def _waited() -> str:
    with waiting():
        time.sleep(stop.PATIENCE_S + 0.2)
    return "waited"


def test_a_program_below_nohup_outlives_its_terminal(interrupts: SignalInterrupts) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalInterrupts() as again:
            os.kill(os.getpid(), signal.SIGHUP)
            assert again.pending() == ()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
