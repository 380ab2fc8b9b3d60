"""The flags of a run's place, from its record: a run that begins from it takes over those that are not given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource

from vdbg_env.cli.options.placement import PlaceFlags
from vdbg_env.common.errors import BadInput
from vdbg_env.image.settings import CAPABILITIES, RunSettings, StepContainer
from vdbg_env.record.run_directory import RunHead, part_of
from vdbg_env.run.begin import recorded_placement


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
