"""Run debug containers, and find the images and GPUs for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests
from docker import errors

from vdbg_env.adapters.docker.attach import copy_streams
from vdbg_env.adapters.docker.client import GONE, Engine, engine_errors, explain
from vdbg_env.adapters.docker.create import NewContainer, started
from vdbg_env.adapters.docker.host_config import without_set_ids
from vdbg_env.application.ports.containers import GpuAccess, StoredImage
from vdbg_env.common.errors import Interrupted
from vdbg_env.common.programs import Completed
from vdbg_env.image.plan import LABEL_DIGEST
from vdbg_env.image.settings import RunSettings, Ulimit

Tell = Callable[[str], None]
_NOT_FOUND = 127  # the status by which an init, like a shell, says that there is no such program
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class DockerContainers:
    """`ContainerRunner` on Docker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

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
        begun = started(self._engine, _debug(settings), _note(tell), attach=True)
        with without_set_ids(settings.dumps), begun as (container, stream):
            try:
                copy_streams(client, container, stream, interactive=settings.interactive)
                status = int(client.wait(container, timeout=None)["StatusCode"])
                if status == _NOT_FOUND and settings.command:
                    self._name_missing(container, settings, tell)
                return status
            except (KeyboardInterrupt, Interrupted):
                tell(f"stopping the container: it gets {settings.stop_grace_s} s to write its dumps; again ends it now")
                self._stop(container, settings.stop_grace_s)
                raise
            except GONE as error:
                raise explain(error, self._engine.endpoint) from error

    @contextmanager
    def started(self, settings: RunSettings, tell: Tell) -> Iterator[str]:
        """Start a container in the background, and remove it when the block ends."""
        with started(self._engine, _debug(settings), _note(tell)) as (container, _):
            yield container

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

    def _name_missing(self, container: str, settings: RunSettings, tell: Tell) -> None:
        """Say it in words where the image lacks the program: its init names neither the image nor a way out."""
        client, program = self._engine.client, settings.command[0]
        with suppress(errors.APIError):
            found = client.inspect_container(container)
            if found["Path"] != program:  # an entry point was started, which speaks for itself
                return
            given = dict(text.partition("=")[::2] for text in found["Config"].get("Env") or ())
            folders = str(given.get("PATH", _USUAL_PATH)).split(":")
            places = [program] if "/" in program else [f"{folder}/{program}" for folder in folders if folder]
            if not any(self._has(container, place) for place in places):
                tell(f"error: {settings.image} has no program {program!r}")
                tell(f"  usual cause: it is not installed in this image, or not on its PATH ({':'.join(folders)})")
                tell(f"  try: vdbg-env run --image {settings.image} -- sh -c 'echo $PATH', or another --image")

    def _has(self, container: str, path: str) -> bool:
        try:
            data, _ = self._engine.client.get_archive(container, path)
        except errors.NotFound:
            return False
        deque(data, maxlen=0)  # read to its end, or the connection stays open
        return True

    def _stop(self, container: str, grace_s: int) -> None:
        """Ask the container to stop and wait; a second interrupt goes through and ends it at once."""
        with suppress(errors.APIError, requests.exceptions.ReadTimeout):
            self._engine.client.stop(container, timeout=grace_s)


def _debug(settings: RunSettings) -> NewContainer:
    return NewContainer(settings=settings, purpose="debug", stdin=settings.interactive)


def _note(tell: Tell) -> Callable[[Ulimit], None]:
    return lambda limit: tell(f"note: the engine does not set the {limit.name} limit: {limit.fallback}")


def has_gpu() -> bool:
    """Say whether this machine has an NVIDIA GPU whose driver is loaded."""
    return any(Path("/proc/driver/nvidia/gpus").glob("*")) or Path("/dev/nvidia0").exists()


def gpu_access(info: Mapping[str, Any], *, has_gpu: bool) -> GpuAccess:
    """Choose how containers get GPUs from the engine's own information.

    A registered runtime does not prove that there is a GPU; a CDI device that the engine lists does.
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
