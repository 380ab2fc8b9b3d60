"""The build context: ordered files, and the one tar they make, byte for byte the same every time."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, Literal

from vdbg_env.common.errors import BadInput
from vdbg_env.common.tar import tarfile

BLOCK = 512
CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class FileBytes:
    """A file given by its bytes; `name` is relative to the context, `mode` its permission bits."""

    name: str
    data: bytes
    mode: int = 0o644


@dataclass(frozen=True, kw_only=True)
class FileOnDisk:
    """A file of this machine, read only when the tar is written."""

    name: str
    path: str
    mode: int = 0o644


@dataclass(frozen=True, kw_only=True)
class TreeOnDisk:
    """A folder of this machine with everything below it, except what matches one of the `exclude` patterns.

    A pattern without a slash matches the last part of a path at any depth, one with a slash the whole relative path;
    a slash at its beginning is the folder itself. `only` are patterns for the folder's own entries; without it, all.
    `digest` is that of the content, if known.
    """

    name: str
    path: str
    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    digest: str = ""


ContextItem = FileBytes | FileOnDisk | TreeOnDisk


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """Everything sent to a builder; `epoch` (seconds since 1970) is the modification time of every file."""

    items: tuple[ContextItem, ...]
    epoch: int = 0


@dataclass(frozen=True, kw_only=True)
class TreeEntry:
    """An entry at `relative` below a folder; a link keeps its target, a file is opened by its `path`."""

    relative: str
    path: str
    kind: Literal["file", "folder", "link"]
    executable: bool = False
    target: str = ""


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


# Refuse text that cannot be written on one line; everything else is allowed and quoted where it is written.


def one_line(value: str, what: str) -> str:
    """Return `value` when every character of it is printable.

    A control character (a line break above all) is the one thing no Dockerfile, shell or manifest can quote on a
    single line, so it is refused by name rather than escaped. Raises BadInput.
    """
    bad = next((c for c in value if not c.isprintable()), None)
    if bad is None:
        return value
    raise BadInput(
        f"{what} holds the control character {bad.encode('unicode_escape', 'surrogatepass').decode()}",
        cause="text pasted with a line break, or a file name with one",
        next_step="take the character out",
    )
