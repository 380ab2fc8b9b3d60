"""Finds binaries in a container image, through a container that is made, read and removed but never started."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, cast

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from vdbg_env.application.ports import BinaryFile
from vdbg_env.engines.binary_files import spooled
from vdbg_env.errors import BadInput, EngineFailed

LABEL: Final = "vdbg.role"
_NEVER_STARTED: Final = ["vdbg-env-reads-this-container-and-never-starts-it"]


class ImageFiles:
    """A BinarySource over the images of the Docker Engine that `DOCKER_HOST` names.

    The file system streams past as one tar; a candidate lies in a temporary folder while it is looked at, one at a
    time. Nothing of the image runs.
    """

    def has(self, image: str) -> bool:
        """Return whether the engine answers and has this image."""
        try:
            with _client() as client:
                client.images.get(image)
        except (DockerException, EngineFailed):
            return False
        return True

    @contextmanager
    def open(self, target: str) -> Generator[Iterator[BinaryFile], None, None]:
        """Yield every candidate in the image called `target`.

        Raises BadInput when the engine has no such image and EngineFailed when it does not answer.
        """
        with _client() as client, _container(client, target) as stream:
            files = binaries_in_tar(stream, target)
            try:
                yield files
            finally:
                files.close()


def binaries_in_tar(stream: Iterator[bytes], name: str) -> Generator[BinaryFile, None, None]:
    """Yield the candidates of a tar that comes in pieces; each is called `name:/path/in/the/tar`.

    Raises EngineFailed when the stream breaks off.
    """
    try:
        with (
            tempfile.TemporaryDirectory(prefix="vdbg-verify-") as folder,
            tarfile.open(fileobj=io.BufferedReader(_Pieces(stream), 1 << 20), mode="r|") as tar,
        ):
            for member in tar:
                contents = tar.extractfile(member) if member.isreg() else None
                if contents is not None:
                    yield from spooled(f"{name}:/{member.name.lstrip('./')}", contents, Path(folder))
    except (tarfile.TarError, DockerException) as error:
        raise EngineFailed(f"the file system of {name} could not be read to its end: {error}") from error


@contextmanager
def _client() -> Iterator[docker.DockerClient]:
    try:
        client = docker.from_env()
    except DockerException as error:
        raise EngineFailed(
            f"no Docker Engine answers: {error}",
            cause="it is not running, or DOCKER_HOST names another place",
            next_step="vdbg-env doctor",
        ) from error
    try:
        yield client
    finally:
        client.close()


@contextmanager
def _container(client: docker.DockerClient, image: str) -> Iterator[Iterator[bytes]]:
    """Yield the file system of `image` as the pieces of a tar; the container behind it is removed whatever happens."""
    try:
        container = client.containers.create(image, command=_NEVER_STARTED, labels={LABEL: "verify"})
    except ImageNotFound as error:
        raise BadInput(f"the engine has no image {image}", next_step=f"docker pull {image}") from error
    except APIError as error:
        raise EngineFailed(f"no container could be made of {image}: {error.explanation}") from error
    try:
        # The stubs say text; the SDK gives the bytes of the tar.
        yield cast("Iterator[bytes]", container.export())
    except APIError as error:
        raise EngineFailed(f"the container of {image} could not be read: {error.explanation}") from error
    finally:
        with suppress(NotFound):  # someone tidied up before us
            container.remove(force=True, v=True)


class _Pieces(io.RawIOBase):
    """A readable file made of the pieces of a stream, so that tarfile may ask for what it likes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        length = min(len(buffer), len(self._rest))
        buffer[:length] = self._rest[:length]
        self._rest = self._rest[length:]
        return length
