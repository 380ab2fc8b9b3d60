"""Starting containers from images that were built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from vdbg_env.image.settings import RunSettings


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
