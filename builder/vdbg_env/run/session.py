"""Do what `vdbg-env runbook` was asked for: begin or resume a run, follow it to its end, and make its report."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from vdbg_env import __version__
from vdbg_env.common.errors import BadInput, EngineFailed, HostNotAble, VdbgError, quoted
from vdbg_env.common.stop import Interrupts, SignalInterrupts, ToldToStop, stoppable
from vdbg_env.crash.files import CoreFiles
from vdbg_env.crash.line_packs import local_lines, packed_lines
from vdbg_env.image.settings import DATA
from vdbg_env.record.progress import to_document
from vdbg_env.record.redactor import Pseudonyms, Redactor, as_literals, secret_values
from vdbg_env.record.run_directory import RunDirectory, RunHead, part_of
from vdbg_env.record.runs import find_run, runs_home
from vdbg_env.report.assemble import run_report
from vdbg_env.report.model import REPORT_FILES, Report
from vdbg_env.report.pages import write_report
from vdbg_env.run.begin import (
    SAMPLE,
    Places,
    RunbookRequest,
    container_record,
    folder_gone,
    gather_facts,
    has_pseudonym,
    names_workload,
    prepare,
    pseudonyms,
    recorded_placement,
    resumed_container,
    resumed_placement,
    sample_folder,
    starts_here,
    step_container,
    with_recorded_workload,
    with_sample,
    with_sample_mounted,
)
from vdbg_env.run.execute import Execution, Listener, Person, redacted
from vdbg_env.run.guarded import Guarded
from vdbg_env.run.library import BuiltinSteps, RunbookLibrary, catalogue, recorded_inputs
from vdbg_env.run.placement import DISK_FLOOR, PlacementRequest, StepPlace, StepPlacement
from vdbg_env.run.ranks import PseudonymousSteps
from vdbg_env.run.recordings import (
    AnsweredSteps,
    RecordingHead,
    Replay,
    bundled_recording,
    check_recording_target,
    read_recording,
    write_recording,
)
from vdbg_env.run.stale import installed_vllm, torch_on_disk
from vdbg_env.runbook import machine, workload
from vdbg_env.runbook.judge import bisect_status
from vdbg_env.runbook.machine import Plan, final_inputs, plan, unattended, unmet
from vdbg_env.runbook.model import SYNTHETIC, Data, Runbook
from vdbg_env.runbook.state import Facts
from vdbg_env.runbook.workload import Inputs, Settings, ray_hints, told_before_start
from vdbg_env.supervisor import sockets

_FOR_THE_END_S = 120.0
_FROM_INPUT = re.compile(r"\$\{\{ *inputs\.(\w+) *\}\}")
Notice = Callable[[str], None]
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunView:
    """How a run is shown while it lasts: its events, and the person who answers questions.

    `waiting` is called again and again while a step runs.
    """

    interactive: bool
    listener: Callable[[Path], Listener]
    person: Callable[[Interrupts], Person]
    waiting: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A run at its end, or cut short; `files` are the reports that were written, `resume` the command to continue."""

    directory: Path
    report: Report
    files: tuple[str, ...]
    status: int
    resume: str | None


