"""Requests to servers that have line packs: with time limits, within a size, and each failure in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import requests

from vdbg_env.common.errors import HostNotAble

LARGEST: Final = 4 << 30
_TIMEOUTS: Final = (5.0, 60.0)  # seconds to connect, and between two pieces of an answer
_PIECE: Final = 1 << 20


def send(
    session: requests.Session,
    method: str,
    address: str,
    *,
    headers: Mapping[str, str] | None = None,
    data: bytes | None = None,
) -> requests.Response:
    """Return the answer to a request, its body unread; raises HostNotAble when there is none.

    A redirection from TLS to plain HTTP is none: whoever is on the way could answer it.
    """
    try:
        answer = session.request(
            method, address, headers=dict(headers or {}), data=data, timeout=_TIMEOUTS, stream=True
        )
    except (requests.RequestException, ValueError) as error:
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
    """Return the body of an answer; raises HostNotAble when it is cut short, or larger than `most` bytes."""
    found = bytearray()
    try:
        with answer:
            for piece in answer.iter_content(_PIECE):
                found += piece
                if len(found) > most:
                    raise HostNotAble(f"{answer.url} sends more than {most:,} bytes")
    except requests.RequestException as error:
        raise HostNotAble(f"{answer.url} was cut short after {len(found):,} bytes: {_reason(error)}") from error
    return bytes(found)


def refused(answer: requests.Response) -> HostNotAble:
    """Return the error for an answer that is none."""
    answer.close()
    return HostNotAble(
        f"{answer.url} answers {answer.status_code} {answer.reason}",
        cause="a mistyped address, or one that asks for a password",
        next_step=f"curl -sI {answer.url}",
    )


def _reason(error: Exception) -> str:
    return str(error.args[0] if error.args else error)[:200]
