"""Requests to servers that have line packs: with time limits, within a size, and each failure in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from typing import Final, TypeVar

import requests
from urllib3.exceptions import HTTPError

from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.stop import in_background

LARGEST: Final = 1 << 30  # the packs of whole wheels have a hundredth of that
_TIMEOUTS: Final = (5.0, 60.0)  # seconds to connect, and between two pieces of an answer
_PIECE: Final = 1 << 16
_FIRST_S: Final = 60.0
_SLOWEST: Final = 10_000  # bytes a second after that: a server that dribbles is never silent for long
Result = TypeVar("Result")


def send(
    session: requests.Session,
    method: str,
    address: str,
    *,
    headers: Mapping[str, str] | None = None,
    data: bytes | None = None,
) -> requests.Response:
    """Return the answer to a request, its body unread; raises HostNotAble when there is none.

    A redirection from TLS to plain HTTP is refused: someone on the way could answer it.
    """
    wanted = {"Accept-Encoding": "identity", **(headers or {})}
    try:
        answer = _in_time(
            lambda: session.request(method, address, headers=wanted, data=data, timeout=_TIMEOUTS, stream=True),
            lambda: len(data or b""),
        )
    except (requests.RequestException, HTTPError, TimeoutError, ValueError) as error:
        raise HostNotAble(
            f"{address} cannot be reached: {_reason(error)}",
            cause="no network here, a proxy that is not set (https_proxy), or a CA that is not known "
            "(REQUESTS_CA_BUNDLE)",
            next_step=f"curl -sI {address}",
        ) from error
    if lost := without_tls([one.url for one in (*answer.history, answer)]):
        answer.close()
        raise HostNotAble(
            f"{address} redirects to {lost}, which has no TLS",
            cause="a proxy or a server that is set up wrongly, or someone on the way",
            next_step=f"curl -sIL {address}",
        )
    return answer


def without_tls(addresses: Sequence[str]) -> str | None:
    """Return the first address without TLS that follows one with it; None where there is none."""
    secured = False
    for address in addresses:
        if secured and not address.startswith("https://"):
            return address
        secured = secured or address.startswith("https://")
    return None


def body(answer: requests.Response, most: int = LARGEST) -> bytes:
    """Return the body of an answer; raises HostNotAble for a refusal, and what is cut short, compressed or too large.

    What was not asked for is not expanded: a few kilobytes may become gigabytes.
    """
    if answer.status_code != requests.codes.ok:
        raise refused(answer)
    if (form := answer.headers.get("Content-Encoding", "identity")) != "identity":
        answer.close()
        raise HostNotAble(f"{answer.url} sends it as {form}, which was not asked for", cause="a proxy on the way")
    found = bytearray()

    def read() -> None:
        for piece in answer.raw.stream(_PIECE, decode_content=False):
            found.extend(piece)
            if len(found) > most:
                break
        answer.close()

    try:
        _in_time(read, lambda: len(found))
    except (requests.RequestException, HTTPError, TimeoutError, OSError) as error:
        raise HostNotAble(f"{answer.url} was cut short after {len(found):,} bytes: {_reason(error)}") from error
    if len(found) > most:
        raise HostNotAble(f"{answer.url} sends more than {most:,} bytes")
    return bytes(found)


def refused(answer: requests.Response) -> HostNotAble:
    """Return the error for an answer that is none."""
    answer.close()
    return HostNotAble(
        f"{answer.url} answers {answer.status_code} {answer.reason}",
        cause="a mistyped address, or one that asks for a password",
        next_step=f"curl -sI {answer.url}",
    )


def _in_time(work: Callable[[], Result], moved: Callable[[], int]) -> Result:
    """Return what `work` returns; raises TimeoutError where it takes longer than the bytes that it `moved` may take.

    The limits of the library are for each piece. A thread that is stuck in it ends with this process.
    """
    begun = time.monotonic()
    done = in_background(work)
    while not wait([done], 0.25).done:
        if time.monotonic() - begun > _FIRST_S + moved() / _SLOWEST:
            raise TimeoutError(f"it takes longer than {_FIRST_S:g} s, at less than {_SLOWEST:,} bytes a second")
    return done.result()


def _reason(error: Exception) -> str:
    return str(error.args[0] if error.args else error)[:200]
