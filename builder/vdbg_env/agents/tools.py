"""The tools: each takes paths below the folders of the server and shows part of the JSON that the command line prints.

A tool runs no program of the user, writes nothing into the user's folders, and asks no container engine.
Annotations are not postponed here: pydantic reads them, and looks for their names in another module.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from gpucore.arch import as_target
from gpucore.code_map import parse_place
from vdbg_env.agents.answer import View
from vdbg_env.agents.folders import Folders
from vdbg_env.agents.library import verify_files
from vdbg_env.build.prove import verify_json
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.core import Core, cores_json, next_commands, read_cores
from vdbg_env.crash.files import BinaryFiles, CoreFiles, SourceFiles, is_dump
from vdbg_env.crash.line_packs import PackedLines
from vdbg_env.crash.locate import locate, locate_json
from vdbg_env.crash.memory_files import ask, maps_beside, open_maps, owners_json
from vdbg_env.crash.triage import log_files, runbook_to_start, triage_json, triage_logs
from vdbg_env.evidence.finding import NextStep
from vdbg_env.evidence.gpu_findings import gpu_core_findings
from vdbg_env.record.run_directory import RunDirectory
from vdbg_env.record.runs import LATEST, RUNS_FOLDER, RUNS_VARIABLE, RunIndex, find_run
from vdbg_env.run import history
from vdbg_env.run.library import runbook_names

Json = dict[str, Any]
Text = Annotated[str, Field(max_length=4096)]
Paths = Annotated[list[Text], Field(min_length=1, max_length=256)]
PathArgument = Annotated[Text, Field(description="Below the server's folders, absolute or relative to one.")]
Offset = Annotated[int, Field(ge=0, description="Entries to skip: the answer before names the next offset.")]
CoreNumber = Annotated[int, Field(ge=0, description="Which core of a folder, numbered as open_core lists them.")]
Detail = Annotated[bool, Field(description="Show every field of the command line's JSON.")]
Part = Literal["findings", "steps", "next_steps", "sources", "changes", "hangs", "notes"]

_KEPT_CORES: Final = 4  # decoded folders that are kept: an investigation asks about one of them again and again
_MOST_CONTEXT: Final = 200  # lines around a line of source
_PART: Final = "what could not be read may hold exceptions and warps."
_FAULT: Final = (
    "exception", "pc", "precise", "kernel", "library", "function", "chain", "why", "threads", "calls", "doubts",
)  # fmt: skip
_CORE: Final = ("file", "rank", "truncated", "complete", "metadata", "notes")
_GROUP: Final = ("kernel", "function", "count", "threads", "blocks", "state", "barrier_words", "first", "chain")
_RUN: Final = (
    "run", "runbook", "workload", "started", "condition", "verdict", "why", "found", "elapsed_s",
)  # fmt: skip
_ADDRESS: Final = ("space", "direction", "value", "judgement", "not_known", "how_known")
_REPORT: Final = ("run", "runbook", "title", "verdict", "why", "lead", "fingerprint")


@dataclass(frozen=True, kw_only=True)
class _Cores:
    """Decoded cores as the command line's JSON, with what to type next, and what could not be read."""

    documents: Sequence[Json]
    next: Sequence[NextStep]
    verdict: str | None
    unread: int


