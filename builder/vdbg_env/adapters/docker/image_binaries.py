"""Find binaries in a container image, through a container that is created, read and removed but never started."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace

from vdbg_env.adapters.docker.client import connect, inspect_image
from vdbg_env.adapters.docker.images import DockerImages
from vdbg_env.application.ports.files import BinaryFile


class ImageFiles:
    """A BinarySource over the images of the container engine; nothing of an image runs."""

    @contextmanager
    def open(self, target: str) -> Generator[Iterator[BinaryFile], None, None]:
        """Yield every candidate of `IMAGE`, or of what is at or below `/PATH` in `IMAGE:/PATH`, as `IMAGE:/path`.

        Raises BadInput when the engine has no such image, HostNotAble or EngineFailed when it does not answer.
        """
        image, colon, path = target.partition(":/")
        engine = connect()
        try:
            labels = inspect_image(engine, image).get("Config", {}).get("Labels") or {}
            with DockerImages(engine).files(image, [f"/{path}" if colon else "/"]) as files:
                yield (replace(file, name=f"{image}:{file.name}", labels=labels) for file in files)
        finally:
            engine.client.close()
