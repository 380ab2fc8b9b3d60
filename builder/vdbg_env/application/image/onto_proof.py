"""Prove a swapped image from its own files: the same code, the same host part, and line tables where they belong."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpucore.elf import SHT_NOBITS, Elf, Section
from gpucore.lineinfo import read_coverage
from vdbg_env.application.lines.stock import StockCubin, StockLibrary, read_stock
from vdbg_env.application.ports.images import ImageSwaps, Swap
from vdbg_env.common.errors import NotProven
from vdbg_env.crash.files import BinaryFile

_MOVED: Final = (".nv_fatbin", ".nvFatBinSegment", ".rela.dyn")
_RELA: Final = struct.Struct("<QQq")


@dataclass(frozen=True, kw_only=True)
class LibraryProof:
    """What was found of one library in the finished image, compared with the original that is next to it.

    `cubins` are all that it holds, `with_lines` those that carry a line table; `functions` are those of the latter and
    `identical` how many of them have the original's instructions; `sections` are host sections with unchanged bytes.
    """

    path: str
    kept: str
    cubins: int
    with_lines: int
    functions: int
    identical: int
    sections: int


@dataclass(frozen=True, kw_only=True)
class OntoProof:
    """The proof of a swapped image."""

    libraries: tuple[LibraryProof, ...]

    def label(self) -> str:
        """Return it in one short line, for the image's label."""
        functions = sum(library.functions for library in self.libraries)
        identical = sum(library.identical for library in self.libraries)
        with_lines = sum(library.with_lines for library in self.libraries)
        cubins = sum(library.cubins for library in self.libraries)
        return (
            f"{with_lines} of {cubins} cubins carry line info; "
            f"{identical} of {functions} of their functions are the original's instructions, host code unchanged"
        )


def prove_swap(
    images: ImageSwaps,
    image_id: str,
    swaps: Mapping[str, Swap],
    replaced: Mapping[str, Mapping[int, frozenset[str]]],
) -> OntoProof:
    """Read every swapped library and its original from the image; raises NotProven for what is not as it should be."""
    proofs = []
    for path, swap in swaps.items():
        new, kept = _read(images, image_id, path), _read(images, image_id, swap.kept)
        if kept != swap.stock:
            raise NotProven(f"{swap.kept} of the image is not the original", next_step="build again")
        proofs.append(_prove(swap, new, replaced[path]))
    return OntoProof(libraries=tuple(proofs))


def _read(images: ImageSwaps, image_id: str, path: str) -> bytes:
    with images.files(image_id, [path]) as files:
        found = next(files, None)
        if found is None:
            raise NotProven(f"the image has no {path}", next_step="build again")
        return bytes(found.data)


def _prove(swap: Swap, new: bytes, replaced: Mapping[int, frozenset[str]]) -> LibraryProof:
    before, after = _library(swap.path, swap.stock), _library(swap.path, new)
    if [unit.targets for unit in before.units] != [unit.targets for unit in after.units]:
        raise NotProven(f"{swap.path} of the image has other units than the original")
    pairs = [
        (old, now, old.target in replaced.get(unit.number, frozenset()))
        for unit, other in zip(before.units, after.units, strict=True)
        for old, now in zip(unit.cubins, other.cubins, strict=True)
    ]
    wrong = [problem for old, now, lines in pairs for problem in _cubin_problems(old, now, lines=lines)]
    wrong += _host_problems(Elf(swap.stock), Elf(new))
    if wrong:
        raise NotProven(
            f"{swap.path} of the image is not the original with line tables added",
            details=tuple(f"{swap.path}: {problem}" for problem in wrong[:10]),
            next_step="report this, with the image's name: nothing was tagged",
        )
    changed = [(old, now) for old, now, lines in pairs if lines]
    return LibraryProof(
        path=swap.path,
        kept=swap.kept,
        cubins=len(pairs),
        with_lines=len(changed),
        functions=sum(len(old.functions) for old, _ in changed),
        identical=sum(_identical(old, now) for old, now in changed),
        sections=sum(1 for _ in _compared(Elf(swap.stock))),
    )


def _library(path: str, data: bytes) -> StockLibrary:
    (library,) = read_stock([BinaryFile(name=path, data=data)])
    return library


def _identical(old: StockCubin, now: StockCubin) -> int:
    known = {(function.function.name, function.hash) for function in now.functions}
    return sum((function.function.name, function.hash) in known for function in old.functions)


def _cubin_problems(old: StockCubin, now: StockCubin, *, lines: bool) -> Iterator[str]:
    """Yield what is wrong with a cubin: left alone it is the original's bytes, else the original and line tables."""
    before, after = old.entry.payload(), now.entry.payload()
    if not lines:
        if bytes(before) != bytes(after):
            yield f"a cubin for {old.target} was to stay as it was"
        return
    stock, new = Elf(before), Elf(after)
    for number, section in enumerate(stock.sections):
        name = stock.name(section)
        other = new.sections[number]
        same = name == ".shstrtab" or _contents(stock, section) == _contents(new, other)
        if name != new.name(other) or not same or section.address != other.address or section.type != other.type:
            yield f"section {name} of a cubin for {old.target} is not the original's"
    if not read_coverage(after).complete:
        yield f"the line table of a cubin for {old.target} does not cover its functions"


def _host_problems(stock: Elf, new: Elf) -> Iterator[str]:
    for section in _compared(stock):
        other = new.sections[section.number]
        if _contents(stock, section) != _contents(new, other) or section[1:] != other[1:]:
            yield f"section {stock.name(section)} of the host part is not the original's"
    yield from _moved_only(stock, new)


def _moved_only(stock: Elf, new: Elf) -> Iterator[str]:
    """Check the relocations: as many as before, for the same places, and other values for the fat binary alone."""
    old_fatbin, new_fatbin = stock.section(".nv_fatbin"), new.section(".nv_fatbin")
    table = stock.section(".rela.dyn")
    if old_fatbin is None or new_fatbin is None or table is None:
        yield "the sections of the fat binary are missing"
        return
    before = _RELA.iter_unpack(stock.contents(table))
    after = _RELA.iter_unpack(new.contents(new.sections[table.number]))
    for old, now in zip(before, after, strict=True):
        inside = old_fatbin.address <= old[2] < old_fatbin.address + old_fatbin.size
        arrived = new_fatbin.address <= now[2] < new_fatbin.address + new_fatbin.size
        if old[:2] != now[:2] or (old[2] != now[2] and not (inside and arrived)):
            yield f"the relocation of {old[0]:#x} is not the original's"


def _compared(elf: Elf) -> Iterator[Section]:
    return (section for section in elf.sections if elf.name(section) not in _MOVED)


def _contents(elf: Elf, section: Section) -> bytes:
    return b"" if section.type == SHT_NOBITS else bytes(elf.contents(section))
