"""The phrases that the writers of a run's report share."""

from __future__ import annotations

from typing import assert_never

from vdbg_env.evidence.finding import Ended, EndedBy, Finding, HowKnown
from vdbg_env.report.model import Provenance, Report, StepReport
from vdbg_env.report.plain_text import signal_name
from vdbg_env.report.run.incident import is_guards
from vdbg_env.runbook.state import Verdict


def ended(end: Ended | None) -> str:
    """Return how a process ended, in words."""
    if end is None:
        return "its end was not seen"
    by = signal_name(end.signal) or (f"signal {end.signal}" if end.signal is not None else None)
    match end.by:
        case EndedBy.EXIT:
            text = f"exit status {end.code}" if end.code is not None else "ended"
        case EndedBy.SIGNAL:
            text = by or "ended by a signal"
        case EndedBy.TIMEOUT:
            text = "ended by us: out of time"
        case EndedBy.WATCH:
            text = "ended by us: a hang"
        case EndedBy.MATCH:
            text = "ended by us: all was known"
        case EndedBy.STOPPED:
            text = "a server, stopped by us after its requests"
        case EndedBy.DIED:
            text = f"a server that ended by itself, exit status {end.code or 0}"
        case EndedBy.CANCEL:
            text = "cancelled"
        case EndedBy.PEER:
            text = "ended by us: another rank had failed"
        case EndedBy.DISK:
            text = "ended by us: the disk was nearly full"
        case EndedBy.NODE_LOST:
            text = "the node was lost"
        case EndedBy.ENGINE_LOST:
            text = "its end was not seen"
        case EndedBy.NOT_STARTED:
            text = "could not be started"
        case _:
            assert_never(end.by)
    text += ", core dumped" if end.core else ""
    return f"{text} ({end.message})" if end.message else text


def outcome(step: StepReport) -> str:
    """Return what a step showed in words, or its status when it showed nothing."""
    return (step.outcome.value if step.outcome else step.status.value).replace("_", " ").replace("-", " ")


def how_known(source: HowKnown) -> str:
    """Return the source of a finding, to be read after `known from`."""
    match source:
        case HowKnown.GPU_CORE:
            return "the faulting PC of a GPU core dump and its own line table"
        case HowKnown.SANITIZER:
            return "compute-sanitizer's report"
        case HowKnown.DRIVER:
            return "the driver's own words"
        case HowKnown.KERNEL_LOG:
            return "the kernel log"
        case HowKnown.STEP_CHANGE:
            return "a change of behaviour when one thing was changed"
        case HowKnown.LOG:
            return "the workload's own log"
        case HowKnown.HOST_CHECK:
            return "a check of this machine"
    assert_never(source)


def sureness(finding: Finding) -> str:
    """Return how sure a finding is, in percent."""
    return f"{round(finding.confidence * 100)} %"


def verdict(report: Report) -> str:
    """Return what the verdict means in a few words."""
    lead = report.lead
    match report.verdict:
        case Verdict.REPRODUCED:
            return "fault found" if lead and (lead.location or lead.kernel) else "reproduced, not located"
        case Verdict.HANG:
            return "hang found" if lead and (lead.location or lead.kernel) else "hang, not located"
        case Verdict.FAILED:
            return "the command failed" if is_guards(report) else "another failure"
        case Verdict.NOT_REPRODUCED:
            return "did not show"
        case Verdict.PASSED:
            return "nothing wrong found"
        case Verdict.WARNED:
            return "warnings only"
        case Verdict.INCONCLUSIVE:
            return "inconclusive"
        case Verdict.OUT_OF_TIME:
            return "out of time"
    assert_never(report.verdict)


def headline(report: Report) -> str:
    """Return the one sentence a reader takes away."""
    lead = report.lead
    return message(lead) if lead else report.why or verdict(report)


def message(finding: Finding) -> str:
    """Return what a finding says, with the process that it is of where its own words do not name it."""
    if finding.process is None or finding.process in finding.message:
        return finding.message
    rank = f", rank {finding.rank}" if finding.rank is not None else ""
    return f"{finding.message} (in {finding.process}{rank})"


def provenance(report: Report) -> str | None:
    """Return the warning that belongs above everything when this was not a run of the reader's own workload."""
    origin = f": {report.origin}" if report.origin else ""
    match report.provenance:
        case Provenance.REAL:
            return None
        case Provenance.REPLAY:
            return f"Replay of a recorded run{origin}. Nothing was run on this machine's GPU."
        case Provenance.SYNTHETIC:
            return f"Synthetic recording{origin}. No GPU ever ran this; it shows the path, not your crash."
    assert_never(report.provenance)
