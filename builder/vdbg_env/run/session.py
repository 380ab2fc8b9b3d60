"""Do what `vdbg-env runbook` was asked for: begin or resume a run, follow it to its end, and make its report."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from vdbg_env.common.clock import Interrupts, SignalInterrupts, SystemClock
from vdbg_env.common.errors import BadInput, EngineFailed, HostNotAble, VdbgError
from vdbg_env.common.stop import ToldToStop, stoppable
from vdbg_env.crash.files import CoreFiles
from vdbg_env.crash.line_packs import LineStore, PackedLines, open_stores
from vdbg_env.image.settings import DATA
from vdbg_env.record.event_log import read_events
from vdbg_env.record.progress import Progress, at_start, replay
from vdbg_env.record.runs import find_run, runs_home
from vdbg_env.report.assemble import run_report
from vdbg_env.report.files import write_report
from vdbg_env.report.model import REPORT_FILES, Report
from vdbg_env.run.begin import (
    SAMPLE,
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
from vdbg_env.run.execute import Listener, Person, RunContext, RunEnd, RunOrder, StepContext, redacted, run_runbook
from vdbg_env.run.guarded import Guarded
from vdbg_env.run.host import ThisHost
from vdbg_env.run.library import RunbookFiles, RunbookLibrary
from vdbg_env.run.placement import DISK_FLOOR, PlacementRequest, StepPlace, StepPlacement
from vdbg_env.run.places import Places
from vdbg_env.run.ranks import PseudonymousSteps
from vdbg_env.run.recordings import (
    AnsweredSteps,
    RecordedRanks,
    RecordingHead,
    Replay,
    bundled_recording,
    check_recording_target,
    read_recording,
    write_recording,
)
from vdbg_env.run.stale import Settings, installed_vllm, told_before_start
from vdbg_env.run.worker import ForkedWorker
from vdbg_env.runbook import machine
from vdbg_env.runbook.judge import bisect_status
from vdbg_env.runbook.machine import Plan, plan
from vdbg_env.runbook.model import Runbook
from vdbg_env.runbook.state import Facts
from vdbg_env.runbook.workload import Inputs, ray_hints

_FOR_THE_END_S = 120.0
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
        self._files = RunbookFiles(request.files)
        self._library = RunbookLibrary(self._files, catalogue)
        self._host = ThisHost()
        self._clock = SystemClock()
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
        runbook, inputs = prepare(request, self._library, self._environment, self._files.project(), self._host)
        image = None
        if request.container:
            image = request.container.run.image or "the newest image built here"
            facts = Facts(on="plan", data_dir=DATA)
        else:
            place = self._places.here()
            for line in _stale(runbook, inputs, place):
                self._notice(line)
            facts = Facts(on="plan", data_dir=place.data_dir, python_path=place.environment.get("PYTHONPATH", ""))
        asked = request.placement or PlacementRequest()
        return replace(plan(runbook, inputs, facts), image=image, ranks=asked.ranks, nodes=asked.nodes)

    def run(self, view: RunView) -> FinishedRun:
        """Run to the end, keep the report, and return both; raises ToldToStop where the run has not begun yet."""
        if self._request.record:
            check_recording_target(self._request.record)
        recording, folder = self._sample_recording(), None
        if recording:
            folder = self._host.folder((self._request.run_dir or runs_home(self._environment)) / "sample")
            self._request = with_sample_mounted(self._request, folder)
        source = self._request.replay or self._request.resume or "its beginning"
        _LOG.info("runbook %s from %s", self._request.runbook, source)
        with self._signals() as interrupts:
            with stoppable():
                opened = self._open_place()
            with closing(opened) as place:
                _LOG.info("steps run in %s", dict(place.in_words) or "this machine")
                if recording and folder:
                    sample = with_sample(self._request, recording, place.programs, folder)
                    self._request = sample.request
                    self._notice(sample.notice or "")
                self._place = self._places.here() if self._request.replay else place
                return self._finished(view, interrupts)

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
        if names_workload(self._request) or self._files.project():
            return None
        return bundled_recording(self._request.runbook)

    def _signals(self) -> AbstractContextManager[Interrupts]:
        return self._guarded or SignalInterrupts()

    # -- the run ----------------------------------------------------------------------------------------------------

    def _finished(self, view: RunView, interrupts: Interrupts) -> FinishedRun:
        """Begin or resume the run, execute it, and keep its report."""
        request = self._request
        with stoppable():
            order = self._begun(view)
        directory = order.directory
        directory.create()
        with directory.locked(order.head.host):
            if not request.resume:
                no_run_in(directory, request.runbook)  # another process may have begun one since
                directory.keep_runbooks(order.runbooks)
                directory.write_head(order.head)
            try:
                end = run_runbook(order, self._context(order, view, interrupts))
            except (HostNotAble, EngineFailed) as error:
                self._keep_so_far(order, error)
                self._notice(f"continue with: {_resume(order)}")
                raise
            report = self._report(order, end.progress, end)
            files = self._kept(order, report)
            if request.record and not end.unfinished:
                try:
                    with stoppable():
                        write_recording(directory.path, request.record, self._recording_head(order))
                except ToldToStop:
                    self._notice(f"{request.record} was not written: told to stop")
        return FinishedRun(
            directory=directory.path,
            report=report,
            files=files,
            status=self._status(end, report),
            resume=_resume(order) if end.unfinished and not order.head.recorded_on else None,
        )

    def _begun(self, view: RunView) -> RunOrder:
        """Return what is to be run, and say what has no effect in it; a replay's head says where it was recorded."""
        request, place = self._request, self._place
        order = begin(
            request,
            place,
            self._library,
            project=None if request.resume else self._files.project(),
            environment=self._environment,
            host=self._host,
            clock=self._clock,
            interactive=view.interactive and not request.batch,
        )
        if not request.resume and not request.at_once:
            for line in _stale(order.state.runbook, order.state.inputs, place):
                self._notice(line)
        order = replace(order, left_s=_left_s(place))
        if request.replay is None or request.resume:
            return order
        recording = read_recording(request.replay)  # it is not a crash of this user
        origin = ", ".join(filter(None, (recording.recorded_on, recording.recorded_at)))
        return replace(order, head=replace(order.head, recorded_on=origin, synthetic=recording.synthetic))

    def _context(self, order: RunOrder, view: RunView, interrupts: Interrupts) -> RunContext:
        return RunContext(
            placement=self._placement(order),
            builtins=self._builtins(order),
            worker=ForkedWorker(),
            person=view.person(interrupts),
            clock=self._clock,
            interrupts=interrupts,
            listener=view.listener(order.directory.path),
            notice=self._notice,
            waiting=view.waiting,
        )

    def _placement(self, order: RunOrder) -> StepPlacement:
        redactor = order.redactor
        if self._request.replay:
            return RecordedRanks(Replay(self._request.replay.absolute(), redactor))
        placement = self._place.placement(order.directory.path, order.sensitive, redactor.pseudonyms)
        if self._request.from_run:
            known = find_run(self._request.from_run, self._environment).path
            placement = AnsweredSteps(known, placement, redactor)
        return PseudonymousSteps(placement, redactor) if redactor.pseudonyms else placement

    def _builtins(self, order: RunOrder) -> BuiltinSteps:
        path = order.directory.path

        def report_so_far(at: StepContext, formats: Iterable[str]) -> tuple[str, ...]:
            return write_report(self._report(order, Progress(state=at.state, visits=at.visits)), path, formats)

        return BuiltinSteps(
            programs=self._place.reading(path),
            cores=self._cores,
            binaries=self._place.binaries,
            lines=PackedLines(open_stores((), os.environ, _remote_lines)),
            environment=self._place.environment,
            host=self._host,
            write_report=report_so_far,
            redact=order.redactor.text,
        )

    # -- what is kept of it -----------------------------------------------------------------------------------------

    def _keep_so_far(self, order: RunOrder, error: VdbgError) -> None:
        """Write the report of what was on record when an error ended the run."""
        with suppress(VdbgError, OSError):  # it may be the record that cannot be read or written
            events = list(read_events(order.directory.events))
            progress = replay(at_start(order.state), events, order.start_branch)
            finish = machine.cut_short(progress.state, error.what)[1]
            end = RunEnd(progress=progress, finish=finish, elapsed_s=events[-1].elapsed_s if events else 0.0)
            self._kept(order, self._report(order, progress, end))

    def _report(self, order: RunOrder, progress: Progress, end: RunEnd | None = None) -> Report:
        return run_report(
            order.head,
            redacted(progress, order.redactor),
            order.directory.path,
            cores=self._cores,
            sources=self._place.sources,
            redact=order.redactor.text,
            elapsed_s=end.elapsed_s if end else None,
            finish=end.finish if end else None,
        )

    def _kept(self, order: RunOrder, report: Report) -> tuple[str, ...]:
        """Write the report next to the record; a full disk costs the files, not the report and the exit status."""
        directory = order.directory
        try:
            directory.check_in_place()
            return write_report(report, directory.path, REPORT_FILES)
        except HostNotAble as moved:
            self._notice(f"no report could be kept: {moved.what}")
        except OSError as error:
            self._notice(f"no report could be kept in {directory.path}: {error.strerror or error}")
        return ()

    def _status(self, end: RunEnd, report: Report) -> int:
        if end.signal is not None:
            return 128 + end.signal
        if self._request.bisect:
            return bisect_status(report.verdict, handed_over=bool(end.progress.state.came_from))
        return report.exit_status

    def _recording_head(self, order: RunOrder) -> RecordingHead:
        head = order.head
        return RecordingHead(
            runbook=head.runbook,
            recorded_on=head.recorded_on or head.host,
            recorded_at=datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(timespec="seconds"),
            synthetic=head.synthetic,
        )


def _remote_lines(name: str) -> LineStore:
    from vdbg_env.lines.remote import open_remote

    return open_remote(name, os.environ)


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


def _resume(order: RunOrder) -> str:
    return f"vdbg-env runbook {order.head.runbook} --resume {order.directory.path}"
