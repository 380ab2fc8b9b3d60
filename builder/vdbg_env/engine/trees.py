"""What is built from: source trees, this program as a wheel, and a build context as the tar that builders take."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any, BinaryIO, Final, Literal

from vdbg_env import __version__
from vdbg_env.common import distribution
from vdbg_env.common.console import one_line
from vdbg_env.common.errors import BadInput, HostNotAble, VdbgError, quoted
from vdbg_env.common.plug_ins import SHIPPED
from vdbg_env.common.programs import Programs
from vdbg_env.common.resources import PACKAGE, READERS, SHIPPED_DATA
from vdbg_env.common.tar import tarfile
from vdbg_env.image.context import BuildContext, ContextItem, FileBytes, FileOnDisk, TreeEntry, TreeOnDisk
from vdbg_env.image.profile import OwnPackage

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
        raise BadInput(f"cannot read {folder}: {error.strerror}", next_step=f"ls -ld {quoted(folder)}") from error
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
        raise BadInput(f"cannot read {path}: {error.strerror}", next_step=f"ls -l {quoted(path)}") from error


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
            f"{target} cannot be written: {error.strerror}",
            next_step=f"df -h {quoted(target.parent)}; ls -ld {quoted(target.parent)}",
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
        raise BadInput(f"{folder} cannot be read: {error.strerror}", next_step=f"ls -ld {quoted(folder)}") from None
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


# What is built from: folders of sources, by content and commit, and this program as a wheel.


_PROGRAMS = Programs()
_GIT_TIMEOUT_S = 60.0
_DESCRIBED = re.compile(r"v(?P<tag>[0-9][0-9a-z.]*)-(?P<commits>[0-9]+)-(?P<commit>g[0-9a-f]+)")
# A checkout's own configuration may name programs, and the checkout may be anyone's: none of them runs, nothing is
# fetched, and the index is not written (git-config(1): core.fsmonitor, core.hooksPath, filter.*; githooks(5)).
_GIT = ("env", "GIT_ALLOW_PROTOCOL=none", "GIT_NO_LAZY_FETCH=1", "GIT_OPTIONAL_LOCKS=0", "VDBG_NONE=",
        "git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")  # fmt: skip
_OWN_SCOPES = {"local", "worktree"}

_METADATA_VERSION = re.compile(r"^Version: ([0-9][0-9A-Za-z.]*)", re.MULTILINE)  # without "+empty" and the like


def existing(text: str, flag: str) -> str:
    """Return the real path of a folder that was given with `flag`; raises BadInput when it does not exist."""
    path = Path(one_line(text, flag)).expanduser()
    if not path.is_dir():
        what = "a file, not a folder" if path.exists() else "not there"
        raise BadInput(f"{flag}: {path} is {what}", next_step="name a folder that exists")
    return str(path.resolve())


def digest(tree: TreeOnDisk) -> str:
    """Return "sha256:..." over all that a build would get of the tree; raises BadInput for what it cannot read."""
    hashed = hashlib.sha256()
    for entry in walk(tree):
        kind = "program" if entry.executable else entry.kind
        content = _content(entry.path) if entry.kind == "file" else entry.target
        hashed.update(f"{kind}\0{entry.relative}\0{content}\0".encode("utf-8", "surrogateescape"))
    return f"sha256:{hashed.hexdigest()}"


def revision(folder: str) -> str | None:
    """Return the commit of a checkout, with `-dirty` appended when files differ; None without git."""
    if _released(folder):  # a repository around an unpacked source distribution is another project's
        return None
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    changed = _changed(folder)
    if not commit or changed is None:
        return None
    return commit.strip() + ("-dirty" if changed else "")


def version(folder: str) -> str | None:
    """Return the version of a checkout by its last tag, as in 0.33.0 or 0.33.0+12.gabc1234; None without one."""
    if released := _released(folder):
        return released
    said = _git(folder, "describe", "--tags", "--long", "--match", "v[0-9]*")
    found = _DESCRIBED.fullmatch(said.strip()) if said else None
    if found is None:
        return None
    # Files that git does not know are no change of the version, as with `git describe --dirty`.
    changed = _changed(folder, "--untracked-files=no")
    local = [found["commits"], found["commit"]] if found["commits"] != "0" else []
    local += ["dirty"] if changed else []
    return found["tag"] + (f"+{'.'.join(local)}" if local else "")


def _changed(folder: str, *options: str) -> bool | None:
    """Return whether files differ from the commit, submodules by theirs alone; None where that is not known."""
    settings = _git(folder, "config", "--null", "--show-scope", "--list")
    if settings is None:
        return None
    words = settings.split("\0")
    own = {e.partition("\n")[0] for s, e in zip(words[::2], words[1::2], strict=False) if s in _OWN_SCOPES}
    # Not `-c NAME=`: the name of a filter may have a "=" too, and the last one counts here.
    without = (f"--config-env={name}=VDBG_NONE" for name in sorted(own) if name.startswith("filter."))
    said = _git(folder, *without, "status", "--porcelain", "--ignore-submodules=dirty", *options, "--", ".")
    return None if said is None else bool(said)


def _git(folder: str, *words: str) -> str | None:
    if _PROGRAMS.which("git") is None:
        return None
    try:
        ran = _PROGRAMS.run([*_GIT, "-C", folder, *words], timeout_s=_GIT_TIMEOUT_S)
    except HostNotAble:  # the revision is a label; the digest tells trees apart without it
        return None
    return ran.stdout if ran.code == 0 else None


def _released(folder: str) -> str | None:
    """Return the version in the metadata of an unpacked source distribution, None for any other folder."""
    try:
        text = (Path(folder) / "PKG-INFO").read_text(errors="replace")
    except OSError:
        return None
    found = _METADATA_VERSION.search(text)
    return found[1] if found else None


def _content(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", next_step=f"ls -l {quoted(path)}") from error


# This program as a wheel, made of the files that run now: an image's guard is the very release that built it.


_DATA: Final = ("runbooks", "images", "templates")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first date that a zip can hold
_LEFT_OUT = ("__pycache__", ".pyc")
_ALONE = ("README.md", "pyproject.toml")  # by which the readers are installed alone


@cache
def own_package() -> OwnPackage:
    """Return this program as a wheel with what it requires; the same files give the same bytes."""
    known = distribution.requirements()
    if known is None:
        raise VdbgError(
            "the files of this program have no metadata, so what its wheel requires is not known",
            cause="they were copied, and not installed",
            next_step="install its wheel or checkout with pip, or leave the guard out of the image: --no-guard",
        )
    files = _package_files()
    info = f"vdbg_env-{__version__}.dist-info"
    heads = [f"Name: {distribution.NAME}", f"Version: {__version__}", f"Requires-Python: {known.python}"]
    heads += [f"Requires-Dist: {requirement}" for requirement in known.always]
    files[f"{info}/METADATA"] = _lines("Metadata-Version: 2.1", *heads)
    files[f"{info}/WHEEL"] = _lines(
        "Wheel-Version: 1.0", f"Generator: vdbg-env {__version__}", "Root-Is-Purelib: true", "Tag: py3-none-any"
    )
    points = ["[console_scripts]", "vdbg-env = vdbg_env.__main__:main"]
    for group, shipped in SHIPPED.items():
        points += ["", f"[{group}]", *(f"{name} = {value}" for name, value in shipped.items())]
    files[f"{info}/entry_points.txt"] = _lines(*points)
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = _lines(*record, f"{info}/RECORD,,")
    wheel = FileBytes(name=f"wheel/vdbg_env-{__version__}-py3-none-any.whl", data=_zip(files))
    return OwnPackage(wheel=wheel, requirements=known.always)


def _package_files() -> dict[str, bytes]:
    """Return the files of the package and its data by their names in the wheel."""
    package = PACKAGE
    found = {f"vdbg_env/{name}": data for name, data in _below_trees(package).items() if not name.startswith("_data/")}
    found |= {f"gpucore/{name}": data for name, data in _below_trees(READERS).items() if name not in _ALONE}
    for plug_in in sorted({value.partition(".")[0] for group in SHIPPED.values() for value in group.values()}):
        found |= {f"{plug_in}/{name}": data for name, data in _below_trees(package.parent / plug_in).items()}
    for folder in _DATA:
        found |= {f"vdbg_env/_data/{folder}/{name}": data for name, data in _below_trees(SHIPPED_DATA / folder).items()}
    return dict(sorted(found.items()))


def _below_trees(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not any(part.endswith(_LEFT_OUT) for part in path.parts)
    }


def _zip(files: dict[str, bytes]) -> bytes:
    """Return a zip without compression, because two releases of zlib make different bytes of the same files."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3  # Unix, whatever this machine is
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    return written.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _lines(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
