"""Triage of logs that others published; they are not part of the project, see tests/support/genuine.py."""

from collections.abc import Callable

import pytest

from tests.support.genuine import Answer, answers, ask_first_match, ask_triage, genuine_logs, require_genuine, score
from tests.support.triage import triage_bytes

WRAPPINGS: dict[str, Callable[[bytes], bytes]] = {
    "colours": lambda line: b"\x1b[36m" + line + b"\x1b[0m",
    "iso-stamp": lambda line: b"2026-11-03T10:00:07.123456789Z " + line,
    "clock": lambda line: b"[10:00:07] " + line,
    "kubectl": lambda line: b"[pod/vllm-0/server] " + line,
    "journald": lambda line: b"Nov 03 10:00:07 node-1 vllm[4711]: " + line,
}


def shown(data: bytes, of: int = 1) -> tuple[str, int | None]:
    """Return the class and the root line of a log, counted without the copies of each line."""
    verdict = triage_bytes(data)
    root = verdict.root_cause
    return verdict.failure.name, (root.line - 1) // of + 1 if root else None


def forty() -> list[bytes]:
    logs = [log for log in genuine_logs(require_genuine()) if log.root and log.file.stat().st_size < 40_000]
    return [log.file.read_bytes().replace(b"\r\n", b"\n") for log in logs[::2][:40]]


@pytest.fixture(scope="module")
def said() -> list[Answer]:
    return answers(ask_triage, genuine_logs(require_genuine()))


def test_the_class_is_right_and_the_root_line_found(said: list[Answer]) -> None:
    found = score(said)
    assert found.classes >= 0.95
    assert found.root >= 0.90


def test_whole_logs_are_read_as_well_as_excerpts(said: list[Answer]) -> None:
    for whole in (True, False):
        assert score([a for a in said if a.log.whole == whole]).classes >= 0.93


def test_no_log_without_a_failure_is_called_one(said: list[Answer]) -> None:
    assert [a.log.file.name for a in said if a.false_alarm] == []


def test_what_is_said_with_confidence_is_right_at_least_as_often_as_it_says(said: list[Answer]) -> None:
    """The rules know these logs, so they are right more often than their records, of projects left out, promise."""
    assert score(said).wrong_confident <= 0.02
    for some in (said, [a for a in said if a.log.whole], [a for a in said if not a.log.whole]):
        assert score(some).classes >= sum(a.confidence for a in some) / len(some) - 0.02


def test_a_list_of_patterns_does_worse_on_the_same_logs(said: list[Answer]) -> None:
    naive = score(answers(ask_first_match, [a.log for a in said]))
    ours = score(said)
    assert ours.classes > naive.classes
    assert ours.root > naive.root


@pytest.mark.parametrize("name", sorted(WRAPPINGS))
def test_what_wraps_each_line_changes_no_answer(name: str) -> None:
    wrap = WRAPPINGS[name]
    logs = forty()
    same = [shown(b"\n".join(map(wrap, log.split(b"\n")))) == shown(log) for log in logs]
    assert sum(same) >= len(logs) - 1


def test_the_mixed_lines_of_four_ranks_give_the_answer_of_one() -> None:
    logs = forty()
    mixed = [b"\n".join(b"[rank%d]: " % rank + line for line in log.split(b"\n") for rank in range(4)) for log in logs]
    same = [shown(many, of=4) == shown(one) for many, one in zip(mixed, logs, strict=True)]
    assert sum(same) >= len(logs) - 1


def test_no_way_of_cutting_a_log_into_chunks_changes_its_answer() -> None:
    text = b"\n".join(forty())
    whole = triage_bytes(text)
    assert all(triage_bytes(text, chunk=chunk) == whole for chunk in (4099, 65_537))
