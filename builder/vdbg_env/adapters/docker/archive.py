"""Reads a file or folder of a container, started or not, as the tar the engine makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from tarfile import TarFile

from docker import APIClient
from docker.utils import decode_json_header

from vdbg_env.adapters.files.context_tar import tar_stream


@contextmanager
def container_archive(client: APIClient, container: str, path: str) -> Iterator[tuple[TarFile, str]]:
    """Open `path` as a tar read member by member, with the path it has once a link is followed.

    The connection is dropped when the block ends, however much was read: a core of a hundred gigabytes is not sent to
    its end for its first bytes. Raises docker.errors.NotFound when the container has no such path.
    """
    response = client.get(
        f"{client.base_url}/v{client.api_version}/containers/{container}/archive", params={"path": path}, stream=True
    )
    try:
        client._raise_for_status(response)  # type: ignore[attr-defined]  # missing from types-docker
        stat = decode_json_header(response.headers["X-Docker-Container-Path-Stat"])
        if target := stat.get("linkTarget"):
            with container_archive(client, container, target) as found:
                yield found
            return
        with tar_stream(response.iter_content(1 << 20)) as archive:
            yield archive, path
    finally:
        response.close()
