"""Credentials in requests: none of the forms that clients give them stays, and what is none does."""

import base64
import gzip
import json
from typing import Any
from urllib.parse import unquote

import pytest

from tests.support.credential_forms import KEPT, KEPT_HEADERS, KEPT_QUERIES, CredentialForm, credential_forms
from vdbg_env.record.recorded_requests import RecordedRequest, as_line
from vdbg_env.record.redactor import Redactor
from vdbg_env.record.request_redactor import RequestRedactor

REDACTOR = RequestRedactor(Redactor())


def line_of(form: CredentialForm, *, redact_body: bool = False) -> bytes:
    request = RecordedRequest("POST", form.target, form.headers.items(), form.body, 0.0)
    line = as_line(request, 1, REDACTOR, redact_body=redact_body)
    assert line is not None
    return line


def texts_of(line: bytes) -> list[bytes]:
    """Return all that a line may hide a text in: as it is, without percent signs, out of base64, expanded."""
    document = json.loads(line)
    found = [line, json.dumps(document).encode(), unquote(unquote(document["url"])).encode()]
    found += [unquote(unquote(value)).encode() for value in document["headers"].values()]
    if "body_base64" in document:
        data = base64.b64decode(document["body_base64"])
        data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        found += [data, data.replace(b"\0", b"")]
    return [*found, *(unquote(text.decode("latin-1")).encode("latin-1", "replace") for text in found)]


def leaks(form: CredentialForm, line: bytes) -> bool:
    secret = form.secret.encode()
    pieces = [secret[at : at + 6] for at in range(len(secret) - 5)]
    pieces += [base64.b64encode(b"user:" + secret)[8:20], base64.b64encode(b"a:" + secret)[4:16]]
    pieces.append("".join(f"\\u{byte:04x}" for byte in secret[:6]).encode())
    return any(piece in text for text in texts_of(line) for piece in pieces)


@pytest.mark.parametrize("form", [pytest.param(form, id=form.name) for form in credential_forms()])
def test_no_form_of_a_credential_stays(form: CredentialForm) -> None:
    raw = {"url": form.target, "headers": dict(form.headers), "body_base64": base64.b64encode(form.body).decode()}
    assert leaks(form, json.dumps(raw).encode())
    assert not leaks(form, line_of(form)), line_of(form)


@pytest.mark.parametrize("body", [pytest.param(body, id=str(number)) for number, body in enumerate(KEPT)])
def test_what_is_no_credential_stays(body: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json"}
    line = line_of(CredentialForm("", "", headers, body=json.dumps(body).encode()))
    assert json.loads(line)["body"] == body


@pytest.mark.parametrize("query", KEPT_QUERIES)
def test_a_query_without_a_credential_stays_byte_for_byte(query: str) -> None:
    target = f"/v1/completions?{query}" if query else "/v1/completions"
    assert json.loads(line_of(CredentialForm("", "", target=target)))["url"] == target


def test_headers_that_steer_a_server_stay() -> None:
    assert json.loads(line_of(CredentialForm("", "", KEPT_HEADERS)))["headers"] == KEPT_HEADERS
