"""What `run` and `shell` do: a program inside a debug image, with what a debugger and a crashing process need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from vdbg_env.application.ports.core_dumps import DumpStore
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.common.size import size_text
from vdbg_env.image.settings import Gpu, RunSettings, warnings

# Starting containers from images that were built.


@dataclass(frozen=True, kw_only=True)
class StoredImage:
    """One image in the engine's store that this program built; `created` is in seconds since the epoch."""

    image_id: str
    names: tuple[str, ...]
    created: float
    size: int
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class GpuAccess:
    """How a container gets at the GPUs of the engine's machine, and how that is known."""

    by: Literal["cdi", "runtime", "none"]
    why: str


class ContainerRunner(Protocol):
    """Starts debug containers and removes them whatever happens."""

    def images(self) -> tuple[StoredImage, ...]:
        """Return the images this program built, newest first."""
        ...

    def gpu_access(self) -> GpuAccess:
        """Find out how containers get at GPUs: a registered runtime alone is no proof that there is one."""
        ...

    def run(self, settings: RunSettings, tell: Callable[[str], None]) -> int:
        """Run a container on this program's own streams and return the exit status of its command.

        `tell` gets a line for every limit the engine may not give. On an interrupt the container is asked to stop, gets
        its grace, and the interrupt continues. Raises BadInput for a missing image, EngineFailed when it cannot start.
        """
        ...


Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """One container as asked for.

    `image` None takes the newest image this program built; `gpu` None takes whatever way to the GPUs there is.
    `settings` holds everything else. `dump_quota` in bytes keeps the container from starting while the dump volume
    holds more than that.
    """

    settings: RunSettings
    image: str | None = None
    gpu: Gpu | None = None
    dump_quota: int | None = None


def run_in_image(request: RunRequest, containers: ContainerRunner, dumps: DumpStore | None, tell: Tell) -> int:
    """Run the program and return its exit status; raises what `ContainerRunner.run` raises."""
    return containers.run(settled(request, containers, dumps, tell), tell)


def settled(
    request: RunRequest, containers: ContainerRunner, dumps: DumpStore | None, tell: Tell, *, record: bool = False
) -> RunSettings:
    """Return the settings with the image and the way to the GPUs found, where they were not given.

    With a `record`, what a crash leaves is kept there, and a dump volume is not missed.
    Raises BadInput where there is no image, HostNotAble where the dump volume holds more than it may.
    """
    settings = replace(request.settings, image=request.image or _newest(containers.images(), tell))
    settings = replace(settings, gpu=request.gpu or _gpu(containers, tell))
    if dumps is not None and request.dump_quota is not None:
        _hold_quota(dumps, request.dump_quota)
    for warning in warnings(settings, record=record):
        tell(f"warning: {warning}")
    return settings


def _newest(images: tuple[StoredImage, ...], tell: Tell) -> str:
    named = [image for image in images if image.names]
    if not named:
        raise BadInput(
            "no debug image was built on this engine yet",
            next_step="vdbg-env build --lineinfo, or name an image with --image",
        )
    # A label says so, which a pulled image may have too.
    tell(
        f"image: {named[0].names[0]}, the newest on this engine with the label of vdbg-env build; --image names another"
    )
    return named[0].names[0]


def _gpu(containers: ContainerRunner, tell: Tell) -> Gpu:
    access = containers.gpu_access()
    tell(f"GPUs: {access.by}, because {access.why}")
    return Gpu(by=access.by)


def _hold_quota(dumps: DumpStore, quota: int) -> None:
    """Refuse before the run, not when the disk is full in the middle of a dump."""
    held = sum(dump.size for dump in dumps.list())
    if held > quota:
        raise HostNotAble(
            f"{dumps.name} holds {size_text(held)}, more than the quota of {size_text(quota)}",
            cause="dumps of earlier crashes were kept",
            next_step=f"vdbg-env dumps prune --max-size {quota >> 30}g, or a larger --dump-quota",
        )
