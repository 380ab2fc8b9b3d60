"""Compile units to cubins with line info, with programs from packages, each kept by what it was made from."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import zipfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from vdbg_env.build.builder import BuildEvent, OutputLine, StepEnded, StepStarted
from vdbg_env.build.host import kept_environment
from vdbg_env.build.progress import TAIL_LINES, LineSplitter
from vdbg_env.common.errors import BadInput, EngineFailed, HostNotAble, quoted
from vdbg_env.common.programs import output_of
from vdbg_env.supervisor.proc import send_to_group
from vdbg_env_lines.units import (
    CompiledUnit,
    ConfiguredTree,
    UnitOrder,
    compiler_packages,
    cubin_argv,
    header_package,
    missing_header,
)

# Folders that are made once and kept, so a later call continues where an earlier one stopped.


_MARK = ".complete"

Tell = Callable[[BuildEvent], None]


class Kept:
    """The folders below `home`; `tell` receives the start and the end of each step that makes one."""

    def __init__(self, home: Path, tell: Tell) -> None:
        self.home = home
        self.tell = tell

    def folder(self, name: str, title: str, make: Callable[[Path], None]) -> Path:
        """Return the folder of a name, calling `make` on an empty one if it is not complete yet.

        A folder that was left half made is made anew; two processes wait for each other. Raises what `make` raises,
        and EngineFailed when the disk refuses.
        """
        folder = self.home / name
        try:
            with self._locked(name), self.step(name, title, cached=(folder / _MARK).exists()) as needed:
                if needed:
                    shutil.rmtree(folder, ignore_errors=True)
                    folder.mkdir(parents=True)
                    make(folder)
                    (folder / _MARK).touch()
        except OSError as error:
            raise EngineFailed(
                f"cannot write {folder}: {error.strerror or error}",
                cause="the disk is full, or the folder is not yours",
                next_step=f"df -h {quoted(self.home)}; --work DIR puts everything elsewhere",
            ) from error
        return folder

    @contextmanager
    def step(self, key: str, title: str, *, cached: bool = False) -> Iterator[bool]:
        """Report a step; the block learns whether there is work to do."""
        since = time.monotonic()
        self.tell(StepStarted(key=key, title=title))
        try:
            yield not cached
        except BaseException as error:
            failed = str(error) or type(error).__name__
            self.tell(StepEnded(key=key, cached=False, duration_s=time.monotonic() - since, error=failed))
            raise
        self.tell(StepEnded(key=key, cached=cached, duration_s=0.0 if cached else time.monotonic() - since))

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        lock = self.home / f"{name}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


# Run a program of a build to its end, each line of its output reported at once, ended whatever happens.


_MOST_OF_ERROR = 12


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A program that ended: its exit status, the last lines that it printed, and CMake's first error of them all."""

    code: int
    tail: tuple[str, ...]
    error: tuple[str, ...] = ()


class _Printed:
    """What is kept of a program's output: its end, and the first error of CMake, which is a line and indented ones."""

    def __init__(self) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.error: list[str] = []
        self._within = False

    def add(self, line: str) -> None:
        self.tail.append(line)
        starts = not self.error and line.startswith("CMake Error")
        self._within = starts or (self._within and (not line.strip() or line.startswith((" ", "\t"))))
        if self._within and line.strip() and len(self.error) < _MOST_OF_ERROR:
            self.error.append(line)


