"""The programs of a unit build, from packages: CMake and Python's build tools, and the CUDA compiler of one release."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

from vdbg_env.adapters.builders.host_steps import kept_environment
from vdbg_env.adapters.builders.units.kept import Kept
from vdbg_env.adapters.builders.units.running import Programs
from vdbg_env.common.errors import BadInput, EngineFailed, HostNotAble
from vdbg_env.image.units import compiler_packages

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
            next_step="check the package index: pip download --no-deps six; PIP_INDEX_URL names another",
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
        raise BadInput(f"{nvcc} does not print its release", next_step=f"{nvcc} --version")
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
