"""What a crash left on disk, opened: binaries, GPU cores, logs and lines of source."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import signal
import stat
import tempfile
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Protocol

from vdbg_env.common.errors import BadInput, HostNotAble, quoted, unreadable
from vdbg_env.common.files import ARCHIVES, KEEP_FREE, PACKED_ENDS, START, packing_of, reason
from vdbg_env.common.stop import asked, go_on

if TYPE_CHECKING:
    from vdbg_env.crash.archives import Member

Buffer = bytes | memoryview


@dataclass(frozen=True, kw_only=True)
class BinaryFile:
    """One file that may hold device code: its name as shown to the user, and its bytes (mapped where possible).

    `path` is where the same bytes lie on disk, for programs that need a file; `asked_for` says that the user named this
    very file rather than a place it was found in; `problem` says why a file that was found could not be read.
    `labels` are those of the image that it is in, and `note` says what of that image was not looked at. `forget` may be
    called while the bytes are read: pages of the file that were read leave this process's memory, and are mapped again
    where they are needed again. `part` is the file's part of its target, from 0 to 1, for a display of progress; None
    where that is not known.
    """

    name: str
    data: Buffer
    path: Path | None = None
    asked_for: bool = False
    problem: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    part: tuple[float, float] | None = (0.0, 1.0)
    forget: Callable[[], None] = lambda: None


Tell = Callable[[str, float | None], None]
"""Takes the name of the file that is read, and how much of all that was asked for is done, from 0 to 1, where known."""


def done(file: BinaryFile, within: float, number: int, count: int) -> float | None:
    """Return how much is done of `count` targets, in the one of that number, with so much of the file read."""
    if file.part is None:
        return None
    start, end = file.part
    return (number + start + (end - start) * min(max(within, 0.0), 1.0)) / count


class BinarySource(Protocol):
    """Finds binaries in files, folders, archives, wheels and images."""

    def open(self, target: str) -> AbstractContextManager[Iterator[BinaryFile]]:
        """Yield every candidate in `target`; each one's bytes are valid until the next is asked for.

        Raises BadInput when `target` does not exist or cannot be read.
        """
        ...


class ScratchFiles(Protocol):
    """Lends bytes out as a file, to programs that need one."""

    def lend(self, data: Buffer, suffix: str) -> AbstractContextManager[Path]:
        """Write the bytes to a file whose name ends in `suffix`; it is gone when the block ends."""
        ...


@contextmanager
def opened_binary(
    name: str, descriptor: int, *, path: Path | None = None, asked_for: bool = False
) -> Iterator[BinaryFile]:
    """Yield an open file by its mapped pages; see `mapped`."""
    with mapped(descriptor, name) as view:
        pages = view.obj
        if not isinstance(pages, mmap.mmap):
            yield BinaryFile(name=name, data=b"", path=path, asked_for=asked_for)
            return
        pages.madvise(mmap.MADV_SEQUENTIAL)  # a cold disk reads ahead further
        forget = partial(pages.madvise, mmap.MADV_DONTNEED)
        yield BinaryFile(name=name, data=view, path=path, asked_for=asked_for, forget=forget)


def members_opened(members: Iterable[Member]) -> Iterator[BinaryFile]:
    """Yield the members of an archive, mapped until the next is asked for; what cannot be read with its problem."""
    for member in members:
        if member.path is None:
            yield BinaryFile(name=member.name, data=b"", problem=member.problem, part=member.part)
            continue
        with member.path.open("rb") as file, opened_binary(member.name, file.fileno(), path=member.path) as found:
            yield replace(found, part=member.part)


class BinaryFiles:
    """A BinarySource over the file system.

    A file that is named is always yielded. Of a folder, a wheel or a tar, the files that start as an ELF file, a static
    library or a fat binary are, also of wheels and tars within; what cannot be opened is yielded with its problem.
    Members of an archive are in a scratch file while they are looked at: the disk space needed is that of the largest.
    """

    @contextmanager
    def open(self, target: str) -> Generator[Iterator[BinaryFile], None, None]:
        """Yield every candidate in `target`; raises BadInput when it does not exist or cannot be read."""
        path = Path(target)
        try:
            path.stat()
        except FileNotFoundError:
            raise BadInput(f"no such file or folder: {target}") from None
        except OSError as error:
            raise BadInput(f"{target} cannot be read: {reason(error)}") from None
        if not path.is_dir() and not path.is_file():
            raise BadInput(f"{target} is a pipe or a device; its bytes cannot be mapped", next_step="save it to a file")
        files = _in_folder(path) if path.is_dir() else _in_file(path)
        try:
            yield files
        finally:
            files.close()


def _in_file(path: Path) -> Generator[BinaryFile, None, None]:
    try:
        if not _is_candidate(path):
            from vdbg_env.crash.archives import in_named_archive  # loaded on first use: most targets are no archives

            members = in_named_archive(path)
            if members is not None:
                yield from members_opened(members)
                return
        with path.open("rb") as file, opened_binary(str(path), file.fileno(), path=path, asked_for=True) as found:
            yield found
    except (OSError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} cannot be read: {reason(error)}") from error


def _in_folder(folder: Path) -> Generator[BinaryFile, None, None]:
    seen: set[tuple[int, int]] = set()
    closed: list[OSError] = []
    paths: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=closed.append):
        folders.sort()
        # A file before the links to it: it is reported under its name.
        paths += sorted((Path(root, name) for name in names), key=lambda p: (os.path.islink(p), p.name))  # noqa: PTH114 - as below
    for number, path in enumerate(paths):
        if asked.gone:
            go_on()
        part = number / len(paths), (number + 1) / len(paths)
        try:
            yield from (replace(file, part=part) for file in _found(path, seen))
        except (OSError, zipfile.BadZipFile) as error:
            yield BinaryFile(name=str(path), data=b"", path=path, problem=reason(error), part=part)
    for denied in closed:
        yield BinaryFile(name=str(denied.filename), data=b"", problem=reason(denied))


def _found(path: Path, seen: set[tuple[int, int]]) -> Iterator[BinaryFile]:
    """Yield the file once, under the first name that leads to it; `libx.so` is often a link to `libx.so.1`."""
    if not path.is_file():  # a pipe, a device, a link to nowhere
        return
    status = path.stat()
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    if _is_candidate(path):
        with path.open("rb", buffering=0) as file, opened_binary(str(path), file.fileno(), path=path) as found:
            yield found
    elif path.name.endswith(ARCHIVES):
        from vdbg_env.crash.archives import in_archive

        yield from members_opened(in_archive(path, str(path)))


def _is_candidate(path: Path) -> bool:
    with path.open("rb", buffering=0) as file:
        from gpucore.fatbin import may_hold_device_code  # what reads cores in an image has the standard library alone

        return may_hold_device_code(file.read(START))


@dataclass(frozen=True, kw_only=True)
class CoreFile:
    """A GPU core dump on disk, expanded where it was packed; `modified` is the file's time in seconds of the epoch."""

    name: str
    data: Buffer
    modified: float
    notes: tuple[str, ...] = ()


