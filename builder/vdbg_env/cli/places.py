"""The flags that say where a runbook's steps run: on this machine, in containers, or on ranks of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from vdbg_env.common import plug_ins
from vdbg_env.common.flags import Function, flag, given_options, options_of, refuse, with_options
from vdbg_env.engine import request as engine
from vdbg_env.image.settings import parse_size

if TYPE_CHECKING:
    from vdbg_env.run.begin import ContainerRequest
    from vdbg_env.run.placement import PlacementRequest, Scratch


class _Places(click.Choice[str]):
    """The places that `--on` names, and those of plug-ins; one of the past is refused with what took its place."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value not in self.choices:
            from vdbg_env.run.begin import IN_A_POD, NO_PODS

            if value == "k8s":
                self.fail(f"{NO_PODS}. Instead: {IN_A_POD}", param, ctx)
            if value in plug_ins.installed(plug_ins.PLACEMENTS):
                return value
        return super().convert(value, param, ctx)


@dataclass(frozen=True, kw_only=True)
class PlaceFlags(engine.ContainerFlags):
    """All flags that say where steps run. A name and published ports fit one container, and steps have one each."""

    nodes: int | None = flag(between=(1, 10000), help="Number of nodes, with --on slurm.")
    ranks: int | None = flag(
        between=(1, 10000),
        help="Number of ranks; each gets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.",
    )
    on: Literal["local", "docker", "slurm"] | None = flag(
        choice=_Places,
        help="Where steps run. [default: docker with --image, else local]",
    )
    memory: str | None = flag(metavar="SIZE", help="Memory limit of a container, such as 64g. [default: none]")
    slurm_arguments: tuple[str, ...] = flag(
        "--slurm-arg", default=(), metavar="ARG",
        help="Pass this argument to srun, and to salloc outside an allocation; repeatable.",
    )  # fmt: skip
    scratch: Path | None = flag(
        metavar="DIR",
        help="Folder on each node for dumps; they are moved to the run afterwards.",
    )
    scratch_limit: str = flag(
        default="16g", show_default=True, metavar="SIZE", help="Move at most this much from all ranks together."
    )
    submit: bool = flag(default=False, help="Queue the run as a job; with --plan, print the script.")
    submit_arguments: tuple[str, ...] = flag(
        "--submit-arg", default=(), metavar="ARG", help="Pass this argument to sbatch; repeatable."
    )
    setup: Path | None = flag(
        path={"exists": True, "dir_okay": False, "resolve_path": True},
        help="With --submit: shell file that the job sources first; it inherits no environment.",
    )


_HERE = ("nodes", "ranks", "on", "image")
_CONTAINER = (
    "mounts", "variables", "gpu", "dumps", "dump_quota", "user", "memory", "ipc", "shm_size", "capabilities", "seccomp",
    "stop_grace",
)  # fmt: skip
_JOB = ("submit_arguments", "setup")
_SLURM = ("slurm_arguments", "scratch", "scratch_limit", "submit", *_JOB)
SECTIONS = {
    "Where steps run": _HERE,
    "In containers (--image, --on docker)": _CONTAINER,
    "On Slurm (--on slurm)": _SLURM,
}
ALL = (*_HERE, *_CONTAINER, *_SLURM)
# Those that a command takes to pass them on; the others need the other command.
FEW = ("on", "image", "mounts", "variables", "gpu", "dumps")


def place_options(*names: str) -> Callable[[Function], Function]:
    """Give a command these of the flags that say where steps run."""
    declared = dict(zip((one.name for one in fields(PlaceFlags)), options_of(PlaceFlags), strict=True))
    return with_options(*(declared[name] for name in names))


def given_option(context: click.Context) -> str | None:
    """Return the first option of this kind that the user gave."""
    return next((option.opts[-1] for option in given_options(context, FEW)), None)


def container_request(context: click.Context, flags: PlaceFlags) -> ContainerRequest | None:
    """Turn the flags into a request for containers; None where steps run here.

    Raises BadInput for a wrong value, and a usage error for a flag of containers where none are requested.
    """
    from vdbg_env.run.begin import ContainerRequest

    on = flags.on or ("docker" if flags.image else "local")
    if on != "docker":
        refuse(context, ("image", *_CONTAINER), "steps in containers: add --on docker")
        return None
    run = engine.read_flags(flags)
    place = run.settings
    return ContainerRequest(
        run=replace(run, settings=replace(place, mounts=(), user=None, folder=None)),
        mounts=place.mounts,
        user=place.user,
        memory=parse_size(flags.memory, "--memory") if flags.memory else None,
        folder=place.folder,
    )


def placement_request(context: click.Context, flags: PlaceFlags) -> PlacementRequest | None:
    """Turn the flags into a request; None where a step has one rank here.

    Raises a usage error for a flag that has no effect there.
    """
    from vdbg_env.run.placement import PlacementRequest

    of_cluster = flags.on not in {None, "local", "docker"}
    if not of_cluster:
        refuse(context, _SLURM, "ranks of Slurm: add --on slurm")
    if not flags.submit:
        refuse(context, _JOB, "a job that is queued: add --submit")
    if not flags.scratch:
        refuse(context, {"scratch_limit"}, "the dumps of a node's own folder: add --scratch DIR")
    if of_cluster:
        return PlacementRequest(
            on=flags.on or "slurm",
            ranks=flags.ranks,
            nodes=flags.nodes,
            arguments=flags.slurm_arguments,
            scratch=_scratch(flags),
        )
    if flags.nodes:
        raise click.UsageError("--nodes is for ranks of a cluster: add --on slurm")
    if flags.on == "docker" and flags.ranks:
        raise click.UsageError("a step has one container: leave out --ranks, or --on docker")
    return PlacementRequest(ranks=flags.ranks) if flags.ranks else None


def _scratch(flags: PlaceFlags) -> Scratch | None:
    from vdbg_env.run.placement import Scratch

    if flags.scratch is None:
        return None
    if not flags.scratch.is_absolute():
        raise click.UsageError(f"--scratch {flags.scratch}: it is a folder of each node, so give its whole path")
    return Scratch(folder=str(flags.scratch), limit=parse_size(flags.scratch_limit, "--scratch-limit"))
