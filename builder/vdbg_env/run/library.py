"""Runbooks on disk: where they are looked for, and how one becomes a linted Runbook."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from platformdirs import user_config_path

from gpucore.code_map import LineSource
from vdbg_env.common import yaml_source
from vdbg_env.common.console import nearest, note
from vdbg_env.common.errors import BadInput, HostNotAble, quoted, unreadable
from vdbg_env.common.programs import ProgramRunner
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.common.yaml_source import BadDocument, Complaint, Value, YamlSource
from vdbg_env.crash.files import BinarySource, CoreFiles, SourceFiles, SourceText
from vdbg_env.evidence.finding import Finding, Observation
from vdbg_env.evidence.log_line import LogLine, decode, rank_of_process, unwrap
from vdbg_env.record.progress import Progress
from vdbg_env.record.run_directory import RunFiles
from vdbg_env.runbook import machine
from vdbg_env.runbook.lint import load
from vdbg_env.runbook.model import Builtin, BuiltinContract, Catalogue, Data, Runbook, Step
from vdbg_env.runbook.parse import Library
from vdbg_env.runbook.state import BranchTo, Facts, ResultValue, RunState, StepResult, UseBuiltin

if TYPE_CHECKING:
    from vdbg_env.record.run_directory import RunDirectory, RunHead


Origin = Literal["named", "project", "user", "shipped"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A runbook file that was found; the runbook has the name of its file, which lint checks."""

    name: str
    path: Path
    origin: Origin


PROJECT_FILE = "vdbg.yaml"


@dataclass(frozen=True, kw_only=True)
class Folder:
    """One place of the search path."""

    origin: Origin
    path: Path


def search_path(project: Path) -> tuple[Folder, ...]:
    """Return the folders that are searched, the first first."""
    here = project / "runbooks"
    shipped = Folder(origin="shipped", path=SHIPPED_DATA / "runbooks")
    user = Folder(origin="user", path=user_config_path("vdbg-env", appauthor=False) / "runbooks")
    if here.is_dir() and here.samefile(shipped.path):  # a checkout of this program
        return (user, shipped)
    return (Folder(origin="project", path=here), user, shipped)


def _yaml_files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(path for path in folder.iterdir() if path.suffix in {".yaml", ".yml"} and path.is_file())


def _found(files: Sequence[Path], folders: Sequence[Folder]) -> tuple[Entry, ...]:
    """Return every runbook file by name; of two with one name, the first on the search path."""
    found: dict[str, Entry] = {}
    for path in files:
        found.setdefault(path.stem, Entry(name=path.stem, path=path, origin="named"))
    for folder in folders:
        for path in _yaml_files(folder.path):
            found.setdefault(path.stem, Entry(name=path.stem, path=path, origin=folder.origin))
    return tuple(sorted(found.values(), key=lambda entry: entry.name))


def _read(path: Path) -> YamlSource:
    """Return a file's text; raises BadInput."""
    try:
        with path.open("rb") as file:
            data = file.read(yaml_source.MAX_BYTES + 1)  # one more: a longer file is refused
    except OSError as error:
        raise unreadable(path, error) from None
    return yaml_source.read(data, str(path))


def recorded_inputs(runbook: Runbook, head: RunHead) -> dict[str, Data]:
    """Return the inputs of a recorded run; one that the runbook did not have then has its default."""
    return {name: head.inputs.get(name, wanted.default) for name, wanted in runbook.inputs.items()}


