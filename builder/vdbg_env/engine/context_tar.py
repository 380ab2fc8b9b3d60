"""Read the folders of a build context, and write the context as the tar that builders take."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any, BinaryIO, Literal

from vdbg_env.common.errors import BadInput
from vdbg_env.common.tar import tarfile
from vdbg_env.image.context import BuildContext, ContextItem, FileBytes, FileOnDisk, TreeEntry, TreeOnDisk

BLOCK = 512
CHUNK = 1 << 20


Walk = Callable[[TreeOnDisk], Iterable[TreeEntry]]
Open = Callable[[str], BinaryIO]


@dataclass(frozen=True, kw_only=True)
class _Member:
    name: str
    kind: Literal["file", "folder", "link"]
    mode: int
    data: bytes | None = None
    path: str = ""
    target: str = ""


def tar_chunks(context: BuildContext, *, walk: Walk, open_file: Open) -> Iterator[bytes]:
    """Yield the context as a tar: sorted, GNU format, owner 0:0, whole-second times, permissions 755 or 644.

    GNU format because BuildKit takes an upload that starts with a PAX header for a Dockerfile ("unknown instruction:
    ././@PAXHEADER"), and Python writes PAX by default. Raises BadInput when two items claim one name or a file
    changes its size while it is read.
    """
    for member in _members(context, walk):
        header = tarfile.TarInfo(member.name)
        header.mtime = context.epoch
        header.mode = member.mode
        match member.kind:
            case "folder":
                header.type = tarfile.DIRTYPE
                yield _header(header)
            case "link":
                header.type = tarfile.SYMTYPE
                header.linkname = member.target
                yield _header(header)
            case "file":
                yield from _file(member, header, open_file)
    yield bytes(2 * BLOCK)


def _file(member: _Member, header: tarfile.TarInfo, open_file: Open) -> Iterator[bytes]:
    with io.BytesIO(member.data) if member.data is not None else open_file(member.path) as stream:
        header.size = stream.seek(0, io.SEEK_END)
        stream.seek(0)
        yield _header(header)
        left = header.size
        while left and (chunk := stream.read(min(CHUNK, left))):
            left -= len(chunk)
            yield chunk
    if left:
        raise BadInput(
            f"{member.path} became shorter while it was read", next_step="start the build again when nothing writes it"
        )
    yield bytes(-header.size % BLOCK)


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape")


def _members(context: BuildContext, walk: Walk) -> list[_Member]:
    """Return all members in order of name, each parent folder first."""
    members: dict[str, _Member] = {}
    for item in context.items:
        for member in _expand(item, walk):
            if member.name in members:
                raise BadInput(f"the build context holds {member.name!r} twice")
            members[member.name] = member
    for name in list(members):
        for parent in PurePosixPath(name).parents:
            if str(parent) != ".":
                members.setdefault(str(parent), _Member(name=str(parent), kind="folder", mode=0o755))
    return [members[name] for name in sorted(members, key=lambda name: PurePosixPath(name).parts)]


def _expand(item: ContextItem, walk: Walk) -> Iterator[_Member]:
    match item:
        case FileBytes():
            yield _Member(name=item.name, kind="file", mode=item.mode, data=item.data)
        case FileOnDisk():
            yield _Member(name=item.name, kind="file", mode=item.mode, path=item.path)
        case TreeOnDisk():
            yield _Member(name=item.name, kind="folder", mode=0o755)
            for entry in walk(item):
                mode = 0o755 if entry.kind == "folder" or entry.executable else 0o644
                name = f"{item.name}/{entry.relative}"
                yield _Member(name=name, kind=entry.kind, mode=mode, path=entry.path, target=entry.target)


def upload(context: BuildContext) -> Iterator[bytes]:
    """Yield the context as a tar; raises BadInput when a file of it cannot be read."""
    return tar_chunks(context, walk=walk, open_file=_open)


def walk(tree: TreeOnDisk) -> Iterator[TreeEntry]:
    """Yield the entries of a tree in order of name, links as links; sockets, pipes and devices are left out."""
    if not Path(tree.path).is_dir():
        raise BadInput(f"{tree.path} is not a folder", next_step="name an existing folder")
    return _below(tree, tree.path, "")


def _below(tree: TreeOnDisk, folder: str, prefix: str) -> Iterator[TreeEntry]:
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda e: e.name)
    except OSError as error:
        raise BadInput(f"cannot read {folder}: {error.strerror}", next_step=f"ls -ld {folder}") from error
    for entry in entries:
        relative = prefix + entry.name
        if _matches(relative, tree.exclude) or (not prefix and tree.only and not _matches(relative, tree.only)):
            continue
        if entry.is_symlink():
            yield TreeEntry(relative=relative, path=entry.path, kind="link", target=str(Path(entry.path).readlink()))
        elif entry.is_dir(follow_symlinks=False):
            yield TreeEntry(relative=relative, path=entry.path, kind="folder")
            yield from _below(tree, entry.path, relative + "/")
        elif entry.is_file(follow_symlinks=False):
            executable = bool(entry.stat(follow_symlinks=False).st_mode & 0o100)
            yield TreeEntry(relative=relative, path=entry.path, kind="file", executable=executable)


def _matches(relative: str, exclude: Iterable[str]) -> bool:
    name, path = relative.rpartition("/")[2], f"/{relative}"
    return any(
        fnmatch(path if pattern.startswith("/") else relative if "/" in pattern else name, pattern)
        for pattern in exclude
    )


def _open(path: str) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", next_step=f"ls -l {path}") from error


def extract(context: BuildContext, folder: Path) -> None:
    """Write the context as files below `folder`, as a builder would see it."""
    folder.mkdir(parents=True)
    with tar_stream(upload(context)) as archive:
        archive.extractall(folder, filter="tar")


def replace_folder(context: BuildContext, folder: PurePath, mark: str, ours: bytes) -> tuple[str, ...]:
    """Write the context as `folder`, all of it or nothing, and return its files; see `build.render`."""
    target = Path(folder)
    if target.exists():
        _require_ours(target, mark, ours)
    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        extract(context, unfinished)
        if target.exists():
            shutil.rmtree(target)
        unfinished.rename(target)
    except OSError as error:
        raise BadInput(
            f"{target} cannot be written: {error.strerror}", next_step=f"df -h {target.parent}; ls -ld {target.parent}"
        ) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return tuple(sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if not path.is_dir()))


def _require_ours(folder: Path, mark: str, ours: bytes) -> None:
    if not folder.is_dir():
        raise BadInput(f"{folder} is a file", next_step="name a folder that does not exist yet")
    try:
        empty = not any(folder.iterdir())
        rendered = (folder / mark).is_file() and ours in (folder / mark).read_bytes()
    except OSError as error:
        raise BadInput(f"{folder} cannot be read: {error.strerror}", next_step=f"ls -ld {folder}") from None
    if not (empty or rendered):
        raise BadInput(
            f"{folder} contains files that were not rendered here",
            cause="a folder of something else was named",
            next_step="name a folder that does not exist yet",
        )


class Unpacking:
    """Unpacks members of a tar that may be hostile below a folder; `finish` makes its links, after everything else.

    Nothing is written through a link, and nothing written over: tarfile's own filters can be led outside in releases of
    Python that are in use (CVE-2025-4517). A member of another kind, or with another place, raises tarfile.ReadError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._links: list[tuple[Path, str]] = []

    def add(self, member: tarfile.TarInfo, data: IO[bytes] | None) -> None:
        """Unpack one member; `data` is what it has, where it is a file."""
        parts = PurePath(member.name).parts
        if not parts or ".." in parts or PurePath(member.name).is_absolute() or "\0" in member.name:
            raise tarfile.ReadError(f"{member.name!r} is not a place below its folder")
        path = self._folder.joinpath(*parts)
        try:
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif member.issym():
                self._links.append((path, member.linkname))
            elif data is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as file:
                    shutil.copyfileobj(data, file)
                path.chmod(member.mode & 0o755 | 0o600)
                os.utime(path, (member.mtime, member.mtime))
            else:
                raise tarfile.ReadError(f"{member.name!r} is neither a file nor a folder nor a link")
        except (FileExistsError, NotADirectoryError) as error:
            raise tarfile.ReadError(f"{member.name!r} is there twice") from error

    def finish(self) -> None:
        """Make the links."""
        for path, target in self._links:
            if not Path(os.path.realpath(path.parent)).is_relative_to(self._folder):  # resolve() raises at a loop
                raise tarfile.ReadError(f"{str(path.relative_to(self._folder))!r} is below a link that leads outside")
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.symlink_to(target)
            except FileExistsError as error:
                raise tarfile.ReadError(f"{str(path.relative_to(self._folder))!r} is there twice") from error


def tar_stream(chunks: Iterable[bytes]) -> tarfile.TarFile:
    """Read chunks of bytes as a tar, member by member in their order."""
    return tarfile.open(fileobj=io.BufferedReader(_ChunkFile(chunks)), mode="r|")


class _ChunkFile(io.RawIOBase):
    """An iterator of bytes as a file."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            found = next(self._chunks, None)
            if found is None:
                return 0
            self._left = found
        taken, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)
