"""The engine is killed at every single place of a full run where it can be."""

from pathlib import Path

import pytest

from tests.support.killing import PLACES, check_killed_and_resumed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("place", range(1, PLACES + 1))
def test_an_engine_killed_at_every_place_is_resumed_to_the_same_end(tmp_path: Path, place: int) -> None:
    check_killed_and_resumed(tmp_path / "run", place)
