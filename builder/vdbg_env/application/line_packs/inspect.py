"""`vdbg-env lines show`, `list` and `verify`: what a pack has, and whether it is sound."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from gpucore.errors import UnreadableBinary
from gpucore.line_packs import LinePack, Provenance
from vdbg_env.crash.line_packs import PackFile


@dataclass(frozen=True, kw_only=True)
class PackSummary:
    """What a pack has; `digest` is its sha256, `problem` says why it cannot be used."""

    name: str
    digest: str
    size: int
    functions: int = 0
    binaries: tuple[Provenance, ...] = ()
    problem: str | None = None

    @property
    def builds(self) -> str:
        """The builds that were packed, in words."""
        return " and ".join(dict.fromkeys(binary.build for binary in self.binaries)) or "unknown build"


def summarize(file: PackFile, *, check: bool = False) -> PackSummary:
    """Return what a pack has; with `check` all of it is read, else only its header and provenance."""
    digest, size = hashlib.sha256(file.data).hexdigest(), len(file.data)
    try:
        pack = LinePack(file.data)
        if check:
            pack.check()
        return PackSummary(
            name=file.name, digest=digest, size=size, functions=len(pack), binaries=pack.binaries,
        )  # fmt: skip
    except UnreadableBinary as error:
        return PackSummary(name=file.name, digest=digest, size=size, problem=error.what)
