"""Fuzzes the ELF reader: cubins whole, by their start and thinned, every section, every symbol, every name."""

import contextlib
from collections.abc import Iterator

import atheris

with atheris.instrument_imports(include=["vdbg_env"]):
    from gpucore.cubin import read_cubin, read_cubin_start, read_names, thin
    from gpucore.elf import Elf
    from gpucore.errors import UnreadableBinary

from tests.builders.cubin import cubin
from tests.builders.elf import ElfSpec, SectionSpec, SymbolSpec, build_elf
from tests.fuzz.harness import fuzz

_PIECE = 100


def pieces(data: bytes) -> Iterator[bytes]:
    return (data[i : i + _PIECE] for i in range(0, len(data), _PIECE))


def read(data: bytes) -> None:
    read_cubin_start(pieces(data))
    names = read_names(pieces(data))
    if names:
        list(names.functions())
        names.holding(b"k")
    with contextlib.suppress(UnreadableBinary):
        thin(lambda: pieces(data), len(data))
    with contextlib.suppress(UnreadableBinary):
        read_cubin(data)
    with contextlib.suppress(UnreadableBinary):
        elf = Elf(data)
        for section in elf.sections:
            elf.name(section)
            with contextlib.suppress(UnreadableBinary):
                elf.contents(section)
        for symbol in elf.symbols:
            elf.symbol_name(symbol)


def seeds() -> list[bytes]:
    many = ElfSpec(
        sections=[SectionSpec(name=f".text.k{i}", data=b"sass") for i in range(5)],
        symbols=[SymbolSpec(name=f"k{i}", section=i + 1) for i in range(5)],
        extended_numbering=True,
    )
    return [cubin("_Z1kPf", lines=True), cubin("_Z1kPf", "_Z2gPf"), cubin(debug=True), build_elf(many)]


if __name__ == "__main__":
    fuzz(read, seeds())
