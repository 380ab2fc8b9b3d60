"""Starts debug containers with what a debugger needs, and removes them whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import requests
from docker import errors

from vdbg_env.adapters.docker.attach import copy_streams, open_streams
from vdbg_env.adapters.docker.client import GONE, OUR_LABEL, Engine, engine_errors, explain
from vdbg_env.adapters.docker.host_config import HostOptions, refused_limit, start_error
from vdbg_env.application.ports import Completed, GpuAccess, StoredImage
from vdbg_env.common.errors import BadInput, Interrupted
from vdbg_env.image.container.run_settings import RunSettings, Ulimit
from vdbg_env.image.plan.plan import LABEL_DIGEST

Tell = Callable[[str], None]


class DockerContainers:
    """`ContainerRunner` on Docker; `seccomp_profile` is the text of the profile that allows ptrace."""

    def __init__(self, engine: Engine, *, seccomp_profile: str) -> None:
        self._engine = engine
        self._options = HostOptions(engine, seccomp_profile=seccomp_profile)

    def images(self) -> tuple[StoredImage, ...]:
        """See `ContainerRunner.images`."""
        with engine_errors(self._engine.endpoint):
            found = self._engine.client.images(filters={"label": LABEL_DIGEST})
        images = (
            StoredImage(
                image_id=image["Id"],
                names=tuple(t for t in image.get("RepoTags") or () if t != "<none>:<none>"),
                created=float(image["Created"]),
                size=int(image["Size"]),
                labels=dict(image.get("Labels") or {}),
            )
            for image in found
        )
        return tuple(sorted(images, key=lambda image: image.created, reverse=True))

    def gpu_access(self) -> GpuAccess:
        """See `ContainerRunner.gpu_access`."""
        with engine_errors(self._engine.endpoint):
            info = self._engine.client.info()
        return gpu_access(info, has_gpu=has_gpu())

    def run(self, settings: RunSettings, tell: Tell) -> int:
        """See `ContainerRunner.run`."""
        client = self._engine.client
        with self._begun(settings, tell, attached=True) as (container, stream):
            try:
                copy_streams(client, container, stream, interactive=settings.interactive)
                return int(client.wait(container, timeout=None)["StatusCode"])
            except (KeyboardInterrupt, Interrupted):
                tell(f"stopping the container: it gets {settings.stop_grace_s} s to write its dumps; again ends it now")
                self._stop(container, settings.stop_grace_s)
                raise
            except GONE as error:
                raise explain(error, self._engine.endpoint) from error

    @contextmanager
    def started(self, settings: RunSettings, tell: Tell) -> Iterator[str]:
        """Start a container in the background, and remove it when the block ends."""
        with self._begun(settings, tell, attached=False) as (container, _):
            yield container

    @contextmanager
    def _begun(self, settings: RunSettings, tell: Tell, *, attached: bool) -> Iterator[tuple[str, Any]]:
        """Start a container, attached before it prints anything; leave out each limit the engine refuses, and say so.

        A refusal shows only when a container starts (it is runc that sets limits): dockerd can raise none above its own
        hard limit without CAP_SYS_RESOURCE.
        """
        while True:
            with self._created(settings) as container, ExitStack() as open_while_running:
                stream = None
                if attached:
                    streams = open_streams(self._engine.client, container, interactive=settings.interactive)
                    stream = open_while_running.enter_context(streams)
                refused = self._start(container, settings)
                if refused is None:
                    yield container, stream
                    return
            tell(f"note: the engine may not raise the {refused.name} limit: {refused.fallback}")
            settings = replace(settings, ulimits=tuple(limit for limit in settings.ulimits if limit != refused))

    def execute(self, container: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Completed:
        """Run one more program in a started container and return what it printed."""
        client = self._engine.client
        with engine_errors(self._engine.endpoint):
            made = client.exec_create(container, list(argv), environment=dict(env or {}))
            out, err = client.exec_start(made["Id"], demux=True)
            code = client.exec_inspect(made["Id"])["ExitCode"]
        return Completed(
            argv=tuple(argv),
            code=code,
            stdout=(out or b"").decode("utf-8", "replace"),
            stderr=(err or b"").decode("utf-8", "replace"),
        )

    @contextmanager
    def _created(self, settings: RunSettings) -> Iterator[str]:
        """Make a container that is removed when the block ends, started or not."""
        container = self._create(settings)
        try:
            yield container
        finally:
            with suppress(errors.APIError, *GONE):  # already removed, or gone with its engine
                self._engine.client.remove_container(container, force=True)

    def _create(self, settings: RunSettings) -> str:
        client = self._engine.client
        with engine_errors(self._engine.endpoint):
            try:
                made = client.create_container(
                    settings.image,
                    command=list(settings.command) or None,
                    environment=dict(settings.env),
                    name=settings.name,
                    tty=settings.interactive,
                    stdin_open=settings.interactive,
                    ports=list(settings.ports) or None,
                    labels={f"{OUR_LABEL}.purpose": "debug"},
                    host_config=client.create_host_config(**self._options.of(settings)),
                )
            except errors.ImageNotFound as error:
                raise BadInput(
                    f"the engine has no image {settings.image!r}",
                    cause="it was built under another name, or on another engine",
                    next_step="docker images, to see what it has, or build one: vdbg-env build --lineinfo",
                ) from error
        return str(made["Id"])

    def _start(self, container: str, settings: RunSettings) -> Ulimit | None:
        """Start a container; returns the limit the engine refused, if that is what kept it from starting."""
        try:
            self._engine.client.start(container)
        except errors.APIError as error:
            if refused := refused_limit(str(error), settings.ulimits):
                return refused
            raise start_error(error, settings) or explain(error, self._engine.endpoint) from error
        except GONE as error:
            raise explain(error, self._engine.endpoint) from error
        return None

    def _stop(self, container: str, grace_s: int) -> None:
        """Ask the container to stop and wait; a second interrupt goes through and ends it at once."""
        with suppress(errors.APIError, requests.exceptions.ReadTimeout):
            self._engine.client.stop(container, timeout=grace_s)


def has_gpu() -> bool:
    """Say whether this machine has an NVIDIA GPU whose driver is loaded."""
    return any(Path("/proc/driver/nvidia/gpus").glob("*")) or Path("/dev/nvidia0").exists()


def gpu_access(info: Mapping[str, Any], *, has_gpu: bool) -> GpuAccess:
    """Choose how containers get at GPUs from what the engine says of itself.

    A registered runtime is no proof of a GPU, and a CDI device named by the engine is one.
    """
    devices = [str(d.get("ID", "")) for d in info.get("DiscoveredDevices") or () if d.get("Source") == "cdi"]
    if any(device.startswith("nvidia.com/gpu") for device in devices):
        return GpuAccess(by="cdi", why="the engine lists nvidia.com/gpu devices")
    registered = "nvidia" in (info.get("Runtimes") or {})
    if registered and has_gpu:
        return GpuAccess(by="runtime", why="the nvidia runtime is registered and a GPU is present")
    if registered:
        return GpuAccess(by="none", why="the nvidia runtime is registered, but no GPU is present")
    if has_gpu:
        return GpuAccess(
            by="none", why="a GPU is present, but the engine knows neither CDI devices nor the nvidia runtime"
        )
    return GpuAccess(by="none", why="no GPU is present")
