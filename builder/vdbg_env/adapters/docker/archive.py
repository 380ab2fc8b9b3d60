"""Read a file or folder of a container, started or not, as the tar stream that the engine sends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docker import APIClient
from docker.utils import decode_json_header

from vdbg_env.adapters.docker.client import raise_for_status
from vdbg_env.adapters.files.context_tar import tar_stream
from vdbg_env.common.tar import tarfile


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
        with tar_stream(response.iter_content(1 << 20)) as archive:
            yield archive, path
