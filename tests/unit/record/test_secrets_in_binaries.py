"""Secrets without a telling prefix in binary files: masked at their length, in ASCII and in UTF-16; code stays."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vdbg_env.record.masking import mask_file
from vdbg_env.record.redactor import SecretFinder

SECRET = "wQ4f1a90c2"
FORMS = (
    "password={}", "passwd={}", 'password="{}"', '"password": "{}"', "Authorization: Bearer {}", "authorization: {}",
    "authorization: Basic {}", "Bearer {}-0123456789", "api_key={}", "API-Key: {}", "access_token={}", "token={}",
    "client_secret={}", "HF_TOKEN={}", "DB_PASSWORD={}", "postgres password={} host=db", "access_token%3D{}",
)  # fmt: skip
CODINGS = ("latin-1", "utf-16-le", "utf-16-be")


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("form", FORMS)
def test_a_secret_in_a_core_is_masked_at_its_length(form: str, coding: str, tmp_path: Path) -> None:
    text = form.format(SECRET).encode(coding)
    before = bytes(range(256)) * 40 + b"\0\0"
    data = before + text + b"\0\0\0\0" + bytes(range(256)) * 40
    path = tmp_path / "core"
    path.write_bytes(data)
    assert mask_file(path, ()) == 1
    masked = path.read_bytes()
    assert len(masked) == len(data)
    assert SECRET.encode() not in masked and SECRET.encode(coding) not in masked
    at, end = len(before), len(before) + len(text) + 4
    assert (masked[:at], masked[end:]) == (data[:at], data[end:])
    assert masked[at : at + 4] == data[at : at + 4]  # the name stays


@pytest.mark.parametrize(
    "text",
    [
        b"password=%s\0",
        b"token=$TOKEN\0",
        b"Authorization: <none>\0",
        b"bearer certificates\0",
        b"://x@\0",
        b"token=\0abcdefgh",
    ],
)
def test_strings_of_programs_stay(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "core"
    path.write_bytes(data := b"\x7fELF\0" * 9 + text + b"\0" * 9)
    assert (mask_file(path, ()), path.read_bytes()) == (0, data)


def test_machine_code_stays(tmp_path: Path) -> None:
    """A libc is three megabytes of code and names."""
    path = tmp_path / "libc"
    path.write_bytes(data := Path("/proc/self/exe").resolve().read_bytes()[: 8 << 20])
    mask_file(path, ())
    changed = sum(a != b for a, b in zip(path.read_bytes(), data, strict=True))
    assert changed < 200


@given(st.binary(max_size=200), st.sampled_from(FORMS), st.sampled_from(CODINGS), st.binary(max_size=40))
@settings(max_examples=60, deadline=None)
def test_a_secret_is_found_wherever_it_stands(before: bytes, form: str, coding: str, after: bytes) -> None:
    text = form.format(SECRET).encode(coding)
    data = before + b"\0\0" + text + b"\0\0" + after
    spans = SecretFinder(strict=True).find(data)
    kept = bytearray(data)
    for span in spans:
        kept[span.start : span.end] = b"*" * (span.end - span.start)
    assert SECRET.encode(coding) not in bytes(kept)
