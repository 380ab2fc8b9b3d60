"""The index finds what a plain search finds, however often lines repeat and however they are folded."""

import random
import re

from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.record.redaction import needle_index
from vdbg_env.record.redaction.needle_index import PLAIN_FOLD, NeedleIndex, fold_also

WORDS = (b"error", b"Token", b"gho_", b"ghp_")
FOLD = fold_also(b"po")
LINES = st.lists(
    st.sampled_from([b"", b"error 17", b"ERROR 99", b"a token, a TOKEN", b"ghp_1", b"clean", b"x" * 2000 + b"error"])
)


def followed(text: bytes, _start: int, end: int) -> bool:
    return text[end : end + 1] in {b"", b",", b" ", b"\n"}


def plainly(data: bytes) -> list[tuple[int, int]]:
    folded = data.translate(FOLD)
    hits = [(at, n) for n, w in enumerate(WORDS) for at in range(len(data)) if folded.startswith(w.translate(FOLD), at)]
    return sorted((at, n) for at, n in hits if WORDS[n] != b"Token" or data[at + 5 : at + 6] in b", \n")


@given(st.lists(LINES, max_size=5))
def test_hits_are_those_of_a_plain_search_call_after_call(calls: list[list[bytes]]) -> None:
    index = NeedleIndex(WORDS, FOLD, {b"token": followed})
    for lines in calls:
        data = b"\n".join(lines)
        assert sorted(index.hits(data)) == plainly(data)


@given(st.lists(st.binary(max_size=60), max_size=60))
def test_memory_is_bounded_and_forgetting_changes_nothing(lines: list[bytes]) -> None:
    index = NeedleIndex(WORDS, FOLD, {b"token": followed})
    before = needle_index.REMEMBERED
    needle_index.REMEMBERED = 5
    try:
        for line in lines:
            data = line + b"\nerror"
            assert sorted(index.hits(data)) == plainly(data)
            assert len(index._known) < 5 + 70
    finally:
        needle_index.REMEMBERED = before


def test_thousands_of_words_are_found_as_few_are() -> None:
    chance = random.Random(3)
    many = [bytes(chance.choices(b"ab", k=chance.choice((4, 8, 12)))) + b"%d-end" % n for n in range(3000)]
    many += [b"short", b"two words", b"abababab"]
    index = NeedleIndex(many)
    for _ in range(20):
        some = chance.choices([*many, b"clean", b"bababa", b"shor"], k=40)
        data = b"".join(word + chance.choice((b" ", b"\n", b"x")) for word in some)
        folded = data.translate(PLAIN_FOLD)
        words: dict[bytes, list[int]] = {}
        for number, word in enumerate(many):
            words.setdefault(word.translate(PLAIN_FOLD), []).append(number)
        plain = [(hit.start(), n) for w, ns in words.items() for hit in re.finditer(re.escape(w), folded) for n in ns]
        assert sorted(index.hits(data)) == sorted(plain)
