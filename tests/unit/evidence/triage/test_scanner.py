"""The search through a log finds each line with one of its texts, whatever its line ends and wherever a block ends."""

import random
from itertools import chain

import pytest

from tests.support.triage import triage_bytes
from vdbg_env.evidence import triage_scan
from vdbg_env.evidence.triage_scan import LineScanner

TEXTS = ["CUDA error", "error", "SIGSEGV", "rank", "a rank died"]


def log_of(chance: random.Random) -> list[bytes]:
    """Return lines of many lengths, now and then one that is longer than any wrapped line, or with drawings in it."""
    lines = []
    for _ in range(chance.randint(200, 600)):
        words = [
            chance.choice(["step", "loss", "", "done\rdrawn again", *TEXTS[:4]]) for _ in range(chance.randint(0, 9))
        ]
        lines.append(" ".join(words).encode() + b"." * chance.choice([0, 0, 0, chance.randint(0, 300), 400]))
    return lines


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
@pytest.mark.parametrize("seed", range(4))
def test_each_line_with_a_text_is_found_with_its_number_and_what_it_holds(
    seed: int, ends: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triage_scan, "BLOCK", 3000)
    monkeypatch.setattr(triage_scan, "MAX_BLOCK", 9000)
    monkeypatch.setattr(triage_scan, "AHEAD", 700)
    chance = random.Random(seed)
    lines = log_of(chance)
    data = ends.join(lines)
    expected = [
        (number, line, sorted((text, at) for text in TEXTS for at in places(line, text.encode())))
        for number, line in enumerate(lines, 1)
        if any(text.encode() in line for text in TEXTS)
    ]
    for chunk in (97, 4096, len(data)):
        scanner = LineScanner(TEXTS, [])
        fed = chain.from_iterable(scanner.feed(data[at : at + chunk]) for at in range(0, len(data), chunk))
        found = [
            (one.number, one.data, sorted((scanner.texts[text], at - one.origin) for text, at, _ in one.found))
            for one in chain(fed, scanner.finish())
        ]
        assert found == expected
        assert scanner.lines == len(lines) - (not lines[-1])


def places(line: bytes, text: bytes) -> list[int]:
    return [at for at in range(len(line)) if line.startswith(text, at)]


def test_a_line_of_source_is_no_evidence_but_a_traceback_in_one_line_is() -> None:
    source = (
        b'(Worker pid=7) ERROR 11-26 23:00:00 [x.py:3]     raise RuntimeError("CUDA error: an illegal memory access")\n'
    )
    whole = (
        b'{"level": "error", "message": "Traceback\\n    raise RuntimeError(text)\\n'
        b'RuntimeError: CUDA error: an illegal memory access was encountered"}\n'
    )
    assert triage_bytes(source).root_cause is None
    assert triage_bytes(source + whole).failure.name == "illegal-memory-access"


def test_a_line_in_which_a_dismissing_text_comes_first_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triage_scan, "BLOCK", 3000)
    lines = log_of(random.Random(9))
    scanner = LineScanner([*TEXTS, "step"], [], frozenset(["step"]))
    found = [one.number for one in chain(scanner.feed(b"\n".join(lines)), scanner.finish())]

    def first(line: bytes, texts: list[str]) -> int:
        return min((at + len(text) for text in texts for at in places(line, text.encode())), default=len(line) + 1)

    expected = [n for n, line in enumerate(lines, 1) if len(line) >= first(line, TEXTS) < first(line, ["step"])]
    assert found == expected
    assert len(expected) < sum(first(line, TEXTS) <= len(line) for line in lines)
