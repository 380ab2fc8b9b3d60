"""Short helper programs: where those of the CUDA toolkit are found, what they print, and the GPUs that they name."""

from __future__ import annotations

import logging
import os
import re
import selectors
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.stop import Held, waiting


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


_LOG = logging.getLogger(__name__)
_HEAD = 512  # bytes: a first line, or the mark of a compiled program
_KILLED_S = 2.0
_PIECE = 1 << 16
_PIPE_MOST = 1 << 20  # bytes that a pipe of an ordinary user holds at most: /proc/sys/fs/pipe-max-size
_LOOK_S = 0.05  # how often it is asked whether a program has ended, where the kernel cannot say when


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and its children, whatever ended the wait for it, Ctrl-C included."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # killed, one that is in a dead driver does not end
            process.wait(_KILLED_S)
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


def output_of(process: subprocess.Popen[bytes], *, timeout_s: float | None = None) -> Iterator[tuple[IO[bytes], bytes]]:
    """Yield what a program prints, each piece with its pipe, until the program has ended.

    A program's end counts, and not that of its pipes: what it left behind (a compiler's cache server, a daemon) may
    hold them for as long as it lives. Raises TimeoutExpired after `timeout_s` seconds.
    """
    until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    pipes = {pipe.fileno(): pipe for pipe in (process.stdout, process.stderr) if pipe}
    try:
        end = os.pidfd_open(process.pid)
    except OSError:
        end = -1
    try:
        with selectors.DefaultSelector() as selector:
            for number in (*pipes, *([end] if end >= 0 else [])):
                selector.register(number, selectors.EVENT_READ)
            while process.poll() is None:
                left = until - time.monotonic()
                if left <= 0:
                    raise subprocess.TimeoutExpired(process.args, timeout_s or 0.0)
                wait = min(left, _LOOK_S) if end < 0 else left
                for ready, _ in selector.select(wait if wait < float("inf") else None):
                    if ready.fd == end:
                        continue
                    if piece := os.read(ready.fd, _PIECE):
                        yield pipes[ready.fd], piece
                    else:
                        selector.unregister(ready.fd)
        for number, pipe in pipes.items():
            os.set_blocking(number, False)
            yield from ((pipe, piece) for piece in _rest(number))
    finally:
        if end >= 0:
            os.close(end)


def _rest(pipe: int) -> Iterator[bytes]:
    """Yield what is in a pipe, at most as much as it can hold: what still writes to it is not the program."""
    left = _PIPE_MOST
    with suppress(BlockingIOError):
        while left > 0 and (piece := os.read(pipe, _PIECE)):
            left -= len(piece)
            yield piece


@dataclass(frozen=True)
class Programs:
    """A ProgramRunner over this machine's own programs; relative paths start from `folder`, if not the current one.

    They get `environment`, if not this program's own.
    """

    folder: Path | None = None
    environment: Mapping[str, str] | None = None

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
        with Held() as held:
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={**(os.environ if self.environment is None else self.environment), "LC_ALL": "C"},
                    cwd=self.folder,
                    start_new_session=True,
                )
            except OSError as error:
                raise HostNotAble(f"{argv[0]} cannot be started: {error.strerror or error}") from error
            printed: dict[IO[bytes] | None, list[bytes]] = {process.stdout: [], process.stderr: []}
            try:
                held.release()
                with waiting():
                    for pipe, piece in output_of(process, timeout_s=timeout_s):
                        printed[pipe].append(piece)
            except subprocess.TimeoutExpired as error:
                raise HostNotAble(f"{argv[0]} did not end within {timeout_s:g} seconds") from error
            finally:
                _end(process)
        _LOG.debug("%s exited with %d", " ".join(argv), process.returncode)
        return Completed(
            argv=tuple(argv),
            code=process.returncode,
            stdout=b"".join(printed[process.stdout]).decode("utf-8", "replace"),
            stderr=b"".join(printed[process.stderr]).decode("utf-8", "replace"),
        )

    def _path(self, program: str) -> Path:
        return Path(program) if self.folder is None else self.folder / program


def _toolkit_folders() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if value := os.environ.get(variable):
            yield Path(value, "bin")
    yield Path("/usr/local/cuda/bin")
    yield from sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin"), reverse=True)


