"""What a workload can write into the folder of its attempt is no other rank's end."""

import json
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from vdbg_env.evidence.finding import Ended, EndedBy, Observation
from vdbg_env.record.progress import to_document
from vdbg_env.run.orders import ENDED, KEY, NODE, SEAL, sealed
from vdbg_env.run.ranks import SILENT_S, RankRecords
from vdbg_env.supervisor import control_files


def _records(folder: Path) -> RankRecords:
    return RankRecords(folder, cast("Any", None))


def _end(rank: int, code: int = 0, key: str = "k") -> str:
    ended = Ended(by=EndedBy.EXIT, code=code)
    seen = to_document(Observation(step="s", attempt=1, rank=rank, ended=ended, duration_s=1.0))
    return json.dumps({**seen, KEY: key})


def _begin(folder: Path, rank: int, key: str = "k") -> None:
    (folder / ENDED).mkdir(exist_ok=True)
    (folder / f"n{rank}-{rank}").mkdir()
    (folder / f"n{rank}-{rank}" / NODE).write_text(json.dumps({SEAL: sealed(key)}))


@pytest.mark.parametrize("key", ["", "of rank 0"])
def test_the_end_that_another_rank_s_workload_writes_is_passed_over_and_named(tmp_path: Path, key: str) -> None:
    _begin(tmp_path, 0, "of rank 0")
    _begin(tmp_path, 1, "of rank 1")
    (tmp_path / ENDED / "1").write_text(_end(1, 0, key))
    records, seen = _records(tmp_path), dict[int, Observation]()
    records.read_ends(seen, 2)
    assert seen == {}
    (tmp_path / ENDED / "1").write_text(_end(1, 3, "of rank 1"))
    records.read_ends(seen, 2)
    assert seen[1].ended.code == 3
    assert seen[1].notes == ("something else had written an end of this rank while it ran, which was passed over",)


def test_an_end_of_a_rank_that_has_not_begun_is_passed_over(tmp_path: Path) -> None:
    _begin(tmp_path, 0)
    (tmp_path / ENDED / "1").write_text(_end(1))
    seen: dict[int, Observation] = {}
    _records(tmp_path).read_ends(seen, 2)
    assert seen == {}


@pytest.mark.parametrize("name", ["2", "99", "0"])
def test_an_end_of_a_rank_that_is_none_or_another_is_passed_over(tmp_path: Path, name: str) -> None:
    _begin(tmp_path, 1)
    (tmp_path / ENDED / "1").write_text(_end(1))
    (tmp_path / ENDED / name).write_text(_end(99))
    seen: dict[int, Observation] = {}
    _records(tmp_path).read_ends(seen, 2)
    assert list(seen) == [1]


@pytest.mark.parametrize("text", ["[]", "1", "null", '"x"', "{}", ""], ids=repr)
def test_what_is_no_end_and_no_node_is_passed_over(tmp_path: Path, text: str) -> None:
    for rank in range(3):
        _begin(tmp_path, rank)
    (tmp_path / ENDED / "0").write_text(text)
    (tmp_path / "n1-1" / NODE).write_text(text)
    for rank in (1, 2):
        (tmp_path / ENDED / str(rank)).write_text(_end(rank))
    seen: dict[int, Observation] = {}
    _records(tmp_path).read_ends(seen, 3)
    assert list(seen) == [2]


def test_a_folder_of_ends_that_a_workload_removed_has_none(tmp_path: Path) -> None:
    seen: dict[int, Observation] = {}
    _records(tmp_path).read_ends(seen, 2)
    assert seen == {}


def test_a_mark_of_the_future_is_no_sign_of_life(tmp_path: Path) -> None:
    mark = tmp_path / control_files.LOCK
    mark.touch()
    assert _records(tmp_path).silent_for(tmp_path) < SILENT_S
    later = time.time() + 1e6
    os.utime(mark, (later, later))
    assert _records(tmp_path).silent_for(tmp_path) > SILENT_S
