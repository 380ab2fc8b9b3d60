"""Read the folders of a build context, and write the context as the tar that builders take."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import IO, Any, BinaryIO

from vdbg_env.common.errors import BadInput
from vdbg_env.common.tar import tarfile
from vdbg_env.image.context import BuildContext, TreeEntry, TreeOnDisk, tar_chunks


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
