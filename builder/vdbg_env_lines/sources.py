"""Fetch and configure the sources of a released wheel below one folder; nothing is installed in the system."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import Final

import platformdirs

from gpucore.dwarf import UNKNOWN
from gpucore.line_packs import PackedHeaders
from vdbg_env.common.errors import BadInput, EngineFailed
from vdbg_env.common.tar import tarfile
from vdbg_env_lines.compilers import Compiler, Kept, Programs, Tell, Toolkit
from vdbg_env_lines.units import (
    GENERATOR_PACKAGE,
    CompiledUnit,
    ConfiguredTree,
    CutlassPackage,
    OtherProject,
    Release,
    StockWheel,
    TreeRequest,
    Unit,
    UnitOrder,
    cutlass_release,
    nearest_cutlass,
    pinned_projects,
    read_compile_commands,
)

# What a configure and a compile need of torch: its headers and CMake files, from its wheel, without its libraries.
#
# Half a gigabyte of libraries and two of CUDA's would only be linked, and a single cubin is not linked.


_TAKEN: Final = ("torch/include/", "torch/share/cmake/", "torch/version.py")
_LOOKED_FOR: Final = ("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_nvshmem", "torch_python")
_EXTENSION: Final = "torch/utils/cpp_extension.py"
_FLAGS: Final = "COMMON_NVCC_FLAGS"

# vLLM's CMake asks torch for two values, and its setup.py for three that are None without CUDA.
_PACKAGE: Final = "from torch.version import __version__\nimport torch.utils, torch.version\n"
_UTILS: Final = """\
import os
cmake_prefix_path = os.path.join(os.path.dirname(os.path.dirname(__file__)), "share", "cmake")
"""


def take_torch_parts(wheel: Path, site: Path) -> None:
    """Write a package `torch` below `site` that a configure can import; raises EngineFailed for another wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.filename.startswith(_TAKEN):
                archive.extract(member, site)
        flags = _nvcc_flags(archive.read(_EXTENSION).decode(), wheel.name)
    package = site / "torch"
    (package / "lib").mkdir()
    (package / "utils").mkdir()
    for name in _LOOKED_FOR:
        (package / "lib" / f"lib{name}.so").touch()
    (package / "__init__.py").write_text(_PACKAGE)
    (package / "utils" / "__init__.py").write_text(_UTILS)
    (package / "utils" / "cpp_extension.py").write_text(f"CUDA_HOME = ROCM_HOME = None\n{_FLAGS} = {flags!r}\n")


def _nvcc_flags(source: str, wheel: str) -> list[str]:
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == _FLAGS:
                flags = ast.literal_eval(value)
                return [str(flag) for flag in flags]
    raise EngineFailed(f"{wheel} has no {_FLAGS}", cause="a torch of another layout than those known")


# The sources of a wheel, configured by CMake as its release was, for a compile of single units.


_CUTLASS_PROJECT: Final = """\
cmake_minimum_required(VERSION 3.19)
project(CUTLASS LANGUAGES CXX)
set(CUTLASS_DIR ${CMAKE_CURRENT_SOURCE_DIR} CACHE PATH "")
set(CUTLASS_INCLUDE_DIR ${CMAKE_CURRENT_SOURCE_DIR}/include CACHE PATH "")
set(CUTLASS_TOOLS_UTIL_INCLUDE_DIR ${CMAKE_CURRENT_SOURCE_DIR}/tools/util/include CACHE PATH "")
"""
_INCLUDE: Final = re.compile(r"^( *)include\((cmake/external_projects/\w+\.cmake)\)", re.MULTILINE)
_OVERRIDE: Final = re.compile(r"ENV\{(\w+_SRC_DIR)\}")
# Only the host code of other projects needs it, and of a single unit the host code is not compiled.
_HOST_COMPILER_CHECK: Final = 'CMAKE_CXX_COMPILER_VERSION VERSION_LESS "13")'
_PROJECT_FILE: Final = re.compile(r"cmake/external_projects/\w+\.cmake")
_TORCH: Final = re.compile(r"torch==([\w.+]+)$")


