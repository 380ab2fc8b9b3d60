"""Post a build to the engine itself, for its BuildKit or its classic builder.

The Python client does not support BuildKit (docker/docker-py#2230), but the engine takes `version=2` with the context
as the body and runs its own BuildKit: without a session, so without secrets and only into its image store.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, Literal

from docker import APIClient, auth
from docker.utils.json_stream import json_stream
from requests import Response

from vdbg_env.adapters.docker.client import Engine, raise_for_status
from vdbg_env.adapters.files.context_tar import upload
from vdbg_env.application.ports.images import BuildOrder
from vdbg_env.common.errors import EngineFailed
from vdbg_env.image.context import BuildContext

CLASSIC: Literal["1"] = "1"
BUILDKIT: Literal["2"] = "2"

_ALWAYS = {"dockerfile": "Dockerfile", "rm": "1", "forcerm": "1"}


def post_build(
    client: APIClient, context: Iterable[bytes], *, version: Literal["1", "2"], parameters: Mapping[str, str]
) -> Generator[dict[str, Any], None, None]:
    """Send a context and yield the engine's messages; closing the iterator closes the connection.

    The status is 200 even for a build that fails: its error is a message (`errorDetail`). Raises the client's errors
    when the engine refuses the request or goes away.
    """
    with client.post(
        f"{client.base_url}/v{client.api_version}/build",
        params={"version": version, **parameters},
        data=iter(context),
        headers={"Content-Type": "application/x-tar", **registry_header()},
        stream=True,
        timeout=None,  # a compiler may print nothing for hours
    ) as response:
        raise_for_status(response)
        yield from _messages(response)


def _messages(response: Response) -> Iterator[dict[str, Any]]:
    for message in json_stream(response.iter_content(chunk_size=None)):
        if isinstance(message, dict):
            yield message


def get_image(client: APIClient, image: str) -> Generator[bytes, None, None]:
    """Yield the tar of an image; the engine first writes all of it to its disk, in silence."""
    url = f"{client.base_url}/v{client.api_version}/images/get"
    with client.get(url, params={"names": image}, stream=True, timeout=None) as response:
        raise_for_status(response)
        yield from response.iter_content(chunk_size=1 << 20)


def post_image(client: APIClient, tar: BinaryIO) -> Generator[dict[str, Any], None, None]:
    """Send the tar of an image and yield the engine's messages; an error of the engine's is one of them."""
    url = f"{client.base_url}/v{client.api_version}/images/load"
    headers = {"Content-Type": "application/x-tar"}
    with client.post(url, data=tar, headers=headers, stream=True, timeout=None) as response:
        raise_for_status(response)
        yield from _messages(response)


def image_id_of(message: Mapping[str, Any]) -> str | None:
    """Return the id a message of the engine's build announces, if it does."""
    aux = message.get("aux")
    return aux.get("ID") if isinstance(aux, dict) else None


def build_over(engine: Engine, context: BuildContext, parameters: Mapping[str, str], *, failed: str) -> str:
    """Build a few lines over an image that the engine has, and return the new image's id.

    Raises EngineFailed, which begins with `failed`.
    """
    version = CLASSIC if engine.no_buildkit() else BUILDKIT
    built, printed = "", ""
    for message in post_build(engine.client, upload(context), version=version, parameters={**_ALWAYS, **parameters}):
        built = image_id_of(message) or built
        printed = message.get("stream", "").strip() or printed
        if "error" in message:
            raise EngineFailed(f"{failed}: {message['error']}", details=tuple(printed.splitlines()[-5:]))
    if not built:
        raise EngineFailed(f"{failed}: the engine ended without an image", next_step="vdbg-env doctor")
    return built


def registry_header() -> dict[str, str]:
    """Return the header with the credentials that `docker login` stored, for a base image in a private registry."""
    logins = auth.load_config().get_all_credentials()  # type: ignore[no-untyped-call]
    if auth.INDEX_NAME in logins:  # BuildKit looks for Docker Hub under its older name
        logins.setdefault(auth.INDEX_URL, logins[auth.INDEX_NAME])
    return {"X-Registry-Config": auth.encode_header(logins).decode()} if logins else {}


def order_parameters(order: BuildOrder, *, build_id: str | None = None) -> dict[str, str]:
    """Return the query for an order's build."""
    network, platform = order.plan.network, order.plan.platform
    wanted = {
        **_ALWAYS,
        "dockerfile": order.dockerfile,
        "networkmode": network if network != "default" else None,
        "platform": platform,
        "buildargs": json.dumps(dict(order.build_args), sort_keys=True) if order.build_args else None,
        "nocache": "1" if order.no_cache else None,
        "buildid": build_id,
    }
    return {name: value for name, value in wanted.items() if value is not None}
