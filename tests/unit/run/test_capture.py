"""`vdbg-env capture` as a process between a client and a real aiohttp server."""

import asyncio
import base64
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest
from aiohttp import web

import vdbg_env as package
from tests.support.patience import patience
from vdbg_env.common.errors import BadInput
from vdbg_env.run.capture import RequestFile
from vdbg_env.supervisor import request_driver

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "docs" / "schemas" / "capture-v1.schema.json").read_text())
Body = Callable[[aiohttp.ClientSession, str, "Upstream"], Awaitable[None]]


class Upstream:
    """A server that keeps what it got; /stream sends its second event when `next_event` is set."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, dict[str, str], bytes]] = []
        self.next_event = asyncio.Event()
        self.left = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/stream":
            return await self.stream(request)
        body = await request.read()
        self.got.append((request.method, request.raw_path, dict(request.headers), body))
        if request.path == "/cut":
            response = web.StreamResponse(headers={"Content-Length": "100"})
            await response.prepare(request)
            await response.write(b"half")
            assert request.transport
            request.transport.abort()
            return response
        return web.Response(status=404 if request.path == "/none" else 200, text="ok", headers={"X-Served": "1"})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            await response.write(b"data: 1\n\n")
            await self.next_event.wait()
            await response.write(b"data: 2\n\n")
        finally:
            self.left.set()
        return response


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[Upstream, int]]:
    upstream, app = Upstream(), web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", upstream.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield upstream, runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.contextmanager
def capturing(output: Path, port: int, *flags: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    words = [sys.executable, "-m", "vdbg_env", "capture", "--port", "0", "--to", f"127.0.0.1:{port}", "-o", str(output)]
    env = os.environ | {"PYTHONPATH": str(Path(package.__file__).parents[1])}
    process = subprocess.Popen(
        [*words, "--json", *flags], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr
        first = process.stderr.readline()
        assert first.startswith("listening on http://127.0.0.1:"), first + process.stderr.read()
        yield process, first.split()[2].rstrip(",")
    finally:
        process.kill()
        process.communicate()


def captured(tmp_path: Path, body: Body, *flags: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run `body` with a client, the address of the capture and the server; return the report and the recording."""
    output = tmp_path / "requests.jsonl"

    async def run() -> str:
        async with served() as (upstream, port), aiohttp.ClientSession() as client:
            with capturing(output, port, *flags) as (process, url):
                async with asyncio.timeout(patience(20)):
                    await body(client, url, upstream)
                process.send_signal(signal.SIGTERM)
                out, err = await asyncio.to_thread(process.communicate, timeout=patience(20))
                assert (process.returncode, err) == (0, "")
                return out

    report = json.loads(asyncio.run(run()))
    jsonschema.validate(report, SCHEMA)
    assert output.stat().st_mode & 0o777 == 0o600
    assert output.stat().st_size == report["size"]
    return report, [json.loads(line) for line in output.read_text().splitlines()]


def test_requests_pass_unchanged_and_are_recorded_without_credentials(tmp_path: Path) -> None:
    async def body(client: aiohttp.ClientSession, url: str, upstream: Upstream) -> None:
        secrets = {
            "Authorization": "Bearer sk-1234567890abcdef",
            "Cookie": "s=1",
            "X-Api-Key": "k123",
            "X-Request-ID": "t",
        }
        asked = {"model": "m", "prompt": "Größe", "temperature": 1.0}
        async with client.post(f"{url}/v1/completions?api_key=k1&n=2", json=asked, headers=secrets) as answer:
            assert (answer.status, answer.headers["X-Served"], await answer.text()) == (200, "1", "ok")
        async with client.post(f"{url}//other/none%2Fx", data=b"\x00\xff") as answer:
            assert answer.status == 200
        async with client.get(f"{url}/health") as answer:
            assert answer.status == 200
        async with client.head(f"{url}/none") as answer:
            assert (answer.status, answer.headers["Content-Length"]) == (404, "2")
        method, path, headers, received = upstream.got[0]
        assert (method, path, headers["Authorization"]) == (
            "POST",
            "/v1/completions?api_key=k1&n=2",
            secrets["Authorization"],
        )
        assert json.loads(received) == asked
        assert upstream.got[1][1] == "//other/none%2Fx"

    report, lines = captured(tmp_path, body)
    assert (report["passed_on"], report["recorded"], report["reads"], report["kept"]) == (4, 2, 2, 2)
    first, second = lines
    assert (first["custom_id"], first["method"], first["url"]) == ("1", "POST", "/v1/completions?n=2")
    assert first["body"] == {"model": "m", "prompt": "Größe", "temperature": 1.0}
    assert first["headers"] == {"Accept": "*/*", "Content-Type": "application/json", "X-Request-ID": "t"}
    assert first["at_s"] == 0 < second["at_s"]
    assert base64.b64decode(second["body_base64"]) == b"\x00\xff"


def test_an_event_of_a_stream_passes_before_the_next_one_is_sent(tmp_path: Path) -> None:
    async def body(client: aiohttp.ClientSession, url: str, upstream: Upstream) -> None:
        async with client.post(f"{url}/stream", json={"stream": True}) as answer:
            assert await answer.content.readuntil(b"\n\n") == b"data: 1\n\n"
            upstream.next_event.set()  # a proxy that collects the answer never gets here
            assert await answer.content.read() == b"data: 2\n\n"

    report, _ = captured(tmp_path, body)
    assert report["recorded"] == 1


def test_a_client_that_leaves_ends_its_request_at_the_server(tmp_path: Path) -> None:
    async def body(client: aiohttp.ClientSession, url: str, upstream: Upstream) -> None:
        async with client.post(f"{url}/stream") as answer:
            await answer.content.readuntil(b"\n\n")
            answer.close()
        await upstream.left.wait()

    captured(tmp_path, body)