_PIECE: Final = 1 << 20
CORE_SUFFIXES: Final = (".nvcudmp", *(f".nvcudmp{end}" for end in PACKED_ENDS))


class CoreFiles:
    """CoreFiles over the local file system. A dump is as large as GPU memory, so it is mapped, never read whole."""

    def find(self, target: str) -> tuple[str, ...]:
        """Return the file itself, or the dumps below a folder by name or contents; raises BadInput when none is.

        A file or folder below that cannot be read is among them: `open` says why.
        """
        if target == "-" and not os.path.lexists(target):
            raise BadInput(
                "a core dump is read from a file, not from the standard input",
                cause="it is read at random, and may be as large as the GPU's memory",
                next_step="cat > core.nvcudmp, then vdbg-env core core.nvcudmp",
            )
        path = Path(target)
        if os.path.isdir(path):  # noqa: PTH112 - Path raises where a name is too long
            found = sorted(_dumps_below(target))
            if not found:
                raise BadInput(
                    f"no GPU core dump below {target}",
                    cause="none was written, or it is packed in another way than by gzip, zstd, xz or bzip2",
                    next_step=f"ls -R {quoted(target)}",
                )
            return tuple(found)
        _refuse_what_cannot_be_mapped(path)
        return (target,)

    def is_packed(self, path: str) -> bool:
        """Say whether this is a packed file, and not a tar; raises BadInput when it cannot be read."""
        if not os.path.isfile(path):  # noqa: PTH113 - and a pipe must not be opened: that would wait for ever
            return False
        try:
            with Path(path).open("rb") as file:
                if packing_of(file.read(START)) is None:
                    return False
                from vdbg_env.crash.archives import is_tar  # loaded on first use: most cores are not packed

                file.seek(0)
                return not is_tar(file)
        except OSError as error:
            raise unreadable(path, error) from error

    @contextmanager
    def open(self, path: str) -> Iterator[CoreFile]:
        """Yield the dump's bytes; a packed one that is cut short gives what could be expanded, and says so."""
        if asked.gone:
            go_on()
        try:
            with Path(path).open("rb") as file:
                modified = os.fstat(file.fileno()).st_mtime
                head = file.read(START)
                if packing_of(head) is None:
                    with mapped(file.fileno(), path) as data:
                        yield CoreFile(name=path, data=data, modified=modified)
                    return
                file.seek(0)
                with tempfile.TemporaryFile(prefix="vdbg-env-core-") as plain:
                    note = _expand_core(file, head, plain, path)
                    notes = (note,) if note else ()
                    plain.flush()
                    with mapped(plain.fileno(), path) as data:
                        yield CoreFile(name=path, data=data, modified=modified, notes=notes)
        except OSError as error:
            raise unreadable(path, error) from error


