"""Known secrets are found in every form in which programs print and store them, however the output is cut."""

import base64
import binascii
import gzip
import html
import json
import os
import random
import re
import shlex
import string
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from vdbg_env.record.redaction.compressed import mask_artifact
from vdbg_env.record.redaction.file_names import redact_names
from vdbg_env.record.redaction.masking import mask_file
from vdbg_env.record.redaction.redact_run import redact_run
from vdbg_env.record.redaction.redaction import Redactor
from vdbg_env.record.redaction.secrets import SecretFinder, as_literals
from vdbg_env.record.redaction.whole_text import WholeText

Encode = Callable[[str], bytes]


def pairs(secret: str, between: str = "", mark: str = "", *, upper: bool = False) -> bytes:
    digits = [f"{byte:02x}" for byte in secret.encode()]
    return between.join(mark + (pair.upper() if upper else pair) for pair in digits).encode()


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
    "html, twice": lambda s: html.escape(html.escape(s)).encode(),
    "html, all decimal": lambda s: "".join(f"&#{ord(c)};" for c in s).encode(),
    "html, all hexadecimal": lambda s: "".join(f"&#x{ord(c):x};" for c in s).encode(),
    "html, all upper hexadecimal": lambda s: "".join(f"&#x{ord(c):X};" for c in s).encode(),
    "url": lambda s: quote(s, safe="").encode(),
    "url path": lambda s: quote(s).encode(),
    "url form": lambda s: quote_plus(s).encode(),
    "url, lower case": lambda s: re.sub("%..", lambda found: found[0].lower(), quote(s, safe="")).encode(),
    "url, twice": lambda s: quote(quote(s, safe=""), safe="").encode(),
    "url, all": lambda s: pairs(s, mark="%", upper=True),
    "shell": lambda s: shlex.join(["curl", s]).encode(),
    "hex": lambda s: s.encode().hex().encode(),
    "upper hex": lambda s: binascii.hexlify(s.encode()).upper(),
    "hex dump": lambda s: pairs(s, " "),
    "hex with colons": lambda s: pairs(s, ":"),
    "upper hex with dashes": lambda s: pairs(s, "-", upper=True),
    "C array": lambda s: pairs(s, ", ", "0x"),
    "C escapes": lambda s: pairs(s, mark="\\x"),
    "octal escapes": lambda s: "".join(f"\\{byte:03o}" for byte in s.encode()).encode(),
    "unicode escapes": lambda s: pairs(s, mark="\\u00"),
    "decimal list": lambda s: str(list(s.encode())).encode(),
    "UTF-16 LE": lambda s: s.encode("utf-16-le"),
    "UTF-16 BE": lambda s: s.encode("utf-16-be"),
    "UTF-16 with mark": lambda s: s.encode("utf-16"),
    "UTF-32": lambda s: s.encode("utf-32"),
    "base64": based(b""),
    "base64, one byte on": based(b"u"),
    "base64, two bytes on": based(b"u:"),
    "base64 for URLs": based(b"me:", url=True),
    "base64 for URLs, one byte on": based(b"me:u", url=True),
    "base64 in lines": lambda s: base64.encodebytes(b"x" * 50 + s.encode() + b"y" * 50),
    "base32": lambda s: base64.b32encode(s.encode() + b"12345"),
    "basic authorization": lambda s: b"Authorization: Basic " + base64.b64encode(b"name:" + s.encode()),
    "curl": lambda s: f"curl -u name:{s} https://h/".encode(),
    "split by a line end": split(5, "\n"),
    "split after one letter": split(1, "\r\n"),
    "split by a colour": split(7, "\x1b[01;31m\x1b[K"),
    "split by a title": split(4, "\x1b]0;title\x07"),
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


def test_there_are_fifty_forms_and_a_hundred_secrets() -> None:
    assert (len(FORMS), len(SECRETS)) == (50, 100)


