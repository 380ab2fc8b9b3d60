"""One file for an air-gapped site: the tar of an image, with the plan and its context next to the layers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from vdbg_env.adapters.files.context_tar import Unpacking, upload
from vdbg_env.common.errors import BadInput
from vdbg_env.common.tar import tarfile
from vdbg_env.image.context import BuildContext
from vdbg_env.image.plan.bundle import Bundle, read_manifest
from vdbg_env.record.atomic_write import prepared

_MANIFEST = "vdbg-env/bundle.json"
_CONTEXT = "vdbg-env/context.tar"
_LARGEST_MANIFEST = 16 << 20


class BundleTar:
    """`BundleFiles` over the tar that an engine writes: members with other names than its own have no effect on it."""

    def write(self, path: Path, save: Callable[[Path], object], manifest: str, context: BuildContext) -> int:
        """See `BundleFiles.write`."""
        try:
            with prepared(path) as made:
                save(made)
                _add(made, manifest, context)
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror}", next_step=f"df -h {path.parent}") from error
        return path.stat().st_size

    @contextmanager
    def open(self, path: Path) -> Iterator[Bundle]:
        """See `BundleFiles.open`."""
        with tempfile.TemporaryDirectory(prefix="vdbg-bundle-") as folder:
            try:
                with tarfile.open(path, mode="r:") as archive:
                    manifest = read_manifest(_bytes(archive, _MANIFEST))
                    files = _unpack(archive, Path(folder), {i.name for i in manifest.context if i.kind == "file"})
            except (KeyError, tarfile.TarError, EOFError) as error:
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


def _bytes(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.getmember(name)
    stream = archive.extractfile(member)
    if stream is None or member.size > _LARGEST_MANIFEST:
        raise tarfile.ReadError(f"{name} is not a file of at most {_LARGEST_MANIFEST >> 20} MiB")
    return stream.read()


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
