"""`vdbg-env runbook`: trace a failure step by step, to kernel, source line and report."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from vdbg_env.cli.places import ALL, SECTIONS, PlaceFlags, container_request, place_options, placement_request
from vdbg_env.cli.run_display import AtTerminal, Nobody, RunProgress
from vdbg_env.common import console
from vdbg_env.common.console import json_text, note, shows_colour
from vdbg_env.common.errors import BadInput
from vdbg_env.common.flags import Sectioned, takes
from vdbg_env.image.settings import CAPABILITIES, RunSettings, StepContainer
from vdbg_env.record.run_directory import GUARD, RunDirectory, RunHead, part_of
from vdbg_env.record.runs import LATEST, find_run
from vdbg_env.report import as_terminal, model, runbooks
from vdbg_env.report.assemble import typed_outside
from vdbg_env.run.begin import RunbookRequest, recorded_placement
from vdbg_env.run.builtins import runbook_library
from vdbg_env.run.history import named_by_guard
from vdbg_env.run.places import plug_in
from vdbg_env.run.session import RunView, Session


def run(request: RunbookRequest) -> int:
    """Run the request to its end, print the report, and return the exit status of its verdict."""
    interactive = not request.batch and sys.stdin.isatty() and sys.stderr.isatty()
    shown = RunProgress()
    view = RunView(
        interactive=interactive,
        listener=shown.of_run,
        waiting=shown.waits,
        person=lambda interrupts: AtTerminal(lambda: bool(interrupts.pending())) if interactive else Nobody(),
    )
    kept = find_run(request.resume, os.environ).runbooks if request.resume else ()
    done = Session(replace(request, files=(*kept, *request.files)), shown.notice).run(view)
    if request.json:
        click.echo(model.report_json(done.report), nl=False)
    else:
        colour = shows_colour(sys.stdout)
        width = min(shutil.get_terminal_size((100, 40)).columns, 120)
        report = typed_outside(done.report, str(done.directory))
        click.echo(as_terminal.render(report, colour=colour, width=width), nl=False)
    if done.files:
        note(f"kept in {done.directory}: {', '.join(done.files)}")
    if done.resume:
        note(f"continue with: {done.resume}")
    return done.status


# The flags of a run's place, from its record: a run that begins from it takes over those that are not given.


def take_over(context: click.Context, head: RunHead, place: PlaceFlags) -> PlaceFlags:
    """Return the flags with those of a run's place that were not given, which count as given from now on.

    Nothing is taken over where another place is named. Raises BadInput where the record keeps no value of a variable,
    and where the ranks were pods and no place is named.
    """
    if head.in_pods and (place.on or place.image):
        return place
    recorded = _recorded(head)
    on = place.on or ("docker" if place.image and recorded["on"] in {"local", "slurm"} else recorded["on"])
    if on != recorded["on"]:
        return place
    variables = dict(recorded.pop("variables", ()))
    taken = {
        name: value
        for name, value in recorded.items()
        if value not in (None, ()) and context.get_parameter_source(name) is ParameterSource.DEFAULT
    }
    if variables:
        taken["variables"] = (*_variables(head, variables, place.variables), *place.variables)
    for name in taken:
        context.set_parameter_source(name, ParameterSource.DEFAULT_MAP)
    return replace(place, **taken)


def _variables(head: RunHead, recorded: Mapping[str, str], given: tuple[str, ...]) -> tuple[str, ...]:
    again = {text.partition("=")[0] for text in given}
    kept = {name: value for name, value in recorded.items() if name not in again}
    for name, value in kept.items():
        if "[redacted" in value or value == "[not kept]":
            raise BadInput(
                f"the record of run {head.run!r} holds no secrets, and its variable {name} had one",
                next_step=f"give it again, from your own environment: --env {name}",
            )
    return tuple(f"{name}={value}" for name, value in kept.items())


def _recorded(head: RunHead) -> dict[str, Any]:
    """Return the flags that a run's place would be named by; its image by the permanent id."""
    if head.container:
        container = part_of(head, "container", StepContainer)
        return {
            "on": "docker",
            **_of_settings(container.settings),
            "image": str(head.image.get("id", "")),
            "mounts": tuple(f"{m.source}:{m.target}:{'ro' if m.read_only else 'rw'}" for m in container.mounts),
            "dumps": container.settings.dumps.source if container.settings.dumps else "none",
            "user": container.user,
            "memory": _size(container.memory),
            "stop_grace": container.settings.stop_grace_s,
        }
    placement = recorded_placement(head)
    if placement is None:
        return {"on": "local"}
    return {
        "on": placement.on,
        "ranks": placement.ranks,
        "nodes": placement.nodes,
        "slurm_arguments": placement.arguments,
        **({"scratch": Path(placement.scratch.folder), "scratch_limit": _size(placement.scratch.limit)}
           if placement.scratch else {}),
    }  # fmt: skip