class Programs:
    """Runs programs, each in a session that ends with it; `stop` ends those that run, from any thread."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, argv: Sequence[str], *, key: str, env: Mapping[str, str], cwd: Path | None = None) -> Ran:
        """Run a program; raises HostNotAble when it cannot be started."""
        with self._lock:
            if self._stopped:
                return Ran(code=-signal.SIGTERM, tail=())
            try:
                process = subprocess.Popen(
                    argv, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise HostNotAble(f"{argv[0]} cannot be started: {error.strerror or error}") from error
            self._running.add(process)
        printed = _Printed()
        try:
            self._read(process, key, printed)
            code = process.wait()
        finally:
            self._end(process)
        return Ran(code=code, tail=tuple(printed.tail), error=tuple(printed.error))

    def require(self, argv: Sequence[str], *, key: str, env: Mapping[str, str], what: str, next_step: str) -> None:
        """Run a program that must end well; raises EngineFailed with its last lines when it does not.

        CMake continues after an error: its first one is in the sentence, and all of it above the last lines.
        """
        ran = self.run(argv, key=key, env=env)
        if ran.code != 0:
            said = f": {' '.join(' '.join(ran.error).split())}" if ran.error else ""
            earlier = () if set(ran.error) <= set(ran.tail) else (*ran.error, "...")
            raise EngineFailed(
                f"{what} failed with exit status {ran.code}{said}",
                details=tuple(f"| {line}" for line in (*earlier, *ran.tail)),
                next_step=next_step,
            )

    def stop(self) -> None:
        """End what runs, and start nothing more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                send_to_group(process.pid, signal.SIGKILL)

    def _read(self, process: subprocess.Popen[bytes], key: str, printed: _Printed) -> None:
        splitter = LineSplitter()
        for _, data in output_of(process):
            self._report(splitter.feed(data), key, printed)
        self._report(splitter.rest(), key, printed)

    def _report(self, lines: Iterable[str], key: str, printed: _Printed) -> None:
        for line in lines:
            printed.add(line)
            self._tell(OutputLine(key=key, text=line, stream="stdout"))

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(process)
        send_to_group(process.pid, signal.SIGKILL)  # what it left running in its session
        process.wait()
        if process.stdout:
            process.stdout.close()


# The programs of a unit build, from packages: CMake and Python's build tools, and the CUDA compiler of one release.


_TOOLS = ("cmake", "ninja", "setuptools>=78.1.1,<81", "setuptools-scm>=8", "setuptools-rust>=1.9", "packaging", "wheel",
          "jinja2", "regex")  # fmt: skip
# CMake looks for these files and none of them is linked: an empty one says that the toolkit has the library.
_LOOKED_FOR = ("cublas", "cublasLt", "cuda", "cufft", "cuFile", "cupti", "curand", "cusolver", "cusparse", "nvJitLink",
               "nvrtc", "nvToolsExt")  # fmt: skip


