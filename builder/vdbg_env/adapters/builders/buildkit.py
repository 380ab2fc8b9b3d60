"""Builds with the engine's own BuildKit, spoken to directly: needs no buildx plugin and no docker command."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

from docker import errors

from vdbg_env.adapters.builders.cleanup import removing_leftovers
from vdbg_env.adapters.builders.progress.buildkit_proto import read_status_response
from vdbg_env.adapters.builders.progress.events import ProgressReader
from vdbg_env.adapters.docker.build_api import BUILDKIT, image_id_of, order_parameters, post_build
from vdbg_env.adapters.docker.client import GONE, Engine
from vdbg_env.adapters.docker.images import DockerImages
from vdbg_env.adapters.files.context_tar import upload
from vdbg_env.application.ports.build_events import BuildEvent, Built
from vdbg_env.application.ports.images import BuilderDescription, BuildOrder
from vdbg_env.common.errors import EngineFailed

_TRACE = "moby.buildkit.trace"


class BuildKitBuilder(DockerImages):
    """The engine's BuildKit over `POST /build?version=2`: without a session, so a build with secrets is refused."""

    def __init__(self, engine: Engine, *, why: str) -> None:
        super().__init__(engine)
        self._why = why

    def describe(self) -> BuilderDescription:
        return BuilderDescription(
            name="buildkit",
            version=self.engine.version,
            why=self._why,
            capabilities=frozenset({"containers", "cache-mounts"}),
        )

    def build(self, order: BuildOrder) -> Generator[BuildEvent, None, None]:
        """See `ImageBuilder.build`."""
        if order.secrets:
            raise EngineFailed(
                "this engine's BuildKit takes no secrets without buildx",
                cause="the docker-buildx plugin is not installed",
                next_step="install docker-buildx (vdbg-env doctor says how), or build without --secret",
            )
        build_id = f"vdbg-{uuid.uuid4().hex}"
        parameters = order_parameters(order, build_id=build_id)
        with removing_leftovers(self, order.plan) as finished:
            try:
                messages = post_build(
                    self.engine.client, upload(order.context), version=BUILDKIT, parameters=parameters
                )
                with closing(messages):
                    yield from follow(messages, ProgressReader(jobs=order.jobs))
                finished()
            finally:
                self._cancel(build_id)

    def _cancel(self, build_id: str) -> None:
        """End the build if it still runs; an engine that has finished it, or is gone, has nothing to end."""
        client = self.engine.client
        with suppress(errors.DockerException, *GONE):
            client.post(f"{client.base_url}/v{client.api_version}/build/cancel", params={"id": build_id}, timeout=10)


def follow(messages: Iterator[dict[str, Any]], reader: ProgressReader) -> Iterator[BuildEvent]:
    """Turn the messages of one build into its events; an engine that goes away on the way is a failed build."""
    image_id = error = None
    try:
        for message in messages:
            if message.get("id") == _TRACE and isinstance(message.get("aux"), str):
                yield from reader.events(read_status_response(base64.b64decode(message["aux"])))
            image_id = image_id_of(message) or image_id
            error = _error_of(message) or error
    except GONE as gone:
        yield reader.lost(str(gone))
        return
    if error is not None:
        yield reader.failure(error)
    elif image_id is None:
        yield reader.lost("it closed the connection")
    else:
        yield Built(image_id=image_id)


def _error_of(message: Mapping[str, Any]) -> str | None:
    detail = message.get("errorDetail")
    said = detail.get("message") if isinstance(detail, dict) else message.get("error")
    return str(said) if said else None
