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
from vdbg_env.application.ports import BinaryFile
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


def in_tar(path: Path) -> Iterator[BinaryFile]:
    """Yield every candidate of a tar as `TAR:MEMBER`; of a saved image those of its final file system, `TAR:/PATH`.

    Raises OSError when the archive cannot be read to its end.
    """
    try:
        yield from _in_tar(path)
    except (*_DAMAGED, KeyError) as error:
        raise OSError(f"a damaged archive: {str(error).strip(chr(39))}") from error


def _in_tar(path: Path) -> Iterator[BinaryFile]:
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
            layers = _layers(archive)
            if layers:
                yield from _in_image(str(path), archive, layers)
                return
            for member in archive:
                stream = archive.extractfile(member) if member.isfile() else None
                if stream:
                    yield from spilled(f"{path}:{member.name}", stream)


def _layers(archive: tarfile.TarFile) -> list[str]:
    """Return the names of an image's layers, the lowest first; none where the tar is not a saved image."""
    try:
        manifest = archive.extractfile("manifest.json")
        images = json.load(manifest) if manifest else []
        return [str(layer) for image in images for layer in image["Layers"]]
    except (KeyError, TypeError, ValueError):
        return []


def _in_image(name: str, archive: tarfile.TarFile, layers: list[str]) -> Iterator[BinaryFile]:
    """Yield the candidates from the top layer down: a path counts once, and not where an upper layer removed it."""
    hidden: set[PurePosixPath] = set()
    for layer in reversed(dict.fromkeys(layers)):
        stream = archive.extractfile(layer)
        if stream is None:
            raise tarfile.ReadError(f"the layer {layer} is not a file")
        above: set[PurePosixPath] = set()
        head = stream.read(_HEAD)
        stream.seek(0)
        with tarfile.open(fileobj=_unpacked(stream, head), mode="r|") as files:
            for member in files:
                path = PurePosixPath("/", member.name)
                if path.name.startswith(_WHITEOUT):
                    removed = path.parent if path.name == _OPAQUE else path.with_name(path.name[len(_WHITEOUT) :])
                    above.add(removed)
                elif not member.isdir():
                    if not hidden.isdisjoint((path, *path.parents)):
                        continue
                    above.add(path)
                    held = files.extractfile(member) if member.isfile() else None
                    if held:
                        yield from spilled(f"{name}:{path}", held)
        hidden |= above


def _unpacked(file: IO[bytes], head: bytes) -> IO[bytes]:
    """Return a stream of the unpacked bytes of a file that begins with `head`."""
    open_packed = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
    stream: IO[bytes] = open_packed(file) if open_packed else file
    return stream
