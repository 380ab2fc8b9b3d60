"""A registry that would have our password sent elsewhere, and redirections that lose TLS."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.line_packs import pack_of
from vdbg_env.common.errors import HostNotAble
from vdbg_env_lines import client
from vdbg_env_lines.remote import RegistryTarget, _Repository, parse_reference
from vdbg_env_lines.stores import CarriedPack

Asked = list[tuple[str, str, str | None]]
Answer = tuple[int, dict[str, str]]


@contextmanager
def server(answer: Callable[[str, str, str | None], Answer]) -> Iterator[tuple[str, Asked]]:
    """Serve what a function returns; yields the host and port, and what was asked: method, path, Authorization."""
    asked: Asked = []

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append((self.command, self.path, self.headers.get("Authorization")))
            status, headers = answer(*asked[-1])
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    for method in ("GET", "HEAD", "POST", "PUT"):
        setattr(Handler, f"do_{method}", Handler.respond)
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=serving.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"127.0.0.1:{serving.server_address[1]}", asked
    finally:
        serving.shutdown()
        thread.join()
        serving.server_close()


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what writes a password for a registry where `docker login` does."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

    def write(host: str) -> None:
        known = {"auths": {host: {"auth": base64.b64encode(b"builder:let-me-push").decode()}}}
        (tmp_path / "config.json").write_text(json.dumps(known))

    return write


def test_the_server_that_a_registry_has_take_its_blobs_gets_no_password(login: Callable[[str], None]) -> None:
    with server(lambda *_: (201, {})) as (elsewhere, taken):

        def registry(method: str, path: str, authorization: str | None) -> Answer:
            if authorization is None:
                return 401, {"WWW-Authenticate": "Basic realm=x"}
            if method == "POST":
                return 202, {"Location": f"http://{elsewhere}/take/it"}
            return (404, {}) if method == "HEAD" else (201, {})

        with server(registry) as (host, asked):
            login(host)
            pack = CarriedPack(digest="0" * 64, data=pack_of("inline_chain_sm90"), functions=1, builds="a build")
            RegistryTarget(parse_reference(f"oci://{host}/lines:x")).put([pack])
    assert len(taken) == 2, "the blobs go where the registry says"
    assert {authorization for _, _, authorization in taken} == {None}
    assert any(authorization for _, _, authorization in asked)


def test_another_server_s_challenge_is_not_answered_with_our_password(login: Callable[[str], None]) -> None:
    with server(lambda *_: (401, {"WWW-Authenticate": "Basic realm=x"})) as (elsewhere, taken):

        def registry(method: str, path: str, authorization: str | None) -> Answer:
            return 307, {"Location": f"http://{elsewhere}/v2/lines/manifests/x"}

        with server(registry) as (host, _):
            login(host)
            with pytest.raises(HostNotAble, match="answers 401"):
                _Repository(parse_reference(f"oci://{host}/lines:x")).manifest("x")
    assert {authorization for _, _, authorization in taken} == {None}


def test_a_password_is_not_sent_to_a_realm_without_tls(login: Callable[[str], None]) -> None:
    login("registry.example")
    repository = _Repository(parse_reference("oci://registry.example/lines:x"))
    with pytest.raises(HostNotAble, match="has no TLS"):
        repository._authorize('Bearer realm="http://registry.example/token",service="x"')


def test_a_redirection_from_tls_to_plain_http_is_refused() -> None:
    class Redirected:
        def request(self, *_: Any, **__: Any) -> requests.Response:
            first, last = requests.Response(), requests.Response()
            first.url, last.url, last.history = "https://a/packs.json", "http://b/packs.json", [first]
            last.raw = io.BytesIO()
            return last

    redirected = client.Client("https://a")
    redirected._session = Redirected()  # type: ignore[misc, assignment]
    with pytest.raises(HostNotAble, match=r"redirects to http://b/packs\.json, which has no TLS"):
        redirected.send("GET", "https://a/packs.json")
    assert client.without_tls(["https://a", "https://b", "http://c"]) == "http://c"
    assert client.without_tls(["https://a", "ftp://b"]) == "ftp://b"
    assert client.without_tls(["http://localhost", "https://a"]) is None
    assert client.without_tls(["http://localhost"]) is None
