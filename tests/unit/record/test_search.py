"""Both engines find the same secrets, a log's colours hide none, and lines without one cost nothing."""

import json
import random

import pytest

from vdbg_env.common import patterns
from vdbg_env.record.redactor import RULES, Redactor, SecretFinder, as_literals

SECRET = "k9Zq-Known/Value+77"
SIGNS = b"""-- - _ api_ access- private s = : => " ' ] \\ , @ / . Bearer TOKEN Key x""".split()
BLANKS = (b" ", b"\t", b"\n", b"\r\n", b"\f", b"\v", b"\x1b[1m", b"\x1b[K")
VALUES = (b"abcdefghijklmnopqrstuvwxyz012345", b"ABCDEFGHIJ0123456789", b"user:pass", b" -u ", b"s3cr3tvalue99")
KNOWN = (SECRET.encode(), SECRET.encode()[:9], SECRET.encode()[9:], json.dumps(SECRET).encode())
PIECES = [*(needle for rule in RULES for needle in rule.needles), *SIGNS, *BLANKS, *VALUES, *KNOWN]
VALUE = b"s3cr3tvalue99"


@pytest.fixture(params=["re2", "re"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "re":
        monkeypatch.setattr(patterns, "re2", None)


def covered(finder: SecretFinder, data: bytes) -> set[int]:
    return {at for span in finder.find(data) for at in range(span.start, span.end)}


@pytest.mark.parametrize("seed", range(4))
def test_with_re2_and_without_it_the_same_is_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known = as_literals([SECRET])
    one = SecretFinder(known)
    monkeypatch.setattr(patterns, "re2", None)
    other = SecretFinder(known)
    chance = random.Random(seed)
    for _ in range(800):
        data = b"".join(chance.choices(PIECES, k=chance.randint(1, 24)))
        assert one.find(data) == other.find(data), data


def sprinkled(chance: random.Random, text: bytes, codes: list[bytes]) -> tuple[bytes, list[int]]:
    """Return `text` with codes at random places, and where each of its bytes is then."""
    parts, places, length = [], [], 0
    for at in range(len(text)):
        code = chance.choice(codes) if chance.random() < 0.1 else b""
        places.append(length + len(code))
        parts += [code, text[at : at + 1]]
        length += len(code) + 1
    return b"".join(parts), places


@pytest.mark.parametrize("seed", range(4))
def test_colours_change_nothing_of_what_is_found(seed: int) -> None:
    finder, chance = SecretFinder(as_literals([SECRET])), random.Random(seed)
    plain_pieces = [piece for piece in PIECES if b"\x1b" not in piece]
    for _ in range(300):
        text = b"".join(chance.choices(plain_pieces, k=chance.randint(1, 24)))
        data, places = sprinkled(chance, text, [b"\x1b[m", b"\x1b[4:3m", b"\x1b[0;0m", b"\x1b[1;36m", b"\x1b[K"])
        found = covered(finder, data)
        assert {at for at, place in enumerate(places) if place in found} == covered(finder, text), data


@pytest.mark.parametrize(
    "line",
    [
        b"Token: \x1b[1m%s\x1b[0m",
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


@pytest.mark.parametrize(
    "line",
    [
        b"token=%s",
        b"token : %s",
        b"token    = %s",
        b'"token": "%s"',
        b'\\"token\\": \\"%s\\"',
        b"tokens['token'] => '%s'",
        b"--hf-token %s",
        b"'--hf-token', '%s'",
        b"--hf-token\n%s",
        b"token =\n%s",
        b'"--api-key",\n  "%s"',
        b"--api-key\t%s",
        b"--" + b"a-" * 28 + b"key-token %s",
        b"API_KEY=%s",
        b"apikey: %s",
        b"access-key = %s",
        b"private_key=%s",
        b"pwd = %s",
        b'"pwd"  :  "%s"',
        b"123 tokens/s, token=%s",
    ],
)
def test_a_value_is_found_wherever_its_name_gives_it_away(line: bytes) -> None:
    assert VALUE not in Redactor().data(line % VALUE + b" and more\n")


def test_lines_that_only_speak_of_tokens_and_keys_are_not_looked_at_again() -> None:
    """Each of these would cost a search by a pattern, on every line."""
    lines = b"12.3 tokens/s, key cache usage: 4.5%, 17 tokens generated, max_tokens 512, token ids [1, 2]\n"
    assert SecretFinder()._search(lines, 0) is None
