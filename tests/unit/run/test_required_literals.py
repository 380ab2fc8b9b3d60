"""Every match of a pattern holds one of its needles, so lines without any need no search."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.run.job import needles


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("illegal memory access", ("illegal memory access",)),
        ("illegal memory access|cudaErrorIllegalAddress", ("cudaerrorillegaladdress", "illegal memory access")),
        (r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<func>\S+)', ('", line ',)),
        (r"NVRM: Xid \(.*\): (?P<xid>\d+)", ("nvrm: xid (",)),
        (r"(?i)Cuda ERROR", ("cuda error",)),
        (r"(?i:cuda) error", (" error",)),
        (r"(?:failed|broken)? hard", (" hard",)),
        (r"(?:oops){2,}", ("oops",)),
        (r"^\s*$", ()),
        (r"ab", ()),
        (r"a|never", ()),
        (r"(?:optional)?", ()),
    ],
)
def test_the_words_a_match_must_hold(pattern: str, words: tuple[str, ...]) -> None:
    assert needles(pattern) == words


PIECES = st.sampled_from(
    [r"error", r"\d+", r"(?:cuda|CUDA)", r"[a-z]*", r"(?P<x>mem)?", r"fault", r"(?:ab|cde){1,2}", "."]
)


@given(st.lists(PIECES, min_size=1, max_size=5).map("".join), st.text("errorcudaCUDAfaultmem abcde12", max_size=60))
def test_no_match_is_without_a_needle(pattern: str, text: str) -> None:
    try:
        found = re.search(pattern, text)
    except re.error:  # a group named twice
        return
    words = needles(pattern)
    if found and words:
        assert any(word in text.lower() for word in words)
