"""What becomes of a rank that fails among others: every rank's own record is right, whatever the launcher says."""

from pathlib import Path

import pytest

from tests.slurm.cluster import Allocated, ends, ranked
from vdbg_env.common.errors import HostNotAble
from vdbg_env.evidence.deaths import first_failure
from vdbg_env.evidence.finding import EndedBy
from vdbg_env.runbook.model import ArtifactRule
from vdbg_env.runbook.state import Invocation
from vdbg_env_slurm.placement import SlurmStep

SEGV_IN_RANK_1 = "os.kill(os.getpid(), signal.SIGSEGV) if rank == 1 else time.sleep(60)"
# What a site may have set for srun: with the first both others are killed at once, with the second after two seconds.
SITES: dict[str, dict[str, str]] = {"as it is": {}, "unkind": {"SLURM_KILL_BAD_EXIT": "1", "SLURM_WAIT": "2"}}


@pytest.mark.parametrize("site", SITES)
def test_a_segmentation_fault_is_seen_as_it_was(allocation: Allocated, attempt: Path, site: str) -> None:
    started = allocation.ranks(attempt, environment=SITES[site]).start(ranked(SEGV_IN_RANK_1), attempt)
    seen = ends(started)
    assert (seen[1].ended.by, seen[1].ended.signal, seen[1].host) == (EndedBy.SIGNAL, 11, "n1")
    assert [seen[rank].ended.by for rank in (0, 2)] == [EndedBy.PEER, EndedBy.PEER]
    assert first_failure(seen.values()) is seen[1]


def test_every_rank_has_its_own_status_output_and_node(allocation: Allocated, attempt: Path) -> None:
    started = allocation.ranks(attempt).start(ranked("print('rank', rank); raise SystemExit(rank)"), attempt)
    seen = ends(started)
    assert [one.ended.code for one in seen.values()] == [0, 1, 2]
    assert isinstance(started._ranks, SlurmStep) and started._ranks._process
    assert started._ranks._process.wait(30) == 0  # srun's status says only that the supervisors ran
    for rank, one in seen.items():
        assert (one.host, one.directory) == (f"n{rank}", f"steps/step/1/n{rank}-{rank}")
        assert (attempt / f"n{rank}-{rank}" / "stdout").read_text() == f"rank {rank}\n"
        assert one.node["kernel"]
        assert one.clock is not None
        assert abs(one.clock.ahead_s) < 1


def test_a_rank_that_ends_early_and_well_ends_no_other(allocation: Allocated, attempt: Path) -> None:
    code = "time.sleep(0 if rank == 1 else 3)"
    found = allocation.ranks(attempt, environment={"SLURM_WAIT": "1"})
    assert all(one.ended.clean for one in ends(found.start(ranked(code), attempt)).values())


def test_a_dump_that_still_grows_outlives_the_wait(allocation: Allocated, attempt: Path) -> None:
    code = (
        "if rank == 1: raise SystemExit(3)\n"
        "with open('${{ rank.dir }}/core.1', 'wb') as core:\n"
        "  for _ in range(20): core.write(bytes(4096)); core.flush(); time.sleep(0.1)\n"
    )
    invocation = ranked(code, artifacts=(ArtifactRule(name="core", glob="core.*"),))
    seen = ends(allocation.ranks(attempt, ranks=2).start(invocation, attempt))
    assert seen[0].ended.clean
    (core,) = seen[0].artifacts["core"]
    assert core.size == 20 * 4096
    assert core.sha256 is not None  # hashed by the rank, on its node


def test_a_program_that_is_not_there_is_said_of_each_rank(allocation: Allocated, attempt: Path) -> None:
    invocation = Invocation(step="step", attempt=1, argv=("/no/such/program",))
    seen = ends(allocation.ranks(attempt).start(invocation, attempt))
    assert {one.ended.by for one in seen.values()} == {EndedBy.NOT_STARTED}


def test_what_srun_refuses_is_shown_in_its_own_words(allocation: Allocated, attempt: Path) -> None:
    started = allocation.ranks(attempt, extra=("--container-image=debian",)).start(ranked("pass"), attempt)
    with pytest.raises(HostNotAble) as refused:
        ends(started)
    assert "srun started no rank" in refused.value.what
    assert "container-image" in " ".join(refused.value.details)


def test_the_core_limit_is_raised_to_what_the_node_allows(allocation: Allocated, attempt: Path) -> None:
    code = "import resource; soft, hard = resource.getrlimit(resource.RLIMIT_CORE); raise SystemExit(soft != hard)"
    seen = ends(allocation.ranks(attempt, ranks=1).start(ranked(code), attempt))[0]
    assert seen.ended.clean
    soft, hard = seen.node["core limit"].split("/")
    assert soft == hard
