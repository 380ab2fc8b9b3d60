"""Finds source lines in an image, and in what its containers were given of this machine."""

from __future__ import annotations

from vdbg_env.adapters.docker.images import DockerImages
from vdbg_env.adapters.execution.container.containers import StepContainers
from vdbg_env.common.errors import VdbgError
from vdbg_env.common.stop import ToldToStop
from vdbg_env.crash.files import LARGEST, SourceText
from vdbg_env.image.settings import StepImage


class ContainerSources:
    """SourceText over an image: its files by the names the line table has, then those of `machine`."""

    def __init__(self, containers: StepContainers, image: StepImage, machine: SourceText) -> None:
        self._containers = containers
        self._image = image
        self._machine = machine
        self._known: dict[str, tuple[str, ...]] = {}

    def line(self, file: str, number: int) -> str | None:
        """Return the text of a line, without its end; None when the file is not found or is shorter."""
        for mount in self._containers.container.mounts:
            if path := mount.outside(file):
                return self._machine.line(path, number)
        if file not in self._known:
            self._known[file] = self._lines(file)
        lines = self._known[file]
        if lines:
            return lines[number - 1] if 0 < number <= len(lines) else None
        return self._machine.line(file, number)

    def _lines(self, file: str) -> tuple[str, ...]:
        """Return a file of the image, nothing where it has none: a report is not to fail for an image that is gone."""
        if not file.startswith("/") or "\0" in file:
            return ()
        try:
            data = DockerImages(self._containers.engine).read(self._image.image_id, file, largest=LARGEST)
        except (VdbgError, ToldToStop):
            return ()
        return tuple((data or b"").decode("utf-8", "replace").splitlines())
