"""Posts a build to the engine itself: the one call that its BuildKit and its classic builder both answer.

The Python client has no word for BuildKit (docker/docker-py#2230), but the engine takes `version=2` with the context as
the body and drives its own BuildKit. Without a session it has no secrets and no other outputs than its image store.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping
from typing import Any, Literal

from docker import APIClient
from docker.utils.json_stream import json_stream

from vdbg_env.application.ports import BuildOrder

CLASSIC: Literal["1"] = "1"
BUILDKIT: Literal["2"] = "2"

_ALWAYS = {"dockerfile": "Dockerfile", "rm": "1", "forcerm": "1"}


def post_build(
    client: APIClient, context: Iterable[bytes], *, version: Literal["1", "2"], parameters: Mapping[str, str]
) -> Generator[dict[str, Any], None, None]:
    """Send a context and yield the engine's messages; closing the iterator drops the connection.

    The status is 200 even for a build that fails: its error is a message (`errorDetail`). Raises what the client
    raises when the engine refuses the request or goes away.
    """
    response = client.post(
        f"{client.base_url}/v{client.api_version}/build",
        params={"version": version, **parameters},
        data=iter(context),
        headers={"Content-Type": "application/x-tar", **registry_header(client)},
        stream=True,
        timeout=None,  # a compiler may be silent for as long as it likes
    )
    try:
        client._raise_for_status(response)  # type: ignore[attr-defined]  # missing from types-docker
        for message in json_stream(response.iter_content(chunk_size=None)):
            if isinstance(message, dict):
                yield message
    finally:
        response.close()


def registry_header(client: APIClient) -> dict[str, str]:
    """Return the header with what the user's docker login left, so that a private base image can be pulled."""
    headers: dict[str, str] = {}
    client._set_auth_headers(headers)  # type: ignore[attr-defined]  # missing from types-docker
    return headers


def order_parameters(order: BuildOrder, *, build_id: str | None = None) -> dict[str, str]:
    """Return the query of an order's build; what the order leaves open is left to the engine."""
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


def label_parameters(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the query of a build that does nothing but label."""
    return {**_ALWAYS, "labels": json.dumps(dict(labels), sort_keys=True)}
