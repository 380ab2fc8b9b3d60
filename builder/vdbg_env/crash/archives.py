"""Find binaries in wheels and tar archives: packed folders, and images as `docker save` writes them."""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import lzma
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, Literal

import zstandard

from gpucore.fatbin import may_hold_device_code
from vdbg_env.common.files import ARCHIVES, KEEP_FREE, START, WHEELS, ZSTD, reason
from vdbg_env.common.tar import tarfile

DAMAGED: Final = (EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError, MemoryError)  # of bytes that lie
_DEEPEST: Final = 8  # archives in each other
_TIMES: Final = 100  # wheels and packed images expand to 2 to 10 times their size
_SMALL: Final = 1 << 30  # bytes that any archive may expand to
OPENED: Final = 256 << 10  # bytes that opening an archive counts for: of a thousand archives in archives none is large


@dataclass(frozen=True, kw_only=True)
class Member:
    """A candidate in an archive: its name, and the scratch file with its bytes until the next is asked for.

    Without a `path`, `problem` says why it cannot be read. `part` is as in `files.BinaryFile`.
    """

    name: str
    path: Path | None = None
    problem: str = ""
    part: tuple[float, float] | None = (0.0, 1.0)


class Allowance:
    """The bytes that an archive of a size, with all archives in it, may expand to before it is refused."""

    def __init__(self, size: int) -> None:
        self._size: Final = size
        self._left = self.total = max(_SMALL, _TIMES * size)

    def take(self, count: int, what: str) -> None:
        """Take so many bytes off; raises OSError when there are not so many left, or the count is no count."""
        if count < 0:
            raise OSError(errno.EINVAL, f"a damaged archive: {what} should have {count:,} bytes")
        self._left -= count
        if self._left < 0:
            raise self.refused(f"with {what} it expands")

    def refused(self, what: str) -> OSError:
        """Return the error for an archive that expands to more."""
        limit = f"{self.total:,} bytes, the most that is read of an archive of {self._size:,}"
        return OSError(errno.EFBIG, f"{what} to over {limit}; expand it yourself if it is sound, and name the folder")


def spilled(name: str, stream: IO[bytes], depth: int = 0, allowed: Allowance | None = None) -> Iterator[Member]:
    """Lend a stream's contents if it is a candidate: from a scratch file, which goes away when the next is asked for.

    A library may be larger than memory should hold, and cuobjdump needs a file. Of a wheel or a tar, by its name, those
    of its members are given that are candidates; `depth` counts the archives around the stream, and `allowed` is what
    these may still expand to.
    """
    head = stream.read(START)
    wanted = may_hold_device_code(head)
    if not wanted and not name.endswith(ARCHIVES):
        return
    suffix = "-" + Path(name.replace(":", "/")).name[-100:]
    with tempfile.NamedTemporaryFile(prefix="vdbg-", suffix=suffix) as scratch:
        scratch.write(head)
        _copy(stream, scratch, name, allowed)
        scratch.flush()
        if not wanted:
            yield from in_archive(Path(scratch.name), name, depth, allowed)
            return
        yield Member(name=name, path=Path(scratch.name))


def _copy(source: IO[bytes], target: IO[bytes], name: str, allowed: Allowance | None) -> None:
    """Copy a stream as long as the disk has room for more; a member of a few bytes may expand without end."""
    room = shutil.disk_usage(tempfile.gettempdir()).free - KEEP_FREE
    while chunk := source.read(1 << 20):
        if allowed:
            allowed.take(len(chunk), name.rpartition(":")[2])
        room -= len(chunk)
        if room < 0:
            raise OSError(errno.ENOSPC, f"no room in {tempfile.gettempdir()} to expand {name}: set TMPDIR")
        target.write(chunk)


def in_named_archive(path: Path) -> Iterator[Member] | None:
    """Return the candidates of a wheel, by its name, or a tar, by its contents; None where a file is neither.

    Raises OSError and BadZipFile, when the first is asked for, where it cannot be read.
    """
    name, allowed = str(path), Allowance(path.stat().st_size)
    if path.suffix in WHEELS:
        return in_wheel(path, name, allowed)
    with path.open("rb") as file:
        return in_tar(path, name, allowed) if is_tar(file) else None


def in_archive(path: Path, name: str, depth: int = 0, allowed: Allowance | None = None) -> Iterator[Member]:
    """Yield every candidate of a file with the name of a wheel or a tar; what cannot be read with its problem.

    `depth` counts the archives around it, and `allowed` is what these may still expand to.
    """
    try:
        allowed = allowed or Allowance(path.stat().st_size)
        if depth >= _DEEPEST:
            raise OSError(f"{depth} archives, each in the next")
        if name.endswith(WHEELS):
            yield from in_wheel(path, name, allowed, depth)
            return
        with path.open("rb") as file:
            packed = is_tar(file)
        if packed:
            yield from in_tar(path, name, allowed, depth)
    except (OSError, zipfile.BadZipFile) as error:
        yield Member(name=name, problem=reason(error))


