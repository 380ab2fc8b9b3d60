"""Do what `vdbg-env runbook` was asked for: begin or resume a run, follow it to its end, and make its report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpucore.code_map import LineSource
from vdbg_env.common.clock import Clock, Interrupts
from vdbg_env.common.errors import BadInput, EngineFailed, HostNotAble, VdbgError
from vdbg_env.common.stop import ToldToStop, stoppable
from vdbg_env.crash.dumps import DumpStore
from vdbg_env.crash.files import CoreFiles
from vdbg_env.engine.request import ContainerRunner
from vdbg_env.image.settings import DATA
from vdbg_env.record.event_log import read_events
from vdbg_env.record.progress import Progress, at_start, replay
from vdbg_env.record.runs import find_run, runs_home
from vdbg_env.report.assemble import run_report
from vdbg_env.report.model import REPORT_FILES, Report
from vdbg_env.run.begin import (
    SAMPLE,
    Beginning,
    PlacementRequest,
    ReadyRun,
    RunbookRequest,
    begin,
    folder_gone,
    names_workload,
    no_run_in,
    prepare,
    recorded_placement,
    resumed_container,
    resumed_placement,
    starts_here,
    step_container,
    with_recorded_workload,
    with_sample,
    with_sample_mounted,
)
from vdbg_env.run.builtins import BuiltinSteps, catalogue
from vdbg_env.run.execute import Listener, Person, RunContext, RunEnd, StepContext, redacted, run_runbook
from vdbg_env.run.host import ThisHost
from vdbg_env.run.library import RunbookFiles, RunbookLibrary
from vdbg_env.run.placement import IsolatedWorker, RecordingHead, Recordings, StepPlace, StepPlacement, StepPlaces
from vdbg_env.run.stale import Settings, installed_vllm, told_before_start
from vdbg_env.runbook import machine
from vdbg_env.runbook.judge import bisect_status
from vdbg_env.runbook.machine import Plan, plan
from vdbg_env.runbook.model import Runbook
from vdbg_env.runbook.state import Facts
from vdbg_env.runbook.workload import Inputs, ray_hints

if TYPE_CHECKING:
    from pathlib import Path

    from vdbg_env.image.settings import DumpVolume


_FOR_THE_END_S = 120.0
Notice = Callable[[str], None]
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunPorts:
    """The outside world of a run."""

    environment: Mapping[str, str]
    files: RunbookFiles
    places: StepPlaces
    recordings: Recordings
    containers: Callable[[], ContainerRunner]
    dump_store: Callable[[DumpVolume], DumpStore]
    cores: CoreFiles
    worker: IsolatedWorker
    clock: Clock
    interrupts: Callable[[], AbstractContextManager[Interrupts]]
    host: ThisHost
    write_report: Callable[[Report, Path, Iterable[str]], tuple[str, ...]]
    lines: LineSource | None = None


@dataclass(frozen=True, kw_only=True)
class RunView:
    """How a run is shown while it lasts: its events, notices in one line, and the person who answers questions.

    `waiting` is called again and again while a step runs.
    """

    interactive: bool
    notice: Notice
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


def run(request: RunbookRequest, ports: RunPorts, view: RunView) -> FinishedRun:
    """Run the request to its end, keep its report, and return both; raises ToldToStop where it has not begun yet."""
    if request.record:
        ports.recordings.check_target(request.record)
    request, ports = _with_recorded(request, ports)
    if request.disk_floor is not None:
        ports = replace(ports, places=ports.places.keeping_free(request.disk_floor))
    library = RunbookLibrary(ports.files, catalogue)
    recording = _sample_recording(request, ports)
    folder = ports.host.folder((request.run_dir or runs_home(ports.environment)) / "sample") if recording else None
    if folder:
        request = with_sample_mounted(request, folder)
    _LOG.info("runbook %s from %s", request.runbook, request.replay or request.resume or "its beginning")
    with ports.interrupts() as interrupts:
        with stoppable():
            opened = _place(request, library, ports, view.notice)
        with closing(opened) as place:
            _LOG.info("steps run in %s", dict(place.in_words) or "this machine")
            if recording and folder:
                sample = with_sample(request, recording, place.programs, folder)
                request = sample.request
                view.notice(sample.notice or "")
            where = ports.places.here() if request.replay else place
            return _Session(request, ports, view, where, interrupts).finished(library)


def planned(request: RunbookRequest, ports: RunPorts, notice: Notice) -> Plan:
    """Return each step's final command line and variables; start nothing."""
    if request.resume:
        raise BadInput("a run that is resumed has its plan in its record", next_step="vdbg-env runs show RUN")
    request, ports = _with_recorded(request, ports)
    library, project = RunbookLibrary(ports.files, catalogue), ports.files.project()
    if _sample_recording(request, ports):
        notice(f"no workload is given: this is the plan of the bundled sample {SAMPLE}")
        request = replace(request, argv=(f"./{SAMPLE}",))
    runbook, inputs = prepare(request, library, ports.environment, project, ports.host)
    image = None
    if request.container:
        image = request.container.run.image or "the newest image built here"
        facts = Facts(on="plan", data_dir=DATA)
    else:
        place = ports.places.here()
        for line in _stale(runbook, inputs, place):
            notice(line)
        facts = Facts(on="plan", data_dir=place.data_dir, python_path=place.environment.get("PYTHONPATH", ""))
    asked = request.placement or PlacementRequest()
    return replace(plan(runbook, inputs, facts), image=image, ranks=asked.ranks, nodes=asked.nodes)


