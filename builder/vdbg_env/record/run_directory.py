"""The folder of a run: its head, attempts, files and lock; files are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import re
import shlex
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import SEEK_END, BytesIO
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any, TypeVar

from vdbg_env.common.errors import BadInput, HostNotAble, quoted
from vdbg_env.common.files import NotAFile, open_file, opened, read_document, refusal_cause

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@contextmanager
def replacement(path: Path, *, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Yield a file that becomes `path` at the block's end, whole and durable; after a failure nothing is left.

    It has the permissions of the file that it replaces, those of `mode` where there was none.

    Until then it has a name that cannot be foreseen: under any other a workload may have put a link, and what is
    written would be where that leads, on this machine and not in the workload's container.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".new")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            with suppress(FileNotFoundError):
                mode = path.lstat().st_mode & 0o777
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


def write_new(path: Path, text: str, *, next_step: str) -> None:
    """Write a file for people to edit; raises BadInput where there is one, or where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise BadInput(
            f"{path} exists already", next_step=f"edit it, or choose another name than {path.stem}"
        ) from None
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}", next_step=next_step) from None


def write_json(path: Path, document: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Write a JSON file, whole or not at all."""
    with replacement(path) as file:
        file.write(json.dumps(document, indent=indent).encode() + b"\n")


@contextmanager
def prepared(path: Path) -> Iterator[Path]:
    """Yield where to make a file or folder that gets the name `path` at the block's end; else nothing is left.

    It is in a new folder next to `path`: what another put under a name that can be foreseen would be written over.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".vdbg-") as ours:
        made = Path(ours, path.name)
        yield made
        made.replace(path)


# Take from files of a container what would give rights on this machine: set-uid bits, capabilities, device nodes.


_CAPABILITIES = "security.capability"  # capabilities(7): a set-uid bit in parts; to change a mode keeps it
_SET_IDS = stat.S_ISUID | stat.S_ISGID


def disarm(folder: Path, *, since_ns: int = 0, check: Callable[[], None] = lambda: None) -> int:
    """Strip set-uid and set-gid bits and capabilities, and remove device nodes; return how many files had one.

    Root in a container is root on this machine: a set-uid file that it leaves in a folder of this machine would work
    for every user who reaches it. Only files that changed since `since_ns` are looked at; links are not followed.
    `check` is called for each file and may raise.
    """
    changed = 0
    with suppress(FileNotFoundError):  # the folder itself has been removed: what reads it next reports that
        for _, _, names, opened in os.fwalk(folder):
            for name in names:
                check()
                with suppress(OSError):  # removed since, or the file of another user, where only root could have set it
                    changed += _disarm(name, opened, since_ns)
    return changed


def _disarm(name: str, folder: int, since_ns: int) -> bool:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if found.st_ctime_ns < since_ns:
        return False
    if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
        os.unlink(name, dir_fd=folder)
        return True
    if not stat.S_ISREG(found.st_mode):
        return False
    armed = False
    with suppress(OSError):  # it has none, as a rule
        os.removexattr(f"/proc/self/fd/{folder}/{name}", _CAPABILITIES, follow_symlinks=False)
        armed = True
    if not found.st_mode & _SET_IDS:
        return armed
    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        os.fchmod(opened, stat.S_IMODE(found.st_mode) & ~_SET_IDS)
    finally:
        os.close(opened)
    return True


SCHEMA = "vdbg-env/run-head/v1"
LOCK = "run.lock"
RUNBOOKS = "runbooks"
GUARD = "guard"  # the runbook of what runs once, in production
_LEFT_OUT = "[redacted"
Part = TypeVar("Part")
_SAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, kw_only=True)
class RunHead:
    """What a run was started with, redacted: enough to show it, and to check that a resumed run is the same one.

    `digest` is the runbook's; `recorded_on` says where a replayed recording was made, `synthetic` that it was made by
    hand; `pseudonyms` says that host names and addresses are replaced. `image` (name, id, digest) and `container`
    (how it is started) say where steps ran, both empty for this machine; `placement` is how ranks were started, empty
    for a single one. `folder` is where commands started, and relative paths with them; empty where that is not known.
    `disk_floor` is the free space that was asked for, None for what is usual.
    """

    run: str
    runbook: str
    runbook_file: str = ""
    digest: str = ""
    started: str = ""
    workload: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    tool_version: str = ""
    host: str = ""
    recorded_on: str = ""
    synthetic: bool = False
    image: Mapping[str, Any] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)
    placement: Mapping[str, Any] = field(default_factory=dict)
    pseudonyms: bool = False
    folder: str = ""
    disk_floor: int | None = None

    @property
    def in_pods(self) -> bool:
        """Whether ranks were pods that an earlier version started (`--on k8s`), which no version does any longer."""
        return self.placement.get("on") == "k8s"


