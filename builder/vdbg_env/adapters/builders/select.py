"""Choose what builds: buildx, the engine's BuildKit, or on request the classic builder or this bare machine."""

from __future__ import annotations

from collections.abc import Callable

from vdbg_env.adapters.builders.buildkit import BuildKitBuilder
from vdbg_env.adapters.builders.buildx import Buildx, BuildxBuilder, find_buildx
from vdbg_env.adapters.builders.classic import ClassicBuilder
from vdbg_env.adapters.builders.host import HostBuilder
from vdbg_env.adapters.builders.podman import PodmanBuilder, find_podman
from vdbg_env.adapters.docker.client import Engine, connect
from vdbg_env.application.ports.images import BuilderName, ImageBuilder
from vdbg_env.common.errors import EngineFailed, HostNotAble


def choose_builder(
    wanted: BuilderName,
    *,
    connect: Callable[[], Engine] = connect,
    find_buildx: Callable[[], Buildx | None] = find_buildx,
    find_podman: Callable[[], str | None] = find_podman,
) -> ImageBuilder:
    """Return the builder; its description says why it was chosen.

    `auto` takes the best that Docker has; every other choice is taken as is, and `host` only by its name: a folder of
    this machine is no image. Raises HostNotAble and EngineFailed when the choice is not available here.
    """
    if wanted == "host":
        return HostBuilder(why="requested by --engine host")
    try:
        engine = connect()
    except (HostNotAble, EngineFailed) as error:
        if error.next_step and "--engine host" in error.next_step:
            raise
        further = (error.next_step, "--engine host builds in a folder of this machine, without a container")
        error.next_step = "; or ".join(filter(None, further))
        raise
    if wanted == "classic":
        return ClassicBuilder(engine, why="requested by --engine classic")
    if engine.is_podman and wanted in {"auto", "docker"}:
        return _with_podman(engine, find_podman())
    return _best(engine, wanted, find_buildx)


def _with_podman(engine: Engine, program: str | None) -> ImageBuilder:
    here = engine.endpoint.host.startswith("unix://")
    if program is None or not here:
        raise HostNotAble(
            f"Podman {engine.version} is at {engine.endpoint.host}, and a build over its socket may hang at a COPY",
            cause="its service, unlike its command, does not always end the process that copies (seen with 4.3.1), and "
            + ("the podman command is not on this machine" if here else "the service is on another machine"),
            next_step="vdbg-env render DIR && podman build --tag NAME DIR && vdbg-env verify NAME; or --engine host",
        )
    return PodmanBuilder(engine, program=program, why=f"Podman is at {engine.endpoint.host}; its command builds")


def _best(engine: Engine, wanted: BuilderName, find_buildx: Callable[[], Buildx | None]) -> ImageBuilder:
    buildx = None if wanted == "buildkit" else find_buildx()
    if buildx is not None:
        return BuildxBuilder(engine, buildx, why="the docker-buildx plugin is installed")
    if wanted == "buildx":
        raise HostNotAble(
            "docker-buildx is not installed",
            cause="distributions package it separately from the engine",
            next_step="apt-get install docker-buildx (Debian 13, Ubuntu) or docker-buildx-plugin; or --engine docker",
        )
    reason = engine.no_buildkit()
    if reason is None:
        why = "requested by --engine buildkit" if wanted == "buildkit" else "docker-buildx is not installed"
        return BuildKitBuilder(engine, why=f"{why}; the engine's own BuildKit builds, without secrets")
    raise HostNotAble(
        f"{reason}, and docker-buildx is not used",
        cause="it is not asked for" if wanted == "buildkit" else "it is not installed",
        next_step="apt-get install docker-buildx (Debian 13, Ubuntu) or docker-buildx-plugin; or --engine classic",
    )