def _dumps_below(folder: str) -> Iterator[str]:
    """Yield each dump once, however many links lead to it: a file before the links to it, else the first by name."""
    closed: list[OSError] = []
    paths = [Path(root, name) for root, _, names in os.walk(folder, onerror=closed.append) for name in names]
    seen: set[tuple[int, int]] = set()
    for path in sorted(paths, key=lambda p: (os.path.islink(p), p)):  # noqa: PTH114 - Path.is_symlink raises without rights
        with suppress(OSError):  # is_dump says whether what cannot be read counts
            status = path.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
        if is_dump(path):
            yield str(path)
    yield from (str(error.filename) for error in closed)


def is_dump(path: Path) -> bool:
    """Say whether a file may be a dump: by its name, by its first bytes, or because it cannot be read."""
    from vdbg_env.record.dump_files import (  # loaded for a folder alone: a named file needs no record
        HEAD_BYTES,
        PACKED_HEAD_BYTES,
        kind_of,
        packed_kind,
    )

    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        if path.name.endswith(CORE_SUFFIXES):
            return True
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            if packing_of(head):
                return packed_kind(head + file.read(PACKED_HEAD_BYTES - HEAD_BYTES)) == "gpu-core"
            return kind_of(head) == "gpu-core"
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ELOOP)  # a link that leads nowhere