class Session:
    """One run, from its request to its report: `run` begins or resumes it, `plan` starts nothing.

    `environment` is that of this process, by which runs are found; a guard's names another folder of runs. `guarded` is
    the command that a guard runs in this process's place.
    """

    def __init__(
        self,
        request: RunbookRequest,
        notice: Notice,
        *,
        environment: Mapping[str, str] = os.environ,
        guarded: Guarded | None = None,
    ) -> None:
        self._request = request
        self._notice = notice
        self._environment = environment
        self._guarded = guarded
        self._library = RunbookLibrary(request.files, catalogue)
        self._cores = CoreFiles()
        floor = guarded.settings.disk_floor if guarded else DISK_FLOOR
        self._places = Places(environment=os.environ, guarded=guarded, disk_floor=floor)
        self._take_from_record()

    def plan(self) -> Plan:
        """Return each step's final command line and variables; start nothing."""
        if self._request.resume:
            raise BadInput("a run that is resumed has its plan in its record", next_step="vdbg-env runs show RUN")
        if self._sample_recording():
            self._notice(f"no workload is given: this is the plan of the bundled sample {SAMPLE}")
            self._request = replace(self._request, argv=(f"./{SAMPLE}",))
        request = self._request
        runbook, inputs = prepare(request, self._library, self._environment)
        image = None
        if request.container:
            image = request.container.run.image or "the newest image built here"
            facts = Facts(on="plan", data_dir=DATA)
        else:
            place = self._places.here()
            for line in _stale(runbook, inputs, place):
                self._notice(line)
            facts = Facts(
                on="plan",
                torch=torch_on_disk(place.programs, request.argv) if request.at_once else None,
                data_dir=place.data_dir,
                python_path=place.environment.get("PYTHONPATH", ""),
            )
        asked = request.placement or PlacementRequest()
        return replace(plan(runbook, inputs, facts), image=image, ranks=asked.ranks, nodes=asked.nodes)

    def check(self, on: str, *, interactive: bool) -> None:
        """Raise BadInput for a run that would not begin: what waits in a queue for hours is to know it before."""
        self.plan()
        runbook, inputs = prepare(self._request, self._library, self._environment)
        self._check_requests(runbook, inputs)
        self._check_attended(runbook, inputs, Facts(on=on, interactive=interactive))

    def run(self, view: RunView) -> FinishedRun:
        """Run to the end, keep the report, and return both; raises ToldToStop where the run has not begun yet."""
        if self._request.record:
            check_recording_target(self._request.record)
        recording, folder = self._sample_recording(), None
        if recording:
            folder = sample_folder((self._request.run_dir or runs_home(self._environment)) / "sample")
            self._request = with_sample_mounted(self._request, folder)
        source = self._request.replay or self._request.resume or "its beginning"
        _LOG.info("runbook %s from %s", self._request.runbook, source)
        self._view = view
        with self._signals() as self._interrupts:
            with stoppable():
                opened = self._open_place()
            with closing(opened) as place:
                _LOG.info("steps run in %s", dict(place.in_words) or "this machine")
                if recording and folder:
                    sample = with_sample(self._request, recording, place.programs, folder)
                    self._request = sample.request
                    self._notice(sample.notice or "")
                self._place = self._places.here() if self._request.replay else place
                return self._finished()

    # -- where it runs, and what it takes from another run ----------------------------------------------------------

    def _take_from_record(self) -> None:
        """Take over what the run says that is resumed, or begun from without a command: command, inputs, folder."""
        request = self._request
        if run := request.resume or request.from_run:
            head = find_run(run, self._environment).read_head()
            if request.resume:
                recorded_placement(head)  # refuses pods before a word of their folder
                floor = head.disk_floor if request.disk_floor is None else request.disk_floor
                request = replace(request, folder=head.folder, disk_floor=floor)
            else:
                request = with_recorded_workload(request, head)
            self._request = request
            if request.folder:
                there = Path(request.folder)
                if there.is_dir():
                    self._places = replace(self._places, other_folder=there)
                elif starts_here(request, head):
                    raise folder_gone(request, run)
        if request.disk_floor is not None and not self._guarded:
            self._places = replace(self._places, disk_floor=request.disk_floor)

    def _open_place(self) -> StepPlace:
        """Return where the run's steps are started; a run that is resumed continues where it was begun."""
        request, places = self._request, self._places
        if request.resume:
            head = find_run(request.resume, self._environment).read_head()
            if recorded := resumed_container(head, request.container):
                return places.containers(recorded, name=str(head.image.get("name")), notice=self._notice)
            return places.ranks(resumed_placement(head, request.placement))
        if request.container is None:
            return places.ranks(request.placement)
        self._library.load(request.runbook)  # no container is started for a runbook that cannot be run
        container = step_container(request.container, self._notice)
        shown = None
        if request.from_run:  # which names its image by the id
            image = find_run(request.from_run, self._environment).read_head().image
            shown = str(image["name"]) if container.settings.image == image.get("id") else None
        return places.containers(container, name=shown, notice=self._notice)

    def _sample_recording(self) -> Path | None:
        """Return the recording of the bundled sample for a request without any workload; None for every other."""
        if names_workload(self._request) or self._library.project():
            return None
        return bundled_recording(self._request.runbook)

    def _signals(self) -> AbstractContextManager[Interrupts]:
        return self._guarded or SignalInterrupts()

    # -- begin it, or resume it -------------------------------------------------------------------------------------

    def _begun(self) -> Execution:
        """Return a new run in a new folder; raises BadInput, BadDocument and HostNotAble where none can begin."""
        request, place, environment = self._request, self._place, self._environment
        runbook, inputs = prepare(request, self._library, environment)
        self._check_port(runbook, inputs)
        self._check_requests(runbook, inputs)
        argv = inputs.workload.argv
        facts = gather_facts(request, place, runbook, argv, interactive=self._view.interactive and not request.batch)
        self._check_attended(runbook, inputs, facts)
        names = pseudonyms({**place.environment, **environment}) if request.pseudonyms else None
        redactor, sensitive = self._redactor(runbook, inputs, names)
        started = datetime.now(UTC)
        name = f"{started:%Y%m%d-%H%M%S}-{runbook.name}-{secrets.token_hex(2)}"
        directory = RunDirectory(request.run_dir or runs_home(environment) / name)
        no_run_in(directory, request.runbook)
        if not request.replay:
            self._check_host(runbook, facts, directory)
        if not request.at_once:
            for line in _stale(runbook, inputs, place):
                self._notice(line)
        recording = read_recording(request.replay) if request.replay else None
        head = RunHead(
            run=directory.path.name,
            runbook=runbook.name,
            runbook_file=str(Path(runbook.file).absolute()),
            digest=runbook.digest,
            started=started.isoformat(timespec="seconds"),
            workload=redactor.argv(argv),
            inputs=_redacted_inputs(runbook, inputs, redactor),
            facts=to_document(facts),
            tool_version=__version__,
            host=redactor.text(socket.gethostname()),
            environment=place.in_words,
            recorded_on=", ".join(filter(None, (recording.recorded_on, recording.recorded_at))) if recording else "",
            synthetic=recording is not None and recording.synthetic,
            **container_record(place, redactor),
            placement=request.placement.document() if request.placement else {},
            pseudonyms=request.pseudonyms,
            disk_floor=request.disk_floor,
            folder=place.folder if redactor.text(place.folder) == place.folder else "",
        )
        return self._execution(directory, head, runbook, inputs, facts, redactor, sensitive)

    def _resumed(self, run: str) -> Execution:
        """Return a run as it was begun: its facts and its recorded inputs, with the redacted ones given again."""
        request, place = self._request, self._place
        directory = find_run(run, self._environment)
        head = directory.read_head()
        if head.runbook != request.runbook:
            raise BadInput(
                f"run {head.run!r} is a run of runbook {head.runbook!r}",
                next_step=f"vdbg-env runbook {head.runbook} --resume {quoted(run)}",
            )
        if head.recorded_on:
            raise BadInput(
                f"run {head.run!r} is a replay of a recording, and its next step would be run here for real",
                next_step=f"vdbg-env runbook {head.runbook} --replay DIR plays it again from its beginning",
            )
        runbook = self._library.load_recorded(directory, head)
        names = pseudonyms({**place.environment, **self._environment}) if head.pseudonyms else None
        inputs = self._inputs_again(runbook, head, names)
        redactor, sensitive = self._redactor(runbook, inputs, names)
        facts = part_of(head, "facts", Facts)
        if place.on == "slurm" and place.nodes != facts.nodes:
            raise BadInput(
                f"run {head.run!r} was begun on {facts.nodes} nodes, and this allocation has {place.nodes}",
                cause="its steps would be compared with steps on other ranks",
                next_step=f"salloc --nodes {facts.nodes}, and there continue with --resume",
            )
        return self._execution(directory, head, runbook, inputs, facts, redactor, sensitive)

    def _execution(
        self,
        directory: RunDirectory,
        head: RunHead,
        runbook: Runbook,
        inputs: Mapping[str, Data],
        facts: Facts,
        redactor: Redactor,
        sensitive: tuple[str, ...],
    ) -> Execution:
        view, place = self._view, self._place
        builtins = BuiltinSteps(
            run_directory=directory.path,
            programs=place.reading(directory.path),
            cores=self._cores,
            binaries=place.binaries,
            sources=place.sources,
            # A run without a core opens none. A guard announces first, and then looks at addresses (`late_lines`).
            packed_lines=cache(local_lines if self._guarded else packed_lines),
            environment=place.environment,
            write_report=lambda formats: write_report(self._report(run), directory.path, formats),
            redact=redactor.text,
        )
        run = Execution(
            directory=directory,
            head=head,
            state=machine.start(runbook, inputs, facts)[0],
            start_branch=self._library.branching(inputs, facts),
            placement=self._placement(directory.path, redactor, sensitive),
            builtins=builtins,
            person=view.person(self._interrupts),
            interrupts=self._interrupts,
            redactor=redactor,
            total_s=self._request.total_s,
            left_s=_left_s(place),
            disk_floor=self._floor(),
            listener=view.listener(directory.path),
            notice=self._notice,
            waiting=view.waiting,
        )
        return run

    def _inputs_again(self, runbook: Runbook, head: RunHead, names: Pseudonyms | None) -> dict[str, Data]:
        """Return the recorded inputs; those that were redacted have to be given again."""
        request = self._request
        inputs = recorded_inputs(runbook, head)
        lost = [name for name, value in inputs.items() if _is_lost(json.dumps(value), head)]
        if not lost:
            return inputs
        try:
            fresh = final_inputs(runbook, request.inputs, request.argv, self._environment)
        except BadInput as error:
            again = f"vdbg-env runbook {runbook.name} --resume {quoted(request.resume)} -- COMMAND ..."
            raise BadInput(
                f"the record of run {head.run!r} has no secrets, and its input {lost[0]!r} had one"
                if not head.pseudonyms
                else f"the record of run {head.run!r} has no secret and no host, and its input {lost[0]!r} had one",
                next_step=f"give it again: {again}",
            ) from error
        redacted = _redacted_inputs(runbook, fresh, self._redactor(runbook, fresh, names)[0])
        for name in lost:
            if redacted[name] != inputs[name]:
                raise BadInput(
                    f"input {name!r} differs from the one that run {head.run!r} was begun with",
                    next_step="give the same command line, or begin a new run without --resume",
                )
            inputs[name] = fresh[name]
        return inputs

    def _redactor(
        self, runbook: Runbook, inputs: Mapping[str, Data], names: Pseudonyms | None
    ) -> tuple[Redactor, tuple[str, ...]]:
        """Return what takes secrets out of the record, and the values of sensitive inputs."""
        given = [(name, value) for name, value in inputs.items() if value]
        sensitive = tuple(str(value) for name, value in given if runbook.inputs[name].sensitive)
        argv = [str(word) for _, value in given if isinstance(value, list) for word in value]
        known = (*secret_values(self._environment, argv), *secret_values(self._place.environment))
        return Redactor((*as_literals(sensitive), *known), names), sensitive

    # -- what keeps it from beginning -------------------------------------------------------------------------------

    def _check_port(self, runbook: Runbook, inputs: Inputs) -> None:
        """Raise BadInput where another server listens already where the workload, on this machine, is to listen."""
        request = self._request
        on = request.placement.on if request.placement else "local"
        if request.replay or request.at_once or request.container or on != "local" or not inputs.workload.serves:
            return
        if whose := sockets.taken(str(inputs.get("url") or workload.url(inputs.workload.argv))):
            raise BadInput(
                whose,
                cause="the workload could not listen there, or would share the port and its requests with that server",
                next_step=f"vdbg-env runbook {runbook.name} -i port=auto -- COMMAND",
            )

    def _check_requests(self, runbook: Runbook, inputs: Inputs) -> None:
        """Raise BadInput where the requests that a server is to get cannot be read: it takes minutes to start."""
        if self._request.replay:
            return
        drivers = (command.driver.replay for command in runbook.commands.values() if command.driver)
        names = {found[1] for text in drivers if (found := _FROM_INPUT.fullmatch(text))}
        for name in sorted(names):
            file = str(inputs.get(name) or SYNTHETIC)
            if file == SYNTHETIC:
                continue
            from vdbg_env.supervisor.request_driver import read_requests  # for requests that were recorded alone

            try:
                read_requests(str(self._places.folder / file))
            except (OSError, ValueError) as error:
                raise BadInput(
                    f"-i {name}={file}: {error.strerror if isinstance(error, OSError) else error}",
                    cause="a mistyped path, or a file of another kind",
                    next_step=f"vdbg-env capture records requests, and -i {name}={SYNTHETIC} makes them",
                ) from None

    def _check_attended(self, runbook: Runbook, inputs: Inputs, facts: Facts) -> None:
        """Raise BadInput where no one can be asked what this run would have to ask, such as for requests."""
        if facts.interactive or self._request.replay or self._request.at_once:
            return
        if why := unattended(runbook, inputs, facts):
            raise BadInput(
                why,
                cause="--batch, or there is no terminal",
                next_step=f"vdbg-env runbook {runbook.name} -i request=synthetic -- COMMAND; or -i request=FILE, which "
                "vdbg-env capture records",
            )

    def _check_host(self, runbook: Runbook, facts: Facts, directory: RunDirectory) -> None:
        """Raise HostNotAble where the runbook requires more, or the run's first step would not be started."""
        free, floor = directory.free_space(), self._floor()
        if missing := unmet(runbook.requires, facts, free_disk=free):
            what = f"this host lacks what runbook {runbook.name!r} requires"
            raise HostNotAble(what, details=missing, next_step="vdbg-env doctor, or another --run-dir for the record")
        if free < floor:
            raise HostNotAble(
                f"{free >> 20} MiB are free on the disk of {directory.path}, "
                f"and no step starts below {floor >> 20} MiB",
                cause="a step that fills the disk would lose its record and its dumps",
                next_step="make room, give another --run-dir, or a lower floor: --disk-floor 200m",
            )

    def _floor(self) -> int:
        """Return the free space below which no step is started: a guard's command always is."""
        request = self._request
        if request.at_once or request.replay:
            return 0
        return DISK_FLOOR if request.disk_floor is None else request.disk_floor

    # -- the run ----------------------------------------------------------------------------------------------------

    def _finished(self) -> FinishedRun:
        """Begin or resume the run, execute it, and keep its report."""
        request = self._request
        with stoppable():
            run = self._resumed(request.resume) if request.resume else self._begun()
            kept = {} if request.resume else self._texts(run)
        directory = run.directory
        directory.create()
        with directory.locked(run.head.host):
            if not request.resume:
                no_run_in(directory, request.runbook)  # another process may have begun one since
                directory.keep_runbooks(kept)
                directory.write_head(run.head)
            try:
                run.to_its_end()
            except (HostNotAble, EngineFailed) as error:
                with suppress(VdbgError, OSError):  # it may be the record that cannot be read or written
                    run.finish = machine.cut_short(run.progress.state, error.what)[1]
                    self._kept(run, self._report(run))
                self._notice(f"continue with: {_resuming(run)}")
                raise
            report = self._report(run)
            files = self._kept(run, report)
            if request.record and not run.unfinished:
                try:
                    with stoppable():
                        write_recording(directory.path, request.record, _recording_head(run.head))
                except ToldToStop:
                    self._notice(f"{request.record} was not written: told to stop")
        return FinishedRun(
            directory=directory.path,
            report=report,
            files=files,
            status=self._status(run, report),
            resume=_resuming(run) if run.unfinished and not run.head.recorded_on else None,
        )

    def _placement(self, folder: Path, redactor: Redactor, sensitive: tuple[str, ...]) -> StepPlacement:
        if self._request.replay:
            return Replay(self._request.replay.absolute(), redactor)
        placement = self._place.placement(folder, sensitive, redactor.pseudonyms)
        if self._request.from_run:
            known = find_run(self._request.from_run, self._environment).path
            placement = AnsweredSteps(known, placement, redactor)
        return PseudonymousSteps(placement, redactor) if redactor.pseudonyms else placement

    # -- what is kept of it -----------------------------------------------------------------------------------------

    def _texts(self, run: Execution) -> dict[str, str]:
        """Return the runbooks to be kept with a run; with a secret in one, all are read from their files again."""
        texts = self._library.kept_texts(self._request.runbook)
        return {} if any(run.redactor.text(text) != text for text in texts.values()) else texts

    def _report(self, run: Execution) -> Report:
        return run_report(
            run.head,
            redacted(run.progress, run.redactor),
            run.directory.path,
            cores=self._cores,
            sources=self._place.sources,
            redact=run.redactor.text,
            elapsed_s=run.elapsed_s if run.finish else None,
            finish=run.finish,
        )

    def _kept(self, run: Execution, report: Report) -> tuple[str, ...]:
        """Write the report next to the record; a full disk costs the files, not the report and the exit status."""
        directory = run.directory
        try:
            directory.check_in_place()
            return write_report(report, directory.path, REPORT_FILES)
        except HostNotAble as moved:
            self._notice(f"no report could be kept: {moved.what}")
        except OSError as error:
            self._notice(f"no report could be kept in {directory.path}: {error.strerror or error}")
        return ()

    def _status(self, run: Execution, report: Report) -> int:
        if run.signal is not None:
            return 128 + run.signal
        if self._request.bisect:
            return bisect_status(report.verdict, handed_over=bool(run.progress.state.came_from))
        return report.exit_status


