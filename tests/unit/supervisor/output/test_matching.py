"""Lines are searched for a step's patterns: what is kept of a match, and what takes too long to find."""

import random
import re
import time

import pytest

from tests.support.patience import patience
from vdbg_env.supervisor.job import MatcherSpec
from vdbg_env.supervisor.output.matching import (
    GIVEN_UP_AFTER,
    SHORT,
    TICK_S,
    LineMatcher,
    Matchers,
    SearchTimer,
    _as_one_attempt,
)

SLOW = "foo.*bar.*baz.*qux"
BAIT = b"foobarbaz" * 800
PATTERNS = [rb"(?i)ab(?P<x>.*)c", rb"^a", rb"b$", rb"(?<=a)b|ca", rb"\bab\b", rb"", rb"(?x) a b # not c", rb"(a)|(b)c"]


def test_colours_hide_no_match_and_are_not_kept() -> None:
    matcher = LineMatcher(MatcherSpec(name="frame", pattern=r'^  File "(?P<file>[^"]+)"'))
    line = b'\x1b[0;36m  File "\x1b[1m/srv/model.py\x1b[0m", line 42'
    assert matcher.look(line, "stderr", 7, 99, SearchTimer())
    (found,) = matcher.kept
    assert (found.text, found.groups, found.line) == ('  File "/srv/model.py", line 42', {"file": "/srv/model.py"}, 7)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_one_attempt_finds_what_a_search_finds(pattern: bytes) -> None:
    dice = random.Random(0)
    plain = re.compile(pattern)
    for _ in range(300):
        line = bytes(dice.choice(b"abcABC ") for _ in range(dice.randrange(12)))
        searched, matched = plain.search(line), _as_one_attempt(plain).match(line)
        assert (searched is None) == (matched is None), line
        assert searched is None or matched is None or searched.groups() == matched.groups(), line


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (SLOW, BAIT),  # minutes
        ("(?:a+)+b", b"a" * 300),  # for ever
        ("a.*b.*c", (b"a" * 60 + b"b") * 900),  # each attempt is short, all together take an hour
        ("a.*b.*c.*d", (b"ab" * 300)[:SHORT]),
    ],
)
def test_a_pattern_that_takes_too_long_is_given_up_and_named(pattern: str, line: bytes) -> None:
    slow, quick = LineMatcher(MatcherSpec("slow", pattern, take="all")), LineMatcher(MatcherSpec("quick", "done"))
    matchers = Matchers([slow, quick], SearchTimer())
    began = time.monotonic()
    matched = matchers.look((line + b"\n") * 5 + b"done\n", "stdout", 0, 0)
    assert time.monotonic() - began < patience(0.75 * GIVEN_UP_AFTER + 1)
    assert matched == [quick]
    assert quick.kept[0].line == 6
    assert (slow.slow == GIVEN_UP_AFTER) == bool(matchers.notes())


def test_a_step_that_is_to_end_waits_for_no_pattern() -> None:
    many = [LineMatcher(MatcherSpec(f"slow{n}", SLOW)) for n in range(20)]
    matchers = Matchers(many, SearchTimer(hurry=lambda: True))
    began = time.monotonic()
    for _ in range(5):
        assert matchers.look((BAIT + b"\n") * 30, "stdout", 0, 0) == []
    assert time.monotonic() - began < patience(1.5)
    assert "the last output was not searched: the step had to end" in matchers.notes()


def test_a_search_that_waits_for_a_processor_is_not_given_up() -> None:
    began = time.monotonic()

    def waits(line: bytes) -> bytes:
        while time.monotonic() - began < 4 * TICK_S:  # as where other programs have the processors
            time.sleep(TICK_S / 10)
        return line

    timer = SearchTimer()
    with timer:
        assert timer.search(waits, b"a line") == b"a line"
