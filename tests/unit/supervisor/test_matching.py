"""Lines are searched for a step's patterns: what is kept of a match, and what takes too long to find."""

import random
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.common import patterns
from vdbg_env.common.patterns import (
    GIVEN_UP_AFTER,
    MATCHES_KEPT,
    SHORT,
    TICK_S,
    LineMatcher,
    Matchers,
    MatcherSpec,
    SearchTimer,
    _as_one_attempt,
)

SLOW = "foo.*bar.*baz.*qux"
BAIT = b"foobarbaz" * 800
PATTERNS = [rb"(?i)ab(?P<x>.*)c", rb"^a", rb"b$", rb"(?<=a)b|ca", rb"\bab\b", rb"", rb"(a)|(b)c"]


@pytest.fixture(params=["re2", "re"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "re":
        monkeypatch.setattr(patterns, "re2", None)
    return str(request.param)


def searched(*specs: MatcherSpec, data: bytes, lines_before: int = 0, offset: int = 0) -> list[LineMatcher]:
    matchers = [LineMatcher(spec) for spec in specs]
    Matchers(matchers, SearchTimer()).look(data, "stderr", lines_before, offset)
    return matchers


@pytest.mark.usefixtures("engine")
def test_colours_hide_no_match_and_are_not_kept() -> None:
    data = b'before\r\n\x1b[0;36m  File "\x1b[1m/srv/model.py\x1b[0m"\r\nafter'
    spec = MatcherSpec(name="frame", pattern=r'^  File "(?P<file>[^"]+)"(?P<none>x)?$')
    (matcher,) = searched(spec, data=data, lines_before=6, offset=100)
    (found,) = matcher.kept
    assert (found.text, found.groups, found.line) == ('  File "/srv/model.py"', {"file": "/srv/model.py"}, 8)
    assert found.offset == 108


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("before", [b"", b"(Worker pid=7) ERROR 11-26 23:00:00 [x.py:3] "])
@pytest.mark.parametrize("source", [b'raise RuntimeError("bad access\\nmore")', b'check(error, "bad access")'])
def test_the_source_that_a_traceback_quotes_is_not_the_first_match_where_the_message_follows(
    source: bytes, before: bytes
) -> None:
    lines = [b'  File "/srv/a.py", line 5, in f', b"    " + source, b"RuntimeError: bad access", b"x: bad access"]
    data = b"".join(before + line + b"\n" for line in lines)
    (matcher,) = searched(MatcherSpec(name="failure", pattern="bad access"), data=data)
    assert [one.line for one in matcher.kept] == [3] and matcher.done
    (alone,) = searched(MatcherSpec(name="failure", pattern="bad access"), data=b"\n".join(lines[:2]))
    assert [one.line for one in alone.kept] == [2], "better than none"


@pytest.mark.usefixtures("engine")
def test_the_first_the_last_or_all_matches_are_kept() -> None:
    specs = [MatcherSpec(take, r"line (?P<n>\d+)", take=take) for take in ("first", "last", "all")]
    data = b"".join(b"a line %d, and line x\n\n" % n for n in range(MATCHES_KEPT + 9))
    first, last, every = searched(*specs, data=data)
    assert [one.groups["n"] for one in (*first.kept, *last.kept)] == ["0", str(MATCHES_KEPT + 8)]
    assert [(one.line, one.groups["n"]) for one in every.kept] == [(2 * n + 1, str(n)) for n in range(MATCHES_KEPT)]
    assert (first.count, last.count, every.count) == (1, MATCHES_KEPT + 9, MATCHES_KEPT + 9)
    assert all(data[one.offset :].startswith(b"a line %d," % n) for n, one in enumerate(every.kept))


@pytest.mark.usefixtures("engine")
def test_a_matcher_that_has_its_match_hides_no_other_one() -> None:
    specs = MatcherSpec("ready", "ready"), MatcherSpec("error", "(?i)error (?P<n>.)", take="all")
    matchers = [LineMatcher(spec) for spec in specs]
    together = Matchers(matchers, SearchTimer())
    matched = [
        together.look(block, "stdout", 0, 0) for block in (b"x\n", b"ready\n", b"ready\n", b"an ERROR 1\nerror 2")
    ]
    assert matched == [[], [matchers[0]], [], [matchers[1]]]
    assert [one.groups["n"] for one in matchers[1].kept] == ["1", "2"]


def test_a_pattern_of_an_earlier_release_that_re2_does_not_take_is_searched_for_with_re() -> None:
    old, new = MatcherSpec("old", "backend(?! for vit)", take="all"), MatcherSpec("new", "Using", take="all")
    data = b"Using FLASH backend for vit\nUsing FLASH backend\n"
    assert [[found.line for found in one.kept] for one in searched(old, new, data=data)] == [[2], [1, 2]]


LINES = st.lists(st.sampled_from([b"ab", b"a\rb", b"\x1b[1mb\x1b[0m", b"b\r", b"", b" a", b"\x1b]0;a", b"\xffab"]))


@given(LINES, st.sampled_from(["^a", "b$", "a(?P<x>[^z]*)b", "(?i)B.*", r"\s?a", "^(?P<x>.)b?$"]))
def test_with_re2_and_without_it_is_all_the_same(lines: list[bytes], pattern: str) -> None:
    spec, data = MatcherSpec("one", pattern, take="all"), b"\n".join(lines)
    (ours,) = searched(spec, data=data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patterns, "re2", None)
        (plain,) = searched(spec, data=data)
    assert (ours.count, ours.kept) == (plain.count, plain.kept)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_one_attempt_finds_what_a_search_finds(pattern: bytes) -> None:
    dice = random.Random(0)
    plain = re.compile(pattern)
    for _ in range(300):
        line = bytes(dice.choice(b"abcABC ") for _ in range(dice.randrange(12)))
        searched, matched = plain.search(line), _as_one_attempt(plain).match(line)
        assert (searched is None) == (matched is None), line
        assert searched is None or matched is None or searched.groups() == matched.groups(), line


HARD = [
    (SLOW, BAIT),  # minutes
    ("(?:a+)+b", b"a" * 300),  # for ever
    ("a.*b.*c", (b"a" * 60 + b"b") * 900),  # each attempt is short, all together take an hour
    ("a.*b.*c.*d", (b"ab" * 300)[:SHORT]),
]


@pytest.mark.parametrize(("pattern", "line"), HARD)
def test_no_pattern_takes_long_with_re2(pattern: str, line: bytes) -> None:
    slow, quick = LineMatcher(MatcherSpec("slow", pattern, take="all")), LineMatcher(MatcherSpec("quick", "done"))
    matchers = Matchers([slow, quick], SearchTimer())
    used = time.process_time()
    assert matchers.look((line + b"\n") * 5 + b"done\n", "stdout", 0, 0) == [quick]
    assert time.process_time() - used < 1
    assert matchers.notes() == []


@pytest.mark.parametrize(("pattern", "line"), HARD)
def test_a_pattern_that_takes_too_long_is_given_up_and_named(
    pattern: str, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "re2", None)
    slow, quick = LineMatcher(MatcherSpec("slow", pattern, take="all")), LineMatcher(MatcherSpec("quick", "done"))
    matchers = Matchers([slow, quick], SearchTimer())
    used = time.process_time()
    matched = matchers.look((line + b"\n") * 5 + b"done\n", "stdout", 0, 0)
    assert time.process_time() - used < 0.75 * GIVEN_UP_AFTER + 1
    assert matched == [quick]
    assert quick.kept[0].line == 6
    assert (slow.slow == GIVEN_UP_AFTER) == bool(matchers.notes())


def test_a_step_that_is_to_end_waits_for_no_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "re2", None)
    many = [LineMatcher(MatcherSpec(f"slow{n}", SLOW)) for n in range(20)]
    matchers = Matchers(many, SearchTimer(hurry=lambda: True))
    used = time.process_time()
    for _ in range(5):
        assert matchers.look((BAIT + b"\n") * 30, "stdout", 0, 0) == []
    assert time.process_time() - used < 1.5
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
