"""Start a program: its failure to start is known at once, and it dies with its supervisor."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
from typing import NamedTuple

from vdbg_env.supervisor.proc import die_with_parent
from vdbg_env.supervisor.process_tree import Cgroup

_F_SETPIPE_SZ = 1031
MOST_IN_PIPE = 1 << 20  # bytes
_SHELL = "/bin/sh"
_LOOKED_AT = 128  # bytes, of which a program has a zero among the first
_OUTSIDE = b"\0"  # sent before all else by a child that could not enter its cgroup


class Started(NamedTuple):
    """A running program and the reading ends of its two streams."""

    pid: int
    stdout: int
    stderr: int
    in_cgroup: bool = True  # False when the kernel did not let it in


class NotStarted(Exception):
    """The program could not be started; the text says why."""


def launch(
    argv: tuple[str, ...],
    env: dict[str, str],
    cwd: str,
    *,
    cgroup: Cgroup | None = None,
    stdin: int = -1,
    starts: int = -1,
) -> Started:
    """Start `argv` in its own session and in `cgroup`; raises NotStarted with the reason.

    Its standard input is `stdin`, empty where that is -1. `starts` gets a byte where only the program itself can still
    keep it from starting; no byte means that it has not been started.

    The child is killed by the kernel when this process dies: a workload without a supervisor must not continue. It
    starts also where the kernel does not let it into its cgroup.
    """
    out_read, out_write = _wide_pipe()
    err_read, err_write = _wide_pipe()
    said_read, said_write = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(parent, argv, env, cwd, out_write, err_write, said_write, cgroup, stdin, starts)
    for descriptor in (out_write, err_write, said_write):
        os.close(descriptor)
    with os.fdopen(said_read, "rb") as said:
        problem = said.read()  # closed by exec itself: an empty answer means that the program runs
    in_cgroup = not problem.startswith(_OUTSIDE)
    problem = problem.removeprefix(_OUTSIDE)
    if problem:
        os.waitpid(pid, 0)
        os.close(out_read)
        os.close(err_read)
        raise NotStarted(problem.decode("utf-8", "replace"))
    return Started(pid, out_read, err_read, in_cgroup)


def launch_helper(argv: tuple[str, ...], env: dict[str, str], cwd: str) -> tuple[int, int]:
    """Start a helper (a probe, a debugger) and return its pid and the reading end of its output and errors."""
    read, write = os.pipe2(os.O_CLOEXEC)
    said_read, said_write = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(parent, argv, env, cwd, write, write, said_write)
    os.close(write)
    os.close(said_write)
    with os.fdopen(said_read, "rb") as said:
        problem = said.read()
    if problem:
        os.waitpid(pid, 0)
        os.close(read)
        raise NotStarted(problem.decode("utf-8", "replace"))
    os.set_blocking(read, False)
    return pid, read


def _wide_pipe() -> tuple[int, int]:
    read, write = os.pipe2(os.O_CLOEXEC)
    # Where the user's pipe quota is used up, the default size does, only slower.
    with contextlib.suppress(OSError):
        fcntl.fcntl(read, _F_SETPIPE_SZ, MOST_IN_PIPE)
    os.set_blocking(read, False)
    return read, write


def _become(
    parent: int,
    argv: tuple[str, ...],
    env: dict[str, str],
    cwd: str,
    out: int,
    err: int,
    said: int,
    cgroup: Cgroup | None = None,
    stdin: int = -1,
    starts: int = -1,
) -> None:
    """Turn this forked child into the program; never returns."""
    try:
        os.setsid()
        die_with_parent(parent)
        try:
            if cgroup:
                cgroup.enter()
        except OSError:
            os.write(said, _OUTSIDE)
        signal.set_wakeup_fd(-1)
        # A handler goes with the exec; what is ignored would stay so.
        for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(cwd)
        os.dup2(os.open(os.devnull, os.O_RDONLY) if stdin < 0 else stdin, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        if starts >= 0:
            os.write(starts, b"\n")
        _execute(argv, env)
    except OSError as error:
        where = cwd if error.filename == cwd else argv[0]
        os.write(said, f"{where}: {error.strerror}".encode("utf-8", "surrogateescape"))
    except BaseException as error:
        os.write(said, f"{argv[0]}: {error}".encode("utf-8", "surrogateescape"))
    finally:
        os._exit(127)


def _execute(argv: tuple[str, ...], env: dict[str, str]) -> None:
    """Become the program as execvp(3) does, which gives a text without a `#!` line to the shell."""
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        from shutil import which

        script = which(argv[0], path=env.get("PATH", os.defpath))
        if script is None or not _is_text(script):
            raise
        os.execve(_SHELL, (_SHELL, script, *argv[1:]), env)


def _is_text(path: str) -> bool:
    """Say whether a file is no program of another machine, which a shell would only misread."""
    with open(path, "rb") as file:  # noqa: PTH123 - this program starts faster without pathlib
        return b"\0" not in file.read(_LOOKED_AT)
