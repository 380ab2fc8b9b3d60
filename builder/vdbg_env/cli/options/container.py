"""The flags that say where a runbook's steps run: on this machine, or in containers, started as `run` starts one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import click

from vdbg_env.cli.options.given import Function, given_options, options_of, refuse, with_options
from vdbg_env.engine import request as engine
from vdbg_env.image.settings import parse_size

if TYPE_CHECKING:
    from vdbg_env.run.begin import ContainerRequest


class _Places(click.Choice[str]):
    """The places that `--on` names, and those of plug-ins; one of the past is refused with what took its place."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value not in self.choices:
            from vdbg_env.run.begin import IN_A_POD, NO_PODS
            from vdbg_env.run.places import other_plug_ins

            if value == "k8s":
                self.fail(f"{NO_PODS}. Instead: {IN_A_POD}", param, ctx)
            if value in other_plug_ins():
                return value
        return super().convert(value, param, ctx)


_NAMES = tuple(one.name for one in fields(engine.ContainerFlags))
_SHARED = dict(zip(_NAMES, options_of(engine.ContainerFlags), strict=True))
# Without a name and published ports: those fit one container, and steps have one each.
_OPTIONS = {
    "on": click.option(
        "--on",
        type=_Places(["local", "docker", "slurm"]),
        help="Where steps run: here, in containers (docker, if an image is named), or in a Slurm allocation.",
    ),
    "image": _SHARED["image"],
    "mounts": _SHARED["mounts"],
    **{name: _SHARED[name] for name in ("variables", "gpu", "dumps", "dump_quota")},
    "user": _SHARED["user"],
    "memory": click.option("--memory", metavar="SIZE", help="What a container may use, as in 64g; else no limit."),
    **{name: _SHARED[name] for name in ("ipc", "shm_size", "capabilities", "seccomp", "stop_grace")},
}
# Those that a command takes to pass them on; the others need the other command.
FEW = ("on", "image", "mounts", "variables", "gpu", "dumps")


# What those give that such a command does not take.
DEFAULTS_OF_OTHERS: dict[str, Any] = {
    "user": None, "memory": None, "dump_quota": None, "ipc": "private", "shm_size": None, "capabilities": (),
    "seccomp": "ptrace", "stop_grace": 300,
}  # fmt: skip


class ContainerFlags(TypedDict):
    """What the flags give."""

    on: str | None
    image: str | None
    gpu: str
    dumps: str
    dump_quota: str | None
    mounts: tuple[str, ...]
    user: str | None
    variables: tuple[str, ...]
    ipc: Literal["private", "host"]
    shm_size: str | None
    capabilities: tuple[str, ...]
    seccomp: Literal["ptrace", "default", "unconfined"]
    stop_grace: int
    memory: str | None


def container_options(*names: str) -> Callable[[Function], Function]:
    """Give a command the flags that say where steps run, or those of them that are named."""
    return with_options(*(_OPTIONS[name] for name in names or _OPTIONS))


def given_option(context: click.Context) -> str | None:
    """Return the first option of this kind that the user gave."""
    return next((option.opts[-1] for option in given_options(context, _OPTIONS)), None)


def container_request(context: click.Context, flags: ContainerFlags) -> ContainerRequest | None:
    """Turn the flags into a request for containers; None where steps run here.

    Raises BadInput for a wrong value, and a usage error for a flag of containers where none are requested.
    """
    from vdbg_env.run.begin import ContainerRequest

    on = flags["on"] or ("docker" if flags["image"] else "local")
    if on != "docker":
        refuse(context, _OPTIONS.keys() - {"on"}, "steps in containers: add --on docker")
        return None
    given = {name: value for name, value in flags.items() if name in _NAMES}
    run = engine.read_flags(engine.ContainerFlags(**given))  # type: ignore[arg-type]
    place = run.settings
    return ContainerRequest(
        run=replace(run, settings=replace(place, mounts=(), user=None, folder=None)),
        mounts=place.mounts,
        user=place.user,
        memory=parse_size(flags["memory"], "--memory") if flags["memory"] else None,
        folder=place.folder,
    )
