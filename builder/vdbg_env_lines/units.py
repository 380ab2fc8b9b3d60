"""Translation units of a released wheel: the command for one cubin of each, its fat binary, compiler and headers."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from gpucore.line_packs import PackedHeaders
from vdbg_env.common.errors import BadInput

_TARGET_FOLDER: Final = re.compile(r"(?:^|/)CMakeFiles/([^/]+)\.dir/")
_GENCODE: Final = re.compile(r"arch=(compute_\w+),code=\[?([\w,]+)\]?$")
_ARCH: Final = re.compile(r"(?:sm|compute)_(\d+)")
# What a compile for one architecture, to a cubin, has no use for.
_DROPPED: Final = ("--compress-mode", "--threads", "-threads", "-MD", "-MMD")
_DROPPED_WITH_VALUE: Final = ("-o", "-MT", "-MF", "-MQ")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A translation unit: its source, the CMake target (the extension) that it belongs to, and how it is compiled.

    `codes` are pairs of virtual architecture and code, as in ("compute_90a", "sm_90a"), in the order of the command.
    """

    source: str
    extension: str
    folder: str
    argv: tuple[str, ...]
    codes: tuple[tuple[str, str], ...]

    @property
    def targets(self) -> tuple[str, ...]:
        """What its object holds, named as `fatbin.Entry.target` does."""
        return tuple(code for _, code in self.codes)

    @property
    def arch_list(self) -> str:
        """The value that nvcc gives to __CUDA_ARCH_LIST__: CUB puts it into the names of its kernels."""
        numbers = {int(found[1]) * 10 for virtual, _ in self.codes if (found := _ARCH.match(virtual))}
        return ",".join(str(number) for number in sorted(numbers))


def read_compile_commands(text: str) -> tuple[Unit, ...]:
    """Return the CUDA units of a `compile_commands.json`, in its order, which is the order in which they are linked.

    Raises BadInput when the text is not one.
    """
    try:
        rows = json.loads(text)
        return tuple(_units(rows))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"compile_commands.json cannot be read: {error}", next_step="configure anew") from error


def cubin_argv(unit: Unit, target: str, output: str, flags: Sequence[str] = ("-lineinfo",)) -> tuple[str, ...]:
    """Return the unit's own command, changed to write the cubin of one target; raises KeyError for a target it lacks.

    Whatever decides about instructions stays as it is: definitions, include folders and their order, optimisation.
    """
    virtual = {code: virtual for virtual, code in unit.codes}[target]
    argv: list[str] = []
    words = iter(unit.argv)
    for word in words:
        if word in ("-gencode", "--generate-code", *_DROPPED_WITH_VALUE):
            next(words, None)
        elif word in ("-c", "--compile", "-dc", "--device-c"):
            argv.append("-cubin")
        elif not word.startswith((*_DROPPED, "--generate-code=", "-gencode=")):
            argv.append(word)
    return (*argv, "-gencode", f"arch={virtual},code={target}", *flags, "-o", output)


def _units(rows: list[dict[str, str]]) -> Iterator[Unit]:
    for row in rows:
        if PurePosixPath(row["file"]).suffix != ".cu":
            continue
        argv = tuple(row["arguments"]) if "arguments" in row else tuple(shlex.split(row["command"]))
        output = row.get("output") or argv[argv.index("-o") + 1]
        found = _TARGET_FOLDER.search(output)
        yield Unit(
            source=row["file"],
            extension=found[1] if found else "",
            folder=row["directory"],
            argv=argv,
            codes=tuple(_codes(argv)),
        )


