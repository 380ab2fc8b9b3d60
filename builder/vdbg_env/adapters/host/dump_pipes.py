"""Finds the user-triggered core-dump pipe of each process of a tree, fires it, and waits for the dump.

Source: cuda-gdb manual, "GPU core dump support". The driver makes a FIFO and keeps its reading end open, so the pipe is
looked for among the process's own descriptors: with `%t` its name cannot be computed, and the default name differs from
driver to driver.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from vdbg_env.adapters.files.core_completeness import is_complete
from vdbg_env.application.ports.core_dumps import DumpFile, DumpTarget, PipeState
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.supervisor.processes import proc

ENABLE: Final = "CUDA_ENABLE_USER_TRIGGERED_COREDUMP"
PIPE: Final = "CUDA_COREDUMP_PIPE"
FILE: Final = "CUDA_COREDUMP_FILE"
_DEFAULT_PIPES: Final = ("corepipe.cuda.%h.%p", "corepipe_%h_%p", "cuda_coredump_pipe_%h.%p.%t")
_DEFAULT_FILES: Final = ("core_%t_%h_%p.nvcudmp", "core.cuda.%h.%p")
_ANY_PIPE: Final = re.compile(r"(?i).*(?:core|cuda).*pipe.*|.*pipe.*(?:core|cuda).*")
_TO_WRITE: Final = 1 << 20  # sources disagree between one byte and a mebibyte; more than is read does no harm
_CHUNK: Final = 1 << 16
_POLL_S: Final = 0.1
_STEADY_S: Final = 1.0  # how long a size must not change where nothing else shows that the file is whole


class CorePipesOfLinux:
    """CorePipes over /proc."""

    def tree(self, pid: int) -> tuple[DumpTarget, ...]:
        """Return the process and all below it, each with what is known of its pipe; raises BadInput without one."""
        if not proc.is_alive(pid):
            raise BadInput(
                f"no process {pid} here",
                cause="it has ended, or the number is one of inside a container",
                next_step="ps -ef, on the host; in the container its numbers are others",
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
                written += os.write(descriptor, bytes(_CHUNK))
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
        case errno.EACCES | errno.EPERM:
            cause = "the process belongs to another user, or tracing is restricted"
        case errno.ENXIO | errno.ENOENT | errno.ESRCH if proc.is_alive(target.pid):
            cause = "nothing reads it now: the driver has ended its CUDA context"
        case errno.ENXIO | errno.ENOENT | errno.ESRCH:
            cause = "the process has ended since"
        case _:
            cause = "see the reason above"
    return HostNotAble(what, cause=cause, next_step=f"ls -l /proc/{target.pid}/fd, as its user or as root")
