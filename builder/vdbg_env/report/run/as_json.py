"""Writes a run report as JSON, schema `vdbg-env/run/v1`: the form other programs may rely on.

Fields are only ever added. Addresses are hex strings; every optional field is null when unknown; a chain is leaf first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from vdbg_env.application.run.result.model import Attempt, Report, SourceExcerpt, StepReport, WarpGroup, WarpHistogram
from vdbg_env.cuda.lines.source_frame import Chain, SourceFrame
from vdbg_env.evidence.finding import Finding
from vdbg_env.evidence.observation import Artifact, Ended, Match
from vdbg_env.report.plain_text import signal_name
from vdbg_env.report.run.changes import Change, changes
from vdbg_env.runbook.model import Data as Json

SCHEMA = "vdbg-env/run/v1"


def render(report: Report) -> str:
    """Return the report as indented JSON that ends with a newline."""
    return json.dumps(document(report), indent=2, ensure_ascii=False) + "\n"


def document(report: Report) -> dict[str, Json]:
    """Return the report as plain values."""
    return {
        "schema": SCHEMA,
        "run": report.run,
        "runbook": report.runbook,
        "title": report.title,
        "verdict": report.verdict.value,
        "why": report.why,
        "exit_status": report.exit_status,
        "provenance": report.provenance.value,
        "origin": report.origin,
        "tool_version": report.tool_version,
        "started": report.started,
        "duration_s": report.duration_s,
        "workload": list(report.workload),
        "steps": [_step(step, report) for step in report.walked],
        "not_reached": [step.id for step in report.steps if step not in report.walked],
        "findings": [_finding(finding, number) for number, finding in enumerate(report.findings, 1)],
        "lead": next((f"F{n}" for n, finding in enumerate(report.findings, 1) if finding is report.lead), None),
        "changes": [_change(change) for change in changes(report)],
        "next_steps": [{"text": step.text, "command": step.command} for step in report.next_steps],
        "sources": [_excerpt(excerpt) for excerpt in report.excerpts],
        "hangs": [_histogram(histogram) for histogram in report.histograms],
        "environment": _strings(report.environment),
        "notes": list(report.notes),
    }


def _step(step: StepReport, report: Report) -> dict[str, Json]:
    return {
        "id": step.id,
        "name": step.name,
        "status": step.status.value,
        "outcome": step.outcome.value if step.outcome else None,
        "message": step.message,
        "next": step.next,
        "ended": _ended(step.ended),
        "argv": list(step.argv),
        "argv_change": {
            "append": list(step.argv_change.append),
            "remove": list(step.argv_change.remove),
            "wrap": list(step.argv_change.wrap),
        },
        "env": _strings(step.env),
        "env_change": _strings(step.env_change),
        "engine_args": {"flags": list(step.engine_args), "plugged": step.plugged},
        "builtin": step.builtin,
        "started_s": step.started_s,
        "duration_s": step.duration_s,
        "attempts": [_attempt(attempt) for attempt in step.attempts],
        "findings": [f"F{number}" for number, found in enumerate(report.findings, 1) if found.step == step.id],
        "evidence": [_match(match) for match in step.evidence],
        "results": dict(step.results),
        "artifacts": [_artifact(artifact) for artifact in step.artifacts],
        "notes": list(step.notes),
    }


def _attempt(attempt: Attempt) -> dict[str, Json]:
    return {
        "attempt": attempt.attempt,
        "rank": attempt.rank,
        "host": attempt.host,
        "ended": _ended(attempt.ended),
        "duration_s": attempt.duration_s,
        "reproduced": attempt.reproduced,
        "output_bytes": attempt.output_bytes,
        "directory": attempt.directory,
        "held_by": attempt.held_by,
        "workers": [
            {"pid": w.pid, "name": w.name, "seen": _strings(w.seen), "known": w.known} for w in attempt.workers
        ],
        "notes": list(attempt.notes),
    }


def _finding(finding: Finding, number: int) -> dict[str, Json]:
    return {
        "id": f"F{number}",
        "rule": finding.rule,
        "level": finding.level.value,
        "message": finding.message,
        "kernel": finding.kernel,
        "location": _frame(finding.location) if finding.location else None,
        "chain": _chain(finding.chain),
        "how_known": finding.how_known.value,
        "confidence": finding.confidence,
        "step": finding.step,
        "artifact": finding.artifact,
        "next_step": finding.next_step,
    }


def _ended(ended: Ended | None) -> Json:
    if ended is None:
        return None
    return {
        "by": ended.by.value,
        "code": ended.code,
        "signal": ended.signal,
        "signal_name": signal_name(ended.signal),
        "core": ended.core,
        "message": ended.message,
    }


def _match(match: Match) -> Json:
    return {
        "matcher": match.matcher,
        "stream": match.stream,
        "line": match.line,
        "offset": match.offset,
        "text": match.text,
        "groups": _strings(match.groups),
    }


def _artifact(artifact: Artifact) -> Json:
    return {"name": artifact.name, "path": artifact.path, "size": artifact.size, "sha256": artifact.sha256}


def _change(change: Change) -> Json:
    return {
        "step": change.step,
        "change": change.change,
        "effect": change.effect.value,
        "outcome": change.outcome.value if change.outcome else None,
        "shown": change.shown,
        "attempts": change.attempts,
    }


def _excerpt(excerpt: SourceExcerpt) -> Json:
    return {"file": excerpt.file, "first": excerpt.first, "marked": excerpt.marked, "lines": list(excerpt.lines)}


def _histogram(histogram: WarpHistogram) -> Json:
    return {
        "core": histogram.core,
        "step": histogram.step,
        "total": histogram.total,
        "warps": [_warps(group) for group in histogram.groups],
    }


def _warps(group: WarpGroup) -> Json:
    return {
        "pc": f"{group.pc:#x}",
        "kernel": group.kernel,
        "offset": None if group.offset is None else f"{group.offset:#x}",
        "count": group.count,
        "chain": _chain(group.chain),
        "state": group.state,
    }


def _chain(chain: Chain) -> list[Json]:
    return [_frame(frame) for frame in chain]


def _frame(frame: SourceFrame) -> Json:
    return {"function": frame.function, "file": frame.file, "line": frame.line}


def _strings(values: Mapping[str, str] | Mapping[str, str | None]) -> dict[str, Json]:
    return dict(values)