def _codes(argv: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for before, word in zip(("", *argv), argv, strict=False):
        if before in ("-gencode", "--generate-code") or word.startswith(("--generate-code=", "-gencode=")):
            found = _GENCODE.search(word)
            if found:
                yield from ((found[1], code) for code in found[2].split(","))


# Finds which translation unit each fat binary of a library is from, by the order in which they were linked.
#
# Nothing in a stock fat binary names its source. But the linker puts one container for each object file one after
# another, CMake knows their order, and each container's architectures must be those of its unit's command.


def match_by_order(containers: Sequence[Sequence[str]], units: Sequence[Unit]) -> tuple[Unit | None, ...] | None:
    """Return the unit of each container, given by the targets in it, or None when their numbers are not the same.

    A container whose targets are not those that its unit compiles for gets None: another list of architectures, or
    another order. That the code is the same is then still to be shown by comparing it.
    """
    if len(containers) != len(units):
        return None
    pairs = zip(containers, units, strict=True)
    return tuple(unit if _cubins(targets) == _cubins(unit.targets) else None for targets, unit in pairs)


def _cubins(targets: Sequence[str]) -> frozenset[str]:
    return frozenset(target for target in targets if target.startswith("sm_"))


# Other projects that a release's CMake files pin to one commit, and the packages that have CUTLASS's headers.


_COMMENT: Final = re.compile(r"#.*")
_SET: Final = re.compile(r"\bset\s*\(\s*(\w+)\s+\"?([^\s\")]+)\"?\s*\)", re.IGNORECASE)
_BLOCK: Final = re.compile(r"\bFetchContent_(?:Declare|Populate)\s*\(([^()]*)\)", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"ENV\{(\w+_SRC_DIR)\}")
_REFERENCE: Final = re.compile(r"\$\{(\w+)\}")
_KEYWORD: Final = re.compile(r"[A-Z][A-Z_]+$")
_EXTENSION: Final = re.compile(r"\b_\w*_C\b")
_NUMBERS: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.\d+)?$")
_DEFINED: Final = re.compile(r"^#define CUTLASS_(MAJOR|MINOR|PATCH)\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class OtherProject:
    """A repository of another project at the revision that a release was built with.

    `variable` takes a local tree in its place. `submodules` are those that the build needs, None for all of them.
    `mentioned` are the extensions that the same CMake file names.
    """

    name: str
    repository: str
    revision: str
    variable: str | None
    submodules: tuple[str, ...] | None = None
    mentioned: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """The name that people know it by."""
        return "CUTLASS" if self.name.lower() == "cutlass" else self.folder

    @property
    def folder(self) -> str:
        """The folder that a clone of it makes."""
        return self.repository.rstrip("/").rpartition("/")[2].removesuffix(".git")

    @property
    def commands(self) -> tuple[str, ...]:
        """What fetches exactly this revision: a clone of the tag, else a clone and a checkout; then submodules."""
        url, folder, revision = (shlex.quote(text) for text in (self.repository, self.folder, self.revision))
        if release_numbers(self.revision):
            clone: tuple[str, ...] = (f"git clone --depth 1 --branch {revision} {url}",)
        else:
            clone = (f"git clone {url}", f"git -C {folder} checkout {revision}")
        if self.title == "CUTLASS":
            return clone
        named = "".join(f" {shlex.quote(path)}" for path in self.submodules or ())
        return (*clone, f"git -C {folder} submodule update --init --recursive{named}")

    @property
    def flag(self) -> str | None:
        """The value of `--external` for the folder that the commands make; None where no variable takes one."""
        return f'{self.variable}="$PWD/{self.folder}"' if self.variable else None


@dataclass(frozen=True, kw_only=True)
class CutlassPackage:
    """A package that has the headers of a CUTLASS release: below `source`.

    `generator` has the modules that generate kernels; None where the package lacks them, and those of another do.
    """

    release: str
    requirement: str
    source: str
    generator: str | None


_FLASHINFER: Final = ("flashinfer/data/cutlass", "flashinfer/data/cutlass/python/cutlass_library")
_NVIDIA: Final = ("cutlass_library/source", "cutlass_library")
_TILELANG: Final = ("tilelang/3rdparty/cutlass", None)

# By `cutlass/version.h` inside, looked at on 2026-11-23. The newest release of the index is older than vLLM's pin.
CUTLASS_PACKAGES: Final = tuple(
    CutlassPackage(release=release, requirement=requirement, source=source, generator=generator)
    for release, requirement, (source, generator) in (
        ("4.5.0", "flashinfer-python==0.6.18", _FLASHINFER),
        ("4.4.2", "flashinfer-python==0.6.8", _FLASHINFER),
        ("4.2.1", "flashinfer-python==0.6.4", _FLASHINFER),
        ("4.2.0", "nvidia-cutlass==4.2.0.0", _NVIDIA),
        ("4.1.0", "tilelang==0.1.15", _TILELANG),
        ("3.8.0", "nvidia-cutlass==3.8.0.0", _NVIDIA),
        ("3.7.0", "nvidia-cutlass==3.7.0.0", _NVIDIA),
        ("3.6.0", "nvidia-cutlass==3.6.0.0", _NVIDIA),
        ("3.5.1", "nvidia-cutlass==3.5.1.0", _NVIDIA),
        ("3.5.0", "nvidia-cutlass==3.5.0.0", _NVIDIA),
        ("3.4.1", "nvidia-cutlass==3.4.1.0", _NVIDIA),
    )
)


GENERATOR_PACKAGE: Final = next(package for package in CUTLASS_PACKAGES if package.release == "4.2.0")
"""Whose generator is used where a package has none."""


def pinned_projects(texts: Iterable[str]) -> tuple[OtherProject, ...]:
    """Return the repositories that CMake files fetch, in the order of the files; a file is one text."""
    return tuple(project for text in texts for project in _of_file(_COMMENT.sub("", text)))


def project_of(projects: Sequence[OtherProject], library: str) -> OtherProject | None:
    """Return the project that a library is built from: by the CMake file that names it, else by its folder."""
    path = library.rpartition(":")[2]
    folder, _, file = path.rpartition("/")
    extension = file.partition(".")[0]
    named = (project for project in projects if project.title != "CUTLASS" and extension in project.mentioned)
    below = folder.lower().replace("_", "").replace("-", "")
    placed = (project for project in projects if project.folder.lower().replace("-", "") in below.split("/"))
    return next(named, None) or next(placed, None)


def release_numbers(revision: str) -> tuple[int, int, int] | None:
    """Return the numbers of a release such as v4.7.1; None for a commit."""
    found = _NUMBERS.match(revision)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def cutlass_release(version_header: str) -> str:
    """Return the release that `cutlass/version.h` names, such as 4.5.0; `unknown` where it names none."""
    found = dict(_DEFINED.findall(version_header))
    return ".".join(found[key] for key in ("MAJOR", "MINOR", "PATCH")) if len(found) == 3 else "unknown"


def nearest_cutlass(wanted: str | None) -> CutlassPackage:
    """Return the package whose headers are nearest to a release; the newest where the release is not known."""
    numbers = release_numbers(wanted or "")
    if numbers is None:
        return CUTLASS_PACKAGES[0]

    def distance(package: CutlassPackage) -> tuple[int, ...]:
        there = release_numbers(package.release) or (0, 0, 0)
        return tuple(abs(a - b) for a, b in zip(numbers, there, strict=True))

    return min(CUTLASS_PACKAGES, key=distance)


def _of_file(text: str) -> Iterator[OtherProject]:
    mentioned = frozenset(_EXTENSION.findall(text)) - {"_C"}
    for block in _BLOCK.finditer(text):
        before = text[: block.start()]
        known = dict(_SET.findall(before))
        values = _keywords(_expanded(block[1], known))
        if values.get("GIT_REPOSITORY") and values.get("GIT_TAG"):
            variables = _VARIABLE.findall(before)
            modules = values.get("GIT_SUBMODULES")
            yield OtherProject(
                name=values[""][0], repository=values["GIT_REPOSITORY"][0], revision=values["GIT_TAG"][0],
                variable=variables[-1] if variables else None,
                submodules=tuple(modules) if modules else None,
                mentioned=mentioned,
            )  # fmt: skip


def _expanded(text: str, known: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda found: known.get(found[1], found[0]), text)


def _keywords(block: str) -> dict[str, list[str]]:
    """Return the words of a call by the keyword in front of them; the first word, the project's name, by none."""
    found: dict[str, list[str]] = {"": []}
    key = ""
    for word in (word.strip('"') for word in block.split()):
        if found[""] and _KEYWORD.match(word) and not word.startswith("ON"):
            key = word
            found.setdefault(key, [])
        else:
            found[key].append(word)
    return found


# Says which cubin of a fat binary a GPU runs, and which architectures a build must be configured for.


_TARGET: Final = re.compile(r"sm_(\d+)(\d)([af]?)$")
_ARCHITECTURE: Final = re.compile(r"(\d+)\.(\d)([af]?)$")


def parse_arch(text: str) -> tuple[int, int]:
    """Read an architecture such as 9.0 or 9.0a; raises BadInput for anything else."""
    found = _ARCHITECTURE.match(text)
    if not found:
        raise BadInput(f"{text!r} is not an architecture", next_step="--arch 9.0")
    return int(found[1]), int(found[2])


def cubin_for(arch: tuple[int, int], targets: Iterable[str]) -> str | None:
    """Return the target whose cubin the driver loads on a GPU, or None when it would have to compile PTX.

    A cubin runs on its own major version from its minor version on, one with `a` on its very architecture only, one
    with `f` on its family; of several the nearest is taken, of equals the specific one.
    """
    best: tuple[tuple[int, bool], str] | None = None
    for target in targets:
        found = _TARGET.match(target)
        if not found or int(found[1]) != arch[0] or int(found[2]) > arch[1]:
            continue
        if found[3] == "a" and int(found[2]) != arch[1]:
            continue
        rank = (int(found[2]), bool(found[3]))
        if best is None or rank > best[0]:
            best = rank, target
    return best[1] if best else None


def torch_arch_list(targets: Iterable[str]) -> str:
    """Return TORCH_CUDA_ARCH_LIST for a library with these targets: vLLM adds `a` and `f` itself, source by source."""
    numbers = {(int(found[1]), int(found[2])) for target in targets if (found := _TARGET.match(target))}
    return " ".join(f"{major}.{minor}" for major, minor in sorted(numbers))


# Which packages hold a CUDA compiler of one release, and which one holds a header that a source includes.


_RELEASE: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)$")