def way_on(head: RunHead, run: str) -> tuple[str, str]:
    """Return what to do with a run that was cut short, and the command that does it; `run` is what names the run.

    A command in production is not started by its record: it is started anew, under guard.
    """
    if head.runbook != GUARD:
        return "resume it where it stopped", shlex.join(["vdbg-env", "runbook", head.runbook, "--resume", run])
    whole = head.workload and not any(_LEFT_OUT in word for word in head.workload)
    return "start the command again", f"vdbg-env guard -- {shlex.join(head.workload) if whole else 'COMMAND'}"


class RunDirectory:
    """One run's folder; making one writes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._real = Path(os.path.realpath(path))  # a loop of links is a folder that cannot be read, and no error here
        self._held: int | None = None  # its descriptor, while the run is held
        self._folder: tuple[int, int] | None = None  # which one it was when the run began, or was resumed

    @property
    def events(self) -> Path:
        """The path of the event log."""
        return self.path / "events.jsonl"

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "run.json").exists()

    def free_space(self) -> int:
        """Return the free bytes of the disk that the run is, or will be, on."""
        there = next(folder for folder in (self.path, *self.path.parents) if folder.is_dir())
        return shutil.disk_usage(there).free

    def create(self) -> None:
        """Make the folder; raises HostNotAble where that cannot be done."""
        new = False
        try:
            new = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=self.path, buffering=0) as probe:
                if not self.exists:  # a full disk takes a file, but nothing in it
                    probe.write(b"run")
                ours = os.fstat(probe.fileno()).st_uid
            # A file server may give all that we make to another user. A run that is there was looked at by a person.
            if not self.exists and self.path.stat().st_uid not in {ours, 0}:
                raise PermissionError(errno.EPERM, "it belongs to another user, who could replace all that is in it")
        except OSError as error:
            if new:
                with contextlib.suppress(OSError):
                    self.path.rmdir()
            raise HostNotAble(
                f"no run can be kept in {self.path}: {error.strerror}",
                cause="the folder is read-only, full, or belongs to another user",
                next_step="name another: VDBG_ENV_RUNS=DIR, or --run-dir DIR of a runbook",
            ) from error
        self._folder = self._identity()

    @contextlib.contextmanager
    def locked(self, host: str | None = None) -> Iterator[None]:
        """Hold the run alone; raises BadInput naming the holder when another process works on it.

        `host` is the name that others read of this machine, its own where it is None.
        """
        with self.alone() as descriptor:
            holder = json.dumps({"pid": os.getpid(), "host": host or socket.gethostname()})
            try:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, holder.encode(), 0)
            except OSError as error:
                raise HostNotAble(
                    f"{self.path} cannot be written: {error.strerror}",
                    cause=refusal_cause(error),
                    next_step="when that is over, continue with --resume",
                ) from error
            self._held = descriptor
            try:
                yield
            finally:
                self._held = None
            os.ftruncate(descriptor, 0)

    @contextlib.contextmanager
    def alone(self) -> Iterator[int]:
        """Hold the run as `locked` does, without a name for others to read: that takes no space on a full disk.

        The lock is the kernel's and dies with its holder. The descriptor is closed in every child: one that was
        inherited would outlive this process in a workload.
        """
        with self._lock() as descriptor:
            if not _taken(descriptor, fcntl.LOCK_EX):
                raise BadInput(
                    f"another process works on {self.path}: {_holder(descriptor)}",
                    cause="two processes on one run would start its steps twice",
                    next_step="wait for it, or end that process first",
                )
            yield descriptor

    @contextlib.contextmanager
    def _lock(self) -> Iterator[int]:
        """Yield the lock's descriptor; raises HostNotAble where a workload has put something else in its place."""
        path = self.path / LOCK
        try:
            descriptor = open_file(path)
        except NotAFile as error:
            raise HostNotAble(
                f"{path} cannot be opened: {error.strerror}",
                cause="the workload, or another program, put that there",
                next_step=f"mv {quoted(path)} {quoted(f'{path}.other')}, then the same again",
            ) from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def is_worked_on(self) -> bool:
        """Return whether a process holds the run, also where only reading is allowed."""
        try:
            with opened(self.path / LOCK) as lock:
                return not _taken(lock.fileno(), fcntl.LOCK_SH)
        except OSError:  # it was never held, or it is something else
            return False

    def check_in_place(self, name: str = "") -> None:
        """Raise HostNotAble when the run, or `name` below it, has become a way to somewhere else since the run began.

        A workload may put a link in place of its record; what follows would then be written wherever that leads.
        """
        real = os.path.realpath(self.path / name)
        if _is_loop(self.path / name):
            real = "nowhere"
        if real != str(self._real / name):
            raise HostNotAble(
                f"{self.path / name} leads to {real} now: it has been replaced by a link",
                cause="the workload, or another program, moved the record of this run",
                next_step="look at what is there, then begin again with another --run-dir",
            )
        if self._folder and self._identity() != self._folder and not self._is_removed():
            raise HostNotAble(
                f"{self.path} is no longer the folder that this run began in",
                cause="the workload, or another program, moved the record of this run",
                next_step="move it back, then continue with --resume",
            )

    def remove(self) -> None:
        """Remove the run with all that is in it; raises OSError where that fails, and it is then what is left.

        It loses its name first: another process would make a lock in it, and no longer a run, while it is removed.
        """
        going = self.path.with_name(f".{self.path.name}.removed")
        self.path.rename(going)
        try:
            shutil.rmtree(going)
        except BaseException:
            going.rename(self.path)
            raise

    def _is_removed(self) -> bool:
        """Return whether a workload removed the record: the run continues without it, to a verdict."""
        return self._held is not None and os.fstat(self._held).st_nlink == 0

    def _identity(self) -> tuple[int, int] | None:
        try:
            about = self.path.stat()
        except OSError:
            return None
        return about.st_dev, about.st_ino

    def write_head(self, head: RunHead) -> None:
        """Write `run.json`, whole or not at all."""
        write_json(self.path / "run.json", {"schema": SCHEMA, **_plain(head)}, indent=1)

    def keep_runbooks(self, texts: Mapping[str, str]) -> None:
        """Write the runbooks that the run needs again, by their names in it; one may have a folder."""
        for name, text in texts.items():
            path = self.path / RUNBOOKS / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    @property
    def runbooks(self) -> tuple[Path, ...]:
        """The runbooks that were kept with the run."""
        return tuple(sorted((self.path / RUNBOOKS).glob("*.yaml")))

    def read_head(self) -> RunHead:
        """Return what the run was started with; raises BadInput for a folder that is not a run."""
        try:
            document = read_document(self.path / "run.json")
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{self.path} is not a run: its run.json cannot be read",
                cause="the folder is another one, or the run never began",
                next_step="vdbg-env runs list",
            ) from error
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise BadInput(f"{self.path / 'run.json'} does not follow {SCHEMA}")
        return _head({name: document[name] for name in RunHead.__dataclass_fields__ if name in document}, self.path)

    def attempt(self, step: str, attempt: int, folder: str = "") -> Path:
        """Return the folder of one attempt, or `folder` in it."""
        return self.path / "steps" / _SAFE.sub("_", step) / str(attempt) / _SAFE.sub("_", folder)

    def where(self, name: str) -> Path:
        """Return the real path of a file or folder of the run, by its name in records."""
        return Path(os.path.realpath(self.path / name))

    def begin_attempt(self, name: str, argv: Sequence[str], env: Mapping[str, Any]) -> None:
        """Make the folder of an attempt with what will be started in it, both redacted; raises HostNotAble."""
        self.check_in_place(name)
        try:
            (self.path / name).mkdir(parents=True, exist_ok=True)
            write_json(self.path / name / "argv.json", {"argv": argv}, indent=1)
            write_json(self.path / name / "env.json", env, indent=1)
        except OSError as error:
            raise HostNotAble(
                f"{self.path / name} cannot be written: {error.strerror}", cause=refusal_cause(error)
            ) from error

    def read_report(self) -> Mapping[str, Any]:
        """Return the run's report as JSON values; raises BadInput where none was written."""
        try:
            document = read_document(self.path / "report.json")
        except (OSError, ValueError) as error:
            raise BadInput(
                f"run {self.path.name!r} has no report yet",
                cause="it was cut off before its end",
                next_step=f"vdbg-env runs report {quoted(self.path)} --write",
            ) from error
        if not isinstance(document, dict):
            raise BadInput(
                f"{self.path / 'report.json'} is not a report",
                cause="it was edited, or another program wrote it",
                next_step=f"vdbg-env runs report {quoted(self.path)} --write",
            )
        return document


