"""The flags that say where a runbook's steps run: on this machine, in containers, or on ranks of a cluster.

Below 150 lines: `triage` has some of them, and loads nothing that runs a runbook before it starts one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from vdbg_env.common import plug_ins
from vdbg_env.common.flags import Choice, flag
from vdbg_env.engine.request import ContainerFlags


class _Places(Choice):
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
class PlaceFlags(ContainerFlags):
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
CONTAINER = (
    "mounts", "variables", "gpu", "dumps", "dump_quota", "user", "memory", "ipc", "shm_size", "capabilities", "seccomp",
    "stop_grace",
)  # fmt: skip
JOB = ("submit_arguments", "setup")
SLURM = ("slurm_arguments", "scratch", "scratch_limit", "submit", *JOB)
SECTIONS = {
    "Where steps run": _HERE,
    "In containers (--image, --on docker)": CONTAINER,
    "On Slurm (--on slurm)": SLURM,
}
ALL = (*_HERE, *CONTAINER, *SLURM)
# Those that a command takes to pass them on; the others need the other command.
FEW = ("on", "image", "mounts", "variables", "gpu", "dumps")
