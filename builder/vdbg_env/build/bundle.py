"""Carry a build into an air-gapped site: fetch here, put image and plan into one file, build there without network."""

from __future__ import annotations

import os
import posixpath
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Field, TypeAdapter

from vdbg_env import __version__
from vdbg_env.build.build import BuildResult, BuildSettings, Tell, build_image, fetch_first
from vdbg_env.build.builder import ImageBuilder
from vdbg_env.common.errors import BadInput
from vdbg_env.common.tar import tarfile
from vdbg_env.engine.context_tar import Unpacking, upload
from vdbg_env.image.context import BuildContext
from vdbg_env.image.plan import BuildPlan, Bundle, Manifest, describe_bundle, read_manifest
from vdbg_env.record.files import prepared


@dataclass(frozen=True, kw_only=True)
class BundleResult:
    """What was written: the file and its size, the image in it, and the digest of the plan for the site."""

    path: Path
    size: int
    image: str
    plan_digest: str


def bundle_json(result: BundleResult) -> dict[str, Any]:
    """Return what was written as docs/schemas/bundled-v1.schema.json describes it."""
    return {
        "schema": "vdbg-env/bundled/v1",
        "file": str(result.path),
        "bytes": result.size,
        "image": result.image,
        "plan_digest": result.plan_digest,
    }


def write_bundle(
    plan: BuildPlan, settings: BuildSettings, path: Path, *, builder: ImageBuilder, tell: Tell
) -> BundleResult:
    """Fetch everything, and write the image with all of it and the rest of the plan into one file."""
    rest = fetch_first(plan, settings, builder, tell)
    manifest = describe_bundle(rest, layers=builder.layers(rest.base), tag=settings.tags[0], made_by=__version__)
    context = BuildContext(items=rest.context)
    size = write_tar(path, lambda tar: builder.save(rest.base, tar), manifest.text(), context)
    return BundleResult(path=path, size=size, image=rest.base, plan_digest=rest.digest)


def build_from_bundle(
    path: Path, manifest: Manifest, plan: BuildPlan, settings: BuildSettings, *, builder: ImageBuilder, tell: Tell,
    clock: Callable[[], float],
) -> BuildResult:  # fmt: skip
    """Load the image of a bundle, and build, prove and tag what is left, its plan; nothing of it needs a network.

    Raises BadInput when the image that was loaded is not the one that was bundled.
    """
    builder.load(path)
    if builder.layers(plan.base) != manifest.layers:
        raise BadInput(
            f"the image {plan.base} is not the one that was bundled: its layers differ",
            cause="the file was changed on its way",
            next_step="compare its sha256 on both sides, and copy it again",
        )
    settings = replace(settings, tags=settings.tags or (manifest.tag,))
    return build_image(plan, settings, builder=builder, tell=tell, clock=clock)


# One file for an air-gapped site: the tar of an image, with the plan and its context next to the layers.


_MANIFEST = "vdbg-env/bundle.json"
_CONTEXT = "vdbg-env/context.tar"
_LARGEST_MANIFEST = 16 << 20


def write_tar(path: Path, save: Callable[[Path], object], manifest: str, context: BuildContext) -> int:
    """Write the tar of an image by `save` and add both to it, whole or not at all; returns its size in bytes.

    `docker load` still reads the file: members with other names than its own have no effect on it. Raises BadInput when
    it cannot be written.
    """
    try:
        with prepared(path) as made:
            save(made)
            _add(made, manifest, context)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}", next_step=f"df -h {path.parent}") from error
    return path.stat().st_size


@contextmanager
def open_bundle(path: Path) -> Iterator[Bundle]:
    """Yield what `write_bundle` put there, its trees unpacked within the block; raises BadInput for no bundle."""
    with tempfile.TemporaryDirectory(prefix="vdbg-bundle-") as folder:
        try:
            with tarfile.open(path, mode="r:") as archive:
                manifest = read_manifest(_bytes(archive, archive.getmember(_MANIFEST)))
                _require_one_name(archive, manifest.image)
                files = _unpack(archive, Path(folder), {i.name for i in manifest.context if i.kind == "file"})
        except (KeyError, ValueError, tarfile.TarError, EOFError) as error:
            raise BadInput(
                f"{path} is not a whole bundle: {error}",
                cause="it was cut off on its way, or something else made it",
                next_step="vdbg-env bundle FILE makes one, where there is a network",
            ) from error
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}", next_step=f"ls -l {path}") from error
        yield Bundle(manifest=manifest, files=files, folder=folder)


