"""A reverse proxy that records requests: aiohttp on both sides, answers passed on as they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import re
import signal
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from aiohttp import (
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ClientWebSocketResponse,
    ClientWSTimeout,
    DummyCookieJar,
    TCPConnector,
    WSCloseCode,
    WSMsgType,
    WSServerHandshakeError,
    web,
)
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from vdbg_env.common.console import without_passwords
from vdbg_env.common.errors import VdbgError
from vdbg_env.common.stop import in_background
from vdbg_env.record.recorded_requests import RecordedRequest, as_line
from vdbg_env.record.redactor import Redactor
from vdbg_env.record.request_redactor import HOP_BY_HOP, RequestRedactor
from vdbg_env.run.capture import CaptureReport, CaptureSettings, RequestFile

_LOG = logging.getLogger(__name__)
for _log in (_LOG, logging.getLogger("aiohttp")):
    _log.addHandler(logging.NullHandler())  # what a client does wrong is shown with -v only

_HEADER_LIMIT = 64 << 10
_GRACE_S = 0.75  # for the answers under way when the capture is ended, which aiohttp waits for twice
_READS = frozenset(("GET", "HEAD", "OPTIONS"))  # health checks and metrics; they start no work on a GPU
_MADE_BY_CLIENTS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_ENDS = frozenset((WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR))
_WebSocket = ClientWebSocketResponse | web.WebSocketResponse
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CaptureProxy:
    """Passes every request on to the server, and records those that start work before it does."""

    def __init__(self, settings: CaptureSettings) -> None:
        self._settings = settings
        self._redactor = RequestRedactor(Redactor())
        self._report = CaptureReport(settings.output)
        self._first: float | None = None
        self._numbers = 0

    def run(self, listening: Callable[[str, str | None], None]) -> CaptureReport:
        """Serve until a signal ends it; `listening` gets the address, and why no server can be reached yet."""
        settings = self._settings
        self._file = RequestFile(settings.output, max_bytes=settings.max_size << 20, max_count=settings.max_count)
        began = time.monotonic()
        try:
            asyncio.run(self._serve(listening))
        finally:
            self._file.close()
        self._report.seconds = time.monotonic() - began
        self._report.dropped = self._file.dropped
        self._report.size = self._file.size
        return self._report

    async def _serve(self, listening: Callable[[str, str | None], None]) -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(_LookUps())
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, ended.set)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        # A client that goes away ends its request at the server too, as it would without us in between.
        runner = web.AppRunner(
            app, handler_cancellation=True, auto_decompress=False, access_log=None, logger=_LOG,
            shutdown_timeout=_GRACE_S, max_line_size=_HEADER_LIMIT, max_field_size=_HEADER_LIMIT,
        )  # fmt: skip
        await runner.setup()
        async with ClientSession(
            connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None, sock_connect=30), auto_decompress=False,
            cookie_jar=DummyCookieJar(), max_line_size=_HEADER_LIMIT, max_field_size=_HEADER_LIMIT,
        ) as self._client:  # fmt: skip
            try:
                await web.TCPSite(runner, self._settings.host, self._settings.port).start()
            except OSError as error:
                raise VdbgError(
                    f"cannot listen on {self._settings.host}:{self._settings.port}: {error.strerror}",
                    cause="another program listens there",
                    next_step="another --port",
                ) from error
            host, port = runner.addresses[0][:2]
            listening(f"http://{f'[{host}]' if ':' in host else host}:{port}", await self._unreachable())
            await ended.wait()
            await runner.cleanup()

    async def _unreachable(self) -> str | None:
        """Return why no connection to the server can be made now, or None; it may be started later."""
        server = URL(self._settings.upstream)
        try:
            async with asyncio.timeout(_GRACE_S):
                _, writer = await asyncio.open_connection(server.host, server.port)
        except (OSError, TimeoutError) as error:
            return str(error) or f"no connection within {_GRACE_S} s"
        writer.close()
        return None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if _is_websocket(request):
            return await self._handle_websocket(request)
        arrived = time.monotonic()
        body, whole = await self._read(request)
        self._report.passed_on += 1
        if request.method in _READS:
            self._report.reads += 1
        elif whole:
            self._record(request, body, arrived)
        else:
            self._report.too_large += 1
        try:
            async with self._client.request(
                request.method,
                self._target(request.raw_path),
                headers=_end_to_end(request.headers),
                data=(io.BytesIO(body) if body else None) if whole else _chunks(body, request),
                allow_redirects=False,
                skip_auto_headers=_MADE_BY_CLIENTS,
            ) as answer:  # fmt: skip
                return await _passed_on(request, answer)
        except (ClientError, TimeoutError) as error:
            return self._without_answer(error)

    def _without_answer(self, error: Exception) -> web.Response:
        self._report.unanswered += 1
        reason = without_passwords(f"vdbg-env capture: no answer from {self._settings.upstream}: {error}")
        return web.Response(status=502, text=reason + "\n")

    async def _handle_websocket(self, request: web.Request) -> web.StreamResponse:
        """Pass the messages of both sides on as they arrive; a recording has no place for them."""
        self._report.passed_on += 1
        self._report.websockets += 1
        protocols = [word.strip() for word in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        given = _end_to_end(request.headers)
        for name in [name for name in given if name.lower().startswith("sec-websocket-")]:
            del given[name]
        try:
            server = await self._client.ws_connect(
                self._target(request.raw_path), headers=given, protocols=[word for word in protocols if word],
                autoping=False, max_msg_size=0, timeout=ClientWSTimeout(ws_close=_GRACE_S),
            )  # fmt: skip
        except WSServerHandshakeError as error:
            return web.Response(status=error.status, text=f"vdbg-env capture: the server answered {error.message}\n")
        except (ClientError, TimeoutError) as error:
            return self._without_answer(error)
        async with server:
            chosen = (server.protocol,) if server.protocol else ()
            client = web.WebSocketResponse(autoping=False, max_msg_size=0, protocols=chosen, timeout=_GRACE_S)
            await client.prepare(request)
            relays = [asyncio.ensure_future(_relayed(*ends)) for ends in ((client, server), (server, client))]
            try:
                await asyncio.wait(relays, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for relay in relays:
                    relay.cancel()
                await asyncio.gather(*relays, return_exceptions=True)
                await client.close(code=server.close_code or WSCloseCode.OK)
        return client

    def _target(self, raw_path: str) -> URL:
        # Put together and not resolved: a path that begins with two slashes would name another server.
        path = raw_path if raw_path.startswith("/") else URL(raw_path, encoded=True).raw_path_qs
        return URL(self._settings.upstream + path, encoded=True)

    async def _read(self, request: web.Request) -> tuple[bytes, bool]:
        """Return the body and True, or its begin and False when it is larger than what is kept."""
        parts, size = [], 0
        async for part in request.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > self._settings.max_body << 20:
                return b"".join(parts), False
        return b"".join(parts), True

    def _record(self, request: web.Request, body: bytes, arrived: float) -> None:
        """Write the request down; a disk that is full ends the recording, not the traffic."""
        if self._report.problem:
            return
        if self._first is None:
            self._first = arrived
        recorded = RecordedRequest(
            request.method, request.raw_path, request.headers.items(), body, max(0.0, arrived - self._first)
        )
        self._numbers += 1
        try:
            line = as_line(recorded, self._numbers, self._redactor, redact_body=self._settings.redact_bodies)
        except Exception:  # the server gets it, whatever it is
            _LOG.info("a request could not be recorded", exc_info=True)
            self._report.unrecordable += 1
            return
        if line is None:
            self._report.not_redactable += 1
            return
        try:
            self._file.append(line)
        except OSError as error:
            self._report.problem = f"{self._settings.output}: {error.strerror}"
        else:
            self._report.recorded += 1


class _LookUps(ThreadPoolExecutor):
    """Looks up names in threads that are not waited for at the end: a name server may not respond."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin a look-up; see `Executor.submit`."""
        return in_background(partial(fn, *args, **kwargs))


