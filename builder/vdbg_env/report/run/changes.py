"""What each step tried, and whether the fault went away with it: what maintainers ask for first."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum

from vdbg_env.report.model import Report, StepReport, StepStatus
from vdbg_env.runbook.model import Status

_SHOWN = {Status.REPRODUCED, Status.HANG, Status.FAIL}


class Effect(StrEnum):
    """What became of the fault when one thing was changed, against the unchanged workload."""

    BASELINE = "baseline"  # the unchanged workload itself
    SAME = "same"  # the fault showed again
    GONE = "gone"  # the fault did not show
    DIFFERENT = "different"  # another failure took its place
    UNKNOWN = "unknown"  # neither shown nor ruled out


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing tried: the step, what it changed in words, how often the fault showed, and the effect."""

    step: str
    change: str
    effect: Effect
    outcome: Status | None
    shown: int
    attempts: int

    @property
    def rate(self) -> str:
        """Return how often the fault showed, as `2 of 3`."""
        return f"{self.shown} of {self.attempts}"


def changes(report: Report) -> tuple[Change, ...]:
    """Return what was tried on the workload, in order; steps that only read what was left behind are no trial."""
    trials = [s for s in report.walked if s.builtin is None and s.status is StepStatus.FINISHED and s.attempts]
    baseline = trials[0] if trials else None
    return tuple(_change(step, baseline) for step in trials if baseline)


def delta(step: StepReport) -> tuple[str, ...]:
    """Return a step's changes: `CUDA_LAUNCH_BLOCKING=1`, `unset X`, `+ --flag`, `- --flag`, `plug-in: --flag`."""
    env = [
        f"unset {name}" if value is None else f"{name}={shlex.quote(value)}" for name, value in step.env_change.items()
    ]
    change = step.argv_change
    argv = [f"{shlex.join(change.wrap)} …"] if change.wrap else []
    argv += [f"+ {shlex.join(change.append)}"] if change.append else []
    argv += [f"- {shlex.join(change.remove)}"] if change.remove else []
    if step.engine_args:
        argv.append(f"{'plug-in: ' if step.plugged else '+ '}{shlex.join(step.engine_args)}")
    return (*env, *argv)


def _change(step: StepReport, baseline: StepReport) -> Change:
    shown = {attempt.attempt for attempt in step.attempts if attempt.reproduced}  # on whichever rank
    return Change(
        step=step.id,
        change=", ".join(delta(step)) or "nothing: the workload as given",
        effect=Effect.BASELINE if step is baseline else _effect(step, baseline),
        outcome=step.outcome,
        shown=len(shown),
        attempts=len({attempt.attempt for attempt in step.attempts}),
    )


def _effect(step: StepReport, baseline: StepReport) -> Effect:
    if baseline.outcome not in _SHOWN:
        return Effect.UNKNOWN
    if step.outcome is baseline.outcome:
        return Effect.SAME
    if step.outcome is Status.NOT_REPRODUCED:
        return Effect.GONE
    return Effect.DIFFERENT if step.outcome in _SHOWN else Effect.UNKNOWN
