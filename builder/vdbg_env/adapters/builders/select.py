"""Chooses what builds: buildx, the engine's own BuildKit, the classic builder when asked for, or this bare machine."""

from __future__ import annotations

from collections.abc import Callable

from vdbg_env.adapters.builders.buildkit import BuildKitEngine
from vdbg_env.adapters.builders.buildx import Buildx, BuildxEngine, find_buildx
from vdbg_env.adapters.builders.classic import ClassicEngine
from vdbg_env.adapters.builders.host import HostEngine
from vdbg_env.adapters.docker.client import Engine, connect
from vdbg_env.application.ports import EngineName, ImageEngine
from vdbg_env.common.errors import HostNotAble


def choose_engine(
    wanted: EngineName,
    *,
    connect: Callable[[], Engine] = connect,
    find_buildx: Callable[[], Buildx | None] = find_buildx,
) -> ImageEngine:
    """Return the engine to build with; its description says why it was taken.

    `auto` takes the best Docker has and falls back to `host` when no Docker engine answers; every other choice is
    taken at its word. Raises HostNotAble when the choice is not to be had here.
    """
    if wanted == "host":
        return HostEngine(why="asked for with --engine host")
    try:
        engine = connect()
    except HostNotAble as error:
        if wanted != "auto":
            raise
        return HostEngine(why=f"{error.what}, so the plan runs on this machine without a container")
    if wanted == "classic":
        return ClassicEngine(engine, why="asked for with --engine classic")
    return _best(engine, wanted, find_buildx)


def _best(engine: Engine, wanted: EngineName, find_buildx: Callable[[], Buildx | None]) -> ImageEngine:
    buildx = None if wanted == "buildkit" else find_buildx()
    if buildx is not None:
        return BuildxEngine(engine, buildx, why="the docker-buildx plugin is installed")
    if wanted == "buildx":
        raise HostNotAble(
            "docker-buildx is not installed",
            cause="distributions package it apart from the engine",
            next_step="apt-get install docker-buildx (Debian 13, Ubuntu) or docker-buildx-plugin; or --engine docker",
        )
    if engine.has_buildkit():
        why = "asked for with --engine buildkit" if wanted == "buildkit" else "docker-buildx is not installed"
        return BuildKitEngine(engine, why=f"{why}; the engine's own BuildKit builds, without secrets")
    raise HostNotAble(
        f"Docker {engine.version} has no BuildKit",
        cause="it is older than 18.09",
        next_step="install Docker Engine 20.10 or newer, or take --engine classic",
    )
