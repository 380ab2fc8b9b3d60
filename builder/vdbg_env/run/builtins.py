"""The built-in steps and readers of runbooks: what one is given, what it gives back, and how it is found."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from gpucore.code_map import LineSource
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.programs import ProgramRunner
from vdbg_env.crash.files import BinarySource, CoreFiles, SourceFiles, SourceText
from vdbg_env.evidence.finding import Finding, Observation
from vdbg_env.evidence.log_line import LogLine, decode, rank_of_process, unwrap
from vdbg_env.record.progress import Progress
from vdbg_env.record.run_directory import RunFiles
from vdbg_env.run.library import RunbookLibrary
from vdbg_env.runbook.model import Builtin, BuiltinContract, Catalogue, Data, Step
from vdbg_env.runbook.state import Facts, ResultValue, StepResult, UseBuiltin

if TYPE_CHECKING:
    from pathlib import Path


_LABELS = 50  # lines of one process: the first ones have its names
_STREAMS = ("stdout", "stderr")


@dataclass(frozen=True, kw_only=True)
class RecordedOutput:
    """What the observed attempts of a step left: `observations` are those of that step."""

    run_directory: Path
    files: RunFiles
    observations: tuple[Observation, ...] = ()

    def lines(self, *needles: bytes) -> Iterator[LogLine]:
        """Yield the output of all observed attempts, line by line, those with a needle only, out of their wrappings."""
        for seen in self.observations:
            for stream in _STREAMS:
                yield from (unwrap(text) for text in self.text_lines(self._inside(seen.directory) / stream, *needles))

    def lines_after(self, needle: bytes, count: int) -> Iterator[LogLine]:
        """Yield the lines with `needle` and up to `count` after each; a log of days is mostly neither."""
        for seen in self.observations:
            for stream in _STREAMS:
                left = 0
                for line in self.files.lines(self._inside(seen.directory) / stream):
                    left = count if needle in line else left - 1
                    if left >= 0:
                        yield unwrap(decode(line).rstrip("\n"))

    def text_lines(self, path: Path, *needles: bytes) -> Iterator[str]:
        """Yield the lines of a text file that contain a needle, each cut at the longest length that is read."""
        yield from (decode(line).rstrip("\n") for line in self.files.lines(path, *needles))

    def label(self, pid: int) -> LogLine | None:
        """Return a line of a process with the name it gives itself, one whose name has its rank if there is one.

        vLLM's worker is VllmWorker-0 first, and Worker afterwards where it is the only one.
        """
        own = [line for line in islice(self.lines(b"pid=%d" % pid), _LABELS) if line.pid == pid and line.process]
        ranked = (line for line in reversed(own) if rank_of_process(line.process or "") is not None)
        return next(ranked, own[-1] if own else None)

    def _inside(self, path: str) -> Path:
        return self.files.inside(path)


@dataclass(frozen=True, kw_only=True)
class Means:
    """What built-ins use of the outside; the same for all of a run.

    `began_s` is when this process started or resumed the run, in seconds since the machine's start. `environment` is
    what the workload inherits, `sources` finds the text of sources, `packed_lines` has the lines of code that was built
    without. `write_report` writes the report of all steps so far in the formats named and returns the names of the
    files; `redact` takes secrets out of what is kept.
    """

    run_directory: Path
    programs: ProgramRunner
    cores: CoreFiles
    binaries: BinarySource
    environment: Mapping[str, str]
    write_report: Callable[[Iterable[str]], tuple[str, ...]]
    redact: Callable[[str], str]
    sources: SourceText = field(default_factory=SourceFiles)
    packed_lines: LineSource | None = None
    began_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, kw_only=True)
class BuiltinContext(Means, RecordedOutput):
    """What a built-in may use.

    `folder` is for files that the step keeps; `observations` are those of the step that a reader reads, and empty for a
    step; `workload` is its unchanged command line; `steps` are those of the runbook.
    """

    folder: Path
    workload: tuple[str, ...]
    steps: tuple[Step, ...]
    parameters: Mapping[str, Data]
    facts: Facts

    def paths(self, parameter: str) -> tuple[Path, ...]:
        """Return the files a list parameter names, relative to the run directory, those that exist.

        Raises BadInput for one that leads out of the run directory.
        """
        named = self.parameters.get(parameter)
        return tuple(self._inside(str(path)) for path in (named if isinstance(named, list) else []))

    def artifact_paths(self, name: str) -> tuple[Path, ...]:
        """Return the files that the observed step left under an artifact's name."""
        found = (artifact for seen in self.observations for artifact in seen.artifacts.get(name, ()))
        return tuple(self._inside(artifact.path) for artifact in found)

    def relative(self, path: Path) -> str:
        """Return a path as records name it."""
        return str(path.relative_to(self.run_directory))

    def keep(self, name: str, text: str) -> str:
        """Write a text into the step's folder, redacted, and return the name records give it."""
        path = self.folder / name
        self.files.write(path, self.redact(text).encode("utf-8", "replace"))
        return self.relative(path)