# Beginning of a header's name -> the package that has it, without its suffix.
_HEADERS: Final = {
    "cublas": "nvidia-cublas", "nvblas": "nvidia-cublas", "curand": "nvidia-curand", "cusparse": "nvidia-cusparse",
    "cusolver": "nvidia-cusolver", "cufft": "nvidia-cufft", "nvrtc": "nvidia-cuda-nvrtc", "nvtx": "nvidia-nvtx",
    "nvToolsExt": "nvidia-nvtx",
    "cupti": "nvidia-cuda-cupti", "nvJitLink": "nvidia-nvjitlink", "nvml": "nvidia-nvml-dev", "nccl": "nvidia-nccl",
    "cudnn": "nvidia-cudnn",
}  # fmt: skip
_MISSING: Final = re.compile(r"fatal error: ([\w./-]+): No such file or directory")


def compiler_packages(release: str) -> tuple[str, ...]:
    """Return the requirements of nvcc of exactly this release, with the headers that it compiles against.

    Raises BadInput for a release that the package index cannot have.
    """
    found = _RELEASE.match(release)
    if not found or int(found[1]) < 13:
        raise BadInput(
            f"no packages are known for the CUDA compiler {release}",
            cause="NVIDIA's packages have nvcc from CUDA 13 on; nvidia-cuda-nvcc-cu12 has ptxas and libnvvm alone",
            next_step="--compiler /usr/local/cuda-12.9, an installed toolkit of that very release",
        )
    major, minor = found[1], found[2]
    series = f">={major}.{minor}.0,<{major}.{int(minor) + 1}.0"
    exact = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt")
    return (
        *(f"{name}=={release}" for name in exact),
        f"nvidia-cuda-runtime{series}",
        f"nvidia-cuda-cccl{series}",
    )


