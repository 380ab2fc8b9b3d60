"""Recorded requests: one JSON object a line, as OpenAI's batch input, with headers and the time of arrival.

A runbook replays such a file (`-i request=FILE`). Credentials are left out: the replay sends the key that the server
under study is given itself.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from vdbg_env.record.redactor import Redactor, is_sensitive_name

# Of one connection (RFC 9110, section 7.6.1), and what a client makes anew for each request.
HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade")
)
# A replay reads the answer's text to find errors in streams: it must not ask for a compressed one.
_MADE_ANEW = HOP_BY_HOP | {"host", "content-length", "expect", "accept-encoding"}
# Texts that say what is asked for, not what about. All others are content.
_KEPT_TEXTS = frozenset(
    ("model", "role", "type", "format", "encoding_format", "reasoning_effort", "service_tier", "detail", "task", "$ref")
)
_TOKENS = frozenset(("prompt", "input", "prompt_token_ids", "token_ids", "tokens"))


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as it arrived, `at_s` seconds after the first one; `url` is its path and query."""

    method: str
    url: str
    headers: Iterable[tuple[str, str]]
    body: bytes
    at_s: float


def as_line(request: RecordedRequest, number: int, redactor: Redactor, *, redact_body: bool) -> bytes | None:
    """Return the line of a request, or None when its body is to be redacted and is not text."""
    headers = kept_headers(request.headers, redactor)
    document: dict[str, Any] = {"custom_id": str(number), "method": request.method}
    document |= {"url": _kept_url(request.url, redactor), "at_s": round(request.at_s, 3), "headers": headers}
    encoded = any(name.lower() == "content-encoding" for name in headers)
    body = _body(request.body, encoded=encoded, redact=redact_body)
    if body is None:
        return None
    return json.dumps(document | body, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"


def kept_headers(headers: Iterable[tuple[str, str]], redactor: Redactor) -> dict[str, str]:
    """Return the headers that a replay sends again: no credentials, and nothing that belongs to one connection."""
    given = [(name, value) for name, value in headers if name.lower() not in _MADE_ANEW]
    named = {word.strip().lower() for name, value in given if name.lower() == "connection" for word in value.split(",")}
    return {
        name: redactor.text(value)
        for name, value in given
        if not is_sensitive_name(name.replace("-", "_")) and name.lower() not in named
    }


def without_content(value: Any, *, key: str = "") -> Any:
    """Return a JSON value whose texts have each letter replaced by `x` and each digit by `0`, and token ids by 1.

    The shape stays: lengths, spaces, the names of fields, and every number that steers the request.
    """
    match value:
        case str():
            return value if key in _KEPT_TEXTS else _masked(value)
        case dict():
            return {name: without_content(inner, key=name) for name, inner in value.items()}
        case list():
            return [without_content(inner, key=key) for inner in value]
        case int() if key in _TOKENS and not isinstance(value, bool):
            return 1
        case _:
            return value


def _masked(text: str) -> str:
    return re.sub(r"[^\W\d_]", "x", re.sub(r"\d", "0", text))


def _kept_url(url: str, redactor: Redactor) -> str:
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    kept = [(name, value) for name, value in query if not is_sensitive_name(name.replace("-", "_"))]
    text = parts.query if kept == query else urlencode(kept)
    return redactor.text(urlunsplit(parts._replace(query=text)))


def _body(data: bytes, *, encoded: bool, redact: bool) -> dict[str, Any] | None:
    """Return the field that holds a body: JSON as itself, other text as text, the rest as base64."""
    if not data:
        return {}
    try:
        text = None if encoded else data.decode()
    except UnicodeDecodeError:
        text = None
    if text is None:
        return None if redact else {"body_base64": base64.b64encode(data).decode()}
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict | list):
        return {"body": without_content(document) if redact else document}
    return {"body": _masked(text) if redact else text}
