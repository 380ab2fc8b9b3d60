"""Other projects that a release's CMake files pin to one commit, and the packages that have CUTLASS's headers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

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
