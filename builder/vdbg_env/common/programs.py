"""Short helper programs, run to their end, and where those of the CUDA toolkit are found."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.stop import waiting


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A helper program that ran to its end."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str


class ProgramRunner(Protocol):
    """Runs a short helper program (cuobjdump, nvidia-smi); never the workload under study."""

    def which(self, program: str) -> str | None:
        """Return the program's full path, or None when it was not found."""
        ...

    def head(self, program: str) -> bytes:
        """Return the first bytes of a program's file; none of one that is missing or cannot be read."""
        ...

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
        """Run to the end; raises HostNotAble when it cannot be started or outlasts `timeout_s`."""
        ...


# Runs short helper programs, and finds those of the CUDA toolkit where its packages put them.


_LOG = logging.getLogger(__name__)
_HEAD = 512  # bytes: a first line, or the mark of a compiled program


class Programs:
    """A ProgramRunner over this machine's own programs; relative paths start from `folder`, if not the current one."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def which(self, program: str) -> str | None:
        """Return the program's full path: PATH first, then a CUDA toolkit, then NVIDIA's Python packages."""
        found = shutil.which(str(self._path(program)) if "/" in program else program)
        return found or next((str(f / program) for f in _toolkit_folders() if os.access(f / program, os.X_OK)), None)

    def head(self, program: str) -> bytes:
        """See `ProgramRunner.head`."""
        try:
            with self._path(program).open("rb") as file:
                return file.read(_HEAD)
        except OSError:
            return b""

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
        """Run to the end; raises HostNotAble when it cannot be started or outlasts `timeout_s` seconds.

        Raises ToldToStop where it outlasts the patience of `common.stop`.
        """
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C"},
                cwd=self._folder,
                start_new_session=True,
            )
        except OSError as error:
            raise HostNotAble(f"{argv[0]} cannot be started: {error.strerror or error}") from error
        try:
            with waiting():
                stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise HostNotAble(f"{argv[0]} did not end within {timeout_s:g} seconds") from error
        finally:
            # Whatever ended the wait, Ctrl-C included, the program and its children end too.
            if process.poll() is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        _LOG.debug("%s exited with %d", " ".join(argv), process.returncode)
        return Completed(
            argv=tuple(argv),
            code=process.returncode,
            stdout=stdout.decode("utf-8", "replace"),
            stderr=stderr.decode("utf-8", "replace"),
        )

    def _path(self, program: str) -> Path:
        return Path(program) if self._folder is None else self._folder / program


def _toolkit_folders() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if value := os.environ.get(variable):
            yield Path(value, "bin")
    yield Path("/usr/local/cuda/bin")
    yield from sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin"), reverse=True)
