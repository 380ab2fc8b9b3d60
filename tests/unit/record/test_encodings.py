"""Known secrets are found in every form in which programs print and store them, however the output is cut."""

import base64
import html
import json
import random
import re
import shlex
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from vdbg_env.common import patterns
from vdbg_env.record.masking import mask_file, redact_run
from vdbg_env.record.redactor import Redactor, as_literals

Encode = Callable[[str], bytes]


def based(before: bytes, *, url: bool = False) -> Encode:
    encode = base64.urlsafe_b64encode if url else base64.b64encode
    return lambda secret: encode(before + secret.encode() + b"after")


def split(position: int, by: str) -> Encode:
    return lambda secret: (secret[:position] + by + secret[position:]).encode()


FORMS: Mapping[str, Encode] = {
    "plain": lambda s: s.encode(),
    "json": lambda s: json.dumps({"a": s}).encode(),
    "json, not ASCII only": lambda s: json.dumps(s, ensure_ascii=False).encode(),
    "json, slashes escaped": lambda s: json.dumps(s).replace("/", "\\/").encode(),
    "json in json": lambda s: json.dumps(json.dumps(s)).encode(),
    "repr": lambda s: repr([s]).encode(),
    "ascii": lambda s: ascii(s).encode(),
    "repr of bytes": lambda s: repr(s.encode()).encode(),
    "html": lambda s: html.escape(s).encode(),
    "html, quotes kept": lambda s: html.escape(s, quote=False).encode(),
    "html, decimal quotes": lambda s: html.escape(s).replace("&#x27;", "&#39;").replace("&quot;", "&#34;").encode(),
    "url": lambda s: quote(s, safe="").encode(),
    "url path": lambda s: quote(s).encode(),
    "url form": lambda s: quote_plus(s).encode(),
    "url, lower case": lambda s: re.sub("%..", lambda found: found[0].lower(), quote(s, safe="")).encode(),
    "shell": lambda s: shlex.join(["curl", s]).encode(),
    "UTF-16 LE": lambda s: s.encode("utf-16-le"),
    "UTF-16 with mark": lambda s: s.encode("utf-16"),
    "UTF-32": lambda s: s.encode("utf-32"),
    "base64": based(b""),
    "base64, one byte on": based(b"u"),
    "base64, two bytes on": based(b"u:"),
    "base64 for URLs": based(b"me:", url=True),
    "base64 for URLs, one byte on": based(b"me:u", url=True),
    "basic authorization": lambda s: b"Authorization: Basic " + base64.b64encode(b"name:" + s.encode()),
    "curl": lambda s: f"curl -u name:{s} https://h/".encode(),
    "split by a colour": split(7, "\x1b[01;31m\x1b[K"),
    "split often": lambda s: "\x1b[0m".join(s[at : at + 3] for at in range(0, len(s), 3)).encode(),
}
LETTERS = string.ascii_letters + string.digits + "/+=&<>\"'_-. %"


def secrets() -> list[str]:
    chance = random.Random(7)
    plain = ["".join(chance.choices(string.ascii_letters + string.digits, k=20)) for _ in range(60)]
    odd = ["x" + "".join(chance.choices(LETTERS, k=chance.randint(10, 40))) + "y" for _ in range(38)]
    return [*plain, *odd, "pässwörd-ключ-77", "s/lash+plus=eq"]


SECRETS = secrets()
KNOWN = as_literals(SECRETS)


def cores(secret: str, form: str) -> list[bytes]:
    """What must not be in any file: the form itself, of a split value its longest piece of 6 letters and more."""
    encoded = FORMS[form](secret)
    if form.startswith("split"):
        whole = encoded
    elif form.startswith(("base", "UTF")):
        whole = next(known for known in KNOWN_OF[secret] if known in encoded.replace(b"\n", b""))
    else:
        return [secret.encode()] if secret.encode() in encoded else [encoded]
    return [whole]


KNOWN_OF = {secret: as_literals([secret]) for secret in SECRETS}


def text() -> bytes:
    return b"".join(b"line %d: %s :end\n" % (n, FORMS[f](s)) for n, s in enumerate(SECRETS) for f in FORMS)


def assert_none(data: bytes) -> None:
    left = [(form, secret) for form in FORMS for secret in SECRETS for core in cores(secret, form) if core in data]
    assert left == []


def test_there_are_28_forms_and_a_hundred_secrets() -> None:
    assert (len(FORMS), len(SECRETS)) == (28, 100)


@pytest.mark.parametrize("engine", ["re2", "re"])
def test_no_form_of_a_known_secret_passes_a_stream(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine == "re":
        monkeypatch.setattr(patterns, "re2", None)
    stream, chance, data = Redactor(KNOWN).stream(), random.Random(3), text()
    written, at = [], 0
    while at < len(data):
        size = chance.choice((1, 7, 100, 4096, 65536))
        written.append(stream.feed(data[at : at + size]))
        at += size
    done = b"".join([*written, stream.finish()])
    assert_none(done)
    assert done.count(b":end") == len(FORMS) * len(SECRETS)


@pytest.mark.parametrize("head", [b"", b"\x7fELF\0\0"], ids=["text", "binary"])
def test_no_form_of_a_known_secret_stays_in_a_file(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "left"
    data = head + b"".join(
        b"%d: %s :end\n" % (n, FORMS[f](s)) for n, s in enumerate(SECRETS) for f in FORMS if f != "curl"
    )
    path.write_bytes(data)
    assert mask_file(path, KNOWN, window=1 << 16) > 0
    masked = path.read_bytes()
    assert_none(masked)
    assert len(masked) == len(data) and masked.count(b":end") == data.count(b":end")


def test_text_between_secrets_is_left_alone() -> None:
    data = b"".join(b"line %d of %d tokens, loss %f\n" % (n, n * n, 1 / (n + 1)) for n in range(20_000))
    assert Redactor(KNOWN).data(data) == data


@pytest.mark.parametrize(
    "line", ["curl -u name:{} https://h/", "['curl', '--user', 'name:{}']", "curl -sS --proxy-user 'n:{}' x"]
)
def test_the_password_of_curl_is_found_unknown(line: str) -> None:
    redacted = Redactor().text(line.format("p4ssw0rd!x"))
    assert ("p4ssw0rd!x" not in redacted and "name" in redacted) or "n:" in redacted
    assert Redactor().argv(["/usr/bin/curl", "-u", "name:p4ss", "h"])[2] == "name:[redacted value]"
    assert Redactor().argv(["docker", "run", "-u", "1000:1000"])[3] == "1000:1000"


def test_a_run_with_deep_json_and_lone_surrogates_is_redacted(tmp_path: Path) -> None:
    secret = SECRETS[0]
    deep = ('{"a":' * 5000 + f'"{secret}"' + "}" * 5000).encode()
    (tmp_path / "deep.json").write_bytes(deep)
    (tmp_path / "middling.json").write_bytes(b'{"a":' * 400 + f'"{secret}"'.encode() + b"}" * 400)
    (tmp_path / "events.jsonl").write_text(json.dumps({"seq": 1, "text": f"\ud800 {secret}"}) + "\n")
    redacted = redact_run(tmp_path, Redactor(KNOWN), KNOWN)
    assert sorted(redacted.changed) == ["deep.json", "events.jsonl", "middling.json"]
    assert not any(secret.encode() in path.read_bytes() for path in tmp_path.iterdir())
    assert json.loads((tmp_path / "events.jsonl").read_text())["text"].startswith("\ud800 [redacted")