def in_wheel(path: Path, name: str, allowed: Allowance, depth: int = 0) -> Iterator[Member]:
    """Yield every candidate of a wheel or zip file as `NAME:MEMBER`; members that cannot be read with their problem.

    Raises OSError and BadZipFile when the list of members cannot be read, or says that it expands to too much.
    """
    allowed.take(OPENED, name)
    with zipfile.ZipFile(path) as wheel:
        members = wheel.infolist()
        if sum(member.file_size for member in members) > allowed.total:
            raise allowed.refused("its members are said to expand")
        size = path.stat().st_size
        if sum(member.compress_size for member in members) > size:
            raise OSError(errno.EINVAL, "a damaged archive: its members share bytes")
        for member in members:
            inner = f"{name}:{member.filename}"
            try:
                start = member.header_offset
                part = start / size, (start + member.compress_size) / size
                with wheel.open(member) as stream:
                    yield from (replace(found, part=part) for found in spilled(inner, stream, depth + 1, allowed))
            except (zipfile.BadZipFile, NotImplementedError, RuntimeError, *DAMAGED) as error:
                # Damaged, in a compression Python lacks, encrypted, or damaged once more, in this order.
                yield Member(name=inner, problem=reason(error))


_DAMAGED: Final = (tarfile.TarError, gzip.BadGzipFile, zstandard.ZstdError, *DAMAGED)
_LONGEST_HEADER: Final = 16 << 20  # bytes of names and attributes of a member, which are read at once
_HEAD: Final = 512
_OPENERS: Final[Mapping[bytes, Callable[[IO[bytes]], Any]]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"BZh": bz2.BZ2File,
    **dict.fromkeys(ZSTD, lambda file: zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)),
}
_PACKED: Final = (gzip.GzipFile, lzma.LZMAFile, bz2.BZ2File)
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"  # OCI image layer specification, "Whiteouts"


def is_tar(file: IO[bytes]) -> bool:
    """Say whether a file is a tar, packed or not."""
    head = file.read(_HEAD)
    file.seek(0)
    try:
        return _unpacked(file, head).read(_HEAD)[257:262] == b"ustar"
    except (*_DAMAGED, OSError):  # packed, but something else, or not even that
        return False


def in_tar(path: Path, name: str, allowed: Allowance, depth: int = 0) -> Iterator[Member]:
    """Yield every candidate of a tar as `NAME:MEMBER`; of a saved image those of its final file system, `NAME:/PATH`.

    `depth` counts the archives around it, and `allowed` is what these may still expand to. Raises OSError when the
    archive cannot be read to its end.
    """
    allowed.take(OPENED, name)
    try:
        yield from _in_tar(path, name, allowed, depth + 1)
    except (*_DAMAGED, KeyError) as error:
        what = str(error).strip("'") or type(error).__name__
        if what == "unexpected end of data":
            what = f"it ends in a member whose header names more than there is in {path.stat().st_size:,} bytes"
        raise OSError(f"a damaged archive: {what}") from error


def _in_tar(path: Path, name: str, allowed: Allowance, depth: int) -> Iterator[Member]:
    with path.open("rb") as file, tempfile.TemporaryFile(prefix="vdbg-") as scratch:
        size = path.stat().st_size
        head = file.read(_HEAD)
        file.seek(0)
        plain: IO[bytes] = file
        # tarfile of Python 3.11 does not read zstd; and layers are read out of order, each from the start of the stream
        if head.startswith(ZSTD) or (_is_packed(head) and _is_image(file, head, allowed)):
            file.seek(0)
            _expand(_unpacked(file, head), scratch, allowed)
            plain = scratch
        plain.seek(0)
        with _opened(plain, b"" if plain is scratch else head, allowed, "r:") as archive:
            images = _images(archive)
            for number, layers in enumerate(images):
                which = f"{name}:image {number + 1}" if len(images) > 1 else name
                yield from _in_image(which, archive, layers, allowed, depth)
            if images:
                return
            for member in archive:
                at = file.tell() / size  # of a packed one what was read of it
                for found in _of_member(f"{name}:{member.name}", archive, member, allowed, depth):
                    yield replace(found, part=(at, at) if plain is file else None)


def _images(archive: tarfile.TarFile) -> list[list[str]]:
    """Return the names of the layers of each image, the lowest first; none where the tar is not a saved image."""
    try:
        manifest = archive.extractfile("manifest.json")
        images = json.loads(manifest.read(_LONGEST_HEADER)) if manifest else []
        return [[str(layer) for layer in image["Layers"]] for image in images]
    except (KeyError, TypeError, ValueError, RecursionError):
        return []


