"""The `UnitBuilds` port on this machine: everything below one folder, nothing installed in the system."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Generator, Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import Final

import platformdirs

from vdbg_env.adapters.builders.units.compile import Compiler
from vdbg_env.adapters.builders.units.kept import Kept, Tell
from vdbg_env.adapters.builders.units.named_sources import mentions
from vdbg_env.adapters.builders.units.running import Programs
from vdbg_env.adapters.builders.units.sources import Sources, no_sources
from vdbg_env.adapters.builders.units.toolkit import Toolkit
from vdbg_env.application.ports.unit_builds import (
    CompiledUnit,
    ConfiguredTree,
    Release,
    StockWheel,
    TreeRequest,
    UnitOrder,
)
from vdbg_env.common.errors import BadInput
from vdbg_env.image.units import Unit

# Projects known to publish no sources; those of others are asked for once the wheel was read.
_WHEELS_ONLY: Final = re.compile(r"(torch|torchvision|torchaudio|triton|nvidia-.*)$")
_PINNED: Final = re.compile(r"([A-Za-z0-9][\w.-]*)==([\w.+!]+)$")


class LocalUnitBuilds:
    """`UnitBuilds` with the programs of this machine.

    `work` is where everything is kept, `installed` a CUDA toolkit to use instead of packages.
    """

    def __init__(self, tell: Tell, work: Path | None = None, installed: Path | None = None) -> None:
        home = work or Path(platformdirs.user_cache_dir("vdbg-env")) / "units"
        self._kept = Kept(home.absolute(), tell)
        self._programs = Programs(tell)
        self._toolkit = Toolkit(self._kept, self._programs, installed and installed.absolute())
        self._sources = Sources(self._kept, self._toolkit, self._programs)
        self._compiler = Compiler(self._kept, self._toolkit, self._programs)

    def wheel(self, requirement: str) -> StockWheel:
        """See `UnitBuilds.wheel`."""
        if requirement.endswith(".whl"):
            return _read(Path(requirement))
        found = _PINNED.match(requirement)
        if not found:
            raise BadInput(
                f"{requirement!r} does not name one release",
                next_step="vdbg-env lines build vllm==0.33.0, or the path of a .whl file",
            )
        if _WHEELS_ONLY.match(found[1].lower().replace("_", "-")):
            raise no_sources(requirement)  # before a gigabyte is fetched for nothing
        self._toolkit.tools()

        def fetch(folder: Path) -> None:
            options = ("--only-binary", found[1])
            path = self._toolkit.download(requirement, folder / "download", key=folder.name, options=options)
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
