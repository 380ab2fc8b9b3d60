"""Finds the built-in a runbook names and lets it work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.application.builtins.readers import (
    coredump_progress,
    function_trace,
    hang_stacks,
    nccl_log,
    python_traceback,
    sanitizer_report,
    triage,
)
from vdbg_env.application.builtins.steps import (
    collect_env,
    core_lines,
    core_sizes,
    decode_gpu_core,
    gpu_health,
    locate,
    write_report,
)
from vdbg_env.application.ports import BinarySource, CoreFiles, ProgramRunner
from vdbg_env.application.ports.this_host import ThisHost
from vdbg_env.application.run.execute import Reading, StepContext
from vdbg_env.common.errors import HostNotAble
from vdbg_env.evidence.finding import Finding
from vdbg_env.evidence.observation import Observation
from vdbg_env.record.run_files import RunFiles
from vdbg_env.runbook.model import Builtin, Data
from vdbg_env.runbook.state import StepResult, UseBuiltin

Work = Callable[[BuiltinContext], BuiltinResult]

STEPS: Mapping[tuple[str, int], Work] = {
    ("gpu-health", 1): gpu_health.work,
    ("decode-gpu-core", 1): decode_gpu_core.work,
    ("locate", 1): locate.work,
    ("collect-env", 1): collect_env.work,
    ("core-sizes", 1): core_sizes.work,
    ("core-lines", 1): core_lines.work,
    ("report", 1): write_report.work,
}
READERS: Mapping[tuple[str, int], Work] = {
    ("sanitizer-report", 1): sanitizer_report.work,
    ("python-traceback", 1): python_traceback.work,
    ("triage", 1): triage.work,
    ("coredump-progress", 1): coredump_progress.work,
    ("nccl-log", 1): nccl_log.work,
    ("function-trace", 1): function_trace.work,
    ("hang-stacks", 1): hang_stacks.work,
}


@dataclass(frozen=True, kw_only=True)
class BuiltinSteps:
    """The tool's own steps and readers, given what they need of the outside; see `run_runbook.Builtins`.

    `write_report` writes the report of all steps so far in the formats named and returns the names of the files;
    `redact` takes secrets out of what they keep.
    """

    programs: ProgramRunner
    cores: CoreFiles
    binaries: BinarySource
    environment: Mapping[str, str]
    host: ThisHost
    write_report: Callable[[StepContext, Iterable[str]], tuple[str, ...]]
    redact: Callable[[str], str]

    def use(self, order: UseBuiltin, context: StepContext) -> StepResult:
        """Do a built-in step; raises VdbgError when it cannot do its work."""
        work = STEPS[order.name, order.version]
        done = _done(work, self._context(order.step, order.parameters, (), context))
        return StepResult(step=order.step, results=done.results, findings=_of(order.step, done), notes=done.notes)

    def read(self, reader: Builtin, observations: Sequence[Observation], context: StepContext) -> Reading:
        """Read what a run step left behind; raises VdbgError when that cannot be read."""
        step = observations[0].step if observations else ""
        work = READERS[reader.name, reader.version]
        done = _done(work, self._context(step, reader.parameters, tuple(observations), context))
        return Reading(results=done.results, findings=_of(step, done), notes=done.notes)

    def _context(
        self, step: str, parameters: Mapping[str, Data], seen: tuple[Observation, ...], context: StepContext
    ) -> BuiltinContext:
        return BuiltinContext(
            run_directory=context.directory,
            folder=context.directory / "steps" / step,
            files=RunFiles(context.directory),
            host=self.host,
            began_s=context.began_s,
            workload=context.state.inputs.workload.argv,
            steps=context.state.runbook.steps,
            parameters=parameters,
            observations=seen,
            facts=context.state.facts,
            environment=self.environment,
            programs=self.programs,
            cores=self.cores,
            binaries=self.binaries,
            write_report=lambda formats: self.write_report(context, formats),
            redact=self.redact,
        )


def _done(work: Work, context: BuiltinContext) -> BuiltinResult:
    try:
        return work(context)
    except OSError as error:
        raise HostNotAble(f"{error.filename or 'a file of the run'} cannot be used: {error.strerror}") from error


def _of(step: str, done: BuiltinResult) -> tuple[Finding, ...]:
    return tuple(finding if finding.step else replace(finding, step=step) for finding in done.findings)
