"""Make every process of a hung tree write a GPU core dump, and say where the dumps are.

Source: cuda-gdb manual, "GPU core dump support". The driver makes a FIFO and keeps its reading end open, so the pipe is
looked for among the process's own descriptors: with `%t` its name cannot be computed, and the default name differs from
driver to driver. A supervisor starts `main` as a separate program, which has the standard library only.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from gpucore.elf import Elf
from gpucore.errors import UnreadableBinary
from vdbg_env.common.console import json_text, printable, size_text
from vdbg_env.common.errors import BadInput, HostNotAble, VdbgError, quoted
from vdbg_env.crash.files import mapped
from vdbg_env.supervisor import proc


class PipeState(StrEnum):
    """What can be said about a process's core-dump pipe before it is fired."""

    READY = "ready"  # the process holds its reading end
    STALE = "stale"  # the pipe is there, but no process reads it
    MISSING = "missing"  # armed by its environment, but no pipe yet: CUDA has not started in it
    NOT_ARMED = "not-armed"
    FORBIDDEN = "forbidden"  # its environment or its files may not be looked at


@dataclass(frozen=True, kw_only=True)
class DumpTarget:
    """One process of a tree, and its core-dump pipe.

    `namespace_pid` is its number inside its container, which `%p` is. `pipe` is the path as the process sees
    it, `descriptor` the number of its reading end. The dump will lie in `dump_folder`, as the process sees it, under a
    name that the regular expression `dump_name` fits.
    """

    pid: int
    name: str
    namespace_pid: int
    state: PipeState
    pipe: str | None = None
    descriptor: int | None = None
    dump_folder: str | None = None
    dump_name: str = ""


@dataclass(frozen=True, kw_only=True)
class DumpFile:
    """A dump that was written: its path as the process sees it and as this program reaches it, its size in bytes."""

    path: str
    reachable: str
    size: int
    complete: bool


class DumpStatus(StrEnum):
    """How it went for one process."""

    WRITTEN = "written"
    INCOMPLETE = "incomplete"  # the file is there, but not whole when time was up or the process ended
    FIRED = "fired"  # asked for and not waited for
    NO_FILE = "no-file"  # asked for, but no file was seen
    FAILED = "failed"  # the pipe could not be written
    STALE = "stale"
    NO_PIPE = "no-pipe"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, kw_only=True)
class ProcessDump:
    """One process and its dump; `why` explains what did not work, `pipe` is the path as the process sees it."""

    target: DumpTarget
    status: DumpStatus
    file: DumpFile | None = None
    written: int = 0
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class DumpReport:
    """Every process that was armed or could not be looked at, and how many were not armed.

    `driver` is the release of the first process that was asked, None where it is not known.
    """

    pid: int
    processes: tuple[ProcessDump, ...]
    not_armed: int
    driver: str | None = None


