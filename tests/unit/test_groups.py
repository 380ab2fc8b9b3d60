"""Tests that share an engine or a cluster are one group; xdist gives a group to one worker."""

from typing import Any

import pytest

from tests.conftest import pytest_xdist_make_scheduler
from tests.support.groups import group_of


@pytest.mark.parametrize(
    ("test", "group"),
    [
        ("tests/unit/test_words.py::test_it", None),
        ("tests/engine/test_build.py::test_it[buildx]", "engine"),
        ("tests/engine/test_registry.py::test_it", "engine"),
        ("tests/engine/test_runbook_in_containers.py::test_it", "steps"),
        ("tests/slurm/test_ranks_fail.py::test_it", "slurm"),
        ("tests/oracle/test_verify_nvcc.py::test_it", "test_verify_nvcc"),
    ],
)
def test_a_group_shares_what_cannot_be_had_twice(test: str, group: str | None) -> None:
    assert group_of(test) == group


def test_xdist_is_given_the_groups(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytestconfig.option, "tx", ["2*popen"])
    monkeypatch.setattr(pytestconfig.option, "dist", "loadgroup")
    scheduler: Any = pytest_xdist_make_scheduler(pytestconfig, None)
    assert scheduler._split_scope("tests/engine/test_build.py::test_it") == "engine"
    assert scheduler._split_scope("tests/unit/test_words.py::test_it") == "tests/unit/test_words.py::test_it"
    monkeypatch.setattr(pytestconfig.option, "dist", "load")
    assert pytest_xdist_make_scheduler(pytestconfig, None) is None
