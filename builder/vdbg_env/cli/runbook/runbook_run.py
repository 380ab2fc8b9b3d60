"""Begins or resumes a run for `vdbg-env runbook`, shows how it gets on, and writes its report."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from vdbg_env.application.builtins.registry import BuiltinSteps
from vdbg_env.application.knowledge.installed_packages import installed_vllm
from vdbg_env.application.knowledge.stale_settings import Settings, told_before_start
from vdbg_env.application.ports import StepRunner
from vdbg_env.application.run.begin import Begun, begin, find_run, runs_home
from vdbg_env.application.run.execute import RunContext, RunEnd, StepContext, redacted, run_runbook
from vdbg_env.application.run.library import RunbookLibrary
from vdbg_env.application.run.request import RunbookRequest
from vdbg_env.application.run.result.model import Report
from vdbg_env.application.run.result.next_steps import typed_outside
from vdbg_env.application.run.result.run_report import run_report
from vdbg_env.application.run.sample import with_bundled_sample, with_sample_in_sight
from vdbg_env.application.run.target import StepPlace, resumed_container
from vdbg_env.cli import composition
from vdbg_env.cli.display.prompt import AtTerminal, Nobody
from vdbg_env.cli.display.run_progress import RunProgress
from vdbg_env.common.console import note
from vdbg_env.common.errors import EngineFailed, HostNotAble
from vdbg_env.record.progress import Progress
from vdbg_env.record.run_directory import RunDirectory
from vdbg_env.report.run import as_json as run_json
from vdbg_env.report.run import as_terminal as run_terminal
from vdbg_env.report.run.files import write_report
from vdbg_env.runbook.model import Runbook
from vdbg_env.runbook.verdict import bisect_status
from vdbg_env.runbook.workload.inputs import Inputs


def run(request: RunbookRequest) -> int:
    """Run the request to its end, write the report beside the record, and return the exit status of its verdict."""
    if request.record:
        composition.check_recording_place(request.record)
    library = RunbookLibrary(request.files)
    sample = runs_home(os.environ) / "sample"
    request = with_sample_in_sight(request, sample)
    with closing(_place(request, library)) as place:
        bundled = with_bundled_sample(request, place.programs, sample)
        if bundled.said:
            note(bundled.said)
        where = composition.local_place(os.environ) if bundled.request.replay else place
        return _run_in(where, bundled.request, library)


def _run_in(place: StepPlace, request: RunbookRequest, library: RunbookLibrary) -> int:
    """Begin or resume the run, with its steps in a place, and stay until its end is told."""
    interactive = not request.batch and sys.stdin.isatty() and sys.stderr.isatty()
    begun = _with_provenance(request, begin(request, library, os.environ, place, interactive=interactive))
    if not request.resume:
        tell_stale(begun.runbook, begun.order.state.inputs, place)
    begun.order.directory.create()
    with begun.order.directory.locked(begun.order.head.host), composition.interrupts() as interrupts:
        if not request.resume:
            begun.order.directory.write_head(begun.order.head)
        context = RunContext(
            runner=_runner(request, begun, place),
            builtins=_builtins(begun, place),
            worker=composition.isolated_worker(),
            person=AtTerminal(lambda: bool(interrupts.pending())) if interactive else Nobody(),
            clock=composition.clock(),
            interrupts=interrupts,
            redactor=begun.redactor,
            listener=RunProgress(begun.order.directory.path),
            notice=note,
        )
        try:
            end = run_runbook(begun.order, context)
        except (HostNotAble, EngineFailed):
            note(_going_on(begun))
            raise
        report = _report(begun, place, end.progress, end)
        files = _kept(report, begun.order.directory)
        if request.record and end.signal is None:
            composition.write_recording(begun, request.record, datetime.now(UTC))
    return _told(request, begun, end, report, files)


def _place(request: RunbookRequest, library: RunbookLibrary) -> StepPlace:
    """Return where the run's steps are started; a run that is resumed goes on where it was begun."""
    if request.resume:
        head = find_run(request.resume, os.environ).read_head()
        recorded = resumed_container(head, request.container)
        name = str(head.image.get("name"))
        return (
            composition.container_place(recorded, name=name, tell=note)
            if recorded
            else composition.local_place(os.environ)
        )
    if request.container is None:
        return composition.local_place(os.environ)
    library.load(request.runbook)  # so that no container is started for a runbook that cannot be run
    return composition.container_place(composition.step_container(request.container, note), name=None, tell=note)