def test_an_answer_that_breaks_off_breaks_off_for_the_client_too(tmp_path: Path) -> None:
    async def body(client: aiohttp.ClientSession, url: str, upstream: Upstream) -> None:
        with pytest.raises(aiohttp.ClientPayloadError):
            async with client.post(f"{url}/cut") as answer:
                await answer.read()

    captured(tmp_path, body)


def test_bounds_keep_the_newest_and_large_bodies_pass_unrecorded(tmp_path: Path) -> None:
    large = b"x" * (3 << 20)

    async def body(client: aiohttp.ClientSession, url: str, upstream: Upstream) -> None:
        for number in range(7):
            async with client.post(url, json={"n": number}) as answer:
                assert answer.status == 200
        async with client.post(url, data=io.BytesIO(large)) as answer:
            assert answer.status == 200
        assert upstream.got[-1][3] == large

    report, lines = captured(tmp_path, body, "--max-count", "4", "--max-body", "1")
    assert [line["body"]["n"] for line in lines] == [4, 5, 6]
    assert (report["kept"], report["dropped"], report["too_large"]) == (3, 4, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["requests.jsonl"]


def test_redacted_bodies_keep_their_shape(tmp_path: Path) -> None:
    chat = {
        "model": "org/m-7b",
        "messages": [{"role": "user", "content": "Call 555, Jörg!"}],
        "prompt": [17, 4],
        "max_tokens": 17,
        "stop": ["END"],
    }

    async def body(client: aiohttp.ClientSession, url: str, upstream: Upstream) -> None:
        for data in (json.dumps(chat).encode(), b"\xff\x00", b"plain 1"):
            async with client.post(url, data=data) as answer:
                assert answer.status == 200
        assert json.loads(upstream.got[0][3]) == chat

    report, lines = captured(tmp_path, body, "--redact-bodies")
    assert lines[0]["body"] == {
        "model": "org/m-7b",
        "messages": [{"role": "user", "content": "xxxx 000, xxxx!"}],
        "prompt": [1, 1],
        "max_tokens": 17,
        "stop": ["xxx"],
    }
    assert lines[1]["body"] == "xxxxx 0"
    assert report["not_redactable"] == 1


def test_a_server_that_is_away_gives_502_and_the_request_is_in_the_file(tmp_path: Path) -> None:
    async def run() -> tuple[int, str]:
        with capturing(tmp_path / "r.jsonl", 1) as (process, url):
            assert process.stderr and "http://127.0.0.1:1 does not answer yet" in process.stderr.readline()
            async with aiohttp.ClientSession() as client, client.post(url, json={"n": 1}) as answer:
                # SIGKILL follows: what was recorded has to be on disk by now.
                return answer.status, await answer.text()

    status, text = asyncio.run(run())
    assert (status, "127.0.0.1:1" in text) == (502, True)
    assert json.loads((tmp_path / "r.jsonl").read_text())["body"] == {"n": 1}


@pytest.mark.parametrize("line", ["CONNECT x:5", "OPTIONS *", "POST x:5", "POST @other.example/x", "POST x@y:1/z"])
def test_a_target_that_is_no_path_is_not_put_behind_the_server_s_address(tmp_path: Path, line: str) -> None:
    """`http://10.0.0.1` and `5` would make another server's address of it."""

    async def body(client: aiohttp.ClientSession, url: str, upstream: Upstream) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(f"{line} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        assert answer[9:12] in {b"400", b"404"}, answer
        async with client.post(f"{url}/v1/completions", data=b"{}") as sound:
            assert sound.status == 200
        assert [path for _, path, _, _ in upstream.got] == ["/v1/completions"]

    report, lines = captured(tmp_path, body)
    assert (report["recorded"], len(lines)) == (1, 1)


def test_an_earlier_recording_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("{}\n")
    with pytest.raises(BadInput, match="exists already"):
        RequestFile(path, max_bytes=10, max_count=10)


def test_a_recording_is_replayed_at_its_times_and_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two requests that each wait for the other: only a replay that sends them side by side ends."""
    ready: list[float] = []
    arrivals: list[tuple[str, float, list[str]]] = []

    async def run() -> int:
        both = asyncio.Barrier(2)

        async def handle(request: web.Request) -> web.Response:
            if request.method == "GET":
                ready.append(time.monotonic())
            else:
                sent = [*request.headers.getall("X-Tag", []), *request.headers.getall("Content-Type")]
                arrivals.append((await request.text(), time.monotonic(), sent))
                await both.wait()
            return web.Response(text="ok")

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        lines = [
            {"url": "/a", "body": "one", "at_s": 5.0, "headers": {"content-type": "text/plain", "X-Tag": "1"}},
            {"url": "/b", "body_base64": base64.b64encode(b"two").decode(), "at_s": 5.3},
        ]
        path = tmp_path / "r.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)))
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/health"
        document = {"ready_url": url, "ready_timeout_s": patience(10), "replay": str(path)}
        async with asyncio.timeout(patience(20)):
            status = await asyncio.to_thread(request_driver.main, document)
        await runner.cleanup()
        return status

    assert asyncio.run(run()) == request_driver.ALL_SENT
    assert '"answered": 2' in capsys.readouterr().out
    (first, _, headers), (second, followed, _) = arrivals
    assert (first, second, headers) == ("one", "two", ["1", "text/plain"])
    assert followed - ready[-1] >= 0.3  # the first may itself have arrived late


def test_long_gaps_are_cut_and_times_must_be_complete() -> None:
    assert request_driver.send_times([{"at_s": 1}, {"at_s": 3.5}, {"at_s": 9000}]) == [0.0, 2.5, 32.5]
    assert request_driver.send_times([{"at_s": 1}, {}]) == []
