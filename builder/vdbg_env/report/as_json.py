"""Write a run report as JSON, schema `vdbg-env/run/v1`: the form other programs may rely on.

Each type is a JSON object; the published schema is made from them. Fields are only ever added.
"""

from __future__ import annotations

from typing import Any, Literal

from gpucore.dwarf import OtherHeaders, SourceFrame
from vdbg_env.evidence import finding, weigh
from vdbg_env.evidence.finding import EndedBy, HowKnown, Level
from vdbg_env.report import model, words
from vdbg_env.report.codec import document as doc
from vdbg_env.report.codec.document import ABSENT, Document, Hex, field
from vdbg_env.report.words import Change, signal_name
from vdbg_env.runbook.model import ArgvOverlay, Status
from vdbg_env.runbook.state import Verdict


class Headers(Document, of=OtherHeaders):
    """Another project's headers that a line is of, and the release that the code was built with."""

    project: str
    used: str
    wanted: str


class Ended(Document, of=finding.Ended):
    """How a process ended: `code` is its exit status, `signal` a signal's number."""

    by: EndedBy
    code: int | None
    signal: int | None
    signal_name: str | None = field(lambda ended, _: signal_name(ended.signal))
    core: bool
    message: str | None


class ArgvChange(Document, of=ArgvOverlay):
    """What a step changes of the workload's command line."""

    append: list[str]
    remove: list[str]
    wrap: list[str]


class EngineArgs(Document, of=model.StepReport):
    """Arguments of vLLM's engine that the step changes, as flags; plugged: by the plug-in, because it is a script."""

    flags: list[str] = field("engine_args")
    plugged: bool


class Attempt(Document, of=model.Attempt):
    """One start of a step on one rank; `directory` is relative to the run directory."""

    attempt: int
    rank: int
    host: str
    ended: Ended | None
    duration_s: float | None
    reproduced: bool | None
    output_bytes: int
    directory: str
    held_by: str = field(doc="What holds the processes in case the supervisor is killed.")
    part: str = field(
        doc="Among several ranks: first failure, stopped, running or left early where none failed first, failed, "
        "reported the hang, out of time, victim, ended by us, cancelled, lost or well; else empty."
    )
    root_cause: finding.RootCause | None = field(
        doc="The process that failed first, as torchrun says of those that it started; a negative code is a signal."
    )
    node: dict[str, str] = field(doc="What a rank found on its node: driver, kernel, libraries, limits; empty here.")
    workers: list[finding.WorkerEnvironment]
    deaths: list[finding.Death] = field(doc="Processes that ended badly before anything was ended by us, in order.")
    notes: list[str]


class Step(Document, of=model.StepReport):
    """One step; in `env` and `env_change` a value sets a variable and null unsets it."""

    id: str
    name: str | None
    status: model.StepStatus = field(doc="Whether the step was finished, skipped, failed or interrupted.")
    outcome: Status | None = field(doc="Whether the fault showed; never how the process ended.")
    message: str | None
    next: str | None
    ended: Ended | None
    argv: list[str]
    argv_change: ArgvChange
    env: dict[str, str | None]
    env_change: dict[str, str | None]
    engine_args: EngineArgs = field(lambda step, _: step)
    builtin: str | None
    started_s: float | None = field(doc="Seconds since the run began.")
    duration_s: float | None
    attempts: list[Attempt]
    findings: list[str] = field(
        lambda step, report: [f"F{number}" for number, found in _numbered(report) if found.step == step.id],
        doc="Ids of the report's findings that this step led to.",
    )
    evidence: list[finding.Match]
    results: dict[str, Any]
    artifacts: list[finding.Artifact]
    notes: list[str]


class Frame(Document, of=SourceFrame):
    """A place in source."""

    function: str | None
    file: str
    line: int
    headers: Headers = field(
        lambda value, _: value.headers or ABSENT, may_be_absent=True,
        doc="Where the line is of another release of these headers than the code was built with.",
    )  # fmt: skip


class Finding(Document, of=finding.Finding):
    """What is wrong, where, and how that is known; `confidence` is from 0 to 1, `chain` is leaf first."""

    id: str = field(lambda found, report: _id(report, found))
    rule: str
    level: Level
    message: str
    kernel: str | None
    location: Frame | None
    chain: list[Frame]
    how_known: HowKnown
    confidence: float
    step: str | None
    artifact: str | None
    next_step: str | None
    process: str | None = field(doc="The process it is of, as the workload calls it: Worker_TP1, EngineCore.")
    rank: int | None = field(doc="That process's own rank in the workload, not the step's rank that started it.")
    address: dict[str, Any] | None = field(
        doc="Why the address of an access was bad: faults[].address of vdbg-env/core/v1."
    )


class Warps(Document, of=model.WarpGroup):
    """Warps that are at one place."""

    pc: Hex
    kernel: str | None
    offset: Hex | None
    count: int
    chain: list[Frame]
    state: str | None


class Hang(Document, of=model.WarpHistogram):
    """Where the warps of a core dump without an exception were, the fullest place first."""

    core: str
    step: str | None
    total: int
    warps: list[Warps] = field("groups")


class Run(Document, of=model.Report):
    """What one run of one runbook tried, saw and found. Fields are only ever added, enumerations may grow.

    Every optional field is null when unknown. Addresses are hex strings; a chain is leaf first.
    """

    schema: Literal["vdbg-env/run/v1"]
    run: str = field(doc="Name of the run, unique in its folder of runs.")
    runbook: str
    title: str | None
    verdict: Verdict
    why: str | None = field(doc="The verdict's reason in a sentence.")
    exit_status: int = field(doc="Exit status of the command that made the run.")
    provenance: model.Provenance = field(doc="Whether the workload ran here, elsewhere (a recording), or on no GPU.")
    origin: str | None = field(doc="Where a replay was recorded.")
    tool_version: str | None
    started: str | None = field(doc="ISO 8601, UTC; a label: durations are of a monotonic clock.")
    duration_s: float | None
    workload: list[str]
    steps: list[Step] = field("walked")
    not_reached: list[str] = field(lambda report, _: [s.id for s in report.steps if s not in report.walked])
    findings: list[Finding] = field(doc="By falling confidence.")
    lead: str | None = field(
        lambda report, _: _id(report, report.lead),
        doc="Id of the finding to read first: the surest of the highest level.",
    )
    fingerprint: weigh.Fingerprint | None
    changes: list[Change] = field(lambda report, _: words.changes(report))
    next_steps: list[model.NextStep]
    sources: list[model.SourceExcerpt] = field("excerpts")
    hangs: list[Hang] = field("histograms")
    environment: dict[str, str]
    notes: list[str]


def render(report: model.Report) -> str:
    """Return the report as indented JSON that ends with a newline."""
    return doc.render(report, Run, report)


def document(report: model.Report) -> dict[str, Any]:
    """Return the report as plain values."""
    return doc.plain(report, Run, report)


def _numbered(report: model.Report) -> list[tuple[int, finding.Finding]]:
    return list(enumerate(report.findings, 1))


def _id(report: model.Report, found: finding.Finding | None) -> str | None:
    return next((f"F{number}" for number, one in _numbered(report) if one is found), None)
