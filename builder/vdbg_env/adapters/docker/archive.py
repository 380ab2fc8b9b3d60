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

T = TypeVar("T")


@contextmanager
def container_archive(client: APIClient, container: str, path: str) -> Iterator[tuple[tarfile.TarFile, str]]:
    """Open `path` as a tar read member by member, with its real path where it is a link.

    The connection is closed when the block ends, however much was read (the client's `get_archive` leaves it open):
    the first bytes of a core of a hundred gigabytes do not cost the rest. Raises docker.errors.NotFound when the
    container has no such path.
    """
    url = f"{client.base_url}/v{client.api_version}/containers/{container}/archive"
    with client.get(url, params={"path": path}, stream=True) as response:
        raise_for_status(response)
        found = decode_json_header(response.headers["X-Docker-Container-Path-Stat"])
        if target := found.get("linkTarget"):
            with container_archive(client, container, target) as resolved:
                yield resolved
            return
        with tar_stream(each_waited(response.iter_content(1 << 20))) as archive:
            yield archive, path


def leads_to(name: str, member: tarfile.TarInfo) -> str | None:
    """Return the path in the image that a member with this full name is a link to; None for what is no link."""
    return posixpath.normpath(posixpath.join("/", posixpath.dirname(name), member.linkname)) if member.issym() else None


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Return whether a path is one of the folders, or below one."""
    return any(f"{path}/".startswith(f"{folder.rstrip('/')}/") for folder in folders)


def answer(kind: TypeAdapter[T], printed: str) -> T | None:
    """Return the last line that is JSON of this kind: hooks of an image's Python print what they like around it."""
    for line in reversed(printed.splitlines()):
        with suppress(ValidationError):
            return kind.validate_json(line)
    return None
