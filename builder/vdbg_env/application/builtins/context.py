"""What a built-in step is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from gpucore.code_map import LineSource
from vdbg_env.application.ports.programs import ProgramRunner
from vdbg_env.application.ports.this_host import ThisHost
from vdbg_env.crash.files import BinarySource, CoreFiles
from vdbg_env.evidence.finding import Finding
from vdbg_env.evidence.logs.log_line import LogLine, decode, rank_of_process, unwrap
from vdbg_env.evidence.observation import Observation
from vdbg_env.record.run_files import RunFiles
from vdbg_env.runbook.model import Data, Step
from vdbg_env.runbook.state import Facts, ResultValue

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
class BuiltinContext(RecordedOutput):
    """What a built-in may use.

    `folder` is for files that the step keeps; `began_s` is when this process started or resumed the run, in seconds
    since the machine's start; `observations` are those of the step that a reader reads, and empty for a step;
    `workload` is its unchanged command line, `environment` the one it inherits; `steps` are those of the runbook;
    `write_report` writes the report of all steps so far, and `redact` takes secrets out of what is kept.
    """

    folder: Path
    host: ThisHost
    began_s: float
    workload: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    parameters: Mapping[str, Data]
    facts: Facts
    environment: Mapping[str, str]
    programs: ProgramRunner
    cores: CoreFiles
    binaries: BinarySource
    write_report: Callable[[Iterable[str]], tuple[str, ...]]
    redact: Callable[[str], str]
    packed_lines: LineSource | None = None

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
