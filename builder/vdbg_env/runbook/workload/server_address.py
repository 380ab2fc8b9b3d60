"""Where a server listens, by its own arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit, urlunsplit

_DEFAULT: Final = ("127.0.0.1", 8000)  # of the runbooks' input `url`, as of vLLM and uvicorn
_EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def url_of_server(url: str, argv: Sequence[str]) -> str:
    """Return `url` with the host and port that `--host` and `--port` in `argv` name.

    A URL that names another place than the default was chosen by a person, and stays as it is.
    """
    parts = urlsplit(url)
    if (parts.hostname, parts.port) != _DEFAULT:
        return url
    port = _value(argv, "--port") or ""
    host = _value(argv, "--host") or ""
    host = _EVERY_ADDRESS.get(host, host)
    netloc = f"[{host}]" if ":" in host else host
    return urlunsplit(parts._replace(netloc=f"{netloc}:{port if port.isdecimal() else _DEFAULT[1]}"))


def _value(argv: Sequence[str], flag: str) -> str | None:
    """Return the value of a flag, the last one where it is given more than once, as argument parsers take it."""
    value = None
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if word == flag:
            value = following
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
    return value