def _refuse_what_cannot_be_mapped(path: Path) -> None:
    """Raise BadInput unless this is a regular file: a pipe without a writer would block for ever."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise BadInput(
            f"no such file: {path}",
            cause="the dump was never written, or in another folder",
            next_step="vdbg-env dumps list, for the dump volume; vdbg-env runbook no-core-dump finds out why none is",
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if not stat.S_ISREG(mode):
        raise BadInput(f"{path} is a pipe or a device; its bytes cannot be mapped", next_step="save it to a file")


def _expand_core(source: IO[bytes], head: bytes, target: IO[bytes], name: str) -> str | None:
    """Write the expanded bytes; return a note when there is more than could be expanded.

    Raises BadInput where the stream is damaged or ends before anything could be.
    """
    from vdbg_env.crash.packed import TrailingBytes, expanded  # loaded on first use: most cores are not packed

    room = shutil.disk_usage(tempfile.gettempdir()).free - KEEP_FREE
    written, kind = 0, packing_of(head)
    try:
        for chunk in expanded(iter(partial(source.read, _PIECE), b""), head, name):
            written += len(chunk)
            if written > room:
                raise HostNotAble(
                    f"no room to expand {name} in {tempfile.gettempdir()}",
                    next_step="TMPDIR=/a/larger/disk vdbg-env core ...",
                )
            target.write(chunk)
    except EOFError as error:
        if isinstance(error, TrailingBytes) and written:
            return f"{error}; they are left out"
        cut = type(error) is EOFError
        if not written:
            raise BadInput(
                f"{name} is {'cut short' if cut else 'damaged'}: nothing of its {kind} stream expands ({error})",
                cause="it was not written or copied to its end" if cut else "it was changed when it was copied",
                next_step="copy it once more from where it was written",
            ) from None
        how = "ends early" if cut else "is damaged"
        return f"truncated: the {kind} stream {how} ({error}); {written} bytes could be expanded"
    return None


class SourceText(Protocol):
    """Finds the text of source lines, wherever the sources are now."""

    def line(self, file: str, number: int) -> str | None:
        """Return a line by the file name in the line table and its 1-based number; None when it cannot be found."""

    def text(self, file: str) -> Sequence[str] | None:
        """Return all lines of a source file, without their ends; None when it is not found."""


LARGEST: Final = 32 << 20  # bytes; what is larger is no source file
_SOURCES: Final = frozenset(
    f".{ending}"
    for ending in (
        *("c", "cc", "cpp", "cxx", "cu", "cuh", "cuf", "h", "hh", "hpp", "hxx", "inc", "inl", "ipp", "tpp"),
        *("py", "pyi", "pyx", "ptx", "jit", "f", "f90", "rs", "s"),
    )
)


class SourceFiles:
    """SourceText over folders.

    A path is first rewritten by `mappings` (old prefix, new prefix), then looked for below each of `roots` with its
    leading folders dropped one by one, then taken as it is. Only what is named as a source file, and what `admit` lets
    through, is read: a workload says which files these are, and is to have no other one of this machine shown.
    """

    def __init__(
        self,
        roots: Sequence[str] = (),
        mappings: Sequence[tuple[str, str]] = (),
        *,
        admit: Callable[[Path], bool] = lambda _: True,
    ) -> None:
        self._roots: Final = tuple(Path(root) for root in roots)
        self._mappings: Final = tuple(mappings)
        self._admit: Final = admit
        self._asked: dict[str, bool] = {}

    @property
    def missed(self) -> str | None:
        """A file that was looked for where the user said, if no other one was found there either."""
        named = bool(self._roots or self._mappings)
        return next(iter(self._asked), None) if named and not any(self._asked.values()) else None

    def line(self, file: str, number: int) -> str | None:
        """Return the text of a line, without its end; None when the file is not found or is shorter."""
        lines = self.text(file)
        return lines[number - 1] if lines and 0 < number <= len(lines) else None

    def text(self, file: str) -> tuple[str, ...] | None:
        """Return all lines of a source file, without their ends; None when it is not found."""
        found = (_source(path, self._admit) for path in self._candidates(file))
        lines = next((lines for lines in found if lines is not None), None)
        self._asked[file] = lines is not None
        return lines

    def _candidates(self, file: str) -> Iterator[Path]:
        if "\0" in file:
            return
        for old, new in self._mappings:
            if file.startswith(old):
                yield Path(new + file[len(old) :])
        parts = [part for part in Path(file).parts if part not in {"/", ".", ".."}]
        for root in self._roots:
            for start in range(len(parts)):
                yield root.joinpath(*parts[start:])
        if Path(file).is_absolute():
            yield Path(file)


def _is_source(path: Path) -> bool:
    """Whether a path names source text; headers of the standard library, and of CUDA's, have no suffix."""
    return path.suffix.lower() in _SOURCES or (not path.suffix and "include" in path.parts[:-1])


