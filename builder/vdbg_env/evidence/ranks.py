"""Which rank of an attempt failed first, and which were only its victims.

A launcher's highest status is not the cause, and the rank that reports a timeout is often the victim of one that is
silent. So what a rank says counts first, then when it ended on a common clock, and how it ended last. Where every rank
that failed is a victim, none is called the first failure: what is known of the others is said in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vdbg_env.evidence.finding import EndedBy, Finding, HowKnown, Level, NextStep, Observation

# The names of two patterns that are looked for in the output of every rank where an attempt has several.
CAUSE, VICTIM = "rank_cause", "rank_victim"

CAUSE_PATTERN = (
    r"CUDA error|CUDA_EXCEPTION|illegal memory access|device-side assert|unspecified launch failure|"
    # Of an abort Python's fault handler says the same, and NCCL's watchdog aborts every rank.
    r"OutOfMemoryError|out of memory|Segmentation fault|Segfault encountered|Fatal Python error: (?:[^A]|A[^b])|"
    r"std::bad_alloc|MemoryError"
)
# `Worker proc ... died unexpectedly` is said by the rank whose worker died: alone it makes no victim.
VICTIM_PATTERN = (
    r"[Ww]atchdog caught collective operation timeout|[Cc]onnection (?:was )?(?:closed|reset) by (?:remote )?peer|"
    r"EngineDeadError|Engine core proc \S+ died unexpectedly|ncclRemoteError|ncclSystemError|unhandled system error|"
    r"remote process exited or there was a network error|remote process exiting prematurely|"
    r"NCCL communicator was aborted|to avoid data inconsistency, we are taking the entire process down|"
    r"SignalException: Process \d+ got signal: 15|Broken pipe|failed to recv, got 0 bytes|recvValue failed|"
    r"pair closure|Timed out waiting \d+ ?ms for (?:recv|send) operation|DistStoreError"
)

_BY_OTHERS = {9, 15}  # SIGKILL and SIGTERM, which a launcher sends to the ranks it tears down
_UNSEEN = {EndedBy.NODE_LOST, EndedBy.ENGINE_LOST}
# We ended it for want of progress, time or space, or after its requests: what kept it from its work may be elsewhere.
_BY_US = {EndedBy.WATCH, EndedBy.TIMEOUT, EndedBy.DISK, EndedBy.STOPPED}
_BY_ITSELF = {EndedBy.EXIT, EndedBy.SIGNAL, EndedBy.DIED}  # vLLM's server returns 0 after a crash
FIRST = "first failure"
_OWN, _LOSS, _ENDED_BY_US, _VICTIM, _PEER = range(5)  # kinds of ends, the likeliest cause first
_NO_CAUSE = "no rank showed a cause of its own"
_NEXT = {
    "stopped": "find out who stopped it: a debugger, SIGSTOP, or a suspended container; kill -CONT PID continues it",
    "running": "look at what it does: its stacks are in hang.txt of its folder",
    "left early": "find out why it ended before the others: a caught exception, or fewer batches than the others have",
}
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


@dataclass(frozen=True, kw_only=True)
class Blame:
    """Where the ranks of an attempt point: each of `ranks` has the `part`, and `words` say why.

    `ranks` is empty where no rank showed a cause, nor ended or behaved in another way than the rest. `sure` is the
    confidence that it is these ranks.
    """

    ranks: tuple[Observation, ...]
    part: str
    words: str
    sure: float = 0.0


def blame(ranks: Sequence[Observation]) -> Blame | None:
    """Return where the failure of an attempt's ranks began, as far as they show it; None where none failed."""
    first = first_failure(ranks)
    if first is None:
        return None
    kind, at = _kind(first), f"rank {first.rank} on {first.host}"
    count = sum(not seen.went_well for seen in ranks)
    of = f", of {count} that did not end well among {len(ranks)}"
    if kind == _OWN:
        return Blame(ranks=(first,), part=FIRST, words=f"{at} failed first{of}")
    if kind == _LOSS:
        return Blame(ranks=(first,), part=FIRST, words=f"{at} was lost before the others ended{of}", sure=0.9)
    reported = f"{at} reported the hang" if first.ended.by is EndedBy.WATCH else ""
    for part, named, sure in (("stopped", "stopped", 0.9), ("running", "running", 0.75)):
        found = tuple(seen for seen in ranks if getattr(seen, named))
        if found and len(found) < len(ranks):
            said = (f"rank {one.rank} on {one.host} was {part}: {_few(getattr(one, named))}" for one in found[:3])
            who = "; ".join(said)
            others = f"; {reported}, and waited" if reported and first not in found else "; the others waited"
            return Blame(ranks=found, part=part, words=f"{who}{_more(found)}{others}", sure=sure)
    if left := _left_before(ranks):
        who = "; ".join(f"rank {one.rank} ended with status 0 before" for one in left[:3])
        return Blame(ranks=left, part="left early", words=f"{_NO_CAUSE}; {who}{_more(left)}", sure=0.7)
    says = f"; {reported}" if reported else "; each says that it lost another, or was ended" if kind == _VICTIM else ""
    return Blame(ranks=(), part="", words=f"{_NO_CAUSE}{says}")


