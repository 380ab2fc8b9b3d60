"""Reads out of how attempts ended whether the kernel took memory back from them: no log need say so."""

from __future__ import annotations

from collections.abc import Sequence

from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.observation import EndedBy, Observation

_SIGKILL = 9
_STATUS = 128 + _SIGKILL  # what a shell gives for a child that SIGKILL ended
_NEXT = "raise the memory limit of the container, or load the model with less host memory"


def memory_kill_findings(observations: Sequence[Observation]) -> tuple[Finding, ...]:
    """Return one finding for the attempt that says most of it; none when nothing points to a lack of memory.

    The kernel's log names the processes, where it can be read. Its counters name none: those of the step's own cgroup
    are sure enough; those of the whole machine are only when a process of the step was ended as the kernel ends them.
    """
    found = (finding for seen in observations if (finding := _finding(seen)))
    return tuple(sorted(found, key=lambda finding: -finding.confidence)[:1])


def _finding(seen: Observation) -> Finding | None:
    kills, killed = seen.memory_kills, _was_killed(seen)
    if kills.processes:
        return _told(Level.ERROR, 0.97, f"the kernel OOM-killed {', '.join(kills.processes)} of this step")
    if kills.cgroup:
        return _told(
            Level.ERROR, 0.95, f"the kernel ended {_processes(kills.cgroup)} of this step's cgroup for lack of memory"
        )
    if kills.machine and killed and kills.processes is None:
        return _told(Level.ERROR, 0.85, "the kernel ended a process of this step for lack of memory")
    if kills.machine and kills.processes is None:
        return _told(
            Level.WARNING,
            0.5,
            f"while this step ran, the kernel ended {_processes(kills.machine)} of this machine for lack of memory; "
            "whether of the workload's is not known",
        )
    if killed:
        return _told(
            Level.WARNING,
            0.4,
            "the workload was ended by a SIGKILL that is not ours: mostly the limit of a cluster or of a service that "
            "guards the memory",
        )
    return None


def _was_killed(seen: Observation) -> bool:
    """Whether the first process ended by SIGKILL, or gave the status of a child that did, and not through us."""
    ended = seen.ended
    by_signal = ended.by is EndedBy.SIGNAL and ended.signal == _SIGKILL
    return by_signal or (ended.by is EndedBy.EXIT and ended.code == _STATUS)


def _processes(count: int) -> str:
    return "a process" if count == 1 else f"{count} processes"


def _told(level: Level, confidence: float, message: str) -> Finding:
    return Finding(
        rule="memory-kill",
        level=level,
        message=message,
        how_known=HowKnown.HOST_CHECK,
        confidence=confidence,
        next_step=_NEXT,
    )
