"""Make the report of a run, live or recorded, from its head and its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from vdbg_env.application.ports.files import CoreFiles, SourceText
from vdbg_env.application.run.result.assemble import RunFacts, assemble
from vdbg_env.application.run.result.model import Provenance, Report
from vdbg_env.application.run.result.source_context import complete
from vdbg_env.record.progress import Progress
from vdbg_env.record.run_directory import RunHead
from vdbg_env.runbook.model import Data
from vdbg_env.runbook.state import Finish, StepRecord
from vdbg_env.runbook.verdict import conclude

# Results of steps that look at the host, by the name the report's environment gives them.
_OF_THE_HOST = {"driver": "driver", "cuda": "CUDA", "vllm": "vLLM", "torch": "PyTorch", "gpus": "GPUs"}


def run_report(
    head: RunHead,
    progress: Progress,
    directory: Path,
    *,
    cores: CoreFiles,
    sources: SourceText,
    redact: Callable[[str], str],
    elapsed_s: float | None = None,
    finish: Finish | None = None,
) -> Report:
    """Return the whole report; of a run that is not at its end, `finish` says how it was cut short."""
    facts = RunFacts(
        run=head.run,
        workload=head.workload,
        started=head.started or None,
        duration_s=elapsed_s,
        provenance=_provenance(head),
        origin=head.recorded_on or None,
        environment={**head.environment, **_host(progress.state.trail), **({"host": head.host} if head.host else {})},
        tool_version=head.tool_version or None,
        folder=str(directory),
        resumable=bool(finish and progress.finish is None and not head.recorded_on),
    )
    report = assemble(progress, finish or progress.finish or conclude(progress.state.trail), facts)
    return complete(report, directory, cores=cores, sources=sources, redact=redact)


def _provenance(head: RunHead) -> Provenance:
    if head.synthetic:
        return Provenance.SYNTHETIC
    return Provenance.REPLAY if head.recorded_on else Provenance.REAL


def _host(trail: Iterable[StepRecord]) -> dict[str, str]:
    """Return what the steps found out about the host; the last value of each counts."""
    found: dict[str, Data] = {}
    for record in trail:
        told = {name: record.results[name] for name in _OF_THE_HOST if name in record.results}
        found |= {
            name: value for name, value in told.items() if isinstance(value, str | int) and not isinstance(value, bool)
        }
    return {_OF_THE_HOST[name]: str(value) for name, value in found.items()}