def _of_settings(settings: RunSettings) -> dict[str, Any]:
    gpu = settings.gpu
    return {
        "variables": settings.env,
        "gpu": f"{gpu.by}:{','.join(gpu.devices)}" if gpu.devices else gpu.by,
        "ipc": settings.ipc,
        "shm_size": _size(settings.shm_bytes),
        "capabilities": tuple(name for name in settings.capabilities if name not in CAPABILITIES),
        "seccomp": settings.seccomp,
    }


def _size(bytes_: int | None) -> str | None:
    return None if bytes_ is None else f"{bytes_}b"


# `vdbg-env runbook`: turn the flags into a request, then show its plan or run it.


def _names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [entry.name for entry in runbook_library().entries if entry.name.startswith(incomplete)]


# What `--help` lists; `--help-all` has the rest.
_EVERYDAY = {"inputs", "plan", "resume", "from_run", "batch", "json", "on", "image", "nodes", "ranks"}


@click.command("runbook", cls=Sectioned, sections=SECTIONS, everyday=_EVERYDAY)
@click.argument("name", required=False, metavar="NAME", shell_complete=_names)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@takes(request=RunbookRequest)
@place_options(*ALL)
@click.pass_context
def runbook_command(
    context: click.Context, /, name: str | None, argv: tuple[str, ...], request: RunbookRequest, **flags: Any
) -> int:
    """Trace a failure step by step, from the workload as given to kernel, source line and report.

    Steps run here, each in a container of IMAGE, or on Slurm; the record stays here. Without COMMAND the workload of
    ./vdbg.yaml is taken, and without that the bundled sample, replayed where no GPU responds.

    \b
    Example:
      vdbg-env runbook illegal-memory-access -- vllm serve MODEL
      vdbg-env runbook illegal-memory-access --image IMAGE -- vllm serve MODEL
      vdbg-env runbook illegal-memory-access --plan -- python offline.py
      git bisect run vdbg-env runbook host-crash --bisect --batch -- ./repro.sh

    Exit status: 0 nothing found, 3 an error found, 4 warnings only, 124 out of time, 125 inconclusive. With --bisect
    1, 0 and 125, as git expects.
    """
    place, resume, replay = PlaceFlags(**flags), request.resume, request.replay
    if request.record and replay:
        raise click.UsageError("--record and --replay exclude one another")
    if request.from_run and (replay or resume):
        raise click.UsageError("--from begins a run: it excludes --replay and --resume")
    if request.pseudonyms and replay:
        raise click.UsageError("a recording is replayed as it is: give --pseudonyms when it is made")
    if name is None and resume is None and request.from_run is None:
        raise click.UsageError("Missing argument 'NAME': vdbg-env runbooks list")
    if request.from_run:
        known = find_run(request.from_run, os.environ)
        name = name or _runbook_of(known)
        here = os.getcwd()  # noqa: PTH109 - as the shell names it
        request = replace(request, typed_in=here)
        if request.from_run == LATEST:  # this run is soon the latest one
            request = replace(request, from_run=known.path.name)
        place = take_over(context, known.read_head(), place)
    if resume and place.on is None and find_run(resume, os.environ).read_head().placement.get("on") == "slurm":
        place = replace(place, on="slurm")
    request = replace(
        request,
        runbook=name or find_run(resume or "", os.environ).read_head().runbook,
        argv=argv,
        container=container_request(context, place),
        placement=placement_request(context, place),
    )
    if replay and request.container:
        raise click.UsageError("--replay runs nothing, so there is no --image to run it in")
    if replay and request.placement:
        raise click.UsageError("--replay has the ranks of its recording: leave out --on, --nodes and --ranks")
    if place.submit:
        return _submit(request, place)
    if request.plan:
        return _show_plan(request)
    on = request.placement.on if request.placement and not replay else "local"
    if context.obj and on != "local" and (far := plug_in(on)).needs_allocation(os.environ):
        return far.allocate(request, context.obj, note)
    return run(request)


def _submit(request: RunbookRequest, place: PlaceFlags) -> int:
    if request.resume or request.replay or request.record or request.bisect:
        raise click.UsageError("--submit queues a new run: leave out --resume, --replay, --record and --bisect")
    on = request.placement.on if request.placement else "local"
    text = plug_in(on).queue(
        request, setup=str(place.setup or ""), arguments=place.submit_arguments, show_only=request.plan, say=note
    )
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
    console.show(json_text(runbooks.plan_json(plan)) if request.json else runbooks.as_text(plan))
    return 0
