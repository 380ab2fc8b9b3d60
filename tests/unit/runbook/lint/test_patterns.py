"""Patterns that could take time out of proportion are refused, and what is accepted is matched in good time."""

import re
import signal
from types import FrameType

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from vdbg_env.runbook.lint import patterns

# The longest line of one read of the supervisor, in pieces of which the matcher is given its output.
PIECE = 4096

REFUSED = {
    r"(a+)+b": "same text", r"(a*)*b": "begin alike", r"((ab)*c?)*x": "begin alike", r"(x+y?)*z": "same text",
    r"(a|a)*b": "begin alike", r"(a|ab)*c": "begin alike", r"(\w|x)+z": "begin alike", r"(a{1,}){2,}b": "same text",
    r"(a?a)*b": "same text", r"(?:a{1,3})*b": "same text", r"(a|)*b": "begin alike", r"(?i)(?:A|a)+b": "begin alike",
    r"(?:\d+\.?)+x": "same text", r"(.*a){80}x": "same text",
    r"a.*b.*c.*d.*e": "several repeats", r"foo.*bar.*baz.*qux": "several repeats", r"a*a*a*c": "several repeats",
    r"foo[^x]*bar[^x]*baz": "several repeats", r"(x+)(x?)(x+x*)y": "several repeats",
    r"\w*\d*[a-f]*\w*!": "several repeats", r"\d+\b[0-9]*\d*;": "several repeats",
    r"a.{0,90}b.{0,90}c": "several repeats", r"([ab])+b*a+!": "several repeats",
    r"(a+a{0,60})?a!": "several repeats", r"[a-z.]+\.so[a-z.]*:": "several repeats",
    r"(?=x)y": "look-ahead", r"(?!x)y": "look-ahead", r"(?<!x)y": "look-behind", r"(?<=x)y": "look-behind",
    r"(x)\1": "back-reference", r"(?P<n>x)(?P=n)": "back-reference", r"(?>x)y": "atomic", r"(x)?(?(1)y|z)": "condition",
    r"xy++": "RE2", r"x\Z": "end of a line", "[": "not a regular expression", r"x*": "empty text",
}  # fmt: skip
ACCEPTED = (
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<func>\S+)', r"NVRM: Xid \(.*\): (?P<xid>\d+)",
    r"(?i)out of memory|OutOfMemoryError", r"^\[rank(\d+)\]:\[[A-Z]\d+", r"(?:ab|cd)+x", r"a{2,5}", r"[^\]]+\]x",
    r"\s*\S+\s*x", r"a*ba*ba*c", r"\d+\.\d+\.\d+\s+\w+", r"\(?(?P<what>x)\)?", r"foo.*bar", r"(?:\d+,)*\d+!",
    r"died unexpectedly(?: \(exit code: (-?\d+)\))?", r"tab\there", r"(\d{1,3}\.){3}\d{1,3}", r"a{b}c", r"x{,5}y",
)  # fmt: skip


@pytest.mark.parametrize("pattern", REFUSED)
def test_a_pattern_that_may_take_too_long_is_refused_with_its_reason(pattern: str) -> None:
    with pytest.raises(patterns.BadPattern, match=REFUSED[pattern]) as caught:
        patterns.check(pattern)
    assert 0 <= caught.value.offset < len(pattern)


@pytest.mark.parametrize(
    ("pattern", "offset"), [(r"abc(?=x)", 3), (r"(x) \1", 4), (r"ab(?<!x)y", 2), (r"foo.*bar.*baz", 4)]
)
def test_the_caret_is_at_what_is_refused(pattern: str, offset: int) -> None:
    with pytest.raises(patterns.BadPattern) as caught:
        patterns.check(pattern)
    assert caught.value.offset == offset


@pytest.mark.parametrize("pattern", ACCEPTED)
def test_an_honest_pattern_is_accepted(pattern: str) -> None:
    patterns.check(pattern)


PIECES = st.sampled_from(["a", "b", "ab", ".", "[ab]", "[^b]", r"\w", "(?:a|b)", "(?:ab|a)", "(a)", "(?:a?b)"])
REPEATS = st.sampled_from(["", "", "*", "+", "?", "{1,3}", "{2,}", "{0,60}"])
PATTERNS = st.lists(st.tuples(PIECES, REPEATS), min_size=1, max_size=5).map(
    lambda parts: "".join(piece + repeat for piece, repeat in parts)
)
NESTED = st.one_of(
    PATTERNS, st.tuples(PATTERNS, st.sampled_from("*+?"), PATTERNS).map(lambda x: f"({x[0]}){x[1]}{x[2]}!")
)


class TooLong(Exception):
    """The matcher was still busy when its time was over."""


def _over(_number: int, _frame: FrameType | None) -> None:
    raise TooLong


@settings(deadline=None, max_examples=50, phases=[Phase.explicit, Phase.generate])
@given(NESTED)
@example("(a+a{0,60})?a!")
@example("([ab])+b*a+!")
@example("(\\w{0,60}(?:a?b){1,3})?(?:a|b)[ab]{2,}!")
def test_what_is_accepted_ends_in_time_on_the_text_that_is_worst_for_it(pattern: str) -> None:
    """`re` is interrupted by a signal even inside of one search, so that this test ends in any case."""
    try:
        patterns.check(pattern)
    except patterns.BadPattern:
        return
    compiled = re.compile(pattern.encode())
    before = signal.signal(signal.SIGVTALRM, _over)
    try:
        for word in (b"a", b"ab", b"b", b"aab"):
            signal.setitimer(signal.ITIMER_VIRTUAL, 12)
            compiled.search((word * PIECE)[:PIECE])
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
