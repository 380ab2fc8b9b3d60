"""Moving dumps from a node's own disk: what is refused, what is left, what a hostile workload put there."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from vdbg_env.evidence.finding import Ended, EndedBy, Observation
from vdbg_env.evidence.system import not_started_findings
from vdbg_env.run.attempt import Stopped
from vdbg_env.run.rank_record import Allowance, Moved, NoScratch, move_dumps, open_scratch
from vdbg_env.runbook.model import ArtifactRule

CORES = ArtifactRule(name="core", glob="core.*")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "steps" / "step" / "1" / "n0-0"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def scratch(tmp_path: Path, shared: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return open_scratch(str(tmp_path / "disk"), shared)


def moved(
    scratch: Path, shared: Path, *rules: ArtifactRule, limit: int = 1 << 30, check: Callable[[], None] = lambda: None
) -> Moved:
    allowance = Allowance(shared, limit)
    return move_dumps(rules or (CORES,), scratch, shared, allowance=allowance, literals=(b"s3cret-value",), check=check)


def test_the_folder_is_this_users_alone(scratch: Path, tmp_path: Path) -> None:
    (mine,) = (tmp_path / "disk").iterdir()
    assert mine.stat().st_mode & 0o777 == 0o700
    assert scratch.is_relative_to(mine)


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path, shared: Path) -> None:
    theirs = tmp_path / "disk" / f"vdbg-env-{os.geteuid()}"
    theirs.mkdir(parents=True)
    theirs.chmod(0o777)
    with pytest.raises(NoScratch, match="others may"):
        open_scratch(str(tmp_path / "disk"), shared)


def test_a_folder_that_is_not_there_is_named_and_so_is_what_to_do(tmp_path: Path, shared: Path) -> None:
    with pytest.raises(NoScratch, match="/nowhere is no folder of this node") as refused:
        open_scratch(str(tmp_path / "nowhere"), shared)
    ended = Ended(by=EndedBy.NOT_STARTED, message=f"--scratch cannot be used on n0: {refused.value}")
    (found,) = not_started_findings([Observation(step="s", attempt=1, ended=ended, duration_s=0.0)])
    assert found.message == ended.message
    assert "--scratch /tmp" in str(found.next_step)


def test_a_link_in_its_place_is_refused(tmp_path: Path, shared: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / f"vdbg-env-{os.geteuid()}").symlink_to(tmp_path)
    with pytest.raises(NoScratch):
        open_scratch(str(tmp_path / "disk"), shared)


def test_holes_stay_holes_and_nothing_is_left(scratch: Path, shared: Path, tmp_path: Path) -> None:
    with (scratch / "core.1").open("wb") as core:
        core.seek(64 << 20)
        core.write(b"end s3cret-value")
    found = moved(scratch, shared)
    copy = shared / "core.1"
    assert copy.stat().st_size == (64 << 20) + 16
    assert copy.stat().st_blocks * 512 < 4 << 20
    assert b"s3cret-value" not in copy.read_bytes()[-64:]
    assert found.artifacts["core"][0].path == "steps/step/1/n0-0/core.1"
    assert not scratch.exists()
    assert list((tmp_path / "disk").rglob("core*")) == []


def test_files_above_their_rules_size_are_left_where_they_are(scratch: Path, shared: Path) -> None:
    (scratch / "core.1").write_bytes(bytes(100))
    found = moved(scratch, shared, ArtifactRule(name="core", glob="core.*", max_size=99))
    assert found.artifacts == {}
    assert str(scratch / "core.1") in found.notes[0]
    assert (scratch / "core.1").exists()
    assert list(shared.iterdir()) == []


def test_what_was_not_moved_in_time_is_left_and_named(scratch: Path, shared: Path) -> None:
    (scratch / "core.1").write_bytes(bytes(100))

    def check() -> None:
        raise Stopped

    found = moved(scratch, shared, check=check)
    assert found.artifacts == {}
    assert any("is left on its node" in note for note in found.notes)
    assert (scratch / "core.1").exists()
    assert list(shared.iterdir()) == []  # no part of it either


def test_links_lead_to_nothing(scratch: Path, shared: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("keep")
    (scratch / "core.1").symlink_to(tmp_path / "outside")
    (scratch / "folder").symlink_to(tmp_path)
    assert moved(scratch, shared).artifacts == {}
    assert list(shared.iterdir()) == []
    assert (tmp_path / "outside").read_text() == "keep"
    assert not scratch.exists()


def test_a_required_artifact_that_is_missing_is_noted(scratch: Path, shared: Path) -> None:
    found = moved(scratch, shared, ArtifactRule(name="core", glob="core.*", required=True))
    assert found.notes == ["artifact core: nothing matches core.*"]


def test_a_rank_that_ends_while_another_begins_takes_no_folder_from_it(tmp_path: Path, shared: Path) -> None:
    (tmp_path / "disk").mkdir()
    folder = open_scratch(str(tmp_path / "disk"), shared)
    over = threading.Event()

    def clear() -> None:
        while not over.is_set():
            for parent in folder.parents[:4]:
                with suppress(OSError):
                    parent.rmdir()
            time.sleep(0.0002)

    other = threading.Thread(target=clear)
    other.start()
    try:
        for _ in range(1000):
            with suppress(FileNotFoundError):
                folder.rmdir()
            assert open_scratch(str(tmp_path / "disk"), shared) == folder
    finally:
        over.set()
        other.join()


def test_a_folder_that_the_workload_removed_has_no_dumps(scratch: Path, shared: Path) -> None:
    scratch.rmdir()
    assert moved(scratch, shared).artifacts == {}


def test_what_cannot_be_removed_is_named(scratch: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As what a process of another user wrote into a folder that it made."""
    (scratch / "core.1").write_bytes(b"core")
    (scratch / "theirs").mkdir()
    (scratch / "theirs" / "cache").write_bytes(b"x")
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name == "cache":
            raise PermissionError(13, "Permission denied")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    found = moved(scratch, shared)
    assert set(found.artifacts) == {"core"}
    assert f"1 files on its node could not be removed: they are in {scratch}" in found.notes


def test_all_ranks_together_take_no_more_than_allowed_even_at_once(shared: Path) -> None:
    ranks = [shared.with_name(f"n{number}-{number}") for number in range(8)]
    begin = threading.Barrier(8)
    taken: list[int] = []

    def take(rank: Path) -> None:
        begin.wait()
        taken.extend(size for size in (3, 5, 2, 7) if Allowance(rank, 40).take(size) >= size)

    threads = [threading.Thread(target=take, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 40 - 2 < sum(taken) <= 40
    assert sorted(int(path.read_text()) for path in (shared.parent / "scratch").iterdir()) == sorted(taken)
    assert Allowance(shared, 40).take(3) == 40 - sum(taken)
