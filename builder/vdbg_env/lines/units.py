"""Translation units of a released wheel, compiled again: the wheel, its sources, its compiler, one cubin at a time.

Below 150 lines: what is compiled is decided here in `lines`, and done in the room of builds above.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from gpucore.line_packs import PackedHeaders
from vdbg_env.common.errors import BadInput
from vdbg_env.image.units import OtherProject, Unit

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
    """What came of an order: its cubin, or None and what the compiler printed; 0 seconds for one of an earlier call."""

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