def _source(path: Path, admit: Callable[[Path], bool]) -> tuple[str, ...] | None:
    """Return the lines of a file. What was opened is judged, not the name: a link may take its place meanwhile."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        real, status = Path(os.path.realpath(f"/proc/self/fd/{descriptor}")), os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST or not _is_source(real) or not admit(real):
            return None
        return _lines(real, descriptor, status.st_ino, status.st_size, status.st_mtime_ns)
    except OSError:
        return None
    finally:
        os.close(descriptor)


@lru_cache(maxsize=64)
def _lines(_path: Path, descriptor: int, *_version: int) -> tuple[str, ...]:
    with open(descriptor, encoding="utf-8", errors="replace", closefd=False) as file:
        return tuple(file.read().splitlines())


class Scratch:
    """ScratchFiles in the system's temporary folder."""

    @contextmanager
    def lend(self, data: Buffer, suffix: str) -> Iterator[Path]:
        """Write the bytes to a file whose name ends in `suffix`; it is gone when the block ends."""
        with tempfile.NamedTemporaryFile(prefix="vdbg-", suffix=suffix) as file:
            file.write(data)
            file.flush()
            yield Path(file.name)


# Map a file that another program may cut short: what is gone reads as zeros, and is an error at the end. To read behind
# the end of a file that was cut, or what its disk no longer gives, is a SIGBUS, which ends a program at once. As
# libwayland does for the buffers of its clients, zeros are put there, and the reader continues.

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_GONE = "it was cut short, or its disk failed, while it was read: once nothing writes to it, the same again"
_SA_SIGINFO = 4
_SI_ADDR = 16  # where the address is in a siginfo_t of a 64-bit machine
_MAP_FIXED = 0x10
_OURS = "r--s"  # of /proc/self/maps: shared pages that are only read
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Sigaction(ctypes.Structure):
    """The structure sigaction of glibc and musl on 64-bit machines."""

    _fields_ = (
        ("handler", _Handler),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("rest", ctypes.c_void_p),
    )


_replaced: list[int] = []  # the address of each page from which on zeros were put into a mapping


def mapped_for_good(path: Path) -> memoryview:
    """Return the bytes of a file, mapped until the program ends; raises OSError when it cannot be read."""
    with path.open("rb") as file:
        return memoryview(_pages(file.fileno()))


@contextmanager
def mapped(descriptor: int, path: str | os.PathLike[str]) -> Iterator[memoryview]:
    """Yield the bytes of an open file, mapped; they are gone once the block ends and no slice of them is held.

    Raises OSError at the end of the block, in place of what it raised, when bytes were gone when they were read.
    """
    before = len(_replaced)
    pages = _pages(descriptor)
    view = memoryview(pages)
    try:
        yield view
    finally:
        with suppress(BufferError):  # the reader still holds a slice: the pages go when it lets go
            view.release()
            if isinstance(pages, mmap.mmap):
                pages.close()
        if len(_replaced) > before:
            raise OSError(errno.EIO, _GONE, os.fspath(path))


def _pages(descriptor: int) -> mmap.mmap | bytes:
    _take_faults()
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except ValueError:  # it is empty; to ask before would be too early
        return b""


def _take_faults() -> None:
    """Have SIGBUS put zeros in place of what is gone; another program's handler, as faulthandler's, is replaced."""
    action = _Sigaction(_HANDLER, (ctypes.c_ulong * 16)(), _SA_SIGINFO, None)
    _libc.sigaction(signal.SIGBUS, ctypes.byref(action), None)


def _on_fault(_number: int, info: int, _context: int) -> None:
    """Put zeros from the page of the fault to the end of its mapping; for any other fault the signal is not handled.

    It is called where the fault was, which for one of our mappings is a copy, search or checksum of its bytes.
    """
    address = ctypes.c_uint64.from_address(info + _SI_ADDR).value
    page = address - address % mmap.PAGESIZE
    for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
        span, kind, _, _, _, name = f"{line} ".split(" ", 5)
        start, end = (int(number, 16) for number in span.split("-"))
        if start <= address < end and kind == _OURS:
            _replaced.append(page)
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
            _libc.mmap(page, end - page, mmap.PROT_READ, flags, -1, 0)
            with suppress(OSError):
                os.write(2, f"{name.strip()}: {_GONE}\n".encode("utf-8", "surrogateescape"))
            return
    _libc.signal(signal.SIGBUS, 0)


_HANDLER = _Handler(_on_fault)
