"""`vdbg-env verify --lines`: of how many functions of a library line packs have the lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpucore.code_identity import identify
from gpucore.code_map import CodeMap
from gpucore.elf import Buffer
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import EntryKind, find_device_code
from vdbg_env.application.line_packs.lookup import PackedLines
from vdbg_env.crash.files import BinarySource

NAMED: Final = 16
"""How many functions with other code are named; all are counted."""


@dataclass(kw_only=True)
class PackCoverage:
    """The functions of one file and architecture: how many the packs have with identical code, with other code, or not.

    What they have of other architectures only does not count. `other_named` are the first of those with other code,
    mangled.
    """

    file: str
    arch: str
    functions: int = 0
    identical: int = 0
    other: int = 0
    other_named: list[str] = field(default_factory=list)

    @property
    def unknown(self) -> int:
        """How many functions no pack has."""
        return self.functions - self.identical - self.other


def compare_with_packs(targets: Sequence[str], binaries: BinarySource, lines: PackedLines) -> tuple[PackCoverage, ...]:
    """Compare every function of the targets with the packs; files that cannot be read are left to `verify`.

    Raises BadInput for a target that does not exist.
    """
    found: dict[tuple[str, str], PackCoverage] = {}
    for target in targets:
        with binaries.open(target) as files:
            for file in files:
                for arch, code in _cubins(file.data) if file.problem is None else ():
                    known = found.setdefault((file.name, arch), PackCoverage(file=file.name, arch=arch))
                    _count(known, arch, code, lines)
    return tuple(found[key] for key in sorted(found))


def _count(coverage: PackCoverage, arch: str, code: CodeMap, lines: PackedLines) -> None:
    for identity in identify(code):
        found = lines.find(code, identity)
        coverage.functions += 1
        coverage.identical += bool(found.same)
        if any(arch in held.record.archs for held in found.other):
            coverage.other += 1
            if len(coverage.other_named) < NAMED:
                coverage.other_named.append(identity.function.name)


def _cubins(data: Buffer) -> Iterator[tuple[str, CodeMap]]:
    try:
        for code in find_device_code(data):
            if code.entry.kind == EntryKind.ELF:
                yield code.entry.target, CodeMap(code.entry.payload())
    except UnreadableBinary:
        return  # the proof of line info says what is wrong with it