class Tools:
    """The tools of one server. `packs` makes the line packs that a call may look in."""

    def __init__(self, folders: Sequence[str | Path], packs: Callable[[], PackedLines]) -> None:
        self._folders: Final = Folders(folders)
        self._packs: Final = packs
        self._sources: Final = SourceFiles([str(root) for root in folders], admit=self._folders.inside)
        self._decoded: Final[OrderedDict[object, _Cores]] = OrderedDict()
        self._decoding: Final = threading.Lock()  # calls run side by side, and most ask about the same core

    def all(self) -> tuple[Callable[..., View], ...]:
        """Return the tools, those that an investigation begins with first."""
        return (
            self.open_core, self.faults, self.warps, self.registers, self.source, self.locate, self.whose_memory,
            self.triage, self.runs, self.run_report, self.verify, self.next_steps,
        )  # fmt: skip

    def open_core(self, path: PathArgument, offset: Offset = 0, detail: Detail = False) -> View:
        """Read a GPU core dump, or every one below a folder: exception, kernel, line, device, driver. Begin here."""
        cores = self._cores(path)
        said = []
        for number, one in enumerate(cores.documents):
            if one["faults"] or len(cores.documents) == 1:
                faults, places = len(one["faults"]), len(one["warps"])
                said.append(f"Core {number}: faults {faults}, places where warps stood {places}.")
            if not one["complete"]:
                said.append(f"Core {number} is incomplete: {_PART}")
        if cores.unread:
            said.append(f"{cores.unread} files could not be read.")
        entries = cores.documents if detail else [_brief_core(one) for one in cores.documents]
        document = {"verdict": cores.verdict} if cores.verdict else {}
        return View(document=document, paged="cores", entries=entries, offset=offset, said=tuple(said[:8]))

    def faults(self, path: PathArgument, core: CoreNumber = 0, offset: Offset = 0, detail: Detail = False) -> View:
        """Show the exceptions of a core: kernel, inline chain to the source line, and why the address was bad."""
        read = self._core(path, core)
        entries = [
            {name: value for name, value in fault.items() if name != "registers" and (detail or name in _FAULT)}
            for fault in read["faults"]
        ]
        if entries:
            said: tuple[str, ...] = ()
        elif read["complete"]:
            said = ("The core has no exception: warps shows where it stood.",)
        else:
            said = (f"The core is incomplete: {_PART}",)
        return View(document={}, paged="faults", entries=entries, offset=offset, said=said)

    def warps(self, path: PathArgument, core: CoreNumber = 0, offset: Offset = 0, detail: Detail = False) -> View:
        """Show where all warps stood, in groups with line and state: for a hang, who waits and who still runs."""
        read = self._core(path, core)
        entries = [group if detail else _only(group, _GROUP) for group in read["warps"]]
        said = () if entries or read["complete"] else (f"The core is incomplete: {_PART}",)
        return View(document={}, paged="warps", entries=entries, offset=offset, said=said)

    def registers(
        self,
        path: PathArgument,
        core: CoreNumber = 0,
        fault: Annotated[int, Field(ge=0, description="Which fault.")] = 0,
    ) -> View:
        """Show the registers, predicates and call stack of the first thread of a fault."""
        found = _chosen(self._core(path, core)["faults"], fault, "fault")
        return View(document=_only(found, ("threads", "registers")))

    def source(
        self,
        file: Annotated[Text, Field(description="As a chain names it; it is looked for below the server's folders.")],
        line: Annotated[int, Field(ge=1)],
        context: Annotated[int, Field(ge=0, le=_MOST_CONTEXT, description="Lines before and after.")] = 8,
    ) -> View:
        """Show the source around a line of an inline chain."""
        lines = self._sources.text(file)
        if lines is None:
            raise BadInput(f"the source {file} is not below the folders of this server")
        first = max(1, line - context)
        shown = lines[first - 1 : line + context]
        if not shown:
            raise BadInput(f"{file} has {len(lines)} lines")
        return View(
            document={"file": file},
            paged="lines",
            entries=[{"line": number, "text": text} for number, text in enumerate(shown, first)],
        )

    def locate(
        self,
        place: Annotated[Text, Field(description="An address in a core, NAME+OFFSET, or an offset with kernel.")],
        files: Annotated[Paths, Field(description="Cores, libraries, wheels, cubins or folders.")],
        kernel: Annotated[Text | None, Field(description="The function that an offset is relative to.")] = None,
        arch: Annotated[Text | None, Field(description="Keep to one architecture, such as sm_90.")] = None,
        offset: Offset = 0,
        detail: Detail = False,
    ) -> View:
        """Find the source line and inline chain of an address, or of a kernel and an offset."""
        report = locate(
            parse_place(place, kernel),
            [self._folders.admit(file) for file in files],
            BinaryFiles(),
            self._sources,
            self._packs,
            arch=as_target(arch) if arch else None,
        )
        found = json.loads(locate_json(report))
        entries = [place if detail else _without_formula(place) for place in found["candidates"]]
        return View(document=_only(found, ("ambiguous", "notes")), paged="candidates", entries=entries, offset=offset)

    def whose_memory(
        self,
        address: Annotated[Text, Field(description="Of data, such as 0x7f2001f52800.")],
        maps: Annotated[Text, Field(description="A memory map, the folder of a run or of maps, or a full core.")],
    ) -> View:
        """Say which tensor an address of data is in, or how far it is from one. faults has it where maps are found."""
        query = parse_place(address)
        owners = ask(open_maps(self._folders.admit(maps)), query.value) if query.name is None else None
        if owners is None:
            raise BadInput(f"{address} is not an address", next_step="give a number, such as 0x7f2001f52800")
        return View(document=json.loads(owners_json(owners)))

    def triage(self, logs: Annotated[Paths, Field(description="Log files or folders of one run.")]) -> View:
        """Name the failure that logs tell of, the line that says so, how sure that is, and the runbook to start."""
        verdict = triage_logs(self._logs(logs), self._packs)
        found = json.loads(triage_json(verdict, runbook_to_start(verdict.failure.runbook, runbook_names())))
        return View(document={name: value for name, value in found.items() if name != "logs"})

    def runs(
        self,
        folder: Annotated[Text, Field(description="The folder of the recorded runs.")] = RUNS_FOLDER,
        offset: Offset = 0,
    ) -> View:
        """List recorded runs, the newest first: what ran, the verdict, and the finding to read first."""
        home = Path(self._folders.admit(folder))
        found, unreadable = [], []
        for name, _ in reversed(RunIndex(home, "line").names()):
            try:
                found.append(history.recorded(RunDirectory(home / name)))
            except BadInput as error:
                unreadable.append(error)
        document = json.loads(history.runs_json(found, unreadable))
        entries = [_only(run, _RUN) for run in document["runs"]]
        return View(document=_only(document, ("unreadable",)), paged="runs", entries=entries, offset=offset)

    def run_report(
        self,
        run: Annotated[
            Text,
            Field(description="The folder of a run, its name with the folder of runs before it, or `latest` of these."),
        ],
        part: Annotated[Part, Field(description="What to list of the report.")] = "findings",
        offset: Offset = 0,
        detail: Detail = False,
    ) -> View:
        """Show the report of a recorded run: verdict and findings, or its steps, next steps, sources or changes."""
        report = self._run(run).read_report()
        entries = report.get(part)
        if not isinstance(entries, list):
            raise BadInput(f"the report has no {part}", cause="another release or another program wrote it")
        entries = [entry if detail or not isinstance(entry, dict) else _without_formula(entry) for entry in entries]
        return View(document=_only(report, _REPORT), paged=part, entries=entries, offset=offset)

    def _run(self, run: str) -> RunDirectory:
        folder, _, name = run.rpartition("/")
        if name == LATEST:
            home = self._folders.admit(folder or RUNS_FOLDER)
            return RunDirectory(Path(self._folders.admit(str(find_run(LATEST, {RUNS_VARIABLE: home}).path))))
        return RunDirectory(Path(self._folders.admit(run)))

    def verify(
        self,
        files: Annotated[Paths, Field(description="Libraries, wheels, cubins or folders.")],
        offset: Offset = 0,
    ) -> View:
        """Prove for each library that its GPU code carries line info, and name what lacks it."""
        targets = [self._folders.admit(file) for file in files]
        found = json.loads(json.dumps(verify_json(verify_files(targets))))
        document = _only(found, ("verdict", "total", "coverage", "without_device_code", "notes"))
        return View(document=document, paged="files", entries=found["files"], offset=offset)

    def next_steps(
        self,
        path: Annotated[Text, Field(description="A core, a log, the folder of a run, or a folder of cores or logs.")],
    ) -> View:
        """Say what to type next, for a person to decide: this server runs nothing."""
        real = Path(self._folders.admit(path))
        said: tuple[str, ...] = ()
        if (real / "run.json").is_file():
            steps = RunDirectory(real).read_report().get("next_steps") or []
            said = ("Paths in the commands are relative to the folder of the run.",)
        elif _is_core(real):
            cores = self._cores(path)
            steps = [asdict(step) for step in dict.fromkeys(cores.next)]
        else:
            steps = list(self._after_triage(path))
        return View(document={}, paged="next_steps", entries=steps, said=said)

    def _after_triage(self, path: str) -> Iterable[Json]:
        verdict = triage_logs(self._logs([path]), self._packs)
        if verdict.fix:
            yield asdict(NextStep.read(verdict.fix))
        yield from ({"text": remedy.do, "command": None} for remedy in verdict.remedies)
        start = runbook_to_start(verdict.failure.runbook, runbook_names())
        if start:
            yield {"text": "find the cause step by step", "command": f"vdbg-env runbook {start} -- COMMAND"}

    def _logs(self, paths: Sequence[str]) -> list[str]:
        return [str(log) for path in paths for log in log_files(Path(self._folders.admit(path)))]

    def _core(self, path: str, number: int) -> Json:
        return _chosen(self._cores(path).documents, number, "core")

    def _cores(self, path: str) -> _Cores:
        files = CoreFiles().find(self._folders.admit(path))
        one_each = {Path(file).parent: Path(file) for file in files}.values()
        maps = [self._folders.admit(str(found)) for core in one_each for found in maps_beside(core)]
        about = [(file, Path(file).stat()) for file in (*files, *maps)]
        key = tuple((file, status.st_mtime_ns, status.st_size) for file, status in about)
        with self._decoding:
            found = self._decoded.pop(key, None) or self._decode(files)
            self._decoded[key] = found
            while len(self._decoded) > _KEPT_CORES:
                self._decoded.popitem(last=False)
        return found

    def _decode(self, files: Sequence[str]) -> _Cores:
        read = read_cores(files, self._sources, self._packs, registers=True, parameters=True)
        whole = json.loads(cores_json(read.readings, read.sources))
        steps = [step for one in read.readings for step in _next(one)]
        documents = whole.get("cores", [whole])
        return _Cores(documents=documents, next=steps, verdict=whole.get("verdict"), unread=len(read.problems))


