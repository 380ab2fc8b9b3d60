"""Whatever a hook, a webhook's server or a workload does, a guard ends: its command is to be started again."""

import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.patience import patience
from vdbg_env.adapters.host.announce import LocalAnnouncer

QUICK = LocalAnnouncer(hook_s=0.3, post_s=0.3)


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve each connection with a function; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    try:
                        answer(connection)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/hook"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(patience(5))


def dribble(connection: socket.socket) -> None:
    for _ in range(40):
        connection.sendall(b"H")
        time.sleep(0.1)


def test_a_webhook_whose_server_dribbles_is_given_up() -> None:
    with server(dribble) as url:
        began = time.monotonic()
        problem = QUICK.post(url, "{}")
        assert problem and "no answer in time" in problem
        assert time.monotonic() - began < 2.0


def test_a_webhook_follows_no_redirection() -> None:
    asked: list[bytes] = []

    def take(connection: socket.socket) -> None:
        asked.append(b"x")
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")

    with server(take) as inside:
        head = f"HTTP/1.0 302 Found\r\nLocation: {inside}\r\n\r\n".encode()
        with server(lambda c: c.sendall(head)) as url:
            problem = LocalAnnouncer().post(url, "{}")
    assert problem and "Found" in problem
    assert asked == []


def test_a_webhook_is_no_way_to_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    problem = LocalAnnouncer().post(f"file://{tmp_path}/secret", "{}")
    assert problem and "not an http" in problem


def test_a_webhook_that_answers_has_no_problem() -> None:
    with server(lambda c: c.sendall(b"HTTP/1.0 204 No Content\r\n\r\n")) as url:
        assert LocalAnnouncer().post(url, "{}") is None


def test_what_a_hook_leaves_in_the_background_is_neither_waited_for_nor_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    assert LocalAnnouncer().run(("sh", "-c", "sleep 120 & echo $! > $0", str(tmp_path / "pid")), "{}") is None
    assert time.monotonic() - began < patience(5)
    child = int((tmp_path / "pid").read_text())
    assert ") S" in Path(f"/proc/{child}/stat").read_text()
    os.kill(child, signal.SIGKILL)


def test_a_hook_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    announcer = LocalAnnouncer(hook_s=patience(0.3))
    problem = announcer.run(("sh", "-c", "sleep 60 & echo $! > $0; wait", str(tmp_path / "pid")), "{}")
    assert problem and "was ended" in problem
    child = int((tmp_path / "pid").read_text())
    until = time.monotonic() + patience(5)
    while Path(f"/proc/{child}/stat").exists() and ") Z" not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_hook_runs_where_no_file_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a read-only file system."""
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    assert LocalAnnouncer().run(("sh", "-c", "echo it >&2; exit 3"), "{}") == "the hook sh ended with 3: it"


def test_a_hook_that_fails_says_why() -> None:
    assert LocalAnnouncer().run(("sh", "-c", "echo no route >&2; exit 3"), "{}") == "the hook sh ended with 3: no route"
    problem = LocalAnnouncer().run(("/no/such/hook",), "{}")
    assert problem and "No such file" in problem


def test_a_pipe_in_place_of_the_termination_log_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    problem = LocalAnnouncer().write(tmp_path / "log", "text")
    assert problem and "could not be written" in problem
