"""One row per rank in a report, and what their nodes do not have in common."""

from dataclasses import replace
from typing import Any

from vdbg_env.evidence.deaths import VICTIM, rank_findings
from vdbg_env.evidence.finding import Ended, EndedBy, Match, Observation, RankClock
from vdbg_env.report.assemble import notes, parts


def rank(number: int, by: EndedBy, *, node: dict[str, str] | None = None, **end: Any) -> Observation:
    return Observation(
        step="s", attempt=1, rank=number, host=f"n{number}", ended=Ended(by=by, **end), duration_s=1.0, started=0.0,
        clock=RankClock(ahead_s=0.0, within_s=0.01), node=node or {"driver": "580.82"},
    )  # fmt: skip


RANKS = [
    rank(0, EndedBy.PEER, signal=15),
    rank(1, EndedBy.SIGNAL, signal=11),
    rank(2, EndedBy.EXIT, code=143),
    rank(3, EndedBy.NODE_LOST),
    rank(4, EndedBy.EXIT, code=0, node={"driver": "570.10"}),
]


def test_every_rank_has_its_part() -> None:
    assert [parts(RANKS)[1, number] for number in range(5)] == [
        "ended by us",
        "first failure",
        "victim",
        "lost",
        "well",
    ]
    assert parts(RANKS[:1]) == {}


def test_the_first_failure_and_the_node_that_differs_are_named() -> None:
    assert list(notes(RANKS)) == [
        "rank 1 on n1 failed first, of 4 that did not end well among 5",
        "nodes differ in driver: n4 has 570.10, the others 580.82",
    ]
    assert list(notes(RANKS[:1])) == []


def test_a_clock_that_is_off_is_said() -> None:
    off = Observation(**{**RANKS[1].__dict__, "clock": RankClock(ahead_s=3.5, within_s=0.02)})
    assert "the nodes' clocks are up to 3.5 s apart" in "\n".join(notes([off, RANKS[0]]))


SAYS = {VICTIM: (Match(matcher=VICTIM, stream="stderr", line=1, offset=0, text="Watchdog caught collective"),)}
ABORTED = [replace(rank(number, EndedBy.SIGNAL, signal=6), matched=SAYS, duration_s=9.0) for number in (0, 1)]


def test_of_ranks_that_are_all_victims_none_failed_first() -> None:
    assert list(notes(ABORTED)) == [
        "no rank showed a cause of its own; each says that it lost another, or was ended",
    ]
    assert set(parts(ABORTED).values()) == {"victim"}
    assert rank_findings(ABORTED) == ()


def test_a_rank_that_ended_well_before_the_others_aborted_is_named() -> None:
    seen = [*ABORTED, rank(2, EndedBy.EXIT, code=0)]
    words = "rank 2 ended with status 0 before"
    assert list(notes(seen)) == [words]
    assert parts(seen) == {(1, 0): "victim", (1, 1): "victim", (1, 2): "left early"}
    (found,) = rank_findings(seen)
    assert (found.rule, found.message) == ("rank-left-early", words)


def test_a_rank_that_ended_well_after_the_others_is_not() -> None:
    seen = [*ABORTED, replace(rank(2, EndedBy.EXIT, code=0), duration_s=60.0)]
    assert parts(seen)[1, 2] == "well"
    assert rank_findings(seen) == ()


HUNG = [rank(0, EndedBy.WATCH, signal=15), rank(1, EndedBy.PEER, signal=15), rank(2, EndedBy.PEER, signal=15)]


def test_in_a_hang_the_rank_that_runs_is_before_the_one_that_reports() -> None:
    seen = [HUNG[0], replace(HUNG[1], running=("python3 (77)",)), HUNG[2]]
    words = "rank 1 on n1 was running: python3 (77); rank 0 on n0 reported the hang, and waited"
    assert list(notes(seen)) == [words]
    assert parts(seen) == {(1, 0): "reported the hang", (1, 1): "running", (1, 2): "ended by us"}
    (found,) = rank_findings(seen)
    assert (found.rule, found.message) == ("rank-running", words)


def test_a_rank_that_was_stopped_is_before_one_that_runs() -> None:
    seen = [HUNG[0], replace(HUNG[1], running=("python3 (77)",)), replace(HUNG[2], stopped=("python3 (78)",))]
    assert parts(seen)[1, 2] == "stopped"
    (found,) = rank_findings(seen)
    assert found.message == "rank 2 on n2 was stopped: python3 (78); rank 0 on n0 reported the hang, and waited"


def test_a_hang_in_which_no_rank_differs_has_no_cause() -> None:
    """GPUs are waited for at full load: where every rank runs, that says nothing."""
    for seen in (HUNG, [replace(one, running=("python3 (77)",)) for one in HUNG]):
        assert list(notes(seen)) == ["no rank showed a cause of its own; rank 0 on n0 reported the hang"]
        assert rank_findings(seen) == ()


def test_a_lost_node_is_before_what_we_ended_ourselves() -> None:
    """Seen: the survivors waited for the step's whole time, and one of them was called the first failure."""
    lost = replace(rank(1, EndedBy.NODE_LOST, message="srun: error: Node failure on n1"), duration_s=0.0, started=None)
    for ours in (EndedBy.TIMEOUT, EndedBy.WATCH):
        seen = [rank(0, ours, signal=15), lost, rank(2, EndedBy.PEER, signal=15)]
        assert list(notes(seen)) == [
            "rank 1 on n1 was lost before the others ended, of 3 that did not end well among 3"
        ]
        assert parts(seen)[1, 1] == "first failure"
        (found,) = rank_findings(seen)
        assert found.rule == "rank-lost"
        assert found.message.endswith(": srun: error: Node failure on n1")
