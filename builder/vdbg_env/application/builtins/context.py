"""What a built-in step is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vdbg_env.application.ports import BinarySource, CoreFiles, ProgramRunner
from vdbg_env.common.errors import BadInput
from vdbg_env.evidence.finding import Finding
from vdbg_env.evidence.logs.log_line import LogLine, decode, unwrap
from vdbg_env.evidence.observation import Observation
from vdbg_env.runbook.model import Data, Step
from vdbg_env.runbook.state import Facts, ResultValue

_STREAMS = ("stdout", "stderr")
_LONGEST_TEXT = 64 << 20  # bytes of one text file that are read at once


@dataclass(frozen=True, kw_only=True)
class BuiltinContext:
    """The world as a built-in sees it.

    `folder` is the step's own, for files it wants to keep; `began_s` is when the engine took the run up, in seconds
    since the machine's start; `observations` are those of the step that a reader reads,
    and empty for a step; `workload` is its unchanged command line, `environment` the one it inherits; `steps` are
    those of the runbook; `write_report` writes the report of all so far in the formats named and returns the files;
    `redact` takes secrets out of what is kept.
    """

    run_directory: Path
    folder: Path
    began_s: float
    workload: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    parameters: Mapping[str, Data]
    observations: tuple[Observation, ...] = ()
    facts: Facts
    environment: Mapping[str, str]
    programs: ProgramRunner
    cores: CoreFiles
    binaries: BinarySource
    write_report: Callable[[Iterable[str]], tuple[str, ...]]
    redact: Callable[[str], str]

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

    def lines(self, needle: bytes = b"") -> Iterator[LogLine]:
        """Yield the output of all observed attempts, line by line, those with `needle` only, out of their wrappings."""
        for seen in self.observations:
            for stream in _STREAMS:
                yield from (unwrap(text) for text in text_lines(self._inside(seen.directory) / stream, needle))

    def keep(self, name: str, text: str) -> str:
        """Write a text into the step's folder, redacted, and return the name records give it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        path.write_text(self.redact(text), encoding="utf-8", errors="replace")
        return self.relative(path)

    def _inside(self, path: str) -> Path:
        whole = (self.run_directory / path).resolve()
        if not whole.is_relative_to(self.run_directory.resolve()):
            raise BadInput(
                f"{path} leads out of the run directory", cause="a path in a runbook that starts with / or .."
            )
        return self.run_directory / path


@dataclass(frozen=True, kw_only=True)
class BuiltinResult:
    """What a built-in found; a result that is not known is left out, never empty or made up."""

    results: Mapping[str, ResultValue] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


def text_lines(path: Path, needle: bytes = b"") -> Iterator[str]:
    """Yield the lines of a text file that hold `needle`, each cut at the length `log_line` reads; none if missing."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            if needle in line:
                yield decode(line).rstrip("\n")


def whole_text(path: Path) -> str:
    """Return a text file, of a huge one its end; nothing when it is missing."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LONGEST_TEXT))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
