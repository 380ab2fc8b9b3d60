"""The flags that say on how many ranks and nodes a runbook's steps run, and what the launcher gets."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import click

from vdbg_env.cli.options.container import ContainerFlags
from vdbg_env.cli.options.given import refuse, with_options
from vdbg_env.image.settings import parse_size
from vdbg_env.run.placement import PlacementRequest, Scratch

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