def _recording_head(head: RunHead) -> RecordingHead:
    return RecordingHead(
        runbook=head.runbook,
        recorded_on=head.recorded_on or head.host,
        recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
        synthetic=head.synthetic,
        workload=head.workload,
    )


def _resuming(run: Execution) -> str:
    return f"vdbg-env runbook {run.head.runbook} --resume {quoted(run.directory.path)}"


def no_run_in(directory: RunDirectory, runbook: str) -> None:
    """Raise BadInput for a folder that has a run."""
    if directory.exists:
        raise BadInput(
            f"{directory.path} has a run already",
            next_step=f"vdbg-env runbook {runbook} --resume {quoted(directory.path)}, or another --run-dir",
        )


def _is_lost(recorded: str, head: RunHead) -> bool:
    return "[redacted" in recorded or (head.pseudonyms and has_pseudonym(recorded))


def _redacted_inputs(runbook: Runbook, inputs: Mapping[str, Data], redactor: Redactor) -> dict[str, Data]:
    redacted: dict[str, Data] = {}
    for name, value in inputs.items():
        if runbook.inputs[name].sensitive and value:
            redacted[name] = "[redacted value]"
        elif isinstance(value, list):
            redacted[name] = list(redactor.argv([str(word) for word in value]))
        else:
            redacted[name] = redactor.text(value) if isinstance(value, str) else value
    return redacted


def _left_s(place: StepPlace) -> float | None:
    """Return how long the run may take before the place ends: what is left then is for dumps and the report."""
    left = place.time_left_s
    return None if left is None else left - min(_FOR_THE_END_S, left / 4)


def _stale(runbook: Runbook, inputs: Inputs, place: StepPlace) -> Iterator[str]:
    """Yield what has no effect in the command, the environment or the runbook, before any time is spent on it.

    With Ray, that may be the variables of each step.
    """
    words = inputs.workload.argv
    given = Settings(argv=words, environment=place.environment)
    release = lambda: installed_vllm(place.programs, words, here=place.image is None)  # noqa: E731 - asked if needed
    for line in told_before_start(runbook, given, release):
        yield f"stale: {line}"
    for line in ray_hints(words, place.environment):
        yield f"ray: {line}"