class Toolkit:
    """Packages below one home; everything is fetched by pip, with the user's own configuration of it."""

    def __init__(self, kept: Kept, programs: Programs, installed: Path | None = None) -> None:
        self._kept = kept
        self._programs = programs
        self.installed = installed

    def tools(self) -> Path:
        """Return a Python environment with CMake, Ninja and what a source distribution needs to be unpacked."""
        return self._kept.folder("tools", "CMake, Ninja and Python's build tools", self._make_tools)

    def compiler(self, release: str) -> Path:
        """Return the root of a CUDA toolkit whose nvcc is of exactly this release.

        Raises BadInput where another one is installed in the folder that was named.
        """
        if self.installed:
            found = installed_release(self.installed)
            if found != release:
                raise BadInput(
                    f"{self.installed} has nvcc {found}, and the wheel was made by {release}",
                    cause="another compiler makes other instructions",
                    next_step="name a toolkit of that release",
                )
            return self.installed
        return self._kept.folder(
            f"cuda-{release}", f"CUDA compiler {release}", lambda folder: self._make_compiler(folder, release)
        )

    def add_headers(self, compiler: Path, package: str, key: str) -> None:
        """Put the headers of another package into a toolkit; its libraries are not kept."""
        if compiler == self.installed:
            raise EngineFailed(
                f"{compiler} lacks the headers of {package}", next_step="install the whole toolkit, headers included"
            )
        mark = compiler / f".headers-{package}"
        if mark.exists():
            return
        download = self._kept.home / "downloads" / package
        wheel = self.download(package, download, key=key)
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                _, found, below = member.filename.partition("/include/")
                if found and below and not member.is_dir():
                    target = compiler / "include" / below
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(member))
        shutil.rmtree(download)
        mark.touch()

    def download(self, requirement: str, folder: Path, *, key: str, env: dict[str, str] | None = None,
                 options: tuple[str, ...] = ()) -> Path:  # fmt: skip
        """Return the one file that pip fetches for a requirement, into an empty folder."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._pip("download", "--no-deps", "--no-cache-dir", "--dest", str(folder), *options, requirement,
                  key=key, what=requirement, env=env)  # fmt: skip
        files = [path for path in folder.iterdir() if path.is_file()]
        if len(files) != 1:
            raise EngineFailed(f"pip fetched {len(files)} files for {requirement}, one was expected")
        return files[0]

    def ask_for_sources(self, requirement: str) -> tuple[str, ...]:
        """Return what pip says when it is asked for the source distribution of one release, and for nothing else.

        A hash that no file has makes pip stop before it would run the distribution's own code for its metadata.
        """
        mine = self._kept.home / "tools" / "bin" / "python"
        if not (self._kept.home / "tools" / _MARK).exists():
            mine = Path(sys.executable) if find_spec("pip") else self.tools() / "bin" / "python"
        with tempfile.TemporaryDirectory() as folder:
            asked = Path(folder, "requirements.txt")
            asked.write_text(f"{requirement} --hash=sha256:{'0' * 64}\n")
            ran = self._programs.run(
                [
                    str(mine), "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--no-deps",
                    "--ignore-requires-python", "--no-binary", ":all:", "--require-hashes", "--dest", folder,
                    "--requirement", str(asked),
                ],
                key="index",
                env={**self.environment(), "PIP_CONSTRAINT": os.devnull},
            )  # fmt: skip
        return ran.tail

    def environment(self, compiler: Path | None = None) -> dict[str, str]:
        """Return the environment to run build programs in: the tools first, then the compiler, then the system."""
        env = kept_environment()
        folders = [str(self._kept.home / "tools" / "bin")]
        if compiler:
            folders.append(str(compiler / "bin"))
            env |= {"CUDA_HOME": str(compiler), "CUDA_PATH": str(compiler)}
        return env | {"PATH": ":".join((*folders, env.get("PATH", "/usr/bin:/bin"))), "LC_ALL": "C"}

    def _make_tools(self, folder: Path) -> None:
        require_host()
        self._programs.require(
            [sys.executable, "-m", "venv", str(folder)],
            key="tools",
            env=kept_environment(),
            what="making a Python environment",
            next_step="apt install python3-venv",
        )
        self._pip("install", *_TOOLS, key="tools", what="the build tools")

    def _make_compiler(self, folder: Path, release: str) -> None:
        site = folder / "site"
        self._pip("install", "--no-deps", "--target", str(site), *compiler_packages(release),
                  key=folder.name, what=f"the CUDA compiler {release}")  # fmt: skip
        # CUDA 13's packages unpack into one tree, those of CUDA 12 into one each.
        for part in sorted((site / "nvidia").iterdir()):
            if part.is_dir():
                shutil.copytree(part, folder, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(site)
        library = folder / "lib"
        (folder / "lib64").symlink_to("lib")
        for versioned in sorted(library.glob("lib*.so.*")):
            plain = library / f"{versioned.name.partition('.so.')[0]}.so"
            if not plain.exists():
                plain.symlink_to(versioned.name)
        (library / "stubs").mkdir(exist_ok=True)
        (library / "stubs" / "libcuda.so").touch()
        for name in _LOOKED_FOR:
            if not (library / f"lib{name}.so").exists():
                (library / f"lib{name}.so").touch()

    def _pip(self, *words: str, key: str, what: str, env: dict[str, str] | None = None) -> None:
        python = self._kept.home / "tools" / "bin" / "python"
        self._programs.require(
            [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", *words],
            key=key,
            env={**self.environment(), **(env or {})},
            what=f"fetching {what}",
            next_step="is the name right? pip index versions NAME asks the index; PIP_INDEX_URL names another one",
        )


def installed_release(folder: Path) -> str:
    """Return the release of the nvcc of an installed toolkit, as in 12.9.86; raises BadInput where it has none."""
    nvcc = folder / "bin" / "nvcc"
    try:
        printed = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput(f"{nvcc} does not run: {error}", next_step="--compiler /usr/local/cuda-12.9") from None
    found = re.search(r"\bV(\d+\.\d+\.\d+)", printed)
    if found is None:
        raise BadInput(f"{nvcc} does not print its release", next_step=f"{quoted(nvcc)} --version")
    return found[1]


def require_host() -> None:
    """Refuse early when this machine lacks what no package of Python brings; raises HostNotAble."""
    missing = [program for program in ("g++", "gcc") if shutil.which(program) is None]
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing.append("Python.h")
    if missing:
        raise HostNotAble(
            f"compiling needs {', '.join(missing)} on this machine",
            cause="nvcc calls the system's C++ compiler, and CMake looks for Python's headers",
            next_step="apt install g++ python3-dev",
        )


_MOST_HEADERS: Final = 8

# With one architecture, nvcc names that one alone to the preprocessor; CUB puts the list into its kernels' names.
_HOST_COMPILER: Final = """\
#!/bin/sh
for word do
  shift
  case $word in -D__CUDA_ARCH_LIST__=*) word="-D__CUDA_ARCH_LIST__=$VDBG_ARCH_LIST" ;; esac
  set -- "$@" "$word"