def _of_member(
    name: str, archive: tarfile.TarFile, member: tarfile.TarInfo, allowed: Allowance, depth: int
) -> Iterator[Member]:
    """Yield the candidates in a member that is a file; raises OSError where its size or its holes cannot be true."""
    if member.size < 0:
        raise tarfile.ReadError(f"{member.name} should have {member.size:,} bytes")
    holes: Any = member.sparse or []
    if any(start + size > later for (start, size), (later, _) in pairwise([*holes, (member.size, 0)])):
        raise tarfile.ReadError(f"the list of holes of {member.name} is in no order")
    stream = archive.extractfile(member) if member.isfile() else None
    if stream:
        yield from spilled(name, stream, depth, allowed)


def _in_image(
    name: str, archive: tarfile.TarFile, layers: list[str], allowed: Allowance, depth: int
) -> Iterator[Member]:
    """Yield the candidates from the top layer down: a path counts once, and not where an upper layer removed it."""
    hidden: set[PurePosixPath] = set()
    for layer in dict.fromkeys(reversed(layers)):
        above: set[PurePosixPath] = set()
        links: dict[PurePosixPath, PurePosixPath] = {}  # to files whose own path is hidden
        for files, member in _members(archive, layer, allowed):
            path = PurePosixPath("/", member.name)
            if path.name.startswith(_WHITEOUT):
                removed = path.parent if path.name == _OPAQUE else path.with_name(path.name[len(_WHITEOUT) :])
                above.add(removed)
            elif not member.isdir() and hidden.isdisjoint((path, *path.parents)):
                above.add(path)
                target = PurePosixPath("/", member.linkname)
                if member.islnk() and not hidden.isdisjoint((target, *target.parents)):
                    links.setdefault(target, path)
                yield from _of_member(f"{name}:{path}", files, member, allowed, depth)
        for files, member in _members(archive, layer, allowed) if links else ():
            link = links.get(PurePosixPath("/", member.name))
            if link:
                yield from _of_member(f"{name}:{link}", files, member, allowed, depth)
        hidden |= above


def _members(
    archive: tarfile.TarFile, layer: str, allowed: Allowance
) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield the members of a layer in order, each with what reads it before the next is asked for."""
    stream = archive.extractfile(layer)
    if stream is None:
        raise tarfile.ReadError(f"the layer {layer} is not a file")
    head = stream.read(_HEAD)
    stream.seek(0)
    with _opened(stream, head, allowed, "r|") as files:
        yield from ((files, member) for member in files)


def _is_packed(head: bytes) -> bool:
    return any(map(head.startswith, _OPENERS))


def _is_image(file: IO[bytes], head: bytes, allowed: Allowance) -> bool:
    with _opened(file, head, allowed, "r|") as archive:
        return any(member.name == "manifest.json" for member in archive)


def _opened(stream: IO[bytes], head: bytes, allowed: Allowance, mode: Literal["r:", "r|"]) -> tarfile.TarFile:
    """Open a tar, whatever packs it, that is read at random or in order."""
    measured: Any = _Measured(_unpacked(stream, head), allowed)
    return tarfile.open(fileobj=measured, mode=mode)


def _expand(source: IO[bytes], target: IO[bytes], allowed: Allowance) -> None:
    measured = _Measured(source, allowed)
    room = shutil.disk_usage(tempfile.gettempdir()).free - KEEP_FREE
    while chunk := measured.read(1 << 20):
        room -= len(chunk)
        if room < 0:
            raise OSError(errno.ENOSPC, f"no room in {tempfile.gettempdir()} to expand it: set TMPDIR")
        target.write(chunk)


class _Measured:
    """A stream of a tar that ends in an error where it expands to more than is allowed, however it is read.

    A header without end is not read into memory, and what is passed over is counted as what is read.
    """

    def __init__(self, stream: IO[bytes], allowed: Allowance) -> None:
        self._stream: Final = stream
        self._allowed: Final = allowed
        self._at = 0

    def read(self, size: int) -> bytes:
        """Return up to so many bytes."""
        if size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header names attributes of {size:,} bytes")
        data = self._stream.read(size)
        self._at += len(data)
        if data and self._at > self._allowed.total:
            raise self._allowed.refused("it expands")
        return data

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def seekable(self) -> bool:
        """Say that it can be read at random."""
        return True

    def seek(self, place: int, whence: int = 0) -> int:
        """Go to a place; forwards in a packed stream is to read what is between."""
        if whence or place < self._at or not isinstance(self._stream, _PACKED):
            self._at = self._stream.seek(place, whence)
            return self._at
        while self._at < place and self.read(min(place - self._at, 1 << 20)):
            pass
        return self._at


def _unpacked(file: IO[bytes], head: bytes) -> IO[bytes]:
    """Return a stream of the unpacked bytes of a file that begins with `head`."""
    open_packed = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
    stream: IO[bytes] = open_packed(file) if open_packed else file
    return stream
