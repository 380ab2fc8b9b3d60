"""Passwords for a server of line packs go to that server alone, encrypted or within this machine, and into no text."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env
from tests.unit.lines.test_hostile_registry import Answer, login, server
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env_lines import client, remote
from vdbg_env_lines.client import Client, is_loopback, parse_host, without_password
from vdbg_env_lines.remote import parse_reference

__all__ = ["login"]

NETRC = "machine 127.0.0.1 login own password own-secret\nmachine plain.example login p password plain-secret\n"
DEFAULT = "default login any password any-secret\n"


@pytest.fixture
def netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    path = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(path))
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(text: str) -> None:
        path.write_text(text)
        path.chmod(0o600)

    return write


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_netrc_s_default_is_not_sent_over_plain_http(netrc: Callable[[str], None]) -> None:
    netrc(DEFAULT)
    with server(lambda *_: (401, {})) as (host, asked), pytest.raises(HostNotAble, match="answers 401"):
        list(remote.open_store(f"http://{host}").packs())
    assert {authorization for _, _, authorization in asked} == {None}


@pytest.mark.parametrize(
    ("address", "sent"),
    [
        ("http://plain.example", None),
        ("https://plain.example", basic("p", "plain-secret")),
        ("https://other.example", basic("any", "any-secret")),
        ("http://other.example", None),
        ("http://127.0.0.1:8000", basic("own", "own-secret")),
        ("http://localhost:8000", None),
        ("https://u:w@plain.example", basic("u", "w")),
        ("https://u%40x:w%2Fy@plain.example", basic("u@x", "w/y")),
    ],
)
def test_which_password_an_address_has(address: str, sent: str | None, netrc: Callable[[str], None]) -> None:
    netrc(NETRC + DEFAULT)
    assert Client(address)._password == sent


@pytest.mark.parametrize("text", ["machine", "machine x login", "\\xff", "default login a password b\nmachine"])
def test_a_damaged_netrc_is_left_aside(text: str, netrc: Callable[[str], None]) -> None:
    netrc(text)
    assert Client("http://plain.example")._password is None


def test_the_host_of_a_redirect_gets_no_password(netrc: Callable[[str], None]) -> None:
    netrc(NETRC + DEFAULT)
    with server(lambda *_: (404, {})) as (elsewhere, taken):
        there = elsewhere.replace("127.0.0.1", "localhost")
        with server(lambda *_: (302, {"Location": f"http://{there}/packs.json"})) as (host, asked):
            with pytest.raises(HostNotAble):
                list(remote.open_store(f"http://{host}").packs())
            with pytest.raises(HostNotAble):
                list(remote.open_store(f"http://u:in-the-address@{host}").packs())
    assert {authorization for _, _, authorization in taken} == {None}
    assert [authorization for _, _, authorization in asked] == [
        basic("own", "own-secret"),
        basic("u", "in-the-address"),
    ]


def test_another_port_of_the_same_host_gets_no_password(netrc: Callable[[str], None]) -> None:
    netrc(NETRC)
    with server(lambda *_: (404, {})) as (elsewhere, taken):
        away: Answer = (302, {"Location": f"http://{elsewhere}/packs.json"})
        with server(lambda *_: away) as (host, _), pytest.raises(HostNotAble):
            list(remote.open_store(f"http://{host}").packs())
    assert {authorization for _, _, authorization in taken} == {None}


def test_a_loopback_registry_s_realm_elsewhere_without_tls_gets_no_password(
    login: Callable[[str], None], netrc: Callable[[str], None]
) -> None:
    netrc("")

    def registry(method: str, path: str, authorization: str | None) -> Answer:
        return 401, {"WWW-Authenticate": 'Bearer realm="http://elsewhere.example/token",service="x"'}

    with server(registry) as (host, _):
        login(host)
        with pytest.raises(HostNotAble, match=r"password sent to http://elsewhere\.example/token, which has no TLS"):
            remote._Repository(parse_reference(f"oci://{host}/lines:x")).manifest("x")


def test_netrc_does_not_override_a_token(
    netrc: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc(NETRC + DEFAULT)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

    host_of: list[str] = []

    def registry(method: str, path: str, authorization: str | None) -> Answer:
        if authorization == "Bearer the-token":
            return 404, {}
        return 401, {"WWW-Authenticate": f'Bearer realm="http://{host_of[0]}/token",service="x"'}

    with server(registry) as (host, asked):
        host_of.append(host)
        repository = remote._Repository(parse_reference(f"oci://{host}/lines:x"))
        repository._authorization = "Bearer the-token"
        with pytest.raises(HostNotAble, match="answers 404"):
            repository.manifest("x")
    assert [authorization for _, _, authorization in asked] == ["Bearer the-token"]


@pytest.mark.parametrize(
    "address",
    ["http://user:hunter2@127.0.0.1:1/x", "http://user:hunter2@[::1]:1/x", "https://user:hunter2@127.0.0.1:1"],
)
def test_no_error_has_the_password_of_an_address(
    address: str, netrc: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc("")
    for words in (("lines", "pull", address), ("lines", "list", address), ("lines", "push", "x", address)):
        ran = vdbg_env(*words)
        assert ran.status and "hunter2" not in ran.stdout + ran.stderr, ran
        assert "127.0.0.1" in ran.stderr or "[::1]" in ran.stderr
    monkeypatch.setenv("VDBG_LINES", address)
    ran = vdbg_env("lines", "list")
    assert "hunter2" not in ran.stdout + ran.stderr


def test_no_error_has_the_signature_of_an_address() -> None:
    assert without_password("https://u:p@h.example:5/a?X-Amz-Signature=1#f") == "https://h.example:5/a"
    assert without_password("http://[::1") == "an address that cannot be read"


@pytest.mark.parametrize(
    "text",
    [
        "oci://127.0.0.1:x@evil.example/lines:x",
        "oci://localhost@evil.example/lines:x",
        "oci://user:hunter2@registry.example/lines:x",
        "oci://127.0.0.1:99999/lines",
        "oci://127.0.0.1:5000:5000/lines",
        "oci://[::1/lines",
        "oci://[::g]:5000/lines",
        "oci://::1/lines",
        "oci://h?x/lines",
        "oci://h#x/lines",
        "oci://-h/lines",
        "oci://h\\evil/lines",
        "oci:///lines",
    ],
)
def test_a_reference_that_names_another_host_than_it_seems_to_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as raised:
        parse_reference(text)
    assert "hunter2" not in str(raised.value) + str(raised.value.cause) + str(raised.value.next_step)


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("oci://[::1]:5000/lines:x", "http://[::1]:5000/v2/lines"),
        ("oci://[::1]/lines", "http://[::1]/v2/lines"),
        ("oci://localhost:5000/lines", "http://localhost:5000/v2/lines"),
        ("oci://127.0.0.2:5000/lines", "http://127.0.0.2:5000/v2/lines"),
        ("oci://[2001:db8::1]:5000/lines", "https://[2001:db8::1]:5000/v2/lines"),
        ("oci://localhost.evil.example/lines", "https://localhost.evil.example/v2/lines"),
        ("oci://127.0.0.1.evil.example/lines", "https://127.0.0.1.evil.example/v2/lines"),
    ],
)
def test_only_this_machine_is_spoken_to_without_tls(text: str, base: str) -> None:
    assert parse_reference(text).base == base


def test_hosts() -> None:
    assert [parse_host(text) for text in ("h:1", "[::1]", "h:", "h:70000", "a b", "[1.2.3.4]")] == [
        "h", "::1", None, None, None, None,
    ]  # fmt: skip
    assert [is_loopback(host) for host in ("::1", "127.1.2.3", "localhost", "10.0.0.1", None, "x")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    assert client.keeps_passwords("http://[::1]:5/x") and not client.keeps_passwords("ftp://localhost/x")


@pytest.mark.parametrize("address", ["http:///x", "https://[::1", "http://a b/x", "https://h:70000/", "http://@/"])
def test_an_address_that_names_no_host_is_refused_in_words(address: str) -> None:
    with pytest.raises(BadInput, match=r"names no host"):
        remote.open_store(address)