done
exec gcc "$@"
"""


class Compiler:
    """Compiles the units of one configured tree."""

    def __init__(self, kept: Kept, toolkit: Toolkit, programs: Programs) -> None:
        self._kept = kept
        self._toolkit = toolkit
        self._programs = programs

    def compile(
        self, tree: ConfiguredTree, orders: Sequence[UnitOrder], *, jobs: int
    ) -> Generator[CompiledUnit, None, None]:
        """See `UnitBuilds.compile`."""
        wrapper = self._wrapper()
        with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
            waiting = [
                pool.submit(self._one, tree, order, wrapper, i, len(orders)) for i, order in enumerate(orders, 1)
            ]
            try:
                for done in as_completed(waiting):
                    yield done.result()
            except BaseException:
                self._programs.stop()
                pool.shutdown(cancel_futures=True)
                raise

    def _one(self, tree: ConfiguredTree, order: UnitOrder, wrapper: Path, number: int, total: int) -> CompiledUnit:
        kept = self._kept.home / "cubins" / f"{_key(tree, order)}.cubin"
        source = Path(order.unit.source).name
        title = f"[{number}/{total}] {source} for {order.target}"
        cached = kept.exists()
        since = time.monotonic()
        output = ""
        with self._kept.step(f"{source}:{order.target}", title, cached=cached) as needed:
            if needed:
                output = self._compile(tree, order, wrapper, kept)
        cubin = kept.read_bytes() if kept.exists() else None
        duration = 0.0 if cached else time.monotonic() - since
        return CompiledUnit(order=order, cubin=cubin, cached=cached, duration_s=duration, output=output)

    def _compile(self, tree: ConfiguredTree, order: UnitOrder, wrapper: Path, kept: Path) -> str:
        """Write the cubin, or return what the compiler printed last."""
        kept.parent.mkdir(parents=True, exist_ok=True)
        compiler = Path(tree.compiler)
        key = f"{Path(order.unit.source).name}:{order.target}"
        env = self._toolkit.environment(compiler) | {"VDBG_ARCH_LIST": order.unit.arch_list}
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            made = Path(folder, kept.name)
            argv = cubin_argv(order.unit, order.target, str(made), ("-lineinfo", "-ccbin", str(wrapper)))
            for _ in range(_MOST_HEADERS):
                ran = self._programs.run(argv, key=key, env={**env, "TMPDIR": folder}, cwd=Path(order.unit.folder))
                if ran.code == 0:
                    made.replace(kept)
                    return ""
                output = "\n".join(ran.tail)
                header = missing_header(output)
                package = header_package(header, compiler.name.partition("-")[2]) if header else None
                if package is None:
                    break
                self._add_headers(compiler, package)
        return output

    def _add_headers(self, compiler: Path, package: str) -> None:
        self._kept.folder(
            f"{compiler.name}-with-{package}", f"Headers of {package}",
            lambda folder: self._toolkit.add_headers(compiler, package, folder.name),
        )  # fmt: skip

    def _wrapper(self) -> Path:
        folder = self._kept.home / "host-compiler"
        folder.mkdir(parents=True, exist_ok=True)
        wrapper = folder / "gcc"
        partial = folder / f"gcc.{os.getpid()}"
        partial.write_text(_HOST_COMPILER)
        partial.chmod(0o755)
        partial.replace(wrapper)
        return wrapper


def _key(tree: ConfiguredTree, order: UnitOrder) -> str:
    """Return a name for a cubin by all that it is made from: the tree, whose name says its parts, and the command."""
    told = json.dumps([Path(tree.folder).name, order.target, order.unit.arch_list, order.unit.argv])
    return hashlib.sha256(told.encode()).hexdigest()[:24]
