"""Read an image through a container that never starts, run programs in it, save, load and push it."""

from __future__ import annotations

import hashlib
import json
import math
import posixpath
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import requests
from docker import APIClient, errors
from docker.utils import decode_json_header
from docker.utils.json_stream import json_stream
from pydantic import TypeAdapter, ValidationError

from vdbg_env.common.errors import BadInput, EngineFailed, quoted
from vdbg_env.common.programs import Completed
from vdbg_env.common.stop import each_waited
from vdbg_env.common.tar import tarfile
from vdbg_env.crash.archives import spilled
from vdbg_env.crash.files import BinaryFile, Buffer, members_opened
from vdbg_env.engine.client import Engine, connect, engine_errors, inspect_image, printed, raise_for_status
from vdbg_env.engine.containers import created, started, tool_container
from vdbg_env.engine.trees import tar_stream, upload
from vdbg_env.image.context import BuildContext, FileBytes
from vdbg_env.image.plan import LABEL_BUILT, LABEL_LAYERS
from vdbg_env.image.profile import Reference, parse_reference
from vdbg_env.record.run_directory import replacement

# Read what is in an image: its files as the tar stream that the engine sends, and what its programs answer.


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
                yield from members_opened(spilled(name, stream))
        self._read.append(real)
        self.folders += [target for target in targets if not self.has_read(target)]


def answer(kind: TypeAdapter[T], printed: str) -> T | None:
    """Return the last line that is JSON of this kind: hooks of an image's Python print what they like around it."""
    for line in reversed(printed.splitlines()):
        with suppress(ValidationError):
            return kind.validate_json(line)
    return None


@dataclass(frozen=True, kw_only=True)
class PushProgress:
    """How far one layer of a push is, in bytes where the engine reports them; `digest` is set on the last event."""

    layer: str
    status: str
    current: int | None = None
    total: int | None = None
    digest: str | None = None


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
        self, image_id: str, argv: Sequence[str], *, timeout_s: float = 600.0, lent: Mapping[str, Buffer] | None = None
    ) -> Completed:
        """See `ImageBuilder.execute`."""
        client = self.engine.client
        wanted = tool_container(image_id, argv, "look-inside")
        files = tuple(FileBytes(name=path.lstrip("/"), data=bytes(data)) for path, data in (lent or {}).items())

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
            raise BadInput(f"{path} cannot be read: {error.strerror}", next_step=f"ls -l {quoted(path)}") from error

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


# Find binaries in a container image, through a container that is created, read and removed but never started.


class ImageFiles:
    """A BinarySource over the images of the container engine; nothing of an image runs.

    With `built`, of an image that `vdbg-env build` made only what that build made is looked at, unless a path is named.
    """

    def __init__(self, *, built: bool = False) -> None:
        self._built = built

    @contextmanager
    def open(self, target: str) -> Generator[Iterator[BinaryFile], None, None]:
        """Yield every candidate of `IMAGE`, or of what is at or below `/PATH` in `IMAGE:/PATH`, as `IMAGE:/path`.

        Raises BadInput when the engine has no such image, HostNotAble or EngineFailed when it does not answer.
        """
        image, colon, path = target.partition(":/")
        engine = connect()
        try:
            found = inspect_image(engine, image)
            labels = found.get("Config", {}).get("Labels") or {}
            its_own = labels.get(LABEL_LAYERS) == layers_of(found)  # else they are those of the image below
            made = _made(labels) if self._built and its_own and not colon else []
            judged = f"{image}: judged was what its build made: {', '.join(made)}"
            note = f"{judged} (vdbg-env verify {image}:/ judges all of the image)" if made else ""
            with DockerImages(engine).files(image, made or [f"/{path}"]) as files:
                known = partial(replace, labels=labels, note=note, part=None)
                yield (known(file, name=f"{image}:{file.name}") for file in files)
        finally:
            engine.client.close()


def _made(labels: Mapping[str, str]) -> list[str]:
    """Return the paths that the build of a proven image noted; none where it noted none, or what is no path."""
    try:
        paths = json.loads(labels.get(LABEL_BUILT, "[]"))
    except (ValueError, RecursionError):
        return []
    known = isinstance(paths, list) and all(isinstance(one, str) and posixpath.isabs(one) for one in paths)
    return paths if known else []
