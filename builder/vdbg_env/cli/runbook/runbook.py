"""`vdbg-env runbook`: turn the flags into a request, then show its plan or run it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Unpack

import click

from vdbg_env.cli.composition.runs import runbook_library
from vdbg_env.cli.options.container import ContainerFlags, container_options, container_request
from vdbg_env.cli.options.duration import seconds
from vdbg_env.cli.options.given import Sectioned, named_values
from vdbg_env.cli.options.placement import PlaceFlags, PlacementFlags, placement_options, placement_request
from vdbg_env.cli.options.recorded_place import take_over
from vdbg_env.cli.runbook.runbook_run import run
from vdbg_env.common import console
from vdbg_env.common.console import note
from vdbg_env.image.settings import parse_size
from vdbg_env.record.run_directory import GUARD, RunDirectory
from vdbg_env.record.runs import LATEST, find_run
from vdbg_env.report.codec import document as doc
from vdbg_env.report.runbook import plan as shown_plan
from vdbg_env.run.begin import RunbookRequest
from vdbg_env.run.history import named_by_guard
from vdbg_env.run.places import plug_in
from vdbg_env.run.session import Session


def _names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [entry.name for entry in runbook_library().entries if entry.name.startswith(incomplete)]


_SECTIONS = {
    "Where steps run": {"on", "image", "nodes", "ranks"},
    "In containers (--image, --on docker)": ContainerFlags.__annotations__,
    "On Slurm (--on slurm)": PlacementFlags.__annotations__,
}


@click.command("runbook", cls=Sectioned, sections=_SECTIONS, context_settings={"ignore_unknown_options": False})
@click.argument("name", required=False, metavar="NAME", shell_complete=_names)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "-f", "--file", "files", multiple=True, type=click.Path(path_type=Path), help="A runbook file to look in first."
)
@click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    callback=named_values,
    metavar="NAME=VALUE",
    help="An input of the runbook, as `vdbg-env runbooks show NAME` lists them; repeatable.",
)
@click.option("--run-dir", type=click.Path(path_type=Path), help="The folder of this run's record.")
@click.option("--record", type=click.Path(path_type=Path), help="Also write a recording that can be replayed.")
@click.option(
    "--replay",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Run nothing: take what each step gave from a recording.",
)
@click.option(
    "--resume", metavar="RUN", help="Continue a run that was cut short, or `latest`; it knows NAME and COMMAND."
)
@click.option(
    "--from",
    "from_run",
    metavar="RUN",
    help="Do not run again what this run has seen; NAME, COMMAND, --on, --image ... are that run's unless given.",
)
@click.option(
    "--total-time",
    "total_s",
    callback=seconds,
    metavar="DURATION",
    help="End the whole run after this time (status 124).",
)
@click.option(
    "--disk-floor",
    metavar="SIZE",
    help="Start no step below this much free space, and end one that runs (1g if not given).",
)
@click.option("--batch", is_flag=True, help="Ask no questions: each takes its default at once.")
@click.option("--bisect", is_flag=True, help="Exit as `git bisect run` expects: 1 reproduced, 0 not, 125 unclear.")
@click.option(
    "--plan", "plan_only", is_flag=True, help="Show each step's final command line and variables; start nothing."
)
@click.option(
    "--pseudonyms", is_flag=True, help="Replace host names and addresses by pseudonyms, the same in all your runs."
)
@click.option("--json", "as_document", is_flag=True, help="Print the report (or the plan) as JSON on stdout.")
@placement_options
@container_options()
@click.pass_context
def command(
    context: click.Context,
    name: str | None,
    argv: tuple[str, ...],
    files: tuple[Path, ...],
    inputs: dict[str, str],
    run_dir: Path | None,
    record: Path | None,
    replay: Path | None,
    resume: str | None,
    from_run: str | None,
    total_s: float | None,
    disk_floor: str | None,
    batch: bool,
    bisect: bool,
    plan_only: bool,
    pseudonyms: bool,
    as_document: bool,
    **place: Unpack[PlaceFlags],
) -> int:
    """Trace a failure step by step, from the workload as given to kernel, source line and report.

    Steps run on this machine, or, with --image or --on docker, each in a container of an image with Python 3.11 or
    later; the record stays here. Without COMMAND the workload of ./vdbg.yaml is taken, and without that the
    bundled sample, replayed where no GPU responds.

    \b
    Example:
      vdbg-env runbook illegal-memory-access -- vllm serve MODEL
      vdbg-env runbook illegal-memory-access --image vdbg/vllm-cu130:lineinfo -- vllm serve MODEL
      vdbg-env runbook illegal-memory-access --plan -- python offline.py
      git bisect run vdbg-env runbook illegal-memory-access --bisect --batch -- ./repro.sh

    Exit status: 0 nothing found, 3 an error found, 4 warnings only, 124 out of time, 125 inconclusive. With --bisect
    1, 0 and 125, and 128 where vdbg-env itself failed, so git stops.
    """
    if record and replay:
        raise click.UsageError("--record and --replay exclude one another")
    if from_run and (replay or resume):
        raise click.UsageError("--from begins a run: it excludes --replay and --resume")
    if pseudonyms and replay:
        raise click.UsageError("a recording is replayed as it is: give --pseudonyms when it is made")
    if name is None and resume is None and from_run is None:
        raise click.UsageError("Missing argument 'NAME': vdbg-env runbooks list")
    if from_run:
        known = find_run(from_run, os.environ)
        name = name or _runbook_of(known)
        from_run = known.path.name if from_run == LATEST else from_run  # this run is soon the latest one
        place = take_over(context, known.read_head(), place)
    if resume and place["on"] is None and find_run(resume, os.environ).read_head().placement.get("on") == "slurm":
        place = {**place, "on": "slurm"}
    request = RunbookRequest(
        runbook=name or find_run(resume or "", os.environ).read_head().runbook,
        files=files,
        argv=argv,
        inputs=inputs,
        run_dir=run_dir,
        record=record,
        replay=replay,
        resume=resume,
        from_run=from_run,
        typed_in=os.getcwd() if from_run else "",  # noqa: PTH109 - as the shell names it
        total_s=total_s,
        disk_floor=parse_size(disk_floor, "--disk-floor") if disk_floor else None,
        batch=batch,
        bisect=bisect,
        json=as_document,
        container=container_request(context, place),
        placement=placement_request(context, place),
        pseudonyms=pseudonyms,
    )
    if replay and request.container:
        raise click.UsageError("--replay runs nothing, so there is no --image to run it in")
    if replay and request.placement:
        raise click.UsageError("--replay has the ranks of its recording: leave out --on, --nodes and --ranks")
    if place["submit"]:
        return _submit(request, place, show_only=plan_only)
    if plan_only:
        return _show_plan(request)
    on = request.placement.on if request.placement and not request.replay else "local"
    if context.obj and on != "local" and (far := plug_in(on)).needs_allocation(os.environ):
        return far.allocate(request, context.obj, note)
    return run(request)


def _submit(request: RunbookRequest, place: PlaceFlags, *, show_only: bool) -> int:
    if request.resume or request.replay or request.record or request.bisect:
        raise click.UsageError("--submit queues a new run: leave out --resume, --replay, --record and --bisect")
    on = request.placement.on if request.placement else "local"
    setup, arguments = str(place["setup"] or ""), place["submit_arguments"]
    text = plug_in(on).queue(request, setup=setup, arguments=arguments, show_only=show_only, say=note)
    click.echo(text, nl=False)
    return 0


def _runbook_of(run: RunDirectory) -> str:
    """Return the runbook to run from a run: the one that its report leads to where it is a guard's, else its own."""
    runbook = run.read_head().runbook
    named = named_by_guard(run) if runbook == GUARD else runbook
    if named is None:
        raise click.UsageError(f"{run.path.name} is a guard's run, which names no runbook: vdbg-env runbooks list")
    return named


def _show_plan(request: RunbookRequest) -> int:
    plan = Session(request, note).plan()
    console.show(doc.render(plan, shown_plan.PlanDocument) if request.json else shown_plan.as_text(plan))
    return 0
