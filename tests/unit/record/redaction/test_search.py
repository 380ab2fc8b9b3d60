"""The two ways to search find the same secrets, and neither is blind in what a terminal's codes take."""

import json
import random
import sys

import pytest

from vdbg_env.record.redaction.redaction import Redactor
from vdbg_env.record.redaction.secrets import RULES, SecretFinder, as_literals
from vdbg_env.record.redaction.whole_text import WholeText

SECRET = "k9Zq-Known/Value+77"
SIGNS = b"""-- - _ api_ access- private s = : => " ' ] \\ , @ / . Bearer TOKEN Key x""".split()
BLANKS = (b" ", b"\t", b"\n", b"\r\n", b"\f", b"\v", b"\x1b[1m", b"\x1b[K")
VALUES = (b"abcdefghijklmnopqrstuvwxyz012345", b"ABCDEFGHIJ0123456789", b"user:pass", b" -u ", b"s3cr3tvalue99")
KNOWN = (SECRET.encode(), SECRET.encode()[:9], SECRET.encode()[9:], SECRET.encode().hex().encode())
PIECES = [*(needle for rule in RULES for needle in rule.needles), *SIGNS, *BLANKS, *VALUES, *KNOWN]


def covered(finder: SecretFinder, data: bytes) -> set[int]:
    return {at for span in finder.find(data) for at in range(span.start, span.end)}


@pytest.mark.parametrize("seed", range(8))
def test_one_pass_finds_all_that_a_search_line_by_line_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known = as_literals([SECRET])
    one_pass = SecretFinder(known)
    monkeypatch.setitem(sys.modules, "ahocorasick_rs", None)
    line_by_line = SecretFinder(known)
    assert type(one_pass._search) is not type(line_by_line._search)
    chance = random.Random(seed)
    for _ in range(1500):
        data = b"".join(chance.choices(PIECES, k=chance.randint(1, 24)))
        assert covered(line_by_line, data) <= covered(one_pass, data), data


@pytest.fixture(params=["with the library", "standard library alone"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "with the library":
        monkeypatch.setitem(sys.modules, "ahocorasick_rs", None)


def sprinkled(chance: random.Random, text: bytes, codes: list[bytes]) -> tuple[bytes, list[int]]:
    """Return `text` with codes at random places, and where each of its bytes is then."""
    parts, places, length = [], [], 0
    for at in range(len(text)):
        code = chance.choice(codes) if chance.random() < 0.1 else b""
        places.append(length + len(code))
        parts += [code, text[at : at + 1]]
        length += len(code) + 1
    return b"".join(parts), places


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("seed", range(6))
def test_codes_change_nothing_of_what_is_found(seed: int) -> None:
    """Colours are removed by a faster way; with other codes what these may have swallowed is found, too."""
    finder, chance = SecretFinder(as_literals([SECRET])), random.Random(seed)
    colours = [b"\x1b[m", b"\x1b[4:3m", b"\x1b[0;0m", b"\x1b[1;36m"]
    plain_pieces = [piece for piece in PIECES if b"\x1b" not in piece]
    for _ in range(400):
        text = b"".join(chance.choices(plain_pieces, k=chance.randint(1, 24)))
        wanted = covered(finder, text)
        data, places = sprinkled(chance, text, colours)
        found = covered(finder, data)
        assert {at for at, place in enumerate(places) if place in found} == wanted, data
        data, places = sprinkled(chance, text, [*colours, b"\x1b[K", b"\x1b]0;title\x07", b"\x1b]8;;\x1b\\"])
        found = covered(finder, data)
        assert wanted <= {at for at, place in enumerate(places) if place in found}, data


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    "line",
    [
        b"Token: \x1b[1m%s\x1b[0m",
        b"Tokens:\n%s\n",
        b"password=\x1b[32m%s",
        b"password\x1b[0m=\x1b[32m%s",
        b"\x1b[33m--api-key\x1b[0m \x1b[35m%s\x1b[0m",
        b"Authorization: \x1b[1mBearer\x1b[0m %s\x1b[K",
    ],
)
def test_rules_see_through_colours(line: bytes) -> None:
    token = b"hf_" + b"AbCdEfGhIjKlMnOpQrStUvWxYz012345"
    for printed in (line % token, repr(line % token).encode(), json.dumps((line % token).decode()).encode()):
        redacted = Redactor().data(printed)
        assert b"[redacted" in redacted and token[3:] not in redacted
    assert b"hunter2-77" not in Redactor().data(repr(b"password: \x1b[1mhunter2-77").encode())
    assert token[3:] not in Redactor().data(repr(b"Key:\nsk-" + token[3:]).encode())
    assert b"MnOpQ" not in Redactor().data(line % token.replace(b"IjKl", b"Ij\x1b[0mKl"))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("before", range(9))
def test_a_form_of_digits_is_found_among_digits(before: int) -> None:
    """With digits folded its first bytes are at each of these places: the first found is not the one."""
    secret = b"p1r7k9Zq-Value+77"
    redactor, data = Redactor(as_literals([secret.decode()])), b"a1234567"[:before] + secret
    assert secret.hex() not in redactor.text(f"dump {data.hex()} end")
    assert ", ".join(map(str, secret)) not in redactor.text(str(list(data)))


@pytest.mark.usefixtures("library")
def test_a_value_that_completes_a_colour_is_found() -> None:
    secret = b"my-secret-77-value"
    assert b"-secret-77" not in Redactor(as_literals([secret.decode()])).data(b"a \x1b[%s b" % secret)
    assert b"-secret-77" not in Redactor(as_literals([secret.decode()])).data(b"\x1b[1m \x1b[0;%s b" % secret)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    "line",
    [
        b"\x1b]0;%s\x07",
        b"\x1b]0;curl -u a:%s\x07 b",
        b"\x1b]0;no end: %s and then some",
        b"\x1b[%s",
        b"\x1b[31m\x1b[%s",
        b"\x1b]2;api_key=%s\x1b\\",
    ],
)
def test_a_secret_in_a_window_s_title_is_found(line: bytes) -> None:
    assert SECRET.encode() not in Redactor(as_literals([SECRET])).data(line % SECRET.encode())
    token = b"hf_" + b"AbCdEfGhIjKlMnOpQrStUvWxYz012345"
    assert token not in Redactor().data(line % token)


def test_codes_of_every_kind_have_their_place() -> None:
    chance = random.Random(1)
    codes = [b"\x1b[1;31m", b"\x1b[K", b"\x1b]0;title\x07", b"\x1bM", b"\x1b[0m", b"\r", b"\n"]
    for _ in range(300):
        parts = [chance.choice([*codes, b"a", b"bc"]) for _ in range(12)]
        data = b"".join(parts)
        joined = WholeText(data)
        for at, byte in enumerate(joined.text):
            assert data[joined.place_of(at)] == byte
