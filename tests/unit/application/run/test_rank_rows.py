"""One row per rank in a report, and what their nodes do not have in common."""

from typing import Any

from vdbg_env.application.run.result.rank_rows import notes, parts
from vdbg_env.evidence.observation import Ended, EndedBy, Observation, RankClock


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