def part_of(head: RunHead, name: str, kind: type[Part]) -> Part:
    """Return a part of a head as the value that it was written from; raises BadInput for one that was edited."""
    from pydantic import TypeAdapter

    return _validated(TypeAdapter(kind), getattr(head, name), f"the {name} of run {head.run!r}")


def _head(document: Mapping[str, Any], run: Path) -> RunHead:
    return _validated(_head_type(), document, f"{run / 'run.json'}")


def _validated(kind: TypeAdapter[Part], document: Mapping[str, Any], what: str) -> Part:
    # A list of runs, which has an index, takes longer to import pydantic than to do its work.
    from pydantic import ValidationError

    try:
        return kind.validate_python(dict(document))
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(
            f"{what} is damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            cause="it was edited, or its disk lost data",
        ) from error


@functools.cache
def _head_type() -> TypeAdapter[RunHead]:
    from pydantic import TypeAdapter

    return TypeAdapter(RunHead)


def _plain(head: RunHead) -> dict[str, Any]:
    return {name: getattr(head, name) for name in RunHead.__dataclass_fields__}


def _taken(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    try:
        document = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {document['pid']} on {document['host']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "a process that has only just begun"


def _is_loop(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


# The files of a run as built-in steps read and write them.


_CHUNK = 1 << 20
_LONGEST_TEXT = 64 << 20  # bytes of one text file that are read at once


class RunFiles:
    """The files below one run's folder, by the names that records give them; a file that is missing is empty."""

    def __init__(self, run: Path) -> None:
        self._run = run

    def inside(self, name: str) -> Path:
        """Return the path of a file; raises BadInput for one that leads out of the run directory."""
        if not Path(os.path.realpath(self._run / name)).is_relative_to(os.path.realpath(self._run)):
            raise BadInput(
                f"{name} leads out of the run directory", cause="a path in a runbook that starts with / or .."
            )
        return self._run / name

    def chunks(self, path: PurePath) -> Iterator[bytes]:
        """Yield a file's bytes in pieces."""
        with self._reading(path) as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    def exists(self, path: PurePath) -> bool:
        """Say whether there is such a file."""
        return Path(path).is_file()

    def lines(self, path: PurePath, *needles: bytes) -> Iterator[bytes]:
        """Yield the lines of a file that contain one of `needles`, all of them where none is given."""
        with self._reading(path) as file:
            yield from (line for line in file if not needles or any(needle in line for needle in needles))

    def text(self, path: PurePath) -> str:
        """Return a text file, of a huge one its end."""
        with self._reading(path) as file:
            file.seek(max(0, file.seek(0, SEEK_END) - _LONGEST_TEXT))
            return file.read().decode("utf-8", "replace")

    def modified(self, path: PurePath) -> float:
        """Return when a file was last written, in seconds since the epoch."""
        return Path(path).stat().st_mtime

    def write(self, path: PurePath, data: bytes | memoryview) -> None:
        """Write a file, its folder included."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)

    def free_space(self) -> int:
        """Return the free bytes of the disk that the run is on."""
        return shutil.disk_usage(self._run).free

    def _reading(self, path: PurePath) -> IO[bytes]:
        try:
            return Path(path).open("rb")
        except FileNotFoundError:
            return BytesIO()
