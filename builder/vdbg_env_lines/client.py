"""Requests to a server that may be anyone's: within a total time and a size, passwords for their own host alone."""

from __future__ import annotations

import contextlib
import ipaddress
import netrc
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as NotInTime
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import requests
from requests.auth import _basic_auth_str
from urllib3.exceptions import HTTPError

from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.common.stop import in_background, waiting

LARGEST: Final = 1 << 30  # the packs of whole wheels have a hundredth of that
LIMIT: Final = "VDBG_LINES_TIMEOUT"
_LIMIT_S: Final = 60.0
_SLOWEST: Final = 256 << 10  # bytes a second, of what is worth to be waited for
_TIMEOUTS: Final = (5.0, 60.0)  # seconds to connect, and between two pieces of an answer
_MOST_REDIRECTS: Final = 8
_PIECE: Final = 1 << 16
_HOST: Final = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?::(?P<port>[0-9]{1,5}))?"
)

T = TypeVar("T")
Take = Callable[[bytes], object]


class Limit:
    """The time that all requests to one place may take together, with redirects and repetitions, from the first on.

    It grows with what is sent and received, at the pace of a slow line; by the monotonic clock.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds: Final = _limit_s() if seconds is None else seconds
        self._ends: float | None = None

    def left(self) -> float:
        """Return the seconds that are left; below 0 where it is over."""
        if self._ends is None:
            self._ends = time.monotonic() + self.seconds
        return self._ends - time.monotonic()

    def extend(self, size: int) -> None:
        """Allow for bytes that were sent or received."""
        if self._ends is not None:
            self._ends += size / _SLOWEST


def _limit_s() -> float:
    text = os.environ.get(LIMIT, "")
    try:
        seconds = float(text or _LIMIT_S)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise BadInput(f"{LIMIT}={text} is no number of seconds above 0", next_step=f"{LIMIT}=60")
    return seconds


class Client:
    """Sends requests to the host of an address, and follows where it leads; `limit` is for all of them.

    The password of the address, and that of `.netrc`, go to that host only: encrypted, or to this machine.
    """

    def __init__(self, address: str, limit: Limit | None = None) -> None:
        self.limit: Final = limit or Limit()
        self._session: Final = _Session()
        self._session.max_redirects = _MOST_REDIRECTS
        self._origin: Final = origin(address)
        self._password: Final = _password_of(address)

    def send(
        self, method: str, address: str, *, headers: Mapping[str, str] | None = None, data: bytes | None = None
    ) -> requests.Response:
        """Return the answer to a request, its body unread; raises HostNotAble when there is none in time.

        A redirection from TLS to plain HTTP is refused: someone on the way could answer it.
        """
        wanted = {"Accept-Encoding": "identity", **(headers or {})}
        if self._password and origin(address) == self._origin and "Authorization" not in wanted:
            wanted["Authorization"] = self._password
        shown = without_password(address)
        left = self.limit.left()
        self.limit.extend(len(data or b""))
        timeouts = (min(_TIMEOUTS[0], max(0.1, left)), min(_TIMEOUTS[1], max(0.1, left)))
        try:
            answer = self._in_time(
                shown,
                lambda: self._session.request(
                    method, address, headers=wanted, data=data, timeout=timeouts, stream=True
                ),
            )
        except (requests.RequestException, HTTPError, ValueError, OSError) as error:
            raise HostNotAble(
                f"{shown} cannot be reached: {_reason(error)}",
                cause="no network here, a proxy that is not set (https_proxy), or a CA that is not known "
                "(REQUESTS_CA_BUNDLE)",
                next_step=f"curl -sI {shown}",
            ) from error
        if lost := without_tls([one.url for one in (*answer.history, answer)]):
            answer.close()
            raise HostNotAble(
                f"{shown} redirects to {without_password(lost)}, which has no TLS",
                cause="a proxy or a server that is set up wrongly, or someone on the way",
                next_step=f"curl -sIL {shown}",
            )
        return answer

    def body(self, answer: requests.Response, most: int = LARGEST) -> bytes:
        """Return the body of an answer; raises HostNotAble as `receive` does."""
        found = bytearray()
        self.receive(answer, found.extend, most)
        return bytes(found)

    def receive(self, answer: requests.Response, take: Take, most: int = LARGEST) -> None:
        """Give `take` the body of an answer piece by piece; what it raises ends the transfer.

        Raises HostNotAble for a refusal, and for what is cut short, compressed, too large or too slow. What was not
        asked for is not expanded: a few kilobytes may become gigabytes.
        """
        shown = without_password(answer.url)
        if answer.status_code != requests.codes.ok:
            raise refused(answer)
        form = answer.headers.get("Content-Encoding", "identity")
        length = answer.headers.get("Content-Length", "")
        if form != "identity" or (length.isdigit() and int(length) > most):
            answer.close()
            if form != "identity":
                raise HostNotAble(f"{shown} sends it as {form}, which was not asked for", cause="a proxy on the way")
            raise HostNotAble(f"{shown} sends more than {most:,} bytes")
        size, late = 0, False

        def read() -> None:
            nonlocal size, late
            for piece in answer.raw.stream(_PIECE, decode_content=False):
                size += len(piece)
                self.limit.extend(len(piece))
                late = self.limit.left() < 0
                if size > most or late:
                    break
                take(piece)
            answer.close()

        try:
            self._in_time(shown, read)
        except (requests.RequestException, HTTPError, OSError) as error:
            raise HostNotAble(f"{shown} was cut short after {size:,} bytes: {_reason(error)}") from error
        if size > most:
            raise HostNotAble(f"{shown} sends more than {most:,} bytes")
        if late:
            raise self._too_slow(shown)

    def _in_time(self, shown: str, work: Callable[[], T]) -> T:
        """Do what may last for ever, and wait for it within the limit; a server may send a byte each minute."""
        if self.limit.left() < 0:
            raise self._too_slow(shown)
        done = in_background(work)
        with waiting():
            while True:
                with contextlib.suppress(NotInTime):
                    done.exception(max(0.0, self.limit.left()))
                if done.done():
                    return done.result()
                if self.limit.left() <= 0:  # what arrived meanwhile gives it more time
                    raise self._too_slow(shown)

    def _too_slow(self, shown: str) -> HostNotAble:
        return HostNotAble(
            f"{shown}: all requests there together took longer than {self.limit.seconds:g} s",
            cause="a server that is overloaded or sends byte by byte, or a slow line",
            next_step=f"{LIMIT}={self.limit.seconds * 10:g} gives it more time",
        )


class _Session(requests.Session):
    """A session that adds no password; that of requests takes any of `.netrc`, for the hosts of redirections too."""

    def __init__(self) -> None:
        super().__init__()
        self.auth = lambda request: request

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Leave a password out of a redirection to another place."""
        if origin(prepared_request.url or "") != origin(response.request.url or ""):
            prepared_request.headers.pop("Authorization", None)


