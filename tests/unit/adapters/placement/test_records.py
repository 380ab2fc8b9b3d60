"""What a workload can write into the folder of its attempt is no other rank's end."""

import json
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from vdbg_env.adapters.placement.rank.orders import ENDED
from vdbg_env.adapters.placement.records import SILENT_S, RankRecords
from vdbg_env.evidence.observation import Ended, EndedBy, Observation
from vdbg_env.record.codec import to_document
from vdbg_env.supervisor.state import lock_file


def _records(folder: Path) -> RankRecords:
    return RankRecords(folder, cast("Any", None))


def _end(rank: int) -> str:
    ended = Ended(by=EndedBy.EXIT, code=0)
    return json.dumps(to_document(Observation(step="s", attempt=1, rank=rank, ended=ended, duration_s=1.0)))


@pytest.mark.parametrize("name", ["2", "99", "0"])
def test_an_end_of_a_rank_that_is_none_or_another_is_passed_over(tmp_path: Path, name: str) -> None:
    (tmp_path / ENDED).mkdir()
    (tmp_path / ENDED / "1").write_text(_end(1))
    (tmp_path / ENDED / name).write_text(_end(99))
    seen: dict[int, Observation] = {}
    _records(tmp_path).read_ends(seen, 2)
    assert list(seen) == [1]


def test_a_folder_of_ends_that_a_workload_removed_has_none(tmp_path: Path) -> None:
    seen: dict[int, Observation] = {}
    _records(tmp_path).read_ends(seen, 2)
    assert seen == {}


def test_a_mark_of_the_future_is_no_sign_of_life(tmp_path: Path) -> None:
    mark = tmp_path / lock_file.NAME
    mark.touch()
    assert _records(tmp_path).silent_for(tmp_path) < SILENT_S
    later = time.time() + 1e6
    os.utime(mark, (later, later))
    assert _records(tmp_path).silent_for(tmp_path) > SILENT_S
