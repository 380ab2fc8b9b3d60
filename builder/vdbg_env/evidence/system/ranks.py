"""Which rank of an attempt failed first, and which were only its victims.

A launcher's highest status is not the cause, and the rank that reports a timeout is often the victim of one that is
silent. So what a rank says counts first, then when it ended on a common clock, and how it ended last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vdbg_env.evidence.observation import EndedBy, Observation

# The names of two patterns that are looked for in the output of every rank where an attempt has several.
CAUSE, VICTIM = "rank_cause", "rank_victim"

CAUSE_PATTERN = (
    r"CUDA error|CUDA_EXCEPTION|illegal memory access|device-side assert|unspecified launch failure|"
    r"OutOfMemoryError|out of memory|Segmentation fault|Segfault encountered|Fatal Python error|"
    r"std::bad_alloc|MemoryError"
)
# `Worker proc ... died unexpectedly` is said by the rank whose worker died: alone it makes no victim.
VICTIM_PATTERN = (
    r"[Ww]atchdog caught collective operation timeout|[Cc]onnection (?:was )?(?:closed|reset) by (?:remote )?peer|"
    r"EngineDeadError|Engine core proc \S+ died unexpectedly|ncclRemoteError|"
    r"remote process exited or there was a network error|"
    r"NCCL communicator was aborted|to avoid data inconsistency, we are taking the entire process down|"
    r"closing signal SIGTERM|Broken pipe"
)

_BY_OTHERS = {9, 15}  # SIGKILL and SIGTERM, which a launcher sends to the ranks it tears down
_UNSEEN = {EndedBy.NODE_LOST, EndedBy.ENGINE_LOST}
_BY_ITSELF = {EndedBy.EXIT, EndedBy.SIGNAL, EndedBy.DIED}  # vLLM's server returns 0 after a crash
_OWN_SIGNALS = {4, 5, 7, 8, 11}  # SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV: raised by its own instruction


@dataclass(frozen=True, kw_only=True)
class RankSummary:
    """The ranks of one attempt; `failed` and `lost` have their numbers, `first` is the first failure."""

    count: int = 0
    failed: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    first: Observation | None = None


def summary(ranks: Sequence[Observation]) -> RankSummary:
    """Return what the ranks of one attempt add up to; those that we ended are no failures."""
    failed = [seen for seen in ranks if not seen.went_well and seen.ended.by is not EndedBy.PEER]
    return RankSummary(
        count=len(ranks),
        failed=tuple(sorted(seen.rank for seen in failed)),
        lost=tuple(sorted(seen.rank for seen in failed if seen.ended.by in _UNSEEN)),
        hosts=tuple(dict.fromkeys(seen.host for seen in sorted(ranks, key=lambda x: x.rank))),
        first=first_failure(ranks),
    )


def last_attempt(observations: Iterable[Observation]) -> list[Observation]:
    """Return the ranks of the last attempt, in their order."""
    seen = sorted(observations, key=lambda x: (x.attempt, x.rank))
    return [one for one in seen if one.attempt == seen[-1].attempt]


def first_failure(ranks: Iterable[Observation]) -> Observation | None:
    """Return the rank that failed first; None where each ended well, or was cancelled.

    A rank that says its own fault is before one that ended without a word of it, a lost node is after both, then
    victims, and last what we ended. Ends that are closer than the clocks are known to are not ordered by time.
    """
    failed = [seen for seen in ranks if not seen.went_well and seen.ended.by is not EndedBy.CANCEL]
    if not failed:
        return None
    best = min(map(_kind, failed))
    alike = [seen for seen in failed if _kind(seen) == best]
    if any(seen.started is None for seen in alike):  # recordings made before the start was kept
        return min(alike, key=lambda seen: (seen.duration_s, _weight(seen), seen.rank))
    earliest = min(alike, key=_ended_at)
    close = [seen for seen in alike if _ended_at(seen) - _ended_at(earliest) <= _blur(seen, earliest)]
    return min(close, key=lambda seen: (_weight(seen), _ended_at(seen), seen.rank))


def is_victim(seen: Observation) -> bool:
    """Return whether a rank that failed was torn down by another's failure: by what it says, or by the signal."""
    ended = seen.ended
    if ended.signal in _OWN_SIGNALS or CAUSE in seen.matched or ended.by not in _BY_ITSELF:
        return False
    if seen.memory_kills.cgroup:
        return False
    by_others = ended.signal in _BY_OTHERS or ended.code in {128 + number for number in _BY_OTHERS}
    return by_others or VICTIM in seen.matched


def _kind(seen: Observation) -> int:
    if seen.ended.by is EndedBy.PEER:
        return 3
    if is_victim(seen):
        return 2
    return 1 if seen.ended.by in _UNSEEN else 0


def _weight(seen: Observation) -> int:
    """Return how much the end alone says: a signal that its own instruction raised most, a plain status least."""
    if seen.ended.signal in _OWN_SIGNALS or seen.ended.core:
        return 0
    return 1 if CAUSE in seen.matched or seen.ended.by is not EndedBy.EXIT else 2


def _ended_at(seen: Observation) -> float:
    return (seen.started or 0.0) + seen.duration_s - (seen.clock.ahead_s if seen.clock else 0.0)


def _blur(one: Observation, other: Observation) -> float:
    """Return how far apart two ends must be to be ordered; clocks of one host are one clock."""
    if one.host == other.host:
        return 0.0
    return sum(seen.clock.within_s if seen.clock else 0.0 for seen in (one, other))
