"""Servers of line packs that would hold us for ever: every request, redirect and repetition ends within one limit."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

import vdbg_env as package
from gpucore.errors import UnreadableBinary
from tests.support.line_packs import pack_of
from tests.support.patience import patience
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env_lines import remote
from vdbg_env_lines.client import LIMIT, Client, Limit

Act = Callable[[socket.socket, bytes], None]
HEAD: Final = b"HTTP/1.1 200 OK\r\n"
LIMIT_S: Final = 1.0
DIGEST: Final = "a" * 64
LISTED: Final = json.dumps({DIGEST: {"size": 1 << 29}}).encode()


@contextmanager
def serving(act: Act, *, accepts: bool = True) -> Iterator[str]:
    """Let `act` answer each request of each connection; yields host and port."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=1)

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while request := connection.recv(65536):
                act(connection, request)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

    if accepts:
        threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def drip(text: bytes, then: bytes = b"", *, each_s: float = 0.05) -> Act:
    """Send a text, then something again and again, for longer than anyone waits."""

    def act(connection: socket.socket, _: bytes) -> None:
        connection.sendall(text)
        for _number in range(int(20 / each_s)):
            time.sleep(each_s)
            connection.sendall(then)

    return act


def say(*parts: bytes) -> Act:
    return lambda connection, _: connection.sendall(b"".join(parts))


def whole(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *headers, b"", b""]
    return b"\r\n".join(lines) + body


def listed(pack: Act) -> Act:
    """Answer the list at once, and what else is asked for by `pack`."""

    def act(connection: socket.socket, request: bytes) -> None:
        if b"/packs.json " in request:
            connection.sendall(whole(LISTED))
        else:
            pack(connection, request)

    return act


def redirected(connection: socket.socket, request: bytes) -> None:
    time.sleep(0.3)
    path = request.split(b" ")[1]
    connection.sendall(whole(b"", b"Location: " + path + b"x", status=b"302 F"))


def reset(connection: socket.socket, _: bytes) -> None:
    connection.sendall(HEAD + b"Content-Length: 100\r\n\r\nabc")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


def realm(act: Act) -> Act:
    """Answer as a registry whose tokens are at /token, which `act` gives out."""

    def answer(connection: socket.socket, request: bytes) -> None:
        host = next(line[6:] for line in request.split(b"\r\n") if line.lower().startswith(b"host: "))
        if request.startswith(b"GET /token"):
            act(connection, request)
        else:
            challenge = b'WWW-Authenticate: Bearer realm="http://' + host + b'/token",service="x"'
            connection.sendall(whole(b"", challenge, status=b"401 U"))

    return answer


def hundreds(connection: socket.socket, request: bytes) -> None:
    """List hundreds of packs, and take long for each."""
    if b"json" in request:
        digests = (hashlib.sha256(b"%d" % n).hexdigest() for n in range(500))
        connection.sendall(whole(json.dumps({digest: {"size": 100} for digest in digests}).encode()))
    else:
        time.sleep(0.2)
        connection.sendall(whole(b""))


