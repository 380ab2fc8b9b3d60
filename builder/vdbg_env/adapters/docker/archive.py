"""Read what is in an image: its files as the tar stream that the engine sends, and what its programs answer."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from docker import APIClient
from docker.utils import decode_json_header
from pydantic import TypeAdapter, ValidationError

from vdbg_env.adapters.docker.client import raise_for_status
from vdbg_env.adapters.files.context_tar import tar_stream
from vdbg_env.common.stop import each_waited
from vdbg_env.common.tar import tarfile
from vdbg_env.crash.archives import spilled
from vdbg_env.crash.files import BinaryFile

T = TypeVar("T")


@contextmanager
def container_archive(client: APIClient, container: str, path: str) -> Iterator[tuple[tarfile.TarFile, str]]:
    """Open `path` as a tar read member by member, with its real path where it is a link.

    The connection is closed when the block ends, however much was read (the client's `get_archive` leaves it open):
    the first bytes of a core of a hundred gigabytes do not cost the rest. Raises docker.errors.NotFound when the
    container has no such path.
    """
    url = f"{client.base_url}/v{client.api_version}/containers/{container}/archive"
    plain = {"Accept-Encoding": "identity"}  # on one machine to pack and unpack a gigabyte takes a minute for nothing
    with client.get(url, params={"path": path}, stream=True, headers=plain) as response:
        raise_for_status(response)
        found = decode_json_header(response.headers["X-Docker-Container-Path-Stat"])
        if target := found.get("linkTarget"):
            with container_archive(client, container, target) as resolved:
                yield resolved
            return
        with tar_stream(each_waited(response.iter_content(1 << 20))) as archive:
            yield archive, path


class Followed:
    """Reads folders of an image, and wherever links in them lead: a program would follow them too. Nothing twice."""

    def __init__(self, folders: Iterable[str]) -> None:
        self.folders = list(folders)  # it grows while it is gone through
        self._read: list[str] = []

    def has_read(self, path: str) -> bool:
        """Return whether a path is a folder or file that was read, or below one."""
        return any(f"{path}/".startswith(f"{folder.rstrip('/')}/") for folder in self._read)

    def files(self, real: str, archive: tarfile.TarFile) -> Iterator[BinaryFile]:
        """Yield the files of a folder, by its real path and its tar."""
        parent, targets = posixpath.dirname(real.rstrip("/")) or "/", list[str]()
        for member in archive:
            name = posixpath.join(parent, member.name)
            if self.has_read(name):
                continue
            if member.issym():
                targets.append(posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname)))
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is not None:
                yield from spilled(name, stream)
        self._read.append(real)
        self.folders += [target for target in targets if not self.has_read(target)]


def answer(kind: TypeAdapter[T], printed: str) -> T | None:
    """Return the last line that is JSON of this kind: hooks of an image's Python print what they like around it."""
    for line in reversed(printed.splitlines()):
        with suppress(ValidationError):
            return kind.validate_json(line)
    return None