_RELEASE = re.compile(r"release (\d+\.\d+)")
_VERSION = re.compile(r"\b(?:release |[Vv]ersion |[Vv]|)(\d+\.\d+(?:\.\d+)*)")


def tool_version(said: str) -> str:
    """Return the version in what a tool prints for --version, "" if there is none."""
    found = _RELEASE.search(said) or _VERSION.search(said)
    return found[1] if found else ""


def toolkit_release(programs: ProgramRunner) -> str | None:
    """Return the release of the nvcc that kernels would be compiled with at run time, None without one."""
    nvcc = programs.which("nvcc")
    try:
        return (tool_version(programs.run([nvcc, "--version"], timeout_s=20).stdout) or None) if nvcc else None
    except HostNotAble:
        return None


# The GPUs of this machine, asked of nvidia-smi.


NVIDIA_SMI: Final = "nvidia-smi"
_BASIC: Final = ("name", "driver_version", "ecc.errors.uncorrected.volatile.total", "mig.mode.current")
_NEWER: Final = ("compute_cap", "memory.used", "memory.total")  # compute_cap is unknown to drivers before r510
_CUDA: Final = re.compile(r"CUDA(?: UMD)? Version\s*:\s*([\d.]+)")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU; None where nvidia-smi does not say. Memory is in bytes, `compute_capability` is as `9.0`."""

    name: str
    driver: str
    ecc_errors: int | None
    is_mig: bool
    compute_capability: str | None = None
    memory_used: int | None = None
    memory_total: int | None = None


def query(*, basic: bool = False) -> tuple[str, ...]:
    """Return the arguments that print the rows; `basic` leaves out the columns that old drivers do not have."""
    columns = _BASIC if basic else _BASIC + _NEWER
    return (f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits")


def parse_gpus(rows: str) -> tuple[Gpu, ...]:
    """Return the GPUs of the rows; a line that is not a row, such as an error message, is left out."""
    cells = [[cell.strip() for cell in row.split(",")] for row in rows.splitlines()]
    return tuple(_gpu(row + [""] * len(_NEWER)) for row in cells if len(row) >= len(_BASIC))


def cuda_version(table: str) -> str | None:
    """Return the newest CUDA version that the driver supports, from the head of the table; None without one."""
    found = _CUDA.search(table)
    return found[1] if found else None


def _gpu(row: list[str]) -> Gpu:
    used, total = (int(cell) << 20 if cell.isdecimal() else None for cell in row[5:7])
    return Gpu(
        name=row[0],
        driver=row[1],
        ecc_errors=int(row[2]) if row[2].isdecimal() else None,
        is_mig=row[3].lower() == "enabled",
        compute_capability=row[4] if re.fullmatch(r"\d+\.\d+", row[4]) else None,
        memory_used=used,
        memory_total=total,
    )


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """The GPUs, or what nvidia-smi printed in place of them; `is_installed` is False where there is no nvidia-smi."""

    gpus: tuple[Gpu, ...] = ()
    is_installed: bool = True
    problem: str | None = None


def read_gpus(programs: ProgramRunner, *, timeout_s: float = 20) -> GpuReading:
    """Ask for the GPUs; raises HostNotAble when nvidia-smi does not respond."""
    program = programs.which(NVIDIA_SMI)
    if program is None:
        return GpuReading(is_installed=False)
    for basic in (False, True):
        done = programs.run([program, *query(basic=basic)], timeout_s=timeout_s)
        gpus = parse_gpus(done.stdout) if done.code == 0 else ()
        if gpus or "not a valid field" not in done.stdout + done.stderr:
            break
    said = " ".join((done.stdout + done.stderr).split())[:200]
    return GpuReading(gpus=gpus, problem=None if gpus else said or "nvidia-smi prints nothing")


def cuda_of_driver(programs: ProgramRunner, *, timeout_s: float = 20) -> str | None:
    """Return the newest CUDA version of the driver, None where it is unknown; raises HostNotAble as `read_gpus`."""
    program = programs.which(NVIDIA_SMI)
    return cuda_version(programs.run([program], timeout_s=timeout_s).stdout) if program else None
