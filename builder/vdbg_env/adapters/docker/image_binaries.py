"""Find binaries in a container image, through a container that is created, read and removed but never started."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace

from docker.errors import ImageNotFound

from vdbg_env.adapters.docker.client import connect, engine_errors
from vdbg_env.adapters.docker.images import DockerImages
from vdbg_env.application.ports.files import BinaryFile
from vdbg_env.common.errors import BadInput


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
            with engine_errors(engine.endpoint):
                try:
                    found = engine.client.inspect_image(image)  # type: ignore[no-untyped-call]
                except ImageNotFound as error:
                    raise BadInput(f"the engine has no image {image}", next_step=f"docker pull {image}") from error
            with DockerImages(engine).files(image, [f"/{path}" if colon else "/"]) as files:
                labels = found.get("Config", {}).get("Labels") or {}
                yield (replace(file, name=f"{image}:{file.name}", labels=labels) for file in files)
        finally:
            engine.client.close()