def origin(address: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port of an address; raises ValueError for one that has none."""
    found = urlsplit(address)
    port = found.port
    return found.scheme, found.hostname, port or {"http": 80, "https": 443}.get(found.scheme)


def without_password(address: str) -> str:
    """Return an address to be shown: without user and password, and without a query, which may be a signature."""
    try:
        found = urlsplit(address)
    except ValueError:
        return "an address that cannot be read"
    return urlunsplit(found._replace(netloc=found.netloc.rpartition("@")[2], query="", fragment=""))[:300]


def bare(address: str) -> str:
    """Return an HTTP address without its user and password; raises BadInput for one that names no host."""
    try:
        found = urlsplit(address)
        host = parse_host(found.netloc.rpartition("@")[2])
    except ValueError:
        host = None
    if host is None:
        raise BadInput(f"{without_password(address)} names no host", next_step="https://lines.example/vllm")
    return urlunsplit(found._replace(netloc=found.netloc.rpartition("@")[2]))


def parse_host(text: str) -> str | None:
    """Return the host of `HOST`, `HOST:PORT` or `[IPV6]:PORT`, without brackets; None for anything else."""
    found = _HOST.fullmatch(text)
    if found is None or int(found["port"] or 0) > 65535:
        return None
    host = found["host"].strip("[]")
    if found["host"].startswith("["):
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return None
    return host


def is_loopback(host: str | None) -> bool:
    """Whether a host is this machine, by its name or address alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def keeps_passwords(address: str) -> bool:
    """Whether a password may be sent to an address: encrypted, or to this machine."""
    found = urlsplit(address)
    return found.scheme == "https" or (found.scheme == "http" and is_loopback(found.hostname))


def without_tls(addresses: Sequence[str]) -> str | None:
    """Return the first address without TLS that follows one with it; None where there is none."""
    secured = False
    for address in addresses:
        if secured and not address.startswith("https://"):
            return address
        secured = secured or address.startswith("https://")
    return None


def refused(answer: requests.Response) -> HostNotAble:
    """Return the error for an answer that is none."""
    answer.close()
    shown = without_password(answer.url)
    return HostNotAble(
        f"{shown} answers {answer.status_code} {answer.reason}",
        cause="a mistyped address, or one that asks for a password (that of ~/.netrc is sent to https:// alone)",
        next_step=f"curl -sI {shown}",
    )


def _password_of(address: str) -> str | None:
    """Return the header with the password for an address: its own, or that of `.netrc` for its host."""
    found = urlsplit(address)
    if found.username is not None:
        return str(_basic_auth_str(unquote(found.username), unquote(found.password or "")))
    if not keeps_passwords(address):
        return None
    path = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        known = netrc.netrc(str(path)).hosts
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return None
    entry = known.get(found.hostname or "")
    if entry is None and found.scheme == "https":
        entry = known.get("default")
    return str(_basic_auth_str(entry[0] or entry[1] or "", entry[2] or "")) if entry else None


def _reason(error: Exception) -> str:
    words = error.strerror if isinstance(error, OSError) else None
    text = str(words or (error.args[0] if error.args else error))
    return re.sub(r"://[^\s/@]+@", "://", text)[:200]