def rank_findings(observations: Sequence[Observation]) -> tuple[Finding, ...]:
    """Return the ranks that the last attempt points to, where none of them says what failed in it."""
    ranks = last_attempt(observations) if observations else []
    found = blame(ranks) if len(ranks) > 1 else None
    if found is None or not found.sure:
        return ()
    one = found.ranks[0]
    lost = one.ended.by in _UNSEEN
    return (
        Finding(
            rule="rank-lost" if lost else f"rank-{found.part.replace(' ', '-')}",
            level=Level.ERROR,
            message=found.words + (f": {one.ended.message}" if lost and one.ended.message else ""),
            how_known=HowKnown.HOST_CHECK,
            confidence=found.sure,
            next_step=NextStep(_NEXT.get(found.part) or f"find out what became of {one.host}, then run it again"),
        ),
    )


def torchrun_findings(observations: Sequence[Observation]) -> tuple[Finding, ...]:
    """Return which of torchrun's processes failed first: on the rank that did, where there are several."""
    first = first_failure(last_attempt(observations)) if observations else None
    cause = first.root_cause if first else None
    if cause is None or cause.by_others:
        return ()
    how = cause.signal or f"exit status {cause.code}"
    error = f": {cause.error}" if cause.error else ""
    return (
        Finding(
            rule="torchrun-root-cause",
            level=Level.ERROR,
            message=f"torchrun's rank {cause.rank} failed first (local rank {cause.local_rank} on {cause.host}, "
            f"process {cause.pid}) with {how}{error}",
            how_known=HowKnown.LOG,
            confidence=0.7,
            next_step=NextStep("for a file of each rank's output: torchrun --log-dir DIR --redirects 3 --tee 3"),
        ),
    )


def _left_before(ranks: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return the ranks that ended well before any that failed had ended: those then waited for them."""
    failed = [seen for seen in ranks if not seen.went_well and seen.ended.by is not EndedBy.CANCEL]
    if any(seen.started is None for seen in ranks):
        return ()
    earliest = min(failed, key=_ended_at)
    well = (seen for seen in ranks if seen.went_well)
    return tuple(seen for seen in well if _ended_at(earliest) - _ended_at(seen) > _blur(seen, earliest))


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _more(ranks: Sequence[Observation]) -> str:
    return f" and {len(ranks) - 3} more ranks" if len(ranks) > 3 else ""


def last_attempt(observations: Iterable[Observation]) -> list[Observation]:
    """Return the ranks of the last attempt, in their order."""
    seen = sorted(observations, key=lambda x: (x.attempt, x.rank))
    return [one for one in seen if one.attempt == seen[-1].attempt]


def first_failure(ranks: Iterable[Observation]) -> Observation | None:
    """Return the rank that failed first; None where each ended well, or was cancelled.

    A rank that says its own fault is before one that ended without a word of it, a lost node is after both, then what
    we ended as it hung or its time was up, then victims, and last what we ended for the sake of others. Ends that are
    closer than the clocks are known to are not ordered by time.
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
    if seen.root_cause and -seen.root_cause.code in _OWN_SIGNALS:
        return False
    if seen.memory_kills.cgroup:
        return False
    if seen.root_cause and seen.root_cause.by_others:
        return True
    by_others = ended.signal in _BY_OTHERS or ended.code in {128 + number for number in _BY_OTHERS}
    return by_others or VICTIM in seen.matched


def _kind(seen: Observation) -> int:
    if seen.ended.by is EndedBy.PEER:
        return _PEER
    if is_victim(seen):
        return _VICTIM
    if seen.ended.by in _UNSEEN:
        return _LOSS
    return _ENDED_BY_US if seen.ended.by in _BY_US else _OWN


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
