"""Start supervisors, and keep one ready: a step then waits for no Python to start and import."""

from __future__ import annotations

import json
import select
import subprocess
import weakref
from contextlib import suppress
from pathlib import Path

from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.stop import waiting
from vdbg_env.common.writing import write_whole

_START_LIMIT_S = 30.0


class Supervisors:
    """The supervisors of one run, each started by `command`: one for each step, and one more that waits for the next.

    The one that waits has no directory, no lock and no job; it ends with this object, or when this program dies,
    because its standard input is then closed.
    """

    def __init__(self, command: tuple[str, ...], *, spare: bool = True) -> None:
        self._command = command
        self._spare = spare
        self._waiting: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, _dismiss, self._waiting)

    def start(self, directory: Path, job: bytes, descriptors: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        """Have a supervisor take the lock of `directory`, and only then send it its job; returns its process.

        It inherits `descriptors`, where there are any.

        Raises HostNotAble when none can be started, or the directory cannot be written.
        """
        process = _spawn(self._command, descriptors) if descriptors else self._next()
        try:
            with waiting():
                if not _takes(process, directory):
                    raise _not_started(process)
                assert process.stdin
                write_whole(process.stdin.fileno(), job)
        except BrokenPipeError as error:
            raise _not_started(process) from error
        finally:
            _hang_up(process)
        if self._spare:
            with suppress(HostNotAble):  # no room for one more process now: the next step says so if it is still true
                self._waiting.append(_spawn(self._command))
        return process

    def _next(self) -> subprocess.Popen[bytes]:
        """Return the supervisor that waits, or a new one where there is none, or where that was ended."""
        while self._waiting:
            process = self._waiting.pop()
            if process.poll() is None:
                return process
            _hang_up(process)
        return _spawn(self._command)


def _spawn(command: tuple[str, ...], descriptors: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    """Start a supervisor, which first waits for its directory; it gets no variable of the user.

    Raises HostNotAble when there can be no such process.
    """
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            start_new_session=True,
            pass_fds=descriptors,
            bufsize=0,
        )
    except OSError as error:
        raise HostNotAble(
            f"the supervisor of a step could not be started: {error.strerror}",
            cause="this machine has no room for one more process, or its Python is gone",
        ) from error


def _takes(process: subprocess.Popen[bytes], directory: Path) -> bool:
    """Name the directory to a supervisor; returns whether it holds its lock now."""
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(str(directory)).encode() + b"\n")
    return bool(select.select([process.stdout], [], [], _START_LIMIT_S)[0]) and process.stdout.readline() == b"ready\n"


def _not_started(process: subprocess.Popen[bytes]) -> HostNotAble:
    assert process.stderr
    process.kill()
    told = process.stderr.read().decode("utf-8", "replace").strip().splitlines()
    process.wait()
    return HostNotAble(
        "the supervisor of a step could not be started",
        cause="the run directory cannot be written, or this Python lacks a standard module",
        details=tuple(told[-3:]),
    )


def _hang_up(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes to a supervisor; it has its job, and needs no engine from now on."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            pipe.close()


def _dismiss(waiting: list[subprocess.Popen[bytes]]) -> None:
    """End the supervisors that never got a job; they have started nothing."""
    for process in waiting:
        process.kill()
        _hang_up(process)
        process.wait()