async def _chunks(begin: bytes, request: web.Request) -> AsyncIterator[bytes]:
    yield begin
    async for part in request.content.iter_any():
        yield part


def _is_websocket(request: web.Request) -> bool:
    """Return whether a request begins a WebSocket (RFC 6455, section 4.1); other upgrades a server may ignore."""
    return "Sec-WebSocket-Key" in request.headers and request.headers.get("Upgrade", "").lower() == "websocket"


async def _relayed(source: _WebSocket, target: _WebSocket) -> None:
    """Pass the messages of one side on to the other, to the end of either."""
    while (message := await source.receive()).type not in _ENDS:
        with contextlib.suppress(ConnectionError):
            match message.type:
                case WSMsgType.TEXT:
                    await target.send_str(message.data)
                case WSMsgType.BINARY:
                    await target.send_bytes(message.data)
                case WSMsgType.PING:
                    await target.ping(message.data)
                case WSMsgType.PONG:
                    await target.pong(message.data)


async def _passed_on(request: web.Request, answer: ClientResponse) -> web.StreamResponse:
    """Pass an answer on piece by piece: an event of a stream goes out when it arrives."""
    # The library refuses control characters there, and HTTP gives the words no meaning.
    reason = _CONTROLS.sub("?", answer.reason or "")
    response = web.StreamResponse(status=answer.status, reason=reason, headers=_end_to_end(answer.headers))
    try:
        await response.prepare(request)
        async for part in answer.content.iter_any():
            await response.write(part)
    except ClientError:
        # The server broke off: the client must not take what it has for the whole answer.
        if request.transport:
            request.transport.abort()
        return response
    await response.write_eof()
    return response


def _end_to_end(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Return the headers without those of one connection; the library makes Host and chunks anew."""
    named = {word.strip().lower() for value in headers.getall("Connection", []) for word in value.split(",")}
    dropped = HOP_BY_HOP | named | {"host", "expect"}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)
