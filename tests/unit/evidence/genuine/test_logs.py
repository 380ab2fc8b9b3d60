"""Triage of logs that others published; they are not part of the project, see tests/support/genuine.py."""

import pytest

from tests.support.genuine import Answer, answers, ask_first_match, ask_triage, genuine_logs, require_genuine, score


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


def test_what_is_said_with_confidence_is_right_as_often_as_it_says(said: list[Answer]) -> None:
    assert score(said).wrong_confident <= 0.02
    for some in (said, [a for a in said if a.log.whole], [a for a in said if not a.log.whole]):
        assert score(some).calibration_error < 0.05


def test_a_list_of_patterns_does_worse_on_the_same_logs(said: list[Answer]) -> None:
    naive = score(answers(ask_first_match, [a.log for a in said]))
    ours = score(said)
    assert ours.classes > naive.classes
    assert ours.root > naive.root
