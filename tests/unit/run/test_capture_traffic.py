"""What an odd client or server sends passes through `vdbg-env capture`, whether it can be recorded or not."""

import asyncio
import base64
import gzip
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.support.credential_forms import credential_forms
from tests.support.patience import patience
from tests.unit.record.test_request_forms import leaks
from tests.unit.run.test_capture import captured, capturing
from vdbg_env.supervisor import request_driver

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Port = int


@asynccontextmanager
async def raw_server(answer: bytes, got: list[bytes]) -> AsyncIterator[Port]:
    """Serve the same bytes to every request; what arrived is in `got`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(
                (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
            )
            got.append(head + await reader.readexactly(size))
            writer.write(answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def raw_request(url: str, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(data)
    answer = await reader.read()
    writer.close()
    return answer


def passed(
    tmp_path: Path, requests: list[bytes], answer: bytes = PLAIN
) -> tuple[list[bytes], list[bytes], Any, list[Any]]:
    """Send raw requests; return their answers, what the server got, the report and the recording."""
    got: list[bytes] = []
    output = tmp_path / "r.jsonl"

    async def run() -> tuple[list[bytes], str]:
        async with raw_server(answer, got) as port, asyncio.timeout(patience(20)):
            with capturing(output, port) as (process, url):
                answers = [await raw_request(url, data) for data in requests]
                process.send_signal(signal.SIGTERM)
                out, err = await asyncio.to_thread(process.communicate, timeout=patience(20))
                assert (process.returncode, err) == (0, "")
                return answers, out

    answers, out = asyncio.run(run())
    return (
        answers,
        [one for one in got if one],
        json.loads(out),
        [json.loads(line) for line in output.read_bytes().splitlines()],
    )


def post(body: bytes, *headers: str) -> bytes:
    lines = ["POST /v1/completions HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body


BODIES = {
    "a lone surrogate": b'{"prompt": "\\ud800 and \\udfff"}',
    "a lone surrogate and a password": b'{"prompt": "\\ud800", "password": "hunter2hunter2"}',
    "bytes that are no text": b"\x00\xff\xfe\x80",
    "a NUL in JSON": b'{"prompt": "a\\u0000b"}',
    "NaN": b'{"temperature": NaN}',
    "Latin-1": b'{"prompt": "caf\xe9"}',
    "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
    "a mark of its order": b'\xef\xbb\xbf{"prompt": "a"}',
    "a long number": b'{"seed": ' + b"9" * 5000 + b"}",
    "too deep": b"[" * 100_000 + b"]" * 100_000,
    "empty": b"",
    "line breaks of Unicode": '{"prompt": "a\u2028b\x85c"}'.encode(),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_passes_as_it_is_and_its_recording_sends_the_same(name: str, tmp_path: Path) -> None:
    body = BODIES[name]
    answers, got, report, lines = passed(tmp_path, [post(body, "Content-Type: application/json")])
    assert answers[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert got[-1].partition(b"\r\n\r\n")[2] == body
    assert (report["recorded"], report["unrecordable"], len(lines)) == (1, 0, 1)
    (tmp_path / "again.jsonl").write_bytes((tmp_path / "r.jsonl").read_bytes())
    (request,), skipped = request_driver.read_requests(str(tmp_path / "again.jsonl"))
    assert skipped == []
    sent = request_driver.content(request)
    if "password" in name:
        assert sent is not None and b"hunter2" not in sent and json.loads(sent)["prompt"] == "\ud800"
    elif name == "NaN" or "surrogate" in name or name in {"a NUL in JSON", "line breaks of Unicode"}:
        assert sent is not None and str(json.loads(sent)) == str(json.loads(body))
    else:
        assert (sent or b"") == body


@pytest.mark.parametrize(
    "headers",
    [
        ("Upgrade: h2c", "Connection: close, Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
        ("Upgrade: h2c",),
        ("Upgrade: TLS/1.2, h2c", "Connection: Upgrade"),
        ("Upgrade: websocket",),  # without a key it is no WebSocket
    ],
    ids=["HttpClient of Java, curl --http2", "without Connection", "a list", "half a WebSocket"],
)
def test_an_upgrade_that_a_server_may_ignore_is_left_out(headers: tuple[str, ...], tmp_path: Path) -> None:
    body = b'{"model": "m"}'
    answers, got, report, lines = passed(tmp_path, [post(body, *headers)])
    assert answers[0].startswith(b"HTTP/1.1 200 OK\r\n")
    head, _, content = got[-1].partition(b"\r\n\r\n")
    assert content == body
    assert b"upgrade" not in head.lower() and b"http2-settings" not in head.lower()
    assert (report["recorded"], lines[0]["body"]) == (1, {"model": "m"})


@pytest.mark.parametrize(
    "reason", [b"O\x01K", b"\x1b[31mred", b"O\tK", b"", b"caf\xe9", b"\xff\xfe", b"x" * 4000], ids=repr
)
def test_the_words_of_an_answer_do_not_lose_it(reason: bytes, tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 " + reason + b"\r\nContent-Length: 2\r\nX-Served: 1\r\n\r\nok"
    answers, _, _, _ = passed(tmp_path, [post(b"{}")], answer)
    head, _, content = answers[0].partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"X-Served: 1" in head and content == b"ok"


def test_a_compressed_body_passes_and_is_recorded_without_its_password(tmp_path: Path) -> None:
    plain = gzip.compress(b'{"model": "m"}', mtime=0)
    secret = gzip.compress(b'{"model": "m", "password": "hunter2hunter2"}', mtime=0)
    requests = [post(body, "Content-Encoding: gzip") for body in (plain, secret)] + [post(b"x", "Content-Encoding: br")]
    answers, got, report, lines = passed(tmp_path, requests)
    assert [one[9:12] for one in answers] == [b"200"] * 3
    assert [one.partition(b"\r\n\r\n")[2] for one in got[-3:]] == [plain, secret, b"x"]
    assert base64.b64decode(lines[0]["body_base64"]) == plain
    assert json.loads(gzip.decompress(base64.b64decode(lines[1]["body_base64"]))) == {
        "model": "m",
        "password": "[redacted value]",
    }
    assert (report["recorded"], report["not_redactable"], len(lines)) == (2, 1, 2)


def test_a_websocket_passes_and_is_counted(tmp_path: Path) -> None:
    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("realtime",))
        await socket.prepare(request)
        async for message in socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                await socket.send_str(f"{request.headers['Authorization']} {message.data}")
            else:
                await socket.send_bytes(message.data[::-1])
                await socket.close(code=4001)
        return socket

    async def body(client: aiohttp.ClientSession, url: str, _upstream: Any) -> None:
        app = web.Application()
        app.router.add_get("/v1/realtime", serve)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            await talk(client, runner.addresses[0][1])
        finally:
            await runner.cleanup()
        async with client.post(url, json={"n": 1}) as answer:
            assert answer.status == 200

    async def talk(client: aiohttp.ClientSession, port: int) -> None:
        with capturing(tmp_path / "ws.jsonl", port) as (process, url):
            given = {"Authorization": "Bearer abc"}
            async with client.ws_connect(f"{url}/v1/realtime", protocols=("realtime",), headers=given) as socket:
                assert socket.protocol == "realtime"
                await socket.send_str("one")
                assert await socket.receive_str() == "Bearer abc one"
                await socket.send_bytes(b"ab")
                assert await socket.receive_bytes() == b"ba"
                assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
                assert socket.close_code == 4001
            process.send_signal(signal.SIGTERM)
            out, err = await asyncio.to_thread(process.communicate, timeout=patience(20))
            assert err == ""
            assert (json.loads(out)["websockets"], json.loads(out)["recorded"]) == (1, 0)

    captured(tmp_path, body)


def test_an_odd_line_of_a_recording_is_skipped_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = [
        b"{", b"\xff\xfe", b"[1]", b'{"url": 5}', b'{"url": "http://x/y"}', b'{"headers": {"a b": "c"}}',
        b'{"headers": {"a": "b\\r\\nc"}}', b'{"headers": [1]}', b'{"body_base64": "!"}', b'{"body_base64": 3}',
        b'{"method": "A B"}', b'{"url": "/", "headers": {"a": "\\ud800"}}', b"[" * 100_000,
    ]  # fmt: skip
    sound = [b'{"url": "/a", "body": {"n": 1}}', b'{"url": "/caf\\u00e9 \\udce9", "body": "\\udcff"}']
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"\n".join([sound[0], *odd, b"", sound[1]]))
    requests, skipped = request_driver.read_requests(str(path))
    assert [request["url"] for request in requests] == ["/a", "/caf\u00e9 \udce9"]
    assert len(skipped) == len(odd)
    assert skipped[:3] == ["line 2 is no JSON", "line 3 is no JSON", "line 4 is no JSON object"]
    assert request_driver.path(requests[1]) == "/caf%C3%A9%20%ED%B3%A9"
    assert request_driver.content(requests[1]) == b"\xff"
    request_driver.Tally(len(requests), skipped).report("over")
    counts = json.loads(capsys.readouterr().out)
    assert (counts["recorded"], counts["skipped"], counts["skipped_lines"]) == (2, len(odd), skipped[:3])


def test_no_form_of_a_credential_is_in_a_recording_and_all_of_them_are_replayed(tmp_path: Path) -> None:
    """Each goes through the proxy as a client would send it; the server gets it as it is."""
    forms = list(credential_forms())
    requests = []
    for form in forms:
        lines = [f"POST {form.target} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(form.body)}"]
        lines += [f"{name}: {value}" for name, value in form.headers.items()]
        requests.append("\r\n".join([*lines, "", ""]).encode() + form.body)
    answers, got, report, recorded = passed(tmp_path, requests)
    assert {answer[:12] for answer in answers} == {b"HTTP/1.1 200"}
    assert [one.partition(b"\r\n\r\n")[2] for one in got] == [form.body for form in forms]
    assert (report["recorded"], len(recorded)) == (len(forms), len(forms))
    raw = (tmp_path / "r.jsonl").read_bytes().splitlines()
    assert [form.name for form, line in zip(forms, raw, strict=True) if leaks(form, line)] == []
    replayed, skipped = request_driver.read_requests(str(tmp_path / "r.jsonl"))
    assert (len(replayed), skipped) == (len(forms), [])