def _add(path: Path, manifest: str, context: BuildContext) -> None:
    """Append both to a tar, on disk when this returns."""
    with tempfile.TemporaryFile(dir=path.parent) as spooled:
        for chunk in upload(context):
            spooled.write(chunk)
        size = spooled.tell()
        spooled.seek(0)
        with tarfile.open(path, "a") as archive:
            archive.addfile(_member(_MANIFEST, len(manifest.encode())), BytesIO(manifest.encode()))
            archive.addfile(_member(_CONTEXT, size), spooled)
    with path.open("rb") as written:
        os.fsync(written.fileno())


def _member(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


def _bytes(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member) if member.isfile() else None
    if stream is None or member.size > _LARGEST_MANIFEST:
        raise tarfile.ReadError(f"{member.name} is not a file of at most {_LARGEST_MANIFEST >> 20} MiB")
    return stream.read()


def _require_one_name(archive: tarfile.TarFile, image: str) -> None:
    """Refuse a tar whose images would get another name than `image`: to load it would take that from another image."""
    names: set[str] = set()
    for member in archive:
        # In whatever folder: an engine takes "/manifest.json" for it, and a folder may be a link to the one above.
        read = _LISTS.get(posixpath.basename(posixpath.normpath(member.name)))
        if read is not None:
            names.update(read(_bytes(archive, member)))
    tag = image.rpartition(":")[2]
    foreign = names - {image, tag, f"docker.io/{image}", f"localhost/{image}"}
    if foreign or not names:
        raise BadInput(
            f"the bundle names its image {', '.join(sorted(foreign)) or 'nothing'}, and not {image}",
            cause="something else than `vdbg-env bundle` put it together; nothing of it was loaded",
            next_step="ask who made it, or make it again",
        )


def _saved(text: bytes) -> Iterator[str]:
    return (name for entry in _SAVED.validate_json(text) for name in entry.names or ())


def _oldest(text: bytes) -> Iterator[str]:
    return (f"{name}:{tag}" for name, tags in _OLDEST.validate_json(text).items() for tag in tags)


def _oci(text: bytes) -> Iterator[str]:
    entries = _INDEX.validate_json(text).manifests
    return (name for entry in entries for key, name in entry.annotations.items() if key in _OCI_NAMES)


# The lists of names of the three forms that `docker load` and `podman load` take.
_LISTS: Final = {"manifest.json": _saved, "repositories": _oldest, "index.json": _oci}
_OCI_NAMES: Final = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


class _Saved(BaseModel):
    names: tuple[str, ...] | None = Field(default=None, alias="RepoTags")


class _Entry(BaseModel):
    annotations: dict[str, str] = Field(default={})


class _Index(BaseModel):
    manifests: tuple[_Entry, ...] = ()


_SAVED: Final = TypeAdapter(tuple[_Saved, ...])
_OLDEST: Final = TypeAdapter(dict[str, dict[str, str]])
_INDEX: Final = TypeAdapter(_Index)


def _unpack(archive: tarfile.TarFile, folder: Path, files: set[str]) -> dict[str, bytes]:
    """Unpack the context's trees below `folder` and return its single files."""
    stream = archive.extractfile(_CONTEXT)
    if stream is None:
        raise tarfile.ReadError(f"{_CONTEXT} is not a file")
    found: dict[str, bytes] = {}
    unpacking = Unpacking(folder)
    with tarfile.open(fileobj=stream, mode="r:") as context:
        for member in context:
            data = context.extractfile(member) if member.isfile() else None
            if data is not None and member.name in files:
                found[member.name] = data.read()
            else:
                unpacking.add(member, data)
    unpacking.finish()
    return found
