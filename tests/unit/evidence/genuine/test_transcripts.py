"""Our readers on transcripts that others published; they are not part of the project, see tests/support/genuine.py."""

import pytest

from tests.support.genuine import genuine_transcripts, require_genuine
from tests.support.transcripts import Fact, facts


@pytest.fixture(scope="module")
def found() -> list[Fact]:
    return [fact for entry in genuine_transcripts(require_genuine()) for fact in facts(entry)]


def test_nearly_every_fact_is_read(found: list[Fact]) -> None:
    missed = [fact for fact in found if fact.outcome != "read"]
    assert len(missed) <= 0.02 * len(found), missed


def test_nothing_is_asserted_wrongly(found: list[Fact]) -> None:
    assert [fact for fact in found if fact.outcome == "wrong"] == []
