"""Translation units of a released wheel, compiled again: the wheel, its sources, its compiler, one cubin at a time."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from vdbg_env.image.units.compile_commands import Unit


@dataclass(frozen=True, kw_only=True)
class Release:
    """A released package, as its metadata describes it; `requires` are its requirements."""

    project: str
    version: str
    requires: tuple[str, ...]


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

    `compiler` is the root of the toolkit.
    """

    folder: str
    compiler: str
    units: tuple[Unit, ...]
    notes: tuple[str, ...] = ()


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
