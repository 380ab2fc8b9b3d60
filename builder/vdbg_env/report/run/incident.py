"""What is on top of a guard's report: the line that decided, who wrote it and when, and what the server was doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vdbg_env.record.run_directory import GUARD
from vdbg_env.report.model import Report, StepReport, StepStatus
from vdbg_env.report.plain_text import duration
from vdbg_env.runbook.model import Data


@dataclass(frozen=True, kw_only=True)
class Incident:
    """The line that decided, facts as (name, text), and the stacks that the log has; any of them may be empty."""

    line: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    traceback: tuple[str, ...] = ()
    native_stack: tuple[str, ...] = ()


def is_guards(report: Report) -> bool:
    """Return whether this is the report of a command in production: it was run once, and nothing was tried."""
    return report.runbook == GUARD


def shown_steps(report: Report) -> tuple[StepReport, ...]:
    """Return the steps to show; of a guard's those that did something."""
    return tuple(step for step in report.walked if not is_guards(report) or step.status is not StepStatus.SKIPPED)


def incident(report: Report) -> Incident | None:
    """Return what the log of the guarded command says of its end; None for other reports."""
    results = next((step.results for step in report.walked if is_guards(report) and "ran_s" in step.results), None)
    if results is None:
        return None
    facts = (
        ("process", _process(results)),
        ("at", _text(results, "decided_time")),
        ("up for", _span(results, "uptime_s") or _span(results, "ran_s")),
        ("requests", _requests(results)),
        ("last step", _text(results, "scheduled")),
        ("vLLM", _text(results, "vllm")),
        ("torch", _text(results, "torch")),
    )
    return Incident(
        line=_text(results, "decided_by"),
        facts=tuple((name, text) for name, text in facts if text),
        # What others raised when a process died is not its traceback.
        traceback=_lines(results, "traceback") or (() if "died" in results else _lines(results, "stack")),
        native_stack=_lines(results, "native_stack"),
    )


def _process(results: Mapping[str, Data]) -> str:
    """Return the process that failed; the one that wrote the line is another where it tells of a death."""
    name = _text(results, "failed_process") or _text(results, "decided_process")
    wrote = results.get("decided_process") == name
    pid = f" ({results['decided_pid']})" if wrote and "decided_pid" in results else ""
    rank = results.get("failed_rank", results.get("decided_rank"))
    return (f"{name}{pid}" + (f", rank {rank}" if rank is not None else "")) if name else ""


def _requests(results: Mapping[str, Data]) -> str:
    if "requests_answered" not in results:
        return ""
    failed = results.get("requests_failed")
    return f"{results['requests_answered']} answered" + (f", {failed} failed" if failed else "")


def _text(results: Mapping[str, Data], name: str) -> str:
    return str(results.get(name, ""))


def _span(results: Mapping[str, Data], name: str) -> str:
    value = results.get(name)
    return duration(value) if isinstance(value, int | float) else ""


def _lines(results: Mapping[str, Data], name: str) -> tuple[str, ...]:
    value = results.get(name)
    return tuple(map(str, value)) if isinstance(value, list) else ()