def missing_header(output: str) -> str | None:
    """Return the header that a compiler could not find, by what it printed."""
    found = _MISSING.search(output)
    return found[1] if found else None


def header_package(header: str, release: str) -> str | None:
    """Return the package that has a header of the CUDA toolkit, for a compiler of this release; None if unknown."""
    name = header.rpartition("/")[2]
    package = next((package for start, package in _HEADERS.items() if name.startswith(start)), None)
    major = release.partition(".")[0]
    if package is None:
        return None
    suffixed = major == "12" or package in ("nvidia-nccl", "nvidia-cudnn")
    return f"{package}-cu{major}" if suffixed else package


# Translation units of a released wheel, compiled again: the wheel, its sources, its compiler, one cubin at a time.
#
# Below 150 lines: what is compiled is decided here in `lines`, and done in the room of builds above.


_PROJECT: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION: Final = re.compile(r"[0-9][A-Za-z0-9.!+_-]*")


@dataclass(frozen=True, kw_only=True)
class Release:
    """A released package, as its metadata describes it; `requires` are its requirements.

    Raises BadInput unless project and version are names, since both become arguments of pip and names of folders here,
    and the metadata may be anyone's.
    """

    project: str
    version: str
    requires: tuple[str, ...]

    def __post_init__(self) -> None:
        if not (_PROJECT.fullmatch(self.project) and _VERSION.fullmatch(self.version)):
            raise BadInput(
                f"the metadata names the release {self.project!r} {self.version!r}, which is not one",
                cause="the package is damaged, or was made to mislead",
                next_step="look at the METADATA file in its .dist-info folder",
            )


