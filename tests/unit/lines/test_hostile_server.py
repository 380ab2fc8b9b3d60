"""A server of line packs that answers without end or not at all, compressed, or with what is no answer."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env
from vdbg_env_lines import client

Say = Callable[[socket.socket], None]


@contextmanager
def serving(say: Say) -> Iterator[str]:
    """Answer every connection by `say`, whatever is asked; yields the address."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            say(connection)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def whole(body: bytes, *headers: bytes) -> Say:
    """Return what sends an answer of status 200."""
    head = b"\r\n".join([b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *headers])
    return lambda connection: connection.sendall(head + b"\r\n\r\n" + body)


def endless(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"\r\n")
    while True:
        connection.sendall(bytes(1 << 20))


def redirect(place: bytes) -> Say:
    return lambda one: one.sendall(b"HTTP/1.1 302 F\r\nContent-Length: 0\r\nLocation: " + place + b"\r\n\r\n")


HEAD = b"HTTP/1.1 200 OK\r\n"
ANSWERS: dict[str, tuple[Say, str]] = {
    "silence": (lambda connection: time.sleep(20), "timed out"),
    "endless": (endless, "sends more than"),
    "a bomb": (whole(gzip.compress(bytes(64 << 20)), b"Content-Encoding: gzip"), "was not asked for"),
    "headers": (whole(b"{}", *[b"X-%d: y" % n for n in range(5000)]), "cannot be reached"),
    "a long header": (whole(b"{}", b"X: " + b"y" * (1 << 20)), "cannot be reached"),
    "a false length": (lambda one: one.sendall(HEAD + b"Content-Length: 10\r\n\r\n{}"), "cut short"),
    "false chunks": (lambda one: one.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n{}"), "cut short"),
    "a file": (redirect(b"file:///etc/passwd"), "cannot be reached"),
    "no address": (redirect(b"http://[::1"), "cannot be reached"),
    "itself": (redirect(b"/packs.json"), "cannot be reached"),
    "another program": (lambda one: one.sendall(b"SSH-2.0-OpenSSH\r\n"), "cannot be reached"),
    "an escape": (lambda one: one.sendall(b"HTTP/1.1 500 \x1b[2J\r\nContent-Length: 0\r\n\r\n"), "answers 500"),
    "names of files": (whole(b'{"../../../etc/passwd": {}}'), "something else than their sha256"),
    "deep": (whole(b"[" * 1_000_000), "damaged"),
    "a huge number": (whole(b'{"a": {"size": ' + b"9" * 100_000 + b"}}"), "damaged"),
    "other types": (whole(json.dumps({"0" * 64: {"builds": {"a": 1}}}).encode()), "sent another line pack"),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_every_answer_ends_in_words_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    # Only who waits for a server that is silent waits so long: a crowded machine may keep any other one waiting.
    monkeypatch.setattr(client, "_TIMEOUTS", (60.0, 1.0 if what == "silence" else 60.0))
    say, words = ANSWERS[what]
    with serving(say) as address:
        ran = vdbg_env("lines", "pull", address)
    assert ran.status in {1, 2}
    assert words in ran.stderr, ran.stderr
    assert all(line.isprintable() for line in ran.stderr.split("\n"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