@pytest.mark.parametrize("library", [True, False], ids=["with the library", "standard library alone"])
def test_no_form_of_a_known_secret_passes_a_stream(library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not library:
        monkeypatch.setitem(sys.modules, "ahocorasick_rs", None)
    stream, chance, data = Redactor(KNOWN).stream(), random.Random(3), text()
    written, at = [], 0
    while at < len(data):
        size = chance.choice((1, 7, 100, 4096, 65536))
        written.append(stream.feed(data[at : at + size]))
        at += size
    done = b"".join([*written, stream.finish()])
    assert_none(done)
    assert done.count(b":end") == len(FORMS) * len(SECRETS)


@pytest.mark.parametrize("library", [True, False], ids=["with the library", "standard library alone"])
@pytest.mark.parametrize("size", [1, 3, 6])
def test_a_secret_on_many_short_lines_passes_no_stream(
    library: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not library:
        monkeypatch.setitem(sys.modules, "ahocorasick_rs", None)
    redactor = Redactor(as_literals(SECRETS[:3]))
    for secret in SECRETS[:3]:
        lines = "\n".join(secret[at : at + size] for at in range(0, len(secret), size)).encode()
        stream = redactor.stream()
        done = stream.feed(b"a line\n:" + lines + b":end\n") + stream.finish()
        assert done == b"a line\n:[redacted known-value]:end\n"


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


def test_a_place_in_the_whole_is_found_in_any_order() -> None:
    chance = random.Random(1)
    for _ in range(200):
        data = bytes(chance.choices(b"ab\r\n", k=40))
        places = [at for at, byte in enumerate(data) if byte not in b"\r\n"]
        found = WholeText(data)
        for at in (*range(len(places)), *(chance.randrange(len(places)) for _ in range(5))):
            assert found.place_of(at) == places[at]


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


def test_file_names_lose_their_secrets(tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    (run / f"dir-{SECRETS[0]}").mkdir(parents=True)
    outside.mkdir()
    (outside / SECRETS[0]).touch()
    (run / "link").symlink_to(outside)
    for name in (f"log-{SECRETS[0]}.txt", f"log-{SECRETS[1]}.txt", SECRETS[2].encode().hex(), "plain.txt"):
        (run / f"dir-{SECRETS[0]}" / name).write_text(name)
    assert redact_names(run, SecretFinder(KNOWN)) == 4
    names = sorted(str(path.relative_to(run)) for path in run.rglob("*") if not path.is_symlink())
    assert names == ["dir-redacted"] + [
        f"dir-redacted/{name}" for name in ("log-redacted.txt", "log-redacted.txt.1", "plain.txt", "redacted")
    ]
    assert (outside / SECRETS[0]).exists()


def test_what_links_lead_to_and_attributes_lose_their_secrets(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for name, target in (
        ("a", SECRETS[0]),
        ("b", f"/x/{SECRETS[1]}/y"),
        ("below/c", f"../../{SECRETS[0].encode().hex()}"),
    ):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "plain").symlink_to("below")
    (tmp_path / "file").touch()
    os.setxattr(tmp_path / "file", "user.token", SECRETS[2].encode())
    os.setxattr(tmp_path / "file", "user.plain", b"kept")
    assert redact_names(tmp_path, SecretFinder(KNOWN)) == 4
    links = {path.name: str(path.readlink()) for path in tmp_path.rglob("*") if path.is_symlink()}
    assert links == {"a": "redacted", "b": "/x/redacted/y", "c": "../../redacted", "plain": "below"}
    assert os.listxattr(tmp_path / "file") == ["user.plain"]


def test_the_name_in_a_header_of_gzip_loses_its_secret(tmp_path: Path) -> None:
    path = tmp_path / "core.gz"
    with path.open("wb") as file, gzip.GzipFile(f"/x/{SECRETS[0]}", "wb", fileobj=file) as packed:
        packed.write(b"harmless")
    assert SECRETS[0].encode() in path.read_bytes()
    assert mask_artifact(path, KNOWN).masked == 1
    assert SECRETS[0].encode() not in path.read_bytes()
    assert gzip.decompress(path.read_bytes()) == b"harmless"


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