@dataclass(frozen=True, kw_only=True)
class BuiltinResult:
    """What a built-in found; a result that is not known is left out, never empty or made up."""

    results: Mapping[str, ResultValue] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


# The built-in steps and readers by name and version: each is a function with its contract.


Work = Callable[[BuiltinContext], BuiltinResult]


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A built-in: what it promises, and what does its work."""

    contract: BuiltinContract
    work: Work


_REGISTERED: dict[tuple[str, int], Registered] = {}


def builtin(**contract: Any) -> Callable[[Work], Work]:
    """Register a function as the built-in of this contract; see `BuiltinContract` for its fields."""

    def register(work: Work) -> Work:
        made = BuiltinContract(**contract)
        _REGISTERED[made.name, made.version] = Registered(contract=made, work=work)
        return work

    return register


# Find the built-in that a runbook names, and do its work.


@cache
def builtins() -> Mapping[tuple[str, int], Registered]:
    """Return every built-in by name and version."""
    importlib.import_module("vdbg_env.run.builtin_steps")
    importlib.import_module("vdbg_env.run.builtin_readers")
    return dict(sorted(_REGISTERED.items()))


def catalogue() -> Catalogue:
    """Return the contracts of all built-ins, as runbooks are checked against them."""
    return Catalogue(contracts=tuple(registered.contract for registered in builtins().values()))


class BuiltinSteps(Means):
    """The tool's own steps and readers; see `execute.Builtins`."""

    def use(self, order: UseBuiltin, progress: Progress) -> StepResult:
        """Do a built-in step; raises VdbgError when it cannot do its work."""
        return self._done(order.name, order.version, order.step, order.parameters, (), progress)

    def read(self, reader: Builtin, observations: Sequence[Observation], progress: Progress) -> StepResult:
        """Read what a run step left behind; raises VdbgError when that cannot be read."""
        step = observations[0].step if observations else ""
        return self._done(reader.name, reader.version, step, reader.parameters, tuple(observations), progress)

    def _done(
        self,
        name: str,
        version: int,
        step: str,
        parameters: Mapping[str, Data],
        seen: tuple[Observation, ...],
        progress: Progress,
    ) -> StepResult:
        state = progress.state
        context = BuiltinContext(
            **vars(self),
            folder=self.run_directory / "steps" / step,
            files=RunFiles(self.run_directory),
            workload=state.inputs.workload.argv,
            steps=state.runbook.steps,
            parameters=parameters,
            observations=seen,
            facts=state.facts,
        )
        try:
            done = builtins()[name, version].work(context)
        except OSError as error:
            raise HostNotAble(f"{error.filename or 'a file of the run'} cannot be used: {error.strerror}") from error
        findings = tuple(finding if finding.step else replace(finding, step=step) for finding in done.findings)
        return StepResult(step=step, results=done.results, findings=findings, notes=done.notes)


def runbook_library(files: Sequence[Path] = ()) -> RunbookLibrary:
    """Return the runbooks that are shipped, the user's own and those in `files`, to be parsed against the catalogue."""
    return RunbookLibrary(files, catalogue)