def _runner(request: RunbookRequest, begun: Begun, place: StepPlace) -> StepRunner:
    if request.replay:
        return composition.replay(request.replay)
    names = begun.redactor.pseudonyms
    runner = place.runner(begun.order.directory.path, begun.sensitive, names)
    return composition.with_stand_ins(runner, begun.redactor) if names else runner


def tell_stale(runbook: Runbook, inputs: Inputs, place: StepPlace) -> None:
    """Say what the command, the environment or the runbook sets to no use, before any time is spent on it."""
    words = inputs.workload.argv
    given = Settings(argv=words, environment=place.environment)
    release = lambda: installed_vllm(place.programs, words, here=place.image is None)  # noqa: E731 - asked where it counts
    for line in told_before_start(runbook, given, release):
        note(f"stale: {line}")


def _kept(report: Report, directory: RunDirectory) -> tuple[str, ...]:
    """Write the report beside the record; where that fails (a full disk, a folder the workload removed) say so, since
    the report is still to be printed and the verdict still the exit status."""
    try:
        directory.check_in_place()
        return write_report(report, directory.path)
    except HostNotAble as moved:
        note(f"no report could be kept: {moved.what}")
    except OSError as error:
        note(f"no report could be kept in {directory.path}: {error.strerror or error}")
    return ()


def _told(request: RunbookRequest, begun: Begun, end: RunEnd, report: Report, files: tuple[str, ...]) -> int:
    """Print the report, say where everything lies, and return the exit status."""
    path = begun.order.directory.path
    if request.json:
        click.echo(run_json.render(report), nl=False)
    else:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        width = min(shutil.get_terminal_size((100, 40)).columns, 120)
        click.echo(run_terminal.render(typed_outside(report, str(path)), colour=colour, width=width), nl=False)
    if files:
        note(f"kept in {path}: {', '.join(files)}")
    if end.signal is not None:
        note(_going_on(begun))
        return 128 + end.signal
    if request.bisect:
        return bisect_status(report.verdict, handed_over=bool(end.progress.state.came_from))
    return report.exit_status


def _going_on(begun: Begun) -> str:
    return f"go on with: vdbg-env runbook {begun.order.head.runbook} --resume {begun.order.directory.path}"


def _builtins(begun: Begun, place: StepPlace) -> BuiltinSteps:
    def write_so_far(at: StepContext, formats: Iterable[str]) -> tuple[str, ...]:
        report = _report(begun, place, Progress(state=at.state, visits=at.visits))
        return write_report(report, begun.order.directory.path, formats)

    return BuiltinSteps(
        programs=place.reading(begun.order.directory.path),
        cores=composition.core_files(),
        binaries=place.binaries,
        environment=place.environment,
        write_report=write_so_far,
        redact=begun.redactor.text,
    )


def _report(begun: Begun, place: StepPlace, walk: Progress, end: RunEnd | None = None) -> Report:
    return run_report(
        begun.order.head,
        redacted(walk, begun.redactor),
        begun.order.directory.path,
        cores=composition.core_files(),
        sources=place.sources,
        redact=begun.redactor.text,
        elapsed_s=end.elapsed_s if end else None,
        finish=end.finish if end else None,
    )


def _with_provenance(request: RunbookRequest, begun: Begun) -> Begun:
    """Put into a replayed run's head where its recording was made, so that nobody takes it for a crash of their own."""
    if request.replay is None or request.resume:
        return begun
    recording = composition.read_recording(Path(request.replay))
    origin = f"{recording.recorded_on} {recording.recorded_at}".strip()
    head = replace(begun.order.head, recorded_on=origin, synthetic=recording.synthetic)
    return replace(begun, order=replace(begun.order, head=head))