@dataclass(frozen=True, kw_only=True)
class StockWheel:
    """A wheel as its index gives it, on this machine."""

    release: Release
    path: Path


@dataclass(frozen=True, kw_only=True)
class TreeRequest:
    """What to configure: a release's sources, for these architectures, with a compiler of this release.

    `externals` are local trees of other projects, by the name of the CMake variable that takes them.
    """

    release: Release
    compiler: str
    arch_list: str
    externals: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ConfiguredTree:
    """Sources that CMake has configured; `units` are in link order, `notes` say what the tree was made from.

    `compiler` is the root of the toolkit. `projects` are the other projects that the release pins. `headers` says of
    those whose sources are used here which release they are of. `shown` are folders of this machine, each with what a
    path below it begins with where it is shown or packed, the longest first.
    """

    folder: str
    compiler: str
    units: tuple[Unit, ...]
    notes: tuple[str, ...] = ()
    projects: tuple[OtherProject, ...] = ()
    headers: tuple[PackedHeaders, ...] = ()
    shown: tuple[tuple[str, str], ...] = ()

    def shown_path(self, path: str) -> str:
        """Return a path of this machine as the release has it: `csrc/x.cu`, without the folders it was built in."""
        if not path.startswith("/"):
            return path
        whole = posixpath.normpath(path)
        return next((new + whole[len(old) :] for old, new in self.shown if whole.startswith(old)), whole)


@dataclass(frozen=True, kw_only=True)
class UnitOrder:
    """One unit to compile for one target."""

    unit: Unit
    target: str


@dataclass(frozen=True, kw_only=True)
class CompiledUnit:
    """The result of an order: its cubin, or None and what the compiler printed; 0 s for one of an earlier call."""

    order: UnitOrder
    cubin: bytes | None
    cached: bool
    duration_s: float
    output: str = ""


class UnitBuilds(Protocol):
    """Fetches, configures and compiles; everything fetched and made is kept, so a second call continues there."""

    def wheel(self, requirement: str) -> StockWheel:
        """Return the wheel of a requirement such as vllm==0.33.0, or of a .whl file; raises BadInput, EngineFailed."""
        ...

    def configure(self, request: TreeRequest) -> ConfiguredTree:
        """Return the configured sources; raises HostNotAble and EngineFailed with the lines that say why."""
        ...

    def mentions(self, tree: ConfiguredTree, units: Sequence[Unit], names: frozenset[str]) -> tuple[int, ...]:
        """Return how many of the names each unit's source has, files of the tree that it includes counted in."""
        ...

    def compile(
        self, tree: ConfiguredTree, orders: Sequence[UnitOrder], *, jobs: int
    ) -> Generator[CompiledUnit, None, None]:
        """Compile with line info, `jobs` at a time, yielding each as it ends; closing the iterator ends the others."""
        ...