class RunbookLibrary:
    """The runbooks by name: `files`, then those of `folders`; `project` is the current folder.

    `catalogue` is called for the first runbook that is loaded: names need no built-in.
    """

    def __init__(
        self,
        files: Sequence[Path],
        catalogue: Callable[[], Catalogue],
        *,
        folders: Sequence[Folder] | None = None,
        project: Path = Path(),
    ) -> None:
        self._files = tuple(files)
        self._catalogue = catalogue
        self._folders = search_path(project) if folders is None else tuple(folders)
        self._project = project

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Every runbook that can be started by name."""
        return _found(self._files, self._folders)

    @cached_property
    def steps(self) -> Library:
        """The shared steps: the files of every `lib` folder on the search path."""
        found: dict[str, YamlSource] = {}
        for folder in [*dict.fromkeys(path.parent for path in self._files), *(one.path for one in self._folders)]:
            for path in _yaml_files(folder / "lib"):
                if path.stem not in found:
                    found[path.stem] = _read(path)
        return Library(found)

    def project(self) -> YamlSource | None:
        """Return the `vdbg.yaml` of the current folder, None where there is none; raises BadInput."""
        path = self._project / PROJECT_FILE
        return _read(path) if path.is_file() else None

    def load(self, name: str) -> Runbook:
        """Return the linted runbook called `name`, or the one in the file of that path.

        Raises BadInput with the nearest name when there is none, and BadDocument when it is wrong.
        """
        return self.load_entry(self.entry(name))

    def load_recorded(self, run: RunDirectory, head: RunHead) -> Runbook:
        """Return the runbook of a recorded run: its own copy, else its file if that is still there, else by name.

        A runbook that was shipped with another release is taken as it is shipped today, where it judges every recorded
        step as it was judged then. Raises BadInput for any other that has changed since.
        """
        origin = next((entry.origin for entry in self.entries if entry.name == head.runbook), None)
        file = Path(head.runbook_file)
        shipped = origin == "shipped" and file.parent == Path(str(head.facts.get("data_dir")))
        runbook = self.load(head.runbook if shipped or origin == "named" or not file.is_file() else head.runbook_file)
        if runbook.digest == head.digest:
            return runbook
        if shipped:
            # A list of runbooks does without these modules, which take long to import.
            from vdbg_env.record.event_log import read_events
            from vdbg_env.record.progress import at_start, judges_alike
            from vdbg_env.record.run_directory import part_of

            facts = part_of(head, "facts", Facts)
            start = at_start(machine.start(runbook, recorded_inputs(runbook, head), facts)[0])
            if judges_alike(start, read_events(run.events), self.branching(head.inputs, facts)):
                note(f"note: runbook {runbook.name!r} has changed since, and judges the recorded steps as then")
                return runbook
        raise BadInput(
            f"runbook {runbook.name!r} has changed since run {head.run!r} was begun",
            cause="its recorded steps would be judged by other rules",
            next_step=f"read the report of then: {quoted(run.path / 'report.md')}"
            if (run.path / "report.md").is_file()
            else f"vdbg-env runbook {runbook.name} begins anew",
        )

    def kept_texts(self, name: str) -> dict[str, str]:
        """Return the texts of the runbooks and shared steps that a run of `name` needs again in any folder.

        Those that are shipped are left out: they are found by their names. So are files that a run may hand over to
        and that cannot be read: the run does without them too.
        """
        known = {entry.name: entry for entry in self.entries}
        wanted = [self.entry(name), *(entry for entry in self.entries if entry.origin == "named")]
        texts: dict[str, str] = {}
        while wanted:
            entry = wanted.pop(0)
            file = f"{entry.name}.yaml"
            if entry.origin == "shipped" or file in texts:
                continue
            try:
                source = _read(entry.path)
            except (BadInput, BadDocument):
                continue
            texts[file] = _text(source.text)
            values = [source.value]
            for step in _said(source.value, "from") & set(self.steps.names):
                texts[f"lib/{step}.yaml"] = _text(self.steps.text(step))
                values.append(self.steps.value(step))
            wanted += [known[other] for value in values for other in _said(value, "runbook") if other in known]
        return texts

    def branching(self, inputs: Mapping[str, Data], facts: Facts) -> Callable[[BranchTo], RunState]:
        """Return what starts another runbook on the same workload.

        The inputs it shares keep their values, the others have their defaults.
        """

        def start(branch: BranchTo) -> RunState:
            other = self.load(branch.runbook)
            own = {name: inputs.get(name, wanted.default) for name, wanted in other.inputs.items()}
            return machine.start(other, own, facts, came_from=branch.came_from)[0]

        return start

    def entry(self, name: str) -> Entry:
        """Return where a runbook is; raises BadInput with the nearest name."""
        if name.endswith((".yaml", ".yml")) or "/" in name:
            return Entry(name=Path(name).stem, path=Path(name), origin="named")
        known = {entry.name: entry for entry in self.entries}
        if name not in known:
            here = f"./{name}.yaml"
            close = here if Path(here).is_file() else nearest(name, known)
            hint = f" (did you mean {close!r}?)" if close else ""
            raise BadInput(f"no runbook {name!r}{hint}", next_step="vdbg-env runbooks list")
        return known[name]

    def load_entry(self, entry: Entry) -> Runbook:
        """Return the linted runbook of one file; raises BadDocument with every complaint."""
        source = _read(entry.path)
        runbook = load(source, self.steps, self._catalogue(), runbooks=[x.name for x in self.entries])
        if runbook.name != entry.path.stem:
            what = f"the file is called {entry.path.name}, so the runbook's name is {entry.path.stem!r}"
            raise BadDocument((source.complaint(("metadata", "name"), what),))
        return runbook

    def input_names(self) -> frozenset[str]:
        """Return the inputs that any runbook has; one that cannot be read has none."""
        names: set[str] = set()
        for entry in self.entries:
            with suppress(BadDocument, BadInput):
                names |= self.load_entry(entry).inputs.keys()
        return frozenset(names)

    def lint(self, targets: Sequence[str]) -> tuple[tuple[Entry, tuple[Complaint, ...]], ...]:
        """Return every complaint about the runbooks named, or about all that are not shadowed; raises BadInput."""
        entries = [self.entry(target) for target in targets] if targets else list(self.entries)
        return tuple((entry, self._complaints(entry)) for entry in entries)

    def _complaints(self, entry: Entry) -> tuple[Complaint, ...]:
        try:
            self.load_entry(entry)
        except BadDocument as error:
            return error.complaints
        return ()


def _said(value: Value, key: str) -> set[str]:
    """Return the texts that a document has anywhere below a key of this name."""
    if isinstance(value, list):
        return {text for one in value for text in _said(one, key)}
    if not isinstance(value, dict):
        return set()
    own = value.get(key)
    return {text for one in value.values() for text in _said(one, key)} | ({own} if isinstance(own, str) else set())


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def runbook_names() -> frozenset[str]:
    """Return the names of the runbooks that a command can name: those shipped and the user's own."""
    return frozenset(entry.name for entry in _found((), search_path(Path())))


# The built-in steps and readers of runbooks: what one is given, what it gives back, and how it is found.


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
    what the workload inherits, `sources` finds the text of sources, `packed_lines` opens those of code that was built
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
    packed_lines: Callable[[], LineSource | None] = lambda: None
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