@dataclass(frozen=True)
class _Session:
    """One run in one place."""

    _request: RunbookRequest
    _ports: RunPorts
    _view: RunView
    _place: StepPlace
    _interrupts: Interrupts

    def finished(self, library: RunbookLibrary) -> FinishedRun:
        """Begin or resume the run, execute it, and keep its report."""
        request, ports, view = self._request, self._ports, self._view
        given = Beginning(
            library=library,
            project=None if request.resume else ports.files.project(),
            environment=ports.environment,
            place=self._place,
            host=ports.host,
            clock=ports.clock,
            interactive=view.interactive and not request.batch,
        )
        with stoppable():
            ready = self._with_provenance(begin(request, given))
            directory = ready.order.directory
            if not request.resume and not request.at_once:
                for line in _stale(ready.runbook, ready.order.state.inputs, self._place):
                    view.notice(line)
        directory.create()
        with directory.locked(ready.order.head.host):
            if not request.resume:
                no_run_in(directory, request.runbook)  # another process may have begun one since
                directory.keep_runbooks(ready.runbooks)
                directory.write_head(ready.order.head)
            try:
                order = replace(ready.order, left_s=_left_s(self._place))
                end = run_runbook(order, self._context(ready))
            except (HostNotAble, EngineFailed) as error:
                self._keep_so_far(ready, error)
                view.notice(f"continue with: {_resume(ready)}")
                raise
            report = self._report(ready, end.progress, end)
            files = self._kept(ready, report)
            if request.record and not end.unfinished:
                try:
                    with stoppable():
                        ports.recordings.write(directory.path, request.record, self._recording_head(ready))
                except ToldToStop:
                    view.notice(f"{request.record} was not written: told to stop")
        return FinishedRun(
            directory=directory.path,
            report=report,
            files=files,
            status=self._status(end, report),
            resume=_resume(ready) if end.unfinished and not ready.order.head.recorded_on else None,
        )

    def _context(self, ready: ReadyRun) -> RunContext:
        return RunContext(
            placement=self._placement(ready),
            builtins=self._builtins(ready),
            worker=self._ports.worker,
            person=self._view.person(self._interrupts),
            clock=self._ports.clock,
            interrupts=self._interrupts,
            redactor=ready.redactor,
            listener=self._view.listener(ready.order.directory.path),
            notice=self._view.notice,
            waiting=self._view.waiting,
        )

    def _placement(self, ready: ReadyRun) -> StepPlacement:
        if self._request.replay:
            return self._ports.recordings.player(self._request.replay, ready.redactor)
        names = ready.redactor.pseudonyms
        placement = self._place.placement(ready.order.directory.path, ready.sensitive, names)
        if self._request.from_run:
            known = find_run(self._request.from_run, self._ports.environment).path
            placement = self._ports.recordings.answered(known, placement, ready.redactor)
        return self._ports.places.with_pseudonyms(placement, ready.redactor) if names else placement

    def _builtins(self, ready: ReadyRun) -> BuiltinSteps:
        path = ready.order.directory.path

        def write_report(at: StepContext, formats: Iterable[str]) -> tuple[str, ...]:
            report = self._report(ready, Progress(state=at.state, visits=at.visits))
            return self._ports.write_report(report, path, formats)

        return BuiltinSteps(
            programs=self._place.reading(path),
            cores=self._ports.cores,
            binaries=self._place.binaries,
            lines=self._ports.lines,
            environment=self._place.environment,
            host=self._ports.host,
            write_report=write_report,
            redact=ready.redactor.text,
        )

    def _keep_so_far(self, ready: ReadyRun, error: VdbgError) -> None:
        """Write the report of what was on record when an error ended the run."""
        with suppress(VdbgError, OSError):  # it may be the record that cannot be read or written
            events = list(read_events(ready.order.directory.events))
            progress = replay(at_start(ready.order.state), events, ready.order.start_branch)
            finish = machine.cut_short(progress.state, error.what)[1]
            end = RunEnd(progress=progress, finish=finish, elapsed_s=events[-1].elapsed_s if events else 0.0)
            self._kept(ready, self._report(ready, progress, end))

    def _report(self, ready: ReadyRun, progress: Progress, end: RunEnd | None = None) -> Report:
        return run_report(
            ready.order.head,
            redacted(progress, ready.redactor),
            ready.order.directory.path,
            cores=self._ports.cores,
            sources=self._place.sources,
            redact=ready.redactor.text,
            elapsed_s=end.elapsed_s if end else None,
            finish=end.finish if end else None,
        )

    def _kept(self, ready: ReadyRun, report: Report) -> tuple[str, ...]:
        """Write the report next to the record; a full disk costs the files, not the report and the exit status."""
        directory = ready.order.directory
        try:
            directory.check_in_place()
            return self._ports.write_report(report, directory.path, REPORT_FILES)
        except HostNotAble as moved:
            self._view.notice(f"no report could be kept: {moved.what}")
        except OSError as error:
            self._view.notice(f"no report could be kept in {directory.path}: {error.strerror or error}")
        return ()

    def _status(self, end: RunEnd, report: Report) -> int:
        if end.signal is not None:
            return 128 + end.signal
        if self._request.bisect:
            return bisect_status(report.verdict, handed_over=bool(end.progress.state.came_from))
        return report.exit_status

    def _with_provenance(self, ready: ReadyRun) -> ReadyRun:
        """Put into a replayed run's head where its recording was made: it is not a crash of this user."""
        if self._request.replay is None or self._request.resume:
            return ready
        recording = self._ports.recordings.read(self._request.replay)
        origin = ", ".join(filter(None, (recording.recorded_on, recording.recorded_at)))
        head = replace(ready.order.head, recorded_on=origin, synthetic=recording.synthetic)
        return replace(ready, order=replace(ready.order, head=head))

    def _recording_head(self, ready: ReadyRun) -> RecordingHead:
        head = ready.order.head
        return RecordingHead(
            runbook=head.runbook,
            recorded_on=head.recorded_on or head.host,
            recorded_at=datetime.fromtimestamp(self._ports.clock.wall(), UTC).isoformat(timespec="seconds"),
            synthetic=head.synthetic,
        )


