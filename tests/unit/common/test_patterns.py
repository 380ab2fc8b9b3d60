"""A pattern is legal when RE2 and Python's `re` take it and mean the same: what is refused says what to write."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.common import patterns

REFUSED = {
    r"(?=x)y": "look-ahead", r"(?!x)y": "look-ahead", r"(?<!x)y": "look-behind", r"(?<=x)y": "look-behind",
    r"(x)\1": "back-reference", r"(?P<n>x)(?P=n)": "back-reference", r"(?>x)y": "atomic", r"(x)?(?(1)y|z)": "condition",
    r"xy++": "RE2", r"x\Z": "end of a line", "[": "not a regular expression", r"x*": "empty text",
    r"a(?#b)c": "comment", r"x{,5}y": "lower limit", r"\\[[:alpha:]_]+": "named class", r"\\\Ax": "start of a line",
    r"a(?-m:b)": "leave out", "(" * 2000 + ")" * 2000: "at most 2000", r"(?:x{900}){900}": "RE2",
}  # fmt: skip
# `re` alone would take minutes or hours for some of these, and each was refused while it searched all output.
ONCE_REFUSED = (
    r"(a+)+b", r"(a*)*b", r"((ab)*c?)*x", r"(x+y?)*z", r"(a|a)*b", r"(a|ab)*c", r"(\w|x)+z", r"(a{1,}){2,}b",
    r"(a?a)*b", r"(?:a{1,3})*b", r"(a|)*b", r"(?i)(?:A|a)+b", r"(?:\d+\.?)+x", r"(.*a){80}x", r"a.*b.*c.*d.*e",
    r"foo.*bar.*baz.*qux", r"a*a*a*c", r"foo[^x]*bar[^x]*baz", r"(x+)(x?)(x+x*)y", r"\w*\d*[a-f]*\w*!",
    r"\d+\b[0-9]*\d*;", r"a.{0,90}b.{0,90}c", r"([ab])+b*a+!", r"(a+a{0,60})?a!", r"[a-z.]+\.so[a-z.]*:",
)  # fmt: skip
ACCEPTED = (
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<func>\S+)', r"NVRM: Xid \(.*\): (?P<xid>\d+)",
    r"(?i)out of memory|OutOfMemoryError", r"^\[rank(\d+)\]:\[[A-Z]\d+", r"(?:ab|cd)+x", r"a{2,5}", r"[^\]]+\]x",
    r"died unexpectedly(?: \(exit code: (-?\d+)\))?", r"tab\there", r"(\d{1,3}\.){3}\d{1,3}", r"a{b}c", r"a\{,5}",
    r"\\A", r"a\[:b:]", r"\(?(?P<what>x)\)?",
)  # fmt: skip


@pytest.mark.parametrize("pattern", REFUSED, ids=lambda text: text[:24])
def test_a_pattern_is_refused_with_its_reason_and_what_to_write(pattern: str) -> None:
    with pytest.raises(patterns.BadPattern, match=REFUSED[pattern]) as caught:
        patterns.check(pattern)
    assert 0 <= caught.value.offset < len(pattern)


@pytest.mark.parametrize(
    ("pattern", "offset"), [(r"abc(?=x)", 3), (r"(x) \1", 4), (r"ab(?<!x)y", 2), (r"\\ab\A", 4), (r"a[bc", 1)]
)
def test_the_caret_is_at_what_is_refused(pattern: str, offset: int) -> None:
    with pytest.raises(patterns.BadPattern) as caught:
        patterns.check(pattern)
    assert caught.value.offset == offset


@pytest.mark.parametrize("pattern", (*ACCEPTED, *ONCE_REFUSED))
def test_a_pattern_that_both_engines_take_is_accepted(pattern: str) -> None:
    patterns.check(pattern)


PIECES = st.sampled_from(
    [
        "a",
        "b",
        "ab",
        ".",
        "[ab]",
        "[^b]",
        r"\w",
        r"\s",
        r"\b",
        "^",
        "$",
        "(?:a|b)",
        "(?P<x>ab|a)",
        "(a)",
        "(?:a?b)",
        "é",
    ]
)
REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "*?", "+?", "{1,3}", "{2,}", "{0,60}"])
PATTERNS = st.lists(st.tuples(PIECES, REPEATS), min_size=1, max_size=5).map(
    lambda parts: "".join(piece + repeat for piece, repeat in parts)
)


@given(PATTERNS, st.lists(st.text("abé .", max_size=12).map(str.encode), max_size=6))
def test_both_engines_find_the_same_in_lines(pattern: str, lines: list[bytes]) -> None:
    try:
        patterns.check(pattern)
    except patterns.BadPattern:
        return
    text = b"\n".join(lines)
    found, at = {}, 0
    of_lines = patterns.of_lines(pattern.encode())
    while at <= len(text) and (one := of_lines.search(text, at)):
        found[text.count(b"\n", 0, one.start())] = one.group()
        at = text.find(b"\n", one.start()) + 1 or len(text) + 1
    assert not any(b"\n" in one for one in found.values())
    one_by_one = {number: re.search(pattern.encode(), line) for number, line in enumerate(lines)}
    assert found == {number: one.group() for number, one in one_by_one.items() if one}
    assert (patterns.any_of_lines([b"never there", pattern.encode()]).search(text) is None) == (not found)