def dump(
    pid: int,
    timeout_s: float = 600.0,
    pipes: CorePipes | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> DumpReport:
    """Fire every pipe of the tree first, for dumps of one moment; then wait for each to be whole.

    All of them together are waited for that many seconds; 0 does not wait. `tell` gets, before anything is done, what
    becomes of a process after its dump.
    Raises BadInput when there is no such process, or none of the tree is armed.
    """
    pipes = pipes or CorePipes()
    targets = pipes.tree(pid)
    concerned = [t for t in targets if t.state is not PipeState.NOT_ARMED]
    if not concerned:
        raise _not_armed(pid, len(targets))
    driver = next(filter(None, (driver_of(t.pid) for t in concerned if t.state is PipeState.READY)), None)
    if any(target.state is PipeState.READY for target in concerned):
        tell(end_of_dumped(driver))
    fired = [(target, *_fire(target, pipes)) for target in concerned]
    deadline = time.monotonic() + timeout_s
    processes = tuple(
        _finish(target, started, refusal, deadline - time.monotonic(), wait=timeout_s > 0)
        for target, started, refusal in fired
    )
    return DumpReport(pid=pid, processes=processes, not_armed=len(targets) - len(concerned), driver=driver)


def driver_of(pid: int) -> str | None:
    """Return the release of the driver's library that a process has loaded, else that of the kernel's module."""
    try:
        with Path(f"/proc/{pid}/maps").open("rb") as maps:
            found = next(filter(None, map(_LIBCUDA.search, maps)), None)
    except OSError:
        found = None
    if found:
        return found[1].decode()
    try:
        return Path("/sys/module/nvidia/version").read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def ends_dumped(driver: str | None) -> bool | None:
    """Return whether a driver ends a process after a dump on request; None where that was not seen."""
    return True if driver and driver.startswith("580.") else None


def end_of_dumped(driver: str | None) -> str:
    """Return what becomes of a process after its dump, as far as it is known: docs/lab/gpu-proof.md."""
    if ends_dumped(driver):
        return f"driver {driver} ends each process after its dump (SIGABRT; seen with 580.159.04)"
    which = f"driver {driver}" if driver else "this driver"
    return f"whether {which} ends a process after its dump is not known: 580.159.04 does (SIGABRT)"


def check_first_process(pid: int) -> str | None:
    """Return what to ask before the tree of a machine's or a container's first process is dumped; None for others."""
    if not proc.is_alive(pid) or proc.namespace_pid(pid) != 1:
        return None
    whose = "this machine or container" if pid == 1 else "a container"
    below = len(list(proc.descendants(pid)))
    return f"process {pid} is the first of {whose}: {below} processes are below it, and each that is armed may end"


def line(process: ProcessDump) -> str:
    """Return in one line how it went for a process."""
    target, file = process.target, process.file
    inside = f", {target.namespace_pid} inside" if target.namespace_pid != target.pid else ""
    head = f"{target.pid} ({target.name}{inside}): {process.status.value}"
    where = f" {file.reachable}, {size_text(file.size)}" if file else ""
    return f"{head}{where}" + (f": {process.why}" if process.why else "")


def _fire(target: DumpTarget, pipes: CorePipes) -> tuple[Fired | None, str | None]:
    if target.state is not PipeState.READY:
        return None, None
    try:
        return pipes.fire(target), None
    except HostNotAble as error:
        return None, f"{error.what}; {error.cause}"


def _finish(
    target: DumpTarget, started: Fired | None, refusal: str | None, left_s: float, *, wait: bool
) -> ProcessDump:
    if started is None:
        status, why = _unfired(target, refusal)
        return ProcessDump(target=target, status=status, why=why)
    try:
        file = started.wait(max(0.0, left_s)) if wait else None
    finally:
        started.close()
    status, outcome = _outcome(file, waited=wait)
    return ProcessDump(target=target, status=status, file=file, written=started.written, why=outcome)


def _outcome(file: DumpFile | None, *, waited: bool) -> tuple[DumpStatus, str | None]:
    if not waited:
        return DumpStatus.FIRED, None
    if file is None:
        return DumpStatus.NO_FILE, "no dump appeared: the process ended first, or writes it under another name"
    if file.complete:
        return DumpStatus.WRITTEN, None
    return DumpStatus.INCOMPLETE, "still growing when the time was up, or the process ended before the dump did"


def _unfired(target: DumpTarget, refusal: str | None) -> tuple[DumpStatus, str]:
    match target.state:
        case PipeState.STALE:
            return DumpStatus.STALE, "there is a pipe without a reader: left by an earlier run, or CUDA has ended"
        case PipeState.MISSING:
            return DumpStatus.NO_PIPE, "armed, but it has made no pipe: CUDA has not started in it"
        case PipeState.FORBIDDEN:
            return DumpStatus.FORBIDDEN, f"it may not be looked at: {_who_may()}"
        case PipeState.READY | PipeState.NOT_ARMED:
            return DumpStatus.FAILED, refusal or "its pipe could not be written"


def _who_may() -> str:
    return "run as its user or as root" if os.geteuid() else "root needs CAP_SYS_PTRACE, which most containers lack"


def _not_armed(pid: int, count: int) -> BadInput:
    return BadInput(
        f"no process of the tree of {pid} ({count} in all) is armed for a dump on request",
        cause="CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1 must be in the environment before CUDA starts in each process",
        next_step='eval "$(vdbg-env dump --arm)", then start the program again',
    )


ENABLE: Final = "CUDA_ENABLE_USER_TRIGGERED_COREDUMP"
PIPE: Final = "CUDA_COREDUMP_PIPE"
_LIBCUDA: Final = re.compile(rb"/libcuda\.so\.([0-9]{3,}(?:\.[0-9]+)+)")
FILE: Final = "CUDA_COREDUMP_FILE"
_DEFAULT_PIPES: Final = ("corepipe.cuda.%h.%p", "corepipe_%h_%p", "cuda_coredump_pipe_%h.%p.%t")
_DEFAULT_FILES: Final = ("core_%t_%h_%p.nvcudmp", "core.cuda.%h.%p")
_ANY_PIPE: Final = re.compile(r"(?i).*(?:core|cuda).*pipe.*|.*pipe.*(?:core|cuda).*")
_TO_WRITE: Final = 1 << 20  # sources disagree between one byte and a mebibyte; more than is read does no harm
_PIECE: Final = 1 << 16
_POLL_S: Final = 0.1
_STEADY_S: Final = 1.0  # how long a size must not change where nothing else shows that the file is whole


class CorePipes:
    """The core-dump pipes of a process tree, found and fired through /proc."""

    def tree(self, pid: int) -> tuple[DumpTarget, ...]:
        """Return the process and all below it, each with what is known of its pipe; raises BadInput without one."""
        if not proc.is_alive(pid):
            raise BadInput(
                f"no process {pid} here",
                cause="it has ended, or the number is one of inside a container",
                next_step="ps -ef, on the host; process IDs in a container differ",
            )
        return tuple(_target(each) for each in (pid, *(one.pid for one in proc.descendants(pid))))

    def fire(self, target: DumpTarget) -> Fired:
        """Write until the pipe is full; raises HostNotAble when it has no reader or may not be opened."""
        folder = _dump_folder(target)
        before = _matching(folder, target)
        try:
            written = _write(Path(f"/proc/{target.pid}/fd/{target.descriptor}"))
        except OSError as error:
            raise _cannot_fire(target, error) from error
        return Fired(target=target, written=written, folder=folder, before=before)


@dataclass
class Fired:
    """A dump that was asked for; `folder` is where it will appear, `before` what matched there already."""

    target: DumpTarget
    written: int
    folder: _Folder | None
    before: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def wait(self, timeout_s: float) -> DumpFile | None:
        """Wait until a new file that matches is whole, closed and steady, or the process is gone."""
        end = time.monotonic() + timeout_s
        size, since, whole = -1, time.monotonic(), False
        looked_at = -1  # the size when the file was last read through, which takes long for a large one
        seen: DumpFile | None = None
        while True:
            alive = proc.is_alive(self.target.pid)
            name = self._new_file()
            if name and self.folder:
                path = self.folder.reach(name)
                now = _size(path)
                if now != size:
                    size, since, whole = now, time.monotonic(), False
                still_open = alive and self._is_open(name)
                steady = time.monotonic() - since >= _STEADY_S
                if not still_open and steady and looked_at != size:
                    whole, looked_at = is_complete(path), size
                seen = DumpFile(
                    path=f"{self.folder.seen}/{name}", reachable=str(self.folder.shown(name)), size=now, complete=whole
                )
                if whole or (not alive and steady):
                    return seen
            elif not alive:
                return None
            if time.monotonic() >= end:
                return seen
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Let go of the folder."""
        if self.folder:
            self.folder.close()

    def _new_file(self) -> str | None:
        now = _matching(self.folder, self.target)
        changed = [name for name, mark in now.items() if self.before.get(name) != mark]
        return max(changed, key=lambda name: now[name], default=None)

    def _is_open(self, name: str) -> bool:
        try:
            return any(Path(link).name == name for link in proc.open_files(self.target.pid).values())
        except OSError:
            return False


class _Folder:
    """The folder a dump is written to, held open: when a container's last process ends its files are gone by name."""

    def __init__(self, pid: int, seen: str) -> None:
        self.seen: Final = seen
        self._by_name: Final = Path(proc.path_from_here(pid, seen))
        self._descriptor: int | None = os.open(self._by_name, os.O_RDONLY | os.O_DIRECTORY)

    def files(self) -> list[Path]:
        """Return the files of the folder now."""
        return list(Path(f"/proc/self/fd/{self._descriptor}").iterdir())

    def reach(self, name: str) -> Path:
        """Return a path that works as long as this is open."""
        return Path(f"/proc/self/fd/{self._descriptor}/{name}")

    def shown(self, name: str) -> Path:
        """Return a path to show to the user."""
        return self._by_name / name

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _target(pid: int) -> DumpTarget:
    inner, one = proc.namespace_pid(pid), proc.process(pid)
    name = one.name if one else "?"
    try:
        variables, files = proc.inherited_environment(pid), proc.open_files(pid)
    except OSError:
        state = PipeState.FORBIDDEN if proc.is_alive(pid) else PipeState.NOT_ARMED
        return DumpTarget(pid=pid, name=name, namespace_pid=inner, state=state)
    armed, template, file = (_text(variables, wanted) for wanted in (ENABLE, PIPE, FILE))
    templates = (template,) if template else _DEFAULT_PIPES
    descriptor = _reading_end(pid, files, _names(templates, inner))
    own = proc.environment(pid)
    if descriptor is None and own and own.variables is None:
        descriptor = _reading_end(pid, files, _ANY_PIPE)  # an ancestor's template need not be this process's
    state, pipe = PipeState.NOT_ARMED, None
    if descriptor is not None:
        state, pipe = PipeState.READY, files[descriptor].removesuffix(" (deleted)")
    elif armed not in {"", "0"}:
        pipe = _left_behind(pid, templates, inner)
        state = PipeState.STALE if pipe else PipeState.MISSING
    return DumpTarget(
        pid=pid, name=name, namespace_pid=inner, state=state, pipe=pipe, descriptor=descriptor,
        dump_folder=_absolute(pid, file.rpartition("/")[0]),
        dump_name=_names((file,) if file else _DEFAULT_FILES, inner).pattern + r"(?:\.gz)?",
    )  # fmt: skip


def _text(variables: Mapping[bytes, bytes] | None, name: str) -> str:
    return os.fsdecode((variables or {}).get(name.encode(), b""))


def _names(templates: Sequence[str], pid: int) -> re.Pattern[str]:
    """Return a pattern of the names that the driver gives: templates with %h, %p and %t filled in, without folders."""
    filled = {"%h": "[^/]+", "%p": str(pid), "%t": "[0-9]+", "%%": "%"}
    names = [template.rpartition("/")[2] for template in templates]
    parts = [[filled.get(part, re.escape(part)) for part in re.split(r"(%[hpt%])", name)] for name in names]
    return re.compile("(?:" + "|".join("".join(each) for each in parts) + ")")


def _absolute(pid: int, folder: str) -> str:
    """Return a folder as the process sees it; the driver takes a relative one from the working directory."""
    if folder.startswith("/"):
        return folder
    try:
        return f"{Path(f'/proc/{pid}/cwd').readlink()}/{folder}".rstrip("/")
    except OSError:
        return folder or "."


def _reading_end(pid: int, files: Mapping[int, str], names: re.Pattern[str]) -> int | None:
    """Return the descriptor of a named pipe that the process reads and whose name fits."""
    for descriptor, link in sorted(files.items()):
        name = link.removesuffix(" (deleted)").rpartition("/")[2]
        if link.startswith("/") and names.fullmatch(name) and proc.opened_for_reading(pid, descriptor):
            try:
                if stat.S_ISFIFO(Path(f"/proc/{pid}/fd/{descriptor}").stat().st_mode):
                    return descriptor
            except OSError:
                continue
    return None


def _left_behind(pid: int, templates: Sequence[str], inner: int) -> str | None:
    """Return a pipe that is where a template says, although the process does not read it."""
    for template in templates:
        folder, names = template.rpartition("/")[0], _names((template,), inner)
        try:
            for path in sorted(Path(proc.path_from_here(pid, folder or ".")).iterdir()):
                if names.fullmatch(path.name) and path.is_fifo():
                    return f"{folder}/{path.name}" if folder else path.name
        except OSError:
            continue
    return None


def _dump_folder(target: DumpTarget) -> _Folder | None:
    try:
        return _Folder(target.pid, target.dump_folder) if target.dump_folder else None
    except OSError:
        return None


def _matching(folder: _Folder | None, target: DumpTarget) -> dict[str, tuple[int, int]]:
    """Return the files that may be the dump, with when each was last written and its size."""
    found = {}
    for path in folder.files() if folder else ():
        if re.fullmatch(target.dump_name, path.name):
            try:
                status = path.stat()
            except OSError:
                continue
            found[path.name] = (status.st_mtime_ns, status.st_size)
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _write(pipe: Path) -> int:
    """Write up to a mebibyte, as much as goes in without waiting, and return how much that was."""
    descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise OSError(errno.ESPIPE, "it is no longer a pipe")
        written = 0
        while written < _TO_WRITE:
            try:
                written += os.write(descriptor, bytes(_PIECE))
            except BlockingIOError:
                break
            except BrokenPipeError:
                break  # the reader had enough
        return written
    finally:
        os.close(descriptor)


def _cannot_fire(target: DumpTarget, error: OSError) -> HostNotAble:
    what = f"the core-dump pipe of process {target.pid} ({target.name}) cannot be written: {error.strerror}"
    match error.errno:
        case errno.EACCES | errno.EPERM if os.geteuid():
            cause = "the process belongs to another user, or tracing is restricted"
        case errno.EACCES | errno.EPERM:
            cause = "tracing is restricted, or root has no CAP_SYS_PTRACE, as in most containers"
        case errno.ENXIO | errno.ENOENT | errno.ESRCH if proc.is_alive(target.pid):
            cause = "nothing reads it now: the driver has ended its CUDA context"
        case errno.ENXIO | errno.ENOENT | errno.ESRCH:
            cause = "the process has ended since"
        case _:
            cause = "see the reason above"
    return HostNotAble(
        what, cause=cause, next_step=f"ls -l /proc/{target.pid}/fd{', as its user or as root' if os.geteuid() else ''}"
    )


_GZIP: Final = b"\x1f\x8b"
_CHUNK: Final = 1 << 20


def is_complete(path: Path) -> bool:
    """Return whether a dump, gzipped or not, has all its bytes; False too while it cannot be opened."""
    try:
        with path.open("rb") as file:
            if file.read(2) == _GZIP:
                file.seek(0)
                return _gzip_ends(file.read)
            with mapped(file.fileno(), path) as data:
                return _elf_is_whole(data)
    except OSError:
        return False


def _elf_is_whole(view: memoryview) -> bool:
    try:
        elf = Elf(view)
        end = elf.contents_end
        elf.data.release()
    except UnreadableBinary:
        return False
    return 0 < end <= len(view)


def _gzip_ends(read: Callable[[int], bytes]) -> bool:
    stream = zlib.decompressobj(wbits=31)
    try:
        while chunk := read(_CHUNK):
            while chunk and not stream.eof:
                stream.decompress(chunk, _CHUNK)
                chunk = stream.unconsumed_tail
    except zlib.error:
        return False
    return stream.eof


def main(pid: int) -> int:
    """Fire, wait for the dumps, and print the result of each process."""
    try:
        report = dump(pid)
    except VdbgError as error:
        print(f"{error.what} ({error.cause})" if error.cause else error.what, file=sys.stderr)
        return error.exit_status
    for process in report.processes:
        print(line(process))
    return 0


def dump_text(report: DumpReport) -> str:
    """Return a line for each process, and the command that reads the dumps."""
    lines = [line(process) for process in report.processes]
    files = [p.file.reachable for p in report.processes if p.file and p.file.complete]
    if report.not_armed:
        lines.append(f"({report.not_armed} other process(es) of the tree are not armed)")
    if files:
        lines.append(f"read with: vdbg-env core {' '.join(map(quoted, files))}")
    return "".join(printable(line) + "\n" for line in lines)


# JSON: docs/schemas/dump-v1.schema.json is the contract and says what each field means.


def dump_json(report: DumpReport) -> str:
    """Return the report as JSON, the root of the tree first."""
    processes = [
        {
            "pid": of.target.pid,
            "name": of.target.name,
            "namespace_pid": of.target.namespace_pid,
            "status": of.status.value,
            "pipe": of.target.pipe,
            "bytes_written": of.written,
            "file": of.file and of.file.path,
            "reachable": of.file and of.file.reachable,
            "size": of.file and of.file.size,
            "complete": of.file and of.file.complete,
            "why": of.why,
        }
        for of in report.processes
    ]
    schema = "vdbg-env/dump/v1"
    return json_text(
        {
            "schema": schema,
            "pid": report.pid,
            "not_armed": report.not_armed,
            "driver": report.driver,
            "ends_processes": ends_dumped(report.driver),
            "processes": processes,
        }
    )