def _with_recorded(request: RunbookRequest, ports: RunPorts) -> tuple[RunbookRequest, RunPorts]:
    """Return both with what the run says that is resumed, or begun from without a command: command, inputs, folder."""
    run = request.resume or request.from_run
    if run is None:
        return request, ports
    head = find_run(run, ports.environment).read_head()
    if request.resume:
        recorded_placement(head)  # refuses pods before a word of their folder
        floor = head.disk_floor if request.disk_floor is None else request.disk_floor
        request = replace(request, folder=head.folder, disk_floor=floor)
    else:
        request = with_recorded_workload(request, head)
    if not request.folder:
        return request, ports
    places = ports.places.starting_in(request.folder)
    if places is None and starts_here(request, head):
        raise folder_gone(request, run)
    return request, replace(ports, places=places or ports.places)


def _place(request: RunbookRequest, library: RunbookLibrary, ports: RunPorts, notice: Notice) -> StepPlace:
    """Return where the run's steps are started; a run that is resumed continues where it was begun."""
    if request.resume:
        head = find_run(request.resume, ports.environment).read_head()
        recorded = resumed_container(head, request.container)
        name = str(head.image.get("name"))
        if recorded:
            return ports.places.containers(recorded, name=name, notice=notice)
        return _ranks_here(resumed_placement(head, request.placement), ports)
    if request.container is None:
        return _ranks_here(request.placement, ports)
    library.load(request.runbook)  # no container is started for a runbook that cannot be run
    container = step_container(request.container, ports.containers(), ports.dump_store, notice)
    shown = None
    if request.from_run:  # which names its image by the id
        image = find_run(request.from_run, ports.environment).read_head().image
        shown = str(image["name"]) if container.settings.image == image.get("id") else None
    return ports.places.containers(container, name=shown, notice=notice)


def _left_s(place: StepPlace) -> float | None:
    """Return how long the run may take before the place ends: what is left then is for dumps and the report."""
    left = place.time_left_s
    return None if left is None else left - min(_FOR_THE_END_S, left / 4)


def _ranks_here(asked: PlacementRequest | None, ports: RunPorts) -> StepPlace:
    if asked and asked.on == "slurm":
        return ports.places.slurm(ranks=asked.ranks, nodes=asked.nodes, extra=asked.arguments, scratch=asked.scratch)
    return ports.places.here(ranks=asked.ranks if asked else None)


def _sample_recording(request: RunbookRequest, ports: RunPorts) -> Path | None:
    """Return the recording of the bundled sample for a request without any workload; None for every other request."""
    if names_workload(request) or ports.files.project():
        return None
    return ports.recordings.bundled(request.runbook)


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


def _resume(ready: ReadyRun) -> str:
    return f"vdbg-env runbook {ready.order.head.runbook} --resume {ready.order.directory.path}"
