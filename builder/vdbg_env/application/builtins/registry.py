"""Find the built-in that a runbook names, and do its work."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from gpucore.code_map import LineSource
from vdbg_env.application.builtins import readers, steps
from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.application.ports.programs import ProgramRunner
from vdbg_env.application.ports.this_host import ThisHost
from vdbg_env.application.run.run_context import StepContext
from vdbg_env.common.errors import HostNotAble
from vdbg_env.crash.files import BinarySource, CoreFiles
from vdbg_env.evidence.observation import Observation
from vdbg_env.record.run_files import RunFiles
from vdbg_env.runbook.catalogue import BuiltinContract, Catalogue
from vdbg_env.runbook.model import Builtin, Data
from vdbg_env.runbook.state import StepResult, UseBuiltin

Work = Callable[[BuiltinContext], BuiltinResult]


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A built-in: what it promises, and what does its work."""

    contract: BuiltinContract
    work: Work


@cache
def builtins() -> Mapping[tuple[str, int], Registered]:
    """Return every built-in by name and version: each module of `steps` and `readers` has a CONTRACT and `work`."""
    found: dict[tuple[str, int], Registered] = {}
    for folder in (steps, readers):
        for info in sorted(pkgutil.iter_modules(folder.__path__), key=lambda info: info.name):
            module = importlib.import_module(f"{folder.__name__}.{info.name}")
            contract: BuiltinContract = module.CONTRACT
            found[contract.name, contract.version] = Registered(contract=contract, work=module.work)
    return found


def catalogue() -> Catalogue:
    """Return the contracts of all built-ins, as runbooks are checked against them."""
    return Catalogue(contracts=tuple(registered.contract for registered in builtins().values()))


@dataclass(frozen=True, kw_only=True)
class BuiltinSteps:
    """The tool's own steps and readers, given what they need of the outside; see `run_runbook.Builtins`.

    `lines` has those of code that was built without.
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
    lines: LineSource | None = None

    def use(self, order: UseBuiltin, context: StepContext) -> StepResult:
        """Do a built-in step; raises VdbgError when it cannot do its work."""
        return _done(order.name, order.version, self._context(order.step, order.parameters, (), context), order.step)

    def read(self, reader: Builtin, observations: Sequence[Observation], context: StepContext) -> StepResult:
        """Read what a run step left behind; raises VdbgError when that cannot be read."""
        step = observations[0].step if observations else ""
        given = self._context(step, reader.parameters, tuple(observations), context)
        return _done(reader.name, reader.version, given, step)

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
            packed_lines=self.lines,
            write_report=lambda formats: self.write_report(context, formats),
            redact=self.redact,
        )


def _done(name: str, version: int, context: BuiltinContext, step: str) -> StepResult:
    try:
        done = builtins()[name, version].work(context)
    except OSError as error:
        raise HostNotAble(f"{error.filename or 'a file of the run'} cannot be used: {error.strerror}") from error
    findings = tuple(finding if finding.step else replace(finding, step=step) for finding in done.findings)
    return StepResult(step=step, results=done.results, findings=findings, notes=done.notes)
