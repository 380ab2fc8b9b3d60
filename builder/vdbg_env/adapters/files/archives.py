"""Find binaries in tar archives: packed folders, and images as `docker save` writes them."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

import zstandard

from vdbg_env.adapters.files.candidates import spilled
from vdbg_env.application.ports.files import BinaryFile
from vdbg_env.common.tar import tarfile

_DAMAGED: Final = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zstandard.ZstdError)
_HEAD: Final = 512
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_OPENERS: Final[Mapping[bytes, Callable[[IO[bytes]], Any]]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"BZh": bz2.BZ2File,
    _ZSTD: lambda file: zstandard.ZstdDecompressor().stream_reader(file),
}
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"  # OCI image layer specification, "Whiteouts"


def is_tar(file: IO[bytes]) -> bool:
    """Say whether a file is a tar, packed or not."""
    head = file.read(_HEAD)
    file.seek(0)
    try:
        return _unpacked(file, head).read(_HEAD)[257:262] == b"ustar"
    except (*_DAMAGED, OSError):  # packed, but something else, or not even that
        return False


def in_tar(path: Path, name: str, depth: int = 0) -> Iterator[BinaryFile]:
    """Yield every candidate of a tar as `NAME:MEMBER`; of a saved image those of its final file system, `NAME:/PATH`.

    `depth` counts the archives around it. Raises OSError when the archive cannot be read to its end.
    """
    try:
        yield from _in_tar(path, name, depth + 1)
    except (*_DAMAGED, KeyError) as error:
        raise OSError(f"a damaged archive: {str(error).strip(chr(39))}") from error


def _in_tar(path: Path, name: str, depth: int) -> Iterator[BinaryFile]:
    with path.open("rb") as file, tempfile.TemporaryFile(prefix="vdbg-") as scratch:
        plain: IO[bytes] = file
        if (
            file.read(len(_ZSTD)) == _ZSTD
        ):  # tarfile of Python 3.11 does not read zstd, and layers are read out of order
            file.seek(0)
            zstandard.ZstdDecompressor().copy_stream(file, scratch)
            plain = scratch
        plain.seek(0)
        with tarfile.open(fileobj=plain) as archive:
            images = _images(archive)
            for number, layers in enumerate(images):
                which = f"{name}:image {number + 1}" if len(images) > 1 else name
                yield from _in_image(which, archive, layers, depth)
            if images:
                return
            for member in archive:
                stream = archive.extractfile(member) if member.isfile() else None
                if stream:
                    yield from spilled(f"{name}:{member.name}", stream, depth)


def _images(archive: tarfile.TarFile) -> list[list[str]]:
    """Return the names of the layers of each image, the lowest first; none where the tar is not a saved image."""
    try:
        manifest = archive.extractfile("manifest.json")
        images = json.load(manifest) if manifest else []
        return [[str(layer) for layer in image["Layers"]] for image in images]
    except (KeyError, TypeError, ValueError):
        return []


def _in_image(name: str, archive: tarfile.TarFile, layers: list[str], depth: int) -> Iterator[BinaryFile]:
    """Yield the candidates from the top layer down: a path counts once, and not where an upper layer removed it."""
    hidden: set[PurePosixPath] = set()
    for layer in dict.fromkeys(reversed(layers)):
        above: set[PurePosixPath] = set()
        links: dict[PurePosixPath, PurePosixPath] = {}  # to files whose own path is hidden
        for files, member in _members(archive, layer):
            path = PurePosixPath("/", member.name)
            if path.name.startswith(_WHITEOUT):
                removed = path.parent if path.name == _OPAQUE else path.with_name(path.name[len(_WHITEOUT) :])
                above.add(removed)
            elif not member.isdir() and hidden.isdisjoint((path, *path.parents)):
                above.add(path)
                target = PurePosixPath("/", member.linkname)
                if member.islnk() and not hidden.isdisjoint((target, *target.parents)):
                    links.setdefault(target, path)
                held = files.extractfile(member) if member.isfile() else None
                if held:
                    yield from spilled(f"{name}:{path}", held, depth)
        for files, member in _members(archive, layer) if links else ():
            link = links.get(PurePosixPath("/", member.name))
            held = files.extractfile(member) if link and member.isfile() else None
            if held:
                yield from spilled(f"{name}:{link}", held, depth)
        hidden |= above


def _members(archive: tarfile.TarFile, layer: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield the members of a layer in order, each with what reads it before the next is asked for."""
    stream = archive.extractfile(layer)
    if stream is None:
        raise tarfile.ReadError(f"the layer {layer} is not a file")
    head = stream.read(_HEAD)
    stream.seek(0)
    with tarfile.open(fileobj=_unpacked(stream, head), mode="r|") as files:
        yield from ((files, member) for member in files)


def _unpacked(file: IO[bytes], head: bytes) -> IO[bytes]:
    """Return a stream of the unpacked bytes of a file that begins with `head`."""
    open_packed = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
    stream: IO[bytes] = open_packed(file) if open_packed else file
    return stream
