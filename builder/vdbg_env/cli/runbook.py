"""`vdbg-env runbook`: trace a failure step by step, to kernel, source line and report."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

import click
from click.core import ParameterSource

from vdbg_env.cli.composition.runs import runbook_library
from vdbg_env.cli.display.prompt import AtTerminal, Nobody
from vdbg_env.cli.display.run_progress import RunProgress
from vdbg_env.cli.options.container import ContainerFlags, container_options, container_request
from vdbg_env.cli.options.duration import seconds
from vdbg_env.cli.options.given import Sectioned, named_values, refuse, with_options
from vdbg_env.common import console
from vdbg_env.common.console import note, shows_colour
from vdbg_env.common.errors import BadInput
from vdbg_env.image.settings import CAPABILITIES, RunSettings, StepContainer, parse_size
from vdbg_env.record.run_directory import GUARD, RunDirectory, RunHead, part_of
from vdbg_env.record.runs import LATEST, find_run
from vdbg_env.report import as_json, as_terminal, runbooks
from vdbg_env.report.assemble import typed_outside
from vdbg_env.report.codec import document as doc
from vdbg_env.run.begin import RunbookRequest, recorded_placement
from vdbg_env.run.history import named_by_guard
from vdbg_env.run.placement import PlacementRequest, Scratch
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
        click.echo(as_json.render(done.report), nl=False)
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


# The flags that say on how many ranks and nodes a runbook's steps run, and what the launcher gets.


placement_options = with_options(
    click.option("--nodes", type=click.IntRange(1, 10000), help="With --on slurm: how many nodes."),
    click.option(
        "--ranks", type=click.IntRange(1, 10000),
        help="How many ranks each step starts, with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set.",
    ),
    click.option(
        "--slurm-arg", "slurm_arguments", multiple=True, metavar="ARG",
        help="An argument for srun, and for salloc outside an allocation, passed on as it is; repeatable.",
    ),
    click.option(
        "--scratch", type=click.Path(path_type=Path), metavar="DIR",
        help="With --on slurm: ranks write dumps to this folder of their node, and they are moved to the run's.",
    ),
    click.option(
        "--scratch-limit", default="16g", show_default=True, metavar="SIZE",
        help="With --scratch: what all ranks together move at most.",
    ),
    click.option("--submit", is_flag=True, help="With --on slurm: queue the run as a job; with --plan, print it."),
    click.option(
        "--submit-arg", "submit_arguments", multiple=True, metavar="ARG",
        help="An argument for sbatch, passed on as it is; repeatable.",
    ),
    click.option(
        "--setup", type=click.Path(path_type=Path, exists=True, dir_okay=False, resolve_path=True),
        help="With --submit: a shell file for the job's environment, as it inherits none.",
    ),
)  # fmt: skip

_OF_A_JOB = {"submit_arguments", "setup"}
_OF_SLURM = {"slurm_arguments", "scratch", "scratch_limit", "submit", *_OF_A_JOB}


class PlacementFlags(TypedDict):
    """What the flags give."""

    nodes: int | None
    ranks: int | None
    slurm_arguments: tuple[str, ...]
    scratch: Path | None
    scratch_limit: str
    submit: bool
    submit_arguments: tuple[str, ...]
    setup: Path | None


class PlaceFlags(ContainerFlags, PlacementFlags):
    """All flags that say where steps run."""


def placement_request(context: click.Context, flags: PlaceFlags) -> PlacementRequest | None:
    """Turn the flags into a request; None where a step has one rank here.

    Raises a usage error for a flag that has no effect there.
    """
    on = flags["on"]
    if on in {None, "local", "docker"}:
        refuse(context, _OF_SLURM, "ranks of Slurm: add --on slurm")
    if not flags["submit"]:
        refuse(context, _OF_A_JOB, "a job that is queued: add --submit")
    if not flags["scratch"]:
        refuse(context, {"scratch_limit"}, "the dumps of a node's own folder: add --scratch DIR")
    if on not in {None, "local", "docker"}:
        return PlacementRequest(
            on=on or "slurm",
            ranks=flags["ranks"],
            nodes=flags["nodes"],
            arguments=flags["slurm_arguments"],
            scratch=_scratch(flags),
        )
    if flags["nodes"]:
        raise click.UsageError("--nodes is for ranks of a cluster: add --on slurm")
    if on == "docker" and flags["ranks"]:
        raise click.UsageError("a step has one container: leave out --ranks, or --on docker")
    return PlacementRequest(ranks=flags["ranks"]) if flags["ranks"] else None


def _scratch(flags: PlacementFlags) -> Scratch | None:
    folder = flags["scratch"]
    if folder is None:
        return None
    if not folder.is_absolute():
        raise click.UsageError(f"--scratch {folder}: it is a folder of each node, so give its whole path")
    return Scratch(folder=str(folder), limit=parse_size(flags["scratch_limit"], "--scratch-limit"))


# The flags of a run's place, from its record: a run that begins from it takes over those that are not given.


def take_over(context: click.Context, head: RunHead, place: PlaceFlags) -> PlaceFlags:
    """Return the flags with those of a run's place that were not given, which count as given from now on.

    Nothing is taken over where another place is named. Raises BadInput where the record keeps no value of a variable,
    and where the ranks were pods and no place is named.
    """
    if head.in_pods and (place["on"] or place["image"]):
        return place
    recorded = _recorded(head)
    on = place["on"] or ("docker" if place["image"] and recorded["on"] in {"local", "slurm"} else recorded["on"])
    if on != recorded["on"]:
        return place
    variables = dict(recorded.pop("variables", ()))
    taken = {
        name: value
        for name, value in recorded.items()
        if value not in (None, ()) and context.get_parameter_source(name) is ParameterSource.DEFAULT
    }
    if variables:
        taken["variables"] = (*_variables(head, variables, place["variables"]), *place["variables"])
    for name in taken:
        context.set_parameter_source(name, ParameterSource.DEFAULT_MAP)
    return cast(PlaceFlags, {**place, **taken})


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
def runbook_command(
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
    console.show(doc.render(plan, runbooks.PlanDocument) if request.json else runbooks.as_text(plan))
    return 0
