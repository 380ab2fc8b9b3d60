"""What is done with a finished image: it is read, saved, loaded, pushed and removed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import requests
from docker import APIClient, errors
from docker.utils.json_stream import json_stream

from vdbg_env.adapters.docker.archive import Followed, container_archive
from vdbg_env.adapters.docker.client import (
    Engine,
    engine_errors,
    inspect_image,
    printed,
    raise_for_status,
)
from vdbg_env.adapters.docker.create import created, started, tool_container
from vdbg_env.adapters.files.context_tar import upload
from vdbg_env.application.ports.images import NOTHING_LENT, PushProgress
from vdbg_env.common.errors import BadInput, EngineFailed
from vdbg_env.common.programs import Completed
from vdbg_env.crash.files import BinaryFile, Buffer
from vdbg_env.image.context import BuildContext, FileBytes
from vdbg_env.image.profile import Reference, parse_reference
from vdbg_env.record.atomic_write import replacement


class DockerImages:
    """The part of `ImageBuilder` that does not depend on which builder made the image."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @contextmanager
    def files(self, image_id: str, folders: Sequence[str]) -> Generator[Iterator[BinaryFile], None, None]:
        """See `ImageBuilder.files`: the image is read through a container that is made and never started."""
        with created(self.engine, tool_container(image_id, ["true"], "look-inside")) as container:
            yield self._files_below(container, folders)

    def _files_below(self, container: str, folders: Sequence[str]) -> Iterator[BinaryFile]:
        followed = Followed(folders)
        for folder in followed.folders:
            with (
                engine_errors(self.engine.endpoint),
                suppress(errors.NotFound),
                container_archive(self.engine.client, container, folder) as (archive, real),
            ):
                if not followed.has_read(real):
                    yield from followed.files(real, archive)

    def read(self, image_id: str, path: str, *, largest: int) -> bytes | None:
        """Return what a file of the image holds; None when there is no such file, or it is larger than that."""
        with (
            created(self.engine, tool_container(image_id, ["true"], "look-inside")) as container,
            engine_errors(self.engine.endpoint),
            suppress(errors.NotFound),
            container_archive(self.engine.client, container, path) as (archive, _),
        ):
            member = next(iter(archive), None)
            stream = archive.extractfile(member) if member and member.isfile() and member.size <= largest else None
            return stream.read() if stream else None
        return None

    def execute(
        self, image_id: str, argv: Sequence[str], *, timeout_s: float = 600.0, lent: Mapping[str, Buffer] = NOTHING_LENT
    ) -> Completed:
        """See `ImageBuilder.execute`."""
        client = self.engine.client
        wanted = tool_container(image_id, argv, "look-inside")
        files = tuple(FileBytes(name=path.lstrip("/"), data=bytes(data)) for path, data in lent.items())

        def put_files(container: str) -> None:
            if files:
                client.put_archive(container, "/", b"".join(upload(BuildContext(items=files))))

        with (
            engine_errors(self.engine.endpoint),
            started(self.engine, wanted, lambda _: None, prepare=put_files) as (container, _),
        ):
            try:
                code = client.wait(container, timeout=math.ceil(timeout_s))["StatusCode"]
            except (requests.exceptions.ReadTimeout, requests.exceptions.ConnectionError) as error:
                raise EngineFailed(
                    f"{argv[0]} did not end within {timeout_s:.0f} s inside the image", next_step="vdbg-env doctor"
                ) from error
            out, err = printed(client, container)
        return Completed(argv=tuple(argv), code=code, stdout=out, stderr=err)

    def save(self, image: str, path: Path) -> int:
        """See `ImageBuilder.save`: the tar gets its name when it is complete."""
        inspect_image(self.engine, image)
        try:
            chunks = _get_image(self.engine.client, image)
            with replacement(path) as out:
                while (chunk := self._next(chunks)) is not None:
                    out.write(chunk)
        except OSError as error:
            raise BadInput(
                f"cannot write {path}: {error.strerror}", next_step="name a folder that exists and has room"
            ) from error
        return path.stat().st_size

    def load(self, path: Path) -> None:
        """See `ImageBuilder.load`."""
        try:
            with engine_errors(self.engine.endpoint), path.open("rb") as tar:
                for message in _post_image(self.engine.client, tar):
                    if "error" in message:
                        raise BadInput(
                            f"{path} holds no image: {message['error']}",
                            cause="it was cut off on its way, or is not the file that `vdbg-env bundle` wrote",
                            next_step="compare its sha256 on both sides, and copy it again",
                        )
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}", next_step=f"ls -l {path}") from error

    def layers(self, image: str) -> str:
        """See `ImageBuilder.layers`."""
        return layers_of(inspect_image(self.engine, image))

    def _next(self, chunks: Iterator[bytes]) -> bytes | None:
        with engine_errors(self.engine.endpoint):
            return next(chunks, None)

    def push(self, image: str) -> Iterator[PushProgress]:
        """See `ImageBuilder.push`."""
        place = parse_reference(image, "the image to push")
        with engine_errors(self.engine.endpoint):
            for message in self.engine.client.push(place.name, tag=place.tag or "latest", stream=True, decode=True):
                if "error" in message:
                    raise EngineFailed(
                        f"pushing {image} failed: {message['error']}",
                        cause="not logged in there, no right to write there, or the registry cannot be reached",
                        next_step=f"docker login {_registry_of(place)}, then docker push {image}",
                    )
                yield _push_progress(message)


def _get_image(client: APIClient, image: str) -> Generator[bytes, None, None]:
    """Yield the tar of an image; the engine first writes all of it to its disk, in silence."""
    url = f"{client.base_url}/v{client.api_version}/images/get"
    with client.get(url, params={"names": image}, stream=True, timeout=None) as response:
        raise_for_status(response)
        yield from response.iter_content(chunk_size=1 << 20)


def _post_image(client: APIClient, tar: BinaryIO) -> Generator[dict[str, Any], None, None]:
    """Send the tar of an image and yield the engine's messages; an error of the engine's is one of them."""
    url = f"{client.base_url}/v{client.api_version}/images/load"
    headers = {"Content-Type": "application/x-tar"}
    with client.post(url, data=tar, headers=headers, stream=True, timeout=None) as response:
        raise_for_status(response)
        yield from messages_of(response)


def messages_of(response: requests.Response) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a response that is a stream of them."""
    for message in json_stream(response.iter_content(chunk_size=None)):
        if isinstance(message, dict):
            yield message


def layers_of(found: Mapping[str, Any]) -> str:
    """Return "sha256:..." over the layers of an image, by what the engine reports of it."""
    return f"sha256:{hashlib.sha256(json.dumps(found['RootFS']['Layers']).encode()).hexdigest()}"


def _registry_of(place: Reference) -> str:
    """Return the host a name begins with, or "" for the default registry."""
    host, slash, _ = place.name.partition("/")
    return host if slash and ("." in host or ":" in host or host == "localhost") else ""


def _push_progress(message: Mapping[str, Any]) -> PushProgress:
    detail, aux = message.get("progressDetail") or {}, message.get("aux") or {}
    return PushProgress(
        layer=str(message.get("id", "")),
        status=str(message.get("status", "")),
        current=detail.get("current"),
        total=detail.get("total"),
        digest=aux.get("Digest"),
    )