class Sources:
    """Configured trees below one home, one for each wheel, compiler, list of architectures and set of externals."""

    def __init__(self, kept: Kept, toolkit: Toolkit, programs: Programs, source: Path | None = None) -> None:
        self._kept = kept
        self._toolkit = toolkit
        self._programs = programs
        self._source = source
        self._asked: set[Release] = set()

    def require(self, release: Release) -> None:
        """Ask the package index whether it has the sources of a release, before anything large is fetched for them.

        Raises BadInput where it answers that it has none. Where it does not answer, what needs it says so.
        """
        if self._source or release in self._asked or self._is_fetched(release):
            return
        self._asked.add(release)
        requirement = f"{release.project}=={release.version}"
        with self._kept.step("index", f"Sources of {requirement} on the package index"):
            said = self._toolkit.ask_for_sources(requirement)
        found = next(filter(None, map(_OFFERED.search, said)), None)
        if found is None or any(map(_NO_ANSWER.search, said)):
            return
        versions = offered(said)
        if not versions:
            raise no_sources(requirement)
        raise BadInput(
            f"the package index has no source distribution of {requirement}",
            details=(f"it has those of: {', '.join(versions[-8:])}",),
            next_step=f"vdbg-env lines build {release.project}=={versions[-1]}, or --source DIR with the sources",
        )

    def configure(self, request: TreeRequest) -> ConfiguredTree:
        """See `UnitBuilds.configure`."""
        self.require(request.release)
        if self._source:
            require_cmake(cmake_files(self._source), str(self._source))
        self._toolkit.tools()
        torch = self._torch(request)
        sources = self._source or self._archive(request, torch)
        texts = cmake_files(sources)
        require_cmake(texts, f"the sources of {request.release.project}")
        compiler = self._toolkit.compiler(request.compiler)
        projects = pinned_projects(texts[name] for name in sorted(texts))
        externals = {**self._own_cutlass(projects, request), **request.externals}
        release = request.release
        made_of = [request.compiler, request.arch_list, sorted(externals.items())]
        made_of += [str(compiler)] if self._toolkit.installed else []
        made_of += [fingerprint_of(self._source)] if self._source else []
        told = json.dumps(made_of)
        name = f"{release.project}-{release.version}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
        title = f"Sources of {release.project} {release.version}, configured for {request.arch_list}"
        folder = self._kept.folder(
            name, title, lambda made: self._make_tree(made, sources, request, compiler, torch, externals)
        )
        units = read_compile_commands((folder / "build" / "compile_commands.json").read_text())
        headers, shown = _headers_used(projects, externals)
        notes = tuple(f"headers of {found.project} {found.used}, pinned is {found.wanted}" for found in headers)
        notes += (f"sources of {self._source}, given by --source",) if self._source else ()
        shown |= {folder / "src": "", folder / "build": "build/", self._kept.home: ""} | ({torch: ""} if torch else {})
        return ConfiguredTree(
            folder=str(folder), compiler=str(compiler), units=units, notes=notes, projects=projects, headers=headers,
            shown=tuple(_prefixes(shown)),
        )  # fmt: skip

    def _own_cutlass(self, projects: Sequence[OtherProject], request: TreeRequest) -> dict[str, str]:
        """Return CUTLASS from the package index for a release that takes it, unless a local tree was given."""
        wanted = next((project for project in projects if project.title == "CUTLASS"), None)
        if wanted is None or wanted.variable is None or wanted.variable in request.externals:
            return {}
        return {wanted.variable: str(self._cutlass(nearest_cutlass(wanted.revision)))}

    def _torch(self, request: TreeRequest) -> Path | None:
        pinned = next(
            (f for text in request.release.requires if (f := _TORCH.match(text.partition(";")[0].strip()))), None
        )
        if pinned is None:
            return None
        requirement = pinned[0]

        def make(folder: Path) -> None:
            wheel = self._toolkit.download(requirement, folder / "download", key=folder.name)
            take_torch_parts(wheel, folder)
            shutil.rmtree(folder / "download")

        return self._kept.folder(f"torch-{pinned[1]}", f"Headers of {requirement}", make)

    def _cutlass(self, package: CutlassPackage) -> Path:
        title = f"Headers of CUTLASS {package.release} from {package.requirement}"
        return self._kept.folder(f"cutlass-{package.release}", title, lambda made: self._make_cutlass(made, package))

    def _make_cutlass(self, folder: Path, package: CutlassPackage) -> None:
        unpacked = self._unpacked(package.requirement, folder)
        source = unpacked / package.source
        shutil.copytree(source / "include", folder / "include")
        shutil.copytree(source / "tools" / "util" / "include", folder / "tools" / "util" / "include")
        if package.generator is None:
            unpacked = self._unpacked(GENERATOR_PACKAGE.requirement, folder)
        generator = folder / "python" / "cutlass_library"  # the generator of vLLM's Machete kernels imports it
        generator.mkdir(parents=True)
        for path in (unpacked / (package.generator or str(GENERATOR_PACKAGE.generator))).glob("*.py"):
            shutil.copy(path, generator)
        (folder / "CMakeLists.txt").write_text(_CUTLASS_PROJECT)
        shutil.rmtree(folder / "wheel")
        shutil.rmtree(folder / "download")

    def _unpacked(self, requirement: str, folder: Path) -> Path:
        shutil.rmtree(folder / "wheel", ignore_errors=True)
        wheel = self._toolkit.download(requirement, folder / "download", key=folder.name)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "wheel")
        return folder / "wheel"

    def _archive(self, request: TreeRequest, torch: Path | None) -> Path:
        release = request.release
        requirement = f"{release.project}=={release.version}"

        def make(folder: Path) -> None:
            # With these, pip takes vLLM's metadata on a machine without CUDA; other projects ignore them. Releases
            # without the override call themselves X+empty, of which pip's older resolver only warns.
            env = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": release.version}
            # The older resolver fails on a package that the user's constraints name and the download does not need.
            env["PIP_CONSTRAINT"] = os.devnull
            options = ("--no-build-isolation", "--no-binary", release.project, "--ignore-requires-python",
                       "--use-deprecated=legacy-resolver")  # fmt: skip
            downloads = folder / "download"
            try:
                found = self._toolkit.download(
                    requirement, downloads, key=folder.name, env=env | _python_path(torch), options=options
                )
            except EngineFailed as error:
                if any("No matching distribution found" in line for line in error.details):
                    raise no_sources(requirement) from error
                raise
            if not found.name.endswith(".tar.gz"):
                raise EngineFailed(f"{found.name} is not a source distribution")
            found.rename(folder / "source.tar.gz")
            downloads.rmdir()

        name = _source_folder(release)
        return self._kept.folder(name, f"Source distribution of {requirement}", make) / "source.tar.gz"

    def _is_fetched(self, release: Release) -> bool:
        return (self._kept.home / _source_folder(release) / "source.tar.gz").exists()

    def _make_tree(
        self, folder: Path, sources: Path, request: TreeRequest, compiler: Path, torch: Path | None,
        externals: Mapping[str, str],
    ) -> None:  # fmt: skip
        source = folder / "src"
        if sources.is_dir():
            shutil.copytree(sources, source, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        else:
            with tarfile.open(sources) as packed:
                packed.extractall(folder / "unpacked", filter="data")
            (top,) = (folder / "unpacked").iterdir()
            top.rename(source)
        lists = source / "CMakeLists.txt"
        lists.write_text(_without_other_projects(lists.read_text(), source, externals))
        python = self._kept.home / "tools" / "bin" / "python"
        env = self._toolkit.environment(compiler) | {
            "TORCH_CUDA_ARCH_LIST": request.arch_list, **externals, **_python_path(torch)
        }  # fmt: skip
        fetched = (f"-D{name}={tree}" for name, tree in externals.items() if name.startswith(FETCHED))
        self._programs.require(
            [
                "cmake", "-G", "Ninja", "-S", str(source), "-B", str(folder / "build"),
                f"-DVLLM_PYTHON_EXECUTABLE={python}", "-DCMAKE_BUILD_TYPE=Release", "-DVLLM_TARGET_DEVICE=cuda",
                f"-DFETCHCONTENT_BASE_DIR={folder / 'externals'}", "-DFETCHCONTENT_FULLY_DISCONNECTED=ON",
                f"-DCUDA_TOOLKIT_ROOT_DIR={compiler}", f"-DCMAKE_CUDA_COMPILER={compiler / 'bin' / 'nvcc'}",
                "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
                f"-DCMAKE_CUDA_ARCHITECTURES={request.arch_list.replace('.', '').replace(' ', ';')}", *fetched,
            ],
            key=folder.name,
            env=env,
            what="configuring the sources",
            next_step="the lines above are CMake's; --verbose shows all of them",
        )  # fmt: skip


def offered(said: Sequence[str]) -> list[str]:
    """Return the versions that an index has in place of the one asked of pip; none where it did not answer so."""
    found = next(filter(None, map(_OFFERED.search, said)), None)
    return found[1].split(", ") if found and found[1] != "none" else []


def no_sources(requirement: str) -> BadInput:
    """Return the error for a package that is published as wheels only: of closed code there is nothing to build."""
    project = requirement.partition("==")[0].lower()
    if project.startswith(_CLOSED):
        return BadInput(
            f"{requirement} has no sources: its code is closed, so nothing gives its kernels lines",
            next_step="vdbg-env core --parameters FILE shows the arguments of the launch instead",
        )
    return BadInput(
        f"{requirement} has no source distribution on the package index, so its kernels cannot be compiled again",
        cause="torch, NVIDIA's libraries and others publish wheels only",
        next_step="clone its repository: --source DIR takes the folder with its CMakeLists.txt; or build it with "
        f"-lineinfo, and vdbg-env lines pack BUILD -o {project}.lines",
    )


def require_cmake(texts: Mapping[str, str], what: str) -> None:
    """Refuse sources that CMake does not build, by their CMake files."""
    if "CMakeLists.txt" not in texts:
        raise BadInput(
            f"{what}: no CMakeLists.txt, so how its kernels are compiled is not known here",
            cause="it is built by a setup.py, or its CMakeLists.txt is in another folder: --source DIR/FOLDER",
            next_step="NVCC_PREPEND_FLAGS=-lineinfo pip install . there, and vdbg-env lines pack what that made",
        )


def cmake_files(sources: Path) -> dict[str, str]:
    """Return the texts of a source tree's CMake files that name other projects; it may be packed."""
    if sources.is_dir():
        named = [sources / "CMakeLists.txt", *sources.glob("cmake/external_projects/*.cmake")]
        files = {str(path.relative_to(sources)): path for path in named if path.is_file()}
        return {name: path.read_text(errors="replace") for name, path in files.items()}
    texts: dict[str, str] = {}
    with tarfile.open(sources) as packed:
        for member in packed:
            inside = member.name.partition("/")[2]
            if inside == "CMakeLists.txt" or _PROJECT_FILE.fullmatch(inside):
                file = packed.extractfile(member)
                texts[inside] = file.read().decode(errors="replace") if file else ""
    return texts


def fingerprint_of(tree: Path) -> str:
    """Return what differs between two source trees, and after a change of one: a hash of names, sizes and times."""
    found = hashlib.sha256(str(tree).encode())
    for folder, folders, files in os.walk(tree):
        folders[:] = sorted(set(folders) - set(_NOT_COPIED))
        for name in sorted(files):
            path = Path(folder, name)
            about = path.lstat()
            found.update(f"{path}\0{about.st_size}\0{about.st_mtime_ns}\0".encode(errors="surrogateescape"))
    return found.hexdigest()


def _source_folder(release: Release) -> str:
    return f"source-{release.project}-{release.version}"


def _headers_used(
    projects: Sequence[OtherProject], externals: Mapping[str, str]
) -> tuple[tuple[PackedHeaders, ...], dict[Path, str]]:
    """Return which release of each other project is used, and the folder it has here with the one that is shown."""
    headers: list[PackedHeaders] = []
    shown: dict[Path, str] = {}
    for project in projects:
        if project.variable and project.variable in externals:
            folder = Path(externals[project.variable])
            used = _release_in(folder, project)
            name = f"{project.folder}-{used[:12]}/"
            headers.append(
                PackedHeaders(folder=name, project=project.title, used=used, wanted=project.revision)
            )  # fmt: skip
            shown[folder] = name
    return tuple(headers), shown


def _release_in(folder: Path, project: OtherProject) -> str:
    """Return the release of a local tree: by CUTLASS's own header, else the commit that git has checked out there."""
    version = folder / "include" / "cutlass" / "version.h"
    if project.title == "CUTLASS" and version.is_file():
        return cutlass_release(version.read_text(errors="replace"))
    git = folder / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        name = head.removeprefix("ref: ")
        if name == head:
            return head or UNKNOWN
        if (git / name).is_file():
            return (git / name).read_text().strip() or UNKNOWN
        packed = (line.split() for line in (git / "packed-refs").read_text().splitlines())
        return next((words[0] for words in packed if words[1:] == [name]), UNKNOWN)
    except (OSError, UnicodeDecodeError):
        return UNKNOWN


def _prefixes(shown: Mapping[Path, str]) -> Iterator[tuple[str, str]]:
    """Yield each folder as paths below it begin, once more without its links; the longest first."""
    found = {f"{path}/": new for folder, new in shown.items() for path in (folder.resolve(), folder.absolute())}
    yield from sorted(found.items(), key=lambda pair: -len(pair[0]))


def _python_path(torch: Path | None) -> dict[str, str]:
    return {"PYTHONPATH": str(torch)} if torch else {}


def _without_other_projects(lists: str, source: Path, externals: Mapping[str, str]) -> str:
    """Leave out the projects that CMake would clone, but for those whose local tree was given."""

    def line(found: re.Match[str]) -> str:
        override = _OVERRIDE.search((source / found[2]).read_text())
        given = override is not None and override[1] in externals
        return found[0] if given else f"{found[1]}# {found[0].strip()}"

    return _INCLUDE.sub(line, lists).replace(_HOST_COMPILER_CHECK, 'CMAKE_CXX_COMPILER_VERSION VERSION_LESS "11.3")')


# Which sources name a kernel: the words of each, and of the files next to it that it includes.


_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_INCLUDED: Final = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_MOST_FILES: Final = 200  # of one source: what it needs from elsewhere defines none of its kernels


def mentions(tree: Path, units: Sequence[Unit], names: frozenset[str]) -> tuple[int, ...]:
    """Return how many of the names each unit has; a file outside of the tree, or one that is missing, has none."""
    known: dict[Path, tuple[frozenset[str], tuple[str, ...]]] = {}
    return tuple(len(_words(tree.resolve(), unit, known) & names) for unit in units)


def _words(tree: Path, unit: Unit, known: dict[Path, tuple[frozenset[str], tuple[str, ...]]]) -> frozenset[str]:
    folders = [Path(word[2:]) for word in unit.argv if word.startswith("-I") and len(word) > 2]
    todo, seen = [Path(unit.folder, unit.source).resolve()], set[Path]()
    found: set[str] = set()
    while todo and len(seen) < _MOST_FILES:
        path = todo.pop()
        if path in seen or not path.is_relative_to(tree) or not path.is_file():
            continue
        seen.add(path)
        if path not in known:
            text = path.read_text(errors="replace")
            known[path] = (frozenset(_WORD.findall(text)), tuple(_INCLUDED.findall(text)))
        words, included = known[path]
        found |= words
        todo += [(folder / name).resolve() for name in included for folder in (path.parent, *folders)]
    return frozenset(found)


# Projects known to publish no sources; of others the index is asked.
_NO_ANSWER: Final = re.compile(r"Retrying \(|Could not fetch URL|[Cc]onnection|[Tt]imed? ?out")
_CLOSED: Final = (
    "nvidia-cublas", "nvidia-cudnn", "nvidia-cufft", "nvidia-curand", "nvidia-cusolver", "nvidia-cusparse",
    "nvidia-npp", "nvidia-nvjpeg", "tensorrt-cu", "tensorrt-libs", "flashinfer-cubin",
)  # fmt: skip
FETCHED: Final = "FETCHCONTENT_SOURCE_DIR_"
"""How the variables of CMake begin that take a local tree in place of what FetchContent would clone."""
_NOT_COPIED: Final = (".git", "build", "__pycache__")
_OFFERED: Final = re.compile(r"Could not find a version that satisfies .*\(from versions: ([^()]+)\)")
_WHEELS_ONLY: Final = re.compile(r"(torch|torchvision|torchaudio|triton|nvidia-.*)$")
_PINNED: Final = re.compile(r"([A-Za-z0-9][\w.-]*)==([\w.+!]+)$")


class LocalUnitBuilds:
    """`UnitBuilds` with the programs of this machine.

    `work` is where everything is kept, `installed` a CUDA toolkit to use instead of packages, `source` a source tree
    to use instead of source distributions.
    """

    def __init__(
        self, tell: Tell, work: Path | None = None, installed: Path | None = None, source: Path | None = None
    ) -> None:
        home = work or Path(platformdirs.user_cache_dir("vdbg-env")) / "units"
        self._kept = Kept(home.absolute(), tell)
        self._programs = Programs(tell)
        self._toolkit = Toolkit(self._kept, self._programs, installed and installed.absolute())
        self._sources = Sources(self._kept, self._toolkit, self._programs, source and source.absolute())
        self._local = source is not None
        self._compiler = Compiler(self._kept, self._toolkit, self._programs)

    def wheel(self, requirement: str) -> StockWheel:
        """See `UnitBuilds.wheel`."""
        if requirement.endswith(".whl"):
            read = _read(Path(requirement))
            self._sources.require(read.release)
            return read
        found = _PINNED.match(requirement)
        if not found:
            raise BadInput(
                f"{requirement!r} does not name one release",
                next_step="vdbg-env lines build vllm==0.33.0, or the path of a .whl file",
            )
        if not self._local and _WHEELS_ONLY.match(found[1].lower().replace("_", "-")):
            raise no_sources(requirement)  # without asking the index
        self._sources.require(Release(project=found[1], version=found[2], requires=()))
        self._toolkit.tools()

        def fetch(folder: Path) -> None:
            options = ("--only-binary", found[1])
            try:
                path = self._toolkit.download(requirement, folder / "download", key=folder.name, options=options)
            except EngineFailed as error:
                if versions := offered(error.details):
                    raise BadInput(
                        f"the package index has no wheel of {requirement} for this Python",
                        details=(f"the newest that it has: {', '.join(versions[-8:])}",),
                        next_step=f"vdbg-env lines build {found[1]}=={versions[-1]}, or the path of a .whl file",
                    ) from error
                raise
            path.rename(folder / path.name)

        folder = self._kept.folder(f"wheel-{found[1]}-{found[2]}", f"Stock wheel {requirement}", fetch)
        (wheel,) = folder.glob("*.whl")
        return _read(wheel)

    def configure(self, request: TreeRequest) -> ConfiguredTree:
        """See `UnitBuilds.configure`."""
        return self._sources.configure(request)

    def mentions(self, tree: ConfiguredTree, units: Sequence[Unit], names: frozenset[str]) -> tuple[int, ...]:
        """See `UnitBuilds.mentions`."""
        return mentions(Path(tree.folder), units, names)

    def compile(
        self, tree: ConfiguredTree, orders: Sequence[UnitOrder], *, jobs: int
    ) -> Generator[CompiledUnit, None, None]:
        """See `UnitBuilds.compile`."""
        return self._compiler.compile(tree, orders, jobs=jobs)


def _read(path: Path) -> StockWheel:
    try:
        with zipfile.ZipFile(path) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
            metadata = HeaderParser().parsestr(wheel.read(name).decode("utf-8", "replace"))
    except (OSError, zipfile.BadZipFile, StopIteration) as error:
        raise BadInput(f"{path} cannot be read as a wheel: {error or 'it has no METADATA'}") from error
    release = Release(
        project=str(metadata["Name"]),
        version=str(metadata["Version"]),
        requires=tuple(str(text) for text in metadata.get_all("Requires-Dist") or ()),
    )
    return StockWheel(release=release, path=path.absolute())