def _is_core(path: Path) -> bool:
    try:
        return is_dump(path) or (path.is_dir() and bool(CoreFiles().find(str(path))))
    except BadInput:  # a folder without a dump
        return False


def _brief_core(core: Json) -> Json:
    """Return what identifies a core, its devices without their launches, and its first fault in short."""
    devices = [_only(device, ("index", "name", "sm", "sms")) for device in core["devices"]]
    first = [
        _only(fault, ("pc", "library"))
        | {"exception": _only(fault["exception"], ("name", "meaning"))}
        | {"kernel": fault["kernel"] and _only(fault["kernel"], ("demangled",)), "chain": fault["chain"][:1]}
        for fault in core["faults"][:1]
    ]
    return _only(core, _CORE) | {"devices": devices, "faults": first}


def _without_formula(entry: Json) -> Json:
    """Return a place or a finding without the tree of its address, which `why` says in words."""
    address = entry.get("address")
    return {**entry, "address": _only(address, _ADDRESS)} if isinstance(address, dict) else entry


def _next(core: Core) -> Iterable[NextStep]:
    found = gpu_core_findings(core.faults, core.warp_groups, core.file)
    yield from (finding.next_step for finding in found if finding.next_step)
    yield from (NextStep("", command) for command in next_commands(core))


def _only(values: Mapping[str, Any], names: Iterable[str]) -> Json:
    return {name: values[name] for name in names if name in values}


def _chosen(entries: Sequence[Json], number: int, what: str) -> Json:
    if number >= len(entries):
        raise BadInput(f"there is no {what} {number}", cause=f"{len(entries)} were found, numbered from 0")
    return entries[number]
