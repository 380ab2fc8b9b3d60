"""The two ways to search find the same secrets, and neither is blind in what a terminal's codes take."""

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


@pytest.mark.parametrize("library", [True, False], ids=["with the library", "standard library alone"])
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
def test_a_secret_in_a_window_s_title_is_found(line: bytes, library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not library:
        monkeypatch.setitem(sys.modules, "ahocorasick_rs", None)
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