PACK: Final = b"VDBGLINE"
PACKED: Final = HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n"
BOMB: Final = gzip.compress(bytes(64 << 20))
SERVERS: Final[dict[str, Act]] = {
    "silence": drip(b""),
    "a header by bytes": drip(HEAD + b"X: ", b"y"),
    "headers without end": drip(HEAD, b"X: y\r\n"),
    "a status by bytes": drip(b"HTTP", b"/"),
    "a body by bytes": drip(HEAD + b"Content-Length: 100000\r\n\r\n", b" "),
    "chunks of a byte": drip(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "the extension of a chunk": drip(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x"),
    "a body to the end of the connection": drip(HEAD + b"\r\n", b" "),
    "interim answers": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "early hints": drip(b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"),
    "redirects without end": redirected,
    "redirects to itself": say(whole(b"", b"Location: /packs.json", status=b"302 F")),
    "a length of an exabyte": drip(HEAD + b"Content-Length: 1152921504606846976\r\n\r\n", b" "),
    "a length below zero": drip(HEAD + b"Content-Length: -5\r\n\r\n", b" "),
    "a bomb": say(whole(BOMB, b"Content-Encoding: gzip")),
    "a bomb in transfer": say(PACKED + b"%x\r\n" % len(BOMB), BOMB, b"\r\n0\r\n\r\n"),
    "wait and come again": say(whole(b"", b"Retry-After: 86400", status=b"503 S")),
    "another range": say(whole(b"{}", b"Content-Range: bytes 5-6/9", status=b"206 P")),
    "no content": say(b"HTTP/1.1 204 N\r\n\r\n"),
    "a reset": reset,
    "a closed connection": lambda connection, _: connection.close(),
    "a pack by bytes": listed(drip(HEAD + b"Content-Length: 100000\r\n\r\n" + PACK, b"\0")),
    "no pack": listed(drip(HEAD + b"Content-Length: 400000000\r\n\r\n" + bytes(4096))),
    "a pack that is larger than listed": listed(drip(HEAD + b"Content-Length: 999999999\r\n\r\n" + PACK)),
    "many packs": hundreds,
}  # fmt: skip
REGISTRIES: Final[dict[str, Act]] = {
    "tokens by bytes": realm(drip(HEAD + b"Content-Length: 100000\r\n\r\n", b" ")),
    "a realm that asks for more": realm(realm(drip(b""))),
    "tokens that are refused": realm(say(whole(b'{"token": "x"}'))),
    "manifests by bytes": drip(HEAD + b"Content-Length: 100000\r\n\r\n", b" "),
}


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv(LIMIT, str(LIMIT_S))
    return tmp_path


def seconds_of(address: str) -> float:
    """Ask for all packs of an address, and return after how many seconds that was given up."""
    began = time.monotonic()
    with pytest.raises((HostNotAble, UnreadableBinary, BadInput)):
        list(remote.open_store(address).packs())
    return time.monotonic() - began


def test_every_server_is_given_up_within_the_limit(caches: Path) -> None:
    """29 of them side by side; each is asked as `lines pull` asks."""

    def ask(scheme: str, act: Act, path: str) -> float:
        with serving(act) as host:
            return seconds_of(f"{scheme}://{host}{path}")

    cases = [(name, "http", act, "") for name, act in SERVERS.items()]
    cases += [(name, "oci", act, "/lines:x") for name, act in REGISTRIES.items()]
    with ThreadPoolExecutor(len(cases)) as pool:
        waits = {name: pool.submit(ask, scheme, act, path) for name, scheme, act, path in cases}
        took = {name: wait.result() for name, wait in waits.items()}
    late = {name: seconds for name, seconds in took.items() if seconds > LIMIT_S + patience(4.0)}
    assert not late
    assert not [path for path in caches.rglob("*") if path.is_file()]


@pytest.mark.parametrize("then", [b"", b"\x16"], ids=["silence", "byte by byte"])
def test_a_handshake_that_does_not_end_is_given_up(caches: Path, then: bytes) -> None:
    with serving(drip(b"\x16\x03\x03\x40\x00", then)) as host:
        assert seconds_of(f"https://{host}") < LIMIT_S + patience(2.0)


def test_a_server_that_takes_no_connection_is_given_up(caches: Path) -> None:
    with serving(drip(b""), accepts=False) as host:
        assert seconds_of(f"http://{host}") < LIMIT_S + patience(2.0)


def test_the_limit_is_for_all_requests_to_a_place_together(caches: Path) -> None:
    slow = 0.4

    def act(connection: socket.socket, _: bytes) -> None:
        time.sleep(slow)
        connection.sendall(whole(b"{}"))

    with serving(act) as host:
        client = Client(f"http://{host}", Limit(1.0))
        answered = 0
        with pytest.raises(HostNotAble, match="took longer than 1 s"):
            for _ in range(10):
                client.body(client.send("GET", f"http://{host}/{answered}"))
                answered += 1
    assert answered <= 2


def test_a_large_pack_of_a_fast_server_is_not_given_up(caches: Path) -> None:
    pack = pack_of("inline_chain_sm90")
    digest = hashlib.sha256(pack).hexdigest()

    def act(connection: socket.socket, request: bytes) -> None:
        if b"json" in request:
            connection.sendall(whole(json.dumps({digest: {"size": len(pack)}}).encode()))
        else:
            connection.sendall(whole(pack))

    with serving(act) as host:
        (file,) = remote.open_store(f"http://{host}").packs()
        assert bytes(file.data) == pack


def test_the_limit_grows_with_what_arrives() -> None:
    limit = Limit(1.0)
    assert limit.left() <= 1.0
    limit.extend(1 << 20)
    assert 4.0 < limit.left() <= 5.0


@pytest.mark.parametrize("text", ["0", "-1", "x", "nan", "inf"])
def test_a_limit_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, text)
    with pytest.raises(BadInput, match="no number of seconds above 0"):
        Limit()


@pytest.mark.parametrize("words", [("lines", "pull"), ("core", "--lines")], ids=" ".join)
def test_a_command_ends_while_its_server_still_sends(caches: Path, words: tuple[str, ...]) -> None:
    core = Path(__file__).parents[2] / "data" / "cores" / "synthetic_sm90_nolines.nvcudmp.gz"
    env = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    with serving(drip(HEAD + b"X: ", b"y")) as host:
        last = [str(core)] if words[0] == "core" else []
        command = [sys.executable, "-m", "vdbg_env", *words, f"http://{host}", *last]
        began = time.monotonic()
        ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=patience(20), check=False)
        assert time.monotonic() - began < LIMIT_S + patience(8.0)
    assert "all requests there together took longer than 1 s" in ran.stdout + ran.stderr
