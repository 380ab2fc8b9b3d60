"""Carry a build into an air-gapped site: fetch here, put image and plan into one file, build there without network."""

from __future__ import annotations

import json
import os
import posixpath
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from vdbg_env import __version__
from vdbg_env.build.build import BuildResult, BuildSettings, Tell, build_image, fetch_first
from vdbg_env.build.builder import ImageBuilder
from vdbg_env.common.errors import BadInput, quoted
from vdbg_env.common.tar import tarfile
from vdbg_env.engine.trees import Unpacking, upload
from vdbg_env.image.context import BuildContext, ContextItem, FileBytes, FileOnDisk, TreeOnDisk
from vdbg_env.image.plan import BuildPlan
from vdbg_env.record.run_directory import prepared

# What an air-gapped site gets of a plan: its half without network, and the image that its other half has made.


SCHEMA = "vdbg-env/bundle/v1"


class Brought(BaseModel):
    """One item of the build context: its name in the archive, and how the plan counts it in its digest."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    kind: Literal["file", "tree"]
    mode: int = 0o644
    digest: str = ""


class Manifest(BaseModel):
    """The description of a bundle: the plan to build, the image that it starts from, and the context next to it.

    `layers` identifies the image by its content, whatever store it is loaded into.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, title=SCHEMA, serialize_by_alias=True)

    form: Literal["vdbg-env/bundle/v1"] = Field(default="vdbg-env/bundle/v1", alias="schema")
    made_by: str
    image: str
    layers: str
    tag: str
    plan_digest: str
    plan: dict[str, object]
    context: tuple[Brought, ...]

    def text(self) -> str:
        """Return the manifest as JSON."""
        return self.model_dump_json(indent=2) + "\n"


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A bundle at its site: the manifest, the files of its context, and the folder with its trees, unpacked."""

    manifest: Manifest
    files: Mapping[str, bytes]
    folder: str

    def plan(self, read: Callable[[TreeOnDisk], str]) -> BuildPlan:
        """Return the plan with its context, where `read` gives the digest of a tree as it was unpacked.

        Raises BadInput unless the plan's digest is that of the plan that was bundled, and for a plan on another image
        or with a network: what is in a bundle is trusted with neither.
        """
        items = tuple(self._item(item) for item in self.manifest.context)
        try:
            plan = replace(_plans().validate_python(self.manifest.plan), context=items).with_contents(read)
        except ValidationError as error:
            raise BadInput(
                f"the plan in the bundle cannot be read: {error.errors()[0]['msg']}",
                cause="another release of vdbg-env made it, or the file is damaged",
                next_step=f"use vdbg-env {self.manifest.made_by} here, or make the bundle again",
            ) from None
        if plan.digest != self.manifest.plan_digest:
            raise BadInput(
                "the plan in the bundle is not the one that was bundled: its digest differs",
                cause="the file was changed or damaged on its way",
                next_step="compare its sha256 on both sides, and copy it again",
            )
        if plan.base != self.manifest.image or plan.network != "none":
            raise BadInput(
                f"the plan in the bundle starts from {plan.base} with network {plan.network}",
                cause="`vdbg-env bundle` makes none that does not start from its own image without network",
                next_step="ask who made it; nothing of it was loaded",
            )
        return plan

    def _item(self, item: Brought) -> ContextItem:
        if item.kind == "tree":
            return TreeOnDisk(name=item.name, path=f"{self.folder}/{item.name}", digest=item.digest)
        data = self.files.get(item.name)
        if data is None:
            raise BadInput(f"the bundle lacks {item.name}", cause="it was cut off", next_step="copy it again")
        return FileBytes(name=item.name, data=data, mode=item.mode)


def describe_bundle(plan: BuildPlan, *, layers: str, tag: str, made_by: str) -> Manifest:
    """Return the manifest of a plan whose base is the image that comes with it."""
    document = plan.document()
    del document["schema"]
    return Manifest(
        made_by=made_by, image=plan.base, layers=layers, tag=tag, plan_digest=plan.digest, plan=document,
        context=tuple(_brought(item) for item in plan.context),
    )  # fmt: skip


def read_manifest(text: bytes) -> Manifest:
    """Return the manifest; raises BadInput for one of another form."""
    try:
        document = json.loads(text)
        if document.get("schema") != SCHEMA:
            raise BadInput(
                f"the bundle says {document.get('schema')!r} and not {SCHEMA!r}", next_step="update vdbg-env"
            )
        return Manifest.model_validate(document)
    except (ValueError, AttributeError, RecursionError) as error:
        raise BadInput(
            f"the bundle's manifest cannot be read: {error}", cause="the file is damaged", next_step="copy it again"
        ) from None


def _brought(item: ContextItem) -> Brought:
    match item:
        case FileBytes(name=name, mode=mode):
            return Brought(name=name, kind="file", mode=mode)
        case TreeOnDisk(name=name, digest=digest):
            return Brought(name=name, kind="tree", digest=digest)
        case FileOnDisk(name=name):
            raise BadInput(f"{name} cannot be bundled: only its name is in the plan's digest")


@cache
def _plans() -> TypeAdapter[BuildPlan]:
    return TypeAdapter(BuildPlan)


# Write a bundle, and build from one.


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
        raise BadInput(
            f"{path} cannot be written: {error.strerror}", next_step=f"df -h {quoted(path.parent)}"
        ) from error
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
            raise BadInput(f"{path} cannot be read: {error.strerror}", next_step=f"ls -l {quoted(path)}") from error
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
