"""The result of one run: the one value that every writer of a run report reads.

Every field that may be unknown is optional, and stays absent rather than guessed: a run that was cut short, a step
without output and a machine without a GPU all make a Report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gpucore.dwarf import Chain
from vdbg_env.evidence.finding import Artifact, Ended, Finding, Level, Match, Observation
from vdbg_env.evidence.weigh import Fingerprint, is_backdrop
from vdbg_env.runbook.judge import exit_status
from vdbg_env.runbook.model import ArgvOverlay, Data, Status
from vdbg_env.runbook.state import Verdict

REPORT_FILES: Final[Mapping[str, str]] = {
    "html": "report.html",
    "markdown": "report.md",
    "json": "report.json",
}
"""The file of each format of a report, in the run directory."""


class Provenance(StrEnum):
    """Where the run took place; a reader must never take a replay for a crash on this machine."""

    REAL = "real"  # the workload ran here, now
    REPLAY = "replay"  # a recording of a workload that ran elsewhere
    SYNTHETIC = "synthetic"  # a recording made by hand, without a GPU


class StepStatus(StrEnum):
    """Whether a step ran to its end; what it showed is its outcome, how its process ended is `ended`."""

    FINISHED = "finished"
    SKIPPED = "skipped"  # its `if` was false
    FAILED = "failed"  # it could not do its work: no program, or an environment that did not reach the workers
    INTERRUPTED = "interrupted"  # started, its end was never seen
    NOT_REACHED = "not-reached"  # no outcome led to it


@dataclass(frozen=True, kw_only=True)
class Attempt(Observation):
    """One start of a step on one rank: what was seen of it, and what that means.

    `part` is that among several ranks: "first failure", "failed", "victim", "ended by us", "cancelled", "lost", "well";
    in a hang "reported the hang" or "out of time", and "stopped", "running" or "left early" of a rank that may be its
    cause.
    """

    reproduced: bool | None = None
    part: str = ""


def attempt_lengths(attempts: Iterable[Attempt]) -> tuple[float, ...]:
    """Return the seconds that each attempt took, in their order; its ranks ran together."""
    lengths: dict[int, float] = {}
    for attempt in attempts:
        lengths[attempt.attempt] = max(lengths.get(attempt.attempt, 0.0), attempt.duration_s or 0.0)
    return tuple(lengths.values())


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One step of the escalation: its delta, how it ended, what it showed and where that led.

    `env` is all that differs from the user's environment, `env_change` what this step adds to the unchanged
    workload's: a value sets, None unsets. `engine_args` are the arguments of vLLM's engine that it changes, as flags,
    `plugged` says that no flag brought them but a plug-in. `started_s` counts from the start of the run, both times in
    seconds; `next` is the step it led to, `runbook:NAME` or `end`. `evidence` holds the lines that decided, not all
    that matched.
    """

    id: str
    name: str | None = None
    status: StepStatus
    outcome: Status | None = None
    message: str | None = None
    next: str | None = None
    ended: Ended | None = None
    argv: tuple[str, ...] = ()
    argv_change: ArgvOverlay = field(default_factory=ArgvOverlay)
    env: Mapping[str, str | None] = field(default_factory=dict)
    env_change: Mapping[str, str | None] = field(default_factory=dict)
    engine_args: tuple[str, ...] = ()
    plugged: bool = False
    builtin: str | None = None
    started_s: float | None = None
    duration_s: float | None = None
    attempts: tuple[Attempt, ...] = ()
    evidence: tuple[Match, ...] = ()
    results: Mapping[str, Data] = field(default_factory=dict)
    artifacts: tuple[Artifact, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SourceExcerpt:
    """A few lines around a line of source; `first` is the 1-based number of the first, `marked` of the one meant."""

    file: str
    first: int
    marked: int
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class WarpGroup:
    """Warps at one place: `pc` and `offset` in bytes, `count` in warps, `chain` leaf first."""

    pc: int
    count: int
    kernel: str | None = None
    offset: int | None = None
    chain: Chain = ()
    state: str | None = None


@dataclass(frozen=True, kw_only=True)
class WarpHistogram:
    """Where the warps of one core dump were, the fullest place first; `core` is the artifact's path."""

    core: str
    step: str | None = None
    groups: tuple[WarpGroup, ...]

    @property
    def total(self) -> int:
        """How many warps were resident."""
        return sum(group.count for group in self.groups)


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """One thing to try next, and the command that does it when there is one."""

    text: str
    command: str | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """One run of one runbook, whole.

    `findings` are by falling confidence, `why` is the verdict's reason in a sentence. `started` is ISO 8601 in UTC,
    a label only: all durations are in seconds of a monotonic clock. `origin` says where a replay was recorded.
    `fingerprint` names the cause, and is the same for each crash of that cause.
    """

    run: str
    runbook: str
    title: str | None = None
    verdict: Verdict
    why: str | None = None
    provenance: Provenance = Provenance.REAL
    origin: str | None = None
    workload: tuple[str, ...] = ()
    started: str | None = None
    duration_s: float | None = None
    steps: tuple[StepReport, ...] = ()
    findings: tuple[Finding, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    next_steps: tuple[NextStep, ...] = ()
    excerpts: tuple[SourceExcerpt, ...] = ()
    histograms: tuple[WarpHistogram, ...] = ()
    notes: tuple[str, ...] = ()
    tool_version: str | None = None
    fingerprint: Fingerprint | None = None

    @property
    def exit_status(self) -> int:
        """The exit status of a command that ends with this report."""
        return exit_status(self.verdict, self.findings)

    @property
    def walked(self) -> tuple[StepReport, ...]:
        """The steps that the escalation reached, in that order."""
        return tuple(step for step in self.steps if step.status is not StepStatus.NOT_REACHED)

    @property
    def lead(self) -> Finding | None:
        """The finding to read first: the surest of the highest level present.

        A warning of the machine alone leads only where the run itself said nothing of a failure.
        """
        seen = self.verdict not in {Verdict.NOT_REPRODUCED, Verdict.PASSED, Verdict.WARNED}
        for level in Level:
            for finding in self.findings:
                if finding.level is level and not (seen and is_backdrop(finding)):
                    return finding
        return None

    def excerpt(self, file: str, line: int) -> SourceExcerpt | None:
        """Return the lines around `file`:`line`, or None when the source was not found."""
        return next((e for e in self.excerpts if e.file == file and e.marked == line), None)
