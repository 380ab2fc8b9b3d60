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

from vdbg_env.record.request_redactor import RequestRedactor, json_text

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


def as_line(request: RecordedRequest, number: int, redactor: RequestRedactor, *, redact_body: bool) -> bytes | None:
    """Return the line of a request, or None when its body cannot be looked into."""
    headers = redactor.headers(request.headers)
    given = {name.lower(): value for name, value in request.headers}
    document: dict[str, Any] = {"custom_id": str(number), "method": request.method}
    document |= {"url": redactor.url(request.url), "at_s": round(request.at_s, 3), "headers": headers}
    encoding = given.get("content-encoding", "")
    data = redactor.body(request.body, given.get("content-type", ""), encoding)
    body = None if data is None else _body(data, encoded=bool(encoding), redact=redact_body)
    if body is None:
        return None
    return json_text(document | body).encode() + b"\n"


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
