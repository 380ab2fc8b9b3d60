"""What every Docker builder does with a finished image: read it, label, save, push and remove it."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests
from docker import errors

from vdbg_env.adapters.docker.archive import Followed, container_archive
from vdbg_env.adapters.docker.build_api import build_over, get_image, post_image
from vdbg_env.adapters.docker.client import GONE, OUR_LABEL, Engine, engine_errors, explain, inspect_image, printed
from vdbg_env.adapters.docker.create import created, started, tool_container
from vdbg_env.adapters.files.context_tar import upload
from vdbg_env.application.ports.images import NOTHING_LENT, PushProgress
from vdbg_env.common.errors import BadInput, EngineFailed
from vdbg_env.common.programs import Completed
from vdbg_env.crash.files import BinaryFile, Buffer
from vdbg_env.image.context import BuildContext, FileBytes
from vdbg_env.image.plan import LABEL_LAYERS
from vdbg_env.image.profile import Reference, parse_reference
from vdbg_env.record.atomic_write import replacement

_CANDIDATE = "vdbg-env-candidate"


@contextmanager
def candidate(engine: Engine, image_id: str) -> Iterator[str]:
    """Give an image a name for as long as something is built over it."""
    name = f"{_CANDIDATE}:{uuid.uuid4().hex}"
    with engine_errors(engine.endpoint):
        engine.client.tag(image_id, name)
        try:
            yield name
        finally:
            engine.client.remove_image(name, noprune=True)


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

    def tag(self, image_id: str, names: Sequence[str], labels: Mapping[str, str]) -> str:
        """See `ImageBuilder.tag`.

        Labels belong to an image's configuration, which its id is the digest of, so a labelled image is another image
        over the same layers. A build of nothing but `FROM` makes it: no layer is added and nothing else of the
        configuration changes, whereas committing a container would copy the container's settings into the image. The
        labels are sent next to the Dockerfile, where the proof needs no quoting.
        """
        places = [parse_reference(name, "the image's name") for name in names]
        client = self.engine.client
        candidate = f"{_CANDIDATE}:{uuid.uuid4().hex}"
        with engine_errors(self.engine.endpoint):
            client.tag(image_id, candidate)
            labelled = self._label(candidate, {**labels, LABEL_LAYERS: self.layers(image_id)})
            for place in places:
                client.tag(labelled, place.name, place.tag or "latest")
            # Losing its last name removes the image without labels; had anything failed above, it stays for a look.
            client.remove_image(candidate, noprune=True)
        return labelled

    def _label(self, image: str, labels: Mapping[str, str]) -> str:
        dockerfile = FileBytes(name="Dockerfile", data=f"FROM {image}\n".encode())
        parameters = {"labels": json.dumps(dict(labels), sort_keys=True)}
        context = BuildContext(items=(dockerfile,))
        return build_over(self.engine, context, parameters, failed="the engine could not label the image")

    def save(self, image: str, path: Path) -> int:
        """See `ImageBuilder.save`: the tar gets its name when it is complete."""
        inspect_image(self.engine, image)
        try:
            chunks = get_image(self.engine.client, image)
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
                for message in post_image(self.engine.client, tar):
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

    def remove(self, image_id: str) -> None:
        """See `ImageBuilder.remove`: only an unnamed image that this program built is removed."""
        client = self.engine.client
        try:
            found = client.inspect_image(image_id)  # type: ignore[no-untyped-call]
        except errors.ImageNotFound:
            return
        except (errors.DockerException, *GONE) as error:
            raise explain(error, self.engine.endpoint) from error
        labels = (found.get("Config") or {}).get("Labels") or {}
        if found.get("RepoTags") or not any(name.startswith(OUR_LABEL) for name in labels):
            return
        with engine_errors(self.engine.endpoint), suppress(errors.APIError):  # in use by a container: it stays
            client.remove_image(image_id)

    def unnamed(self, label: str) -> frozenset[str]:
        """Return the ids of the images without a name with one of our labels."""
        found = self.engine.client.images(quiet=True, filters={"dangling": True, "label": label})
        return frozenset(found)


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
