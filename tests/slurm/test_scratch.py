"""Dumps on each node's own disk: moved, masked and hashed by the rank that wrote them, and never more than asked."""

import hashlib
from pathlib import Path

import pytest

from tests.slurm.cluster import Allocated, ends, ranked
from vdbg_env.evidence.finding import EndedBy
from vdbg_env.run.placement import Scratch
from vdbg_env.runbook.model import ArtifactRule, OnFirstFailure, Placement

CORES = (ArtifactRule(name="core", glob="core.*"),)
SECRET = "hf_" + "Qw7" * 12


def test_dumps_are_moved_masked_and_hashed_before_a_rank_has_ended(
    allocation: Allocated, attempt: Path, tmp_path: Path
) -> None:
    code = (
        "folder = '${{ rank.dir }}'\n"
        "open(folder + '/core.1', 'wb').write(bytes(3 << 20) + os.environ['HF_TOKEN'].encode())\n"
        "open(folder + '/notes', 'w').write('not asked for')\n"
        "print(folder)\n"
    )
    place = tmp_path / "node disk"
    place.mkdir()
    ranks = allocation.ranks(attempt, environment={"HF_TOKEN": SECRET}, scratch=Scratch(folder=str(place)))
    seen = ends(ranks.start(ranked(code, artifacts=CORES), attempt))
    for rank, one in seen.items():
        assert one.ended.clean, one
        folder = attempt / f"n{rank}-{rank}"
        assert (folder / "stdout").read_text().startswith(f"{place}/")
        (core,) = one.artifacts["core"]
        data = (folder / "core.1").read_bytes()
        assert core.path == f"steps/step/1/n{rank}-{rank}/core.1"
        assert core.sha256 == hashlib.sha256(data).hexdigest()
        assert len(data) == core.size == (3 << 20) + len(SECRET)
        assert SECRET.encode() not in data
        assert not (folder / "notes").exists()
        assert "1 files on its node that are no artifact were removed" in one.notes
    assert [path for path in place.rglob("*") if path.is_file()] == []


def test_the_first_dump_is_moved_and_what_is_above_the_limit_is_named(
    allocation: Allocated, attempt: Path, tmp_path: Path
) -> None:
    code = (
        "for name in ('core.b', 'core.a'):\n"
        "    open('${{ rank.dir }}/' + name, 'wb').write(bytes(2 << 20))\n"
        "    time.sleep(0.05)\n"
    )
    ranks = allocation.ranks(attempt, ranks=1, scratch=Scratch(folder=str(tmp_path), limit=3 << 20))
    one = ends(ranks.start(ranked(code, artifacts=CORES), attempt))[0]
    assert [Path(core.path).name for core in one.artifacts["core"]] == ["core.b"]
    (left,) = tmp_path.glob("vdbg-env-*/*/steps/step/1/n0-0/*")
    assert left.name == "core.a"
    assert any(str(left) in note and "--scratch-limit" in note for note in one.notes), one.notes


@pytest.mark.long
def test_a_dump_on_another_nodes_disk_outlives_the_wait(allocation: Allocated, attempt: Path, tmp_path: Path) -> None:
    code = (
        "if rank == 1:\n"
        f"    while not os.path.exists('{attempt}/n0-0/growth'): time.sleep(0.05)\n"
        "    raise SystemExit(3)\n"
        "with open('${{ rank.dir }}/core.1', 'wb') as core:\n"
        f"    while not os.path.exists('{attempt}/ended/1'): core.write(bytes(4096)); core.flush(); time.sleep(0.1)\n"
        "    for _ in range(20): core.write(bytes(4096)); core.flush(); time.sleep(0.1)\n"
    )
    ranks = allocation.ranks(attempt, ranks=2, scratch=Scratch(folder=str(tmp_path)))
    seen = ends(ranks.start(ranked(code, artifacts=CORES), attempt))
    assert seen[0].ended.clean, seen[0]
    assert seen[0].artifacts["core"][0].size >= 20 * 4096


def test_a_folder_that_cannot_be_used_is_named_by_every_rank(
    allocation: Allocated, attempt: Path, tmp_path: Path
) -> None:
    ranks = allocation.ranks(attempt, scratch=Scratch(folder=str(tmp_path / "missing")))
    seen = ends(ranks.start(ranked("pass", artifacts=CORES), attempt))
    assert {one.ended.by for one in seen.values()} == {EndedBy.NOT_STARTED}
    assert "--scratch cannot be used on n2" in (seen[2].ended.message or "")
    assert "is no folder of this node" in (seen[2].ended.message or "")


def test_all_ranks_together_move_no_more_than_the_limit_and_the_rank_that_failed_is_served(
    allocation: Allocated, attempt: Path, tmp_path: Path
) -> None:
    """One "node disk" for all three here: each rank has a folder of its own in it."""
    code = (
        "open('${{ rank.dir }}/core.1', 'wb').write(bytes(2 << 20))\n"
        f"while rank != 1 and not os.path.exists('{attempt}/ended/1'): time.sleep(0.05)\n"
        "raise SystemExit(rank == 1)\n"
    )
    ranks = allocation.ranks(attempt, scratch=Scratch(folder=str(tmp_path), limit=5 << 20))
    patient = Placement(on_first_failure=OnFirstFailure(wait_s=60.0))
    seen = ends(ranks.start(ranked(code, artifacts=CORES, placement=patient), attempt))
    assert [core.size for core in seen[1].artifacts["core"]] == [2 << 20]
    assert sum(core.size for one in seen.values() for core in one.artifacts.get("core", ())) == 4 << 20
    (left,) = (note for one in seen.values() for note in one.notes if "--scratch-limit" in note)
    assert f"{1 << 20} of --scratch-limit are left for all ranks of this attempt" in left
    assert len(list(tmp_path.rglob("vdbg-env-*/**/core.1"))) == 1
