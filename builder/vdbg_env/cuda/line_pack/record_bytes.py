"""A line record as bytes, and back; its strings are numbers of a table that many records share."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.kernel_info import ParameterPlace
from vdbg_env.cuda.line_pack.columns import ColumnReader, ColumnWriter, flattened
from vdbg_env.cuda.line_pack.identity import HASH_SIZE
from vdbg_env.cuda.line_pack.patched_fields import INSTRUCTION, PatchedField
from vdbg_env.cuda.line_pack.record import FIRST_NAME, InlineTree, InnerFunction, LineRecord

_KERNEL: Final = 1
_WHOLE_INSTRUCTIONS: Final = 2  # starts are counted in instructions
_KNOWN: Final = _KERNEL | _WHOLE_INSTRUCTIONS


def encode(record: LineRecord, string: Callable[[str], int], source: Callable[[str], int]) -> bytes:
    """Return a record as bytes; `string` and `source` give the numbers of its texts."""
    whole = all(start % INSTRUCTION == 0 for start in record.starts)
    out = ColumnWriter()
    out.number((_KERNEL if record.kernel else 0) | (_WHOLE_INSTRUCTIONS if whole else 0))
    out.raw(record.hash)
    out.number(string(record.name))
    out.number(record.size)
    out.column([string(arch) for arch in record.archs])
    out.column(sorted(source(digest) for digest in record.sources))
    out.column(flattened(record.fields))
    out.column(flattened((string(f.name), f.start, f.size) for f in record.inner))
    out.column(flattened((p.ordinal, p.offset, p.size) for p in record.parameters))
    tree = record.tree
    out.column([string(text) for text in tree.strings])
    out.column([number - parent if parent else 0 for number, parent in enumerate(tree.parents, 1)])
    out.column(tree.files)
    out.differences(tree.lines)
    out.column(tree.names)
    out.differences([start // INSTRUCTION if whole else start for start in record.starts])
    out.differences(record.places)
    return bytes(out.data)


def decode(data: memoryview, string: Callable[[int], str], source: Callable[[int], str]) -> LineRecord:
    """Return a record; raises UnreadableBinary when its numbers contradict each other."""
    read = ColumnReader(data)
    flags = read.number()
    code = read.raw(HASH_SIZE)
    name, size = string(read.number()), read.number()
    archs = tuple(string(number) for number in read.column())
    sources = tuple(source(number) for number in read.column())
    fields = tuple(PatchedField(*row) for row in _rows(read))
    inner = tuple(InnerFunction(name=string(n), start=start, size=length) for n, start, length in _rows(read))
    parameters = tuple(ParameterPlace(ordinal=ordinal, offset=at, size=length) for ordinal, at, length in _rows(read))
    strings = tuple(string(number) for number in read.column())
    parents = read.column()
    for number, distance in enumerate(parents, 1):
        parents[number - 1] = number - distance if 0 < distance < number else 0 if not distance else number
    tree = InlineTree(
        parents=parents, files=read.column(), lines=read.differences(), names=read.column(), strings=strings
    )
    starts, places = read.differences(), read.differences()
    if flags & _WHOLE_INSTRUCTIONS:
        _check(not starts or max(starts) <= size // INSTRUCTION, "its lines begin outside its code")
        for at, start in enumerate(starts):
            starts[at] = start * INSTRUCTION
    record = LineRecord(
        name=name, archs=archs, kernel=bool(flags & _KERNEL), size=size, hash=code, fields=fields, inner=inner,
        parameters=parameters, tree=tree, starts=starts, places=places, sources=sources,
    )  # fmt: skip
    _check(read.at_end and not flags & ~_KNOWN, "it is of another form")
    _check_columns(record)
    return record


def _check_columns(record: LineRecord) -> None:
    tree, count = record.tree, len(record.tree)
    texts = len(tree.strings)
    _check(count == len(tree.files) == len(tree.lines) == len(tree.names), "its columns differ in length")
    _check(all(parent < number for number, parent in enumerate(tree.parents, 1)), "a place is inlined at a later one")
    _check(max(tree.files, default=-1) < texts, "it names a file that it does not list")
    _check(max(tree.names, default=-1) < texts + FIRST_NAME, "it names a function that it does not list")
    starts = record.starts
    _check(len(starts) == len(record.places), "its runs differ in length")
    _check(max(record.places, default=0) <= count, "it names a place that it does not list")
    _check(not starts or (starts[0] == 0 and starts[-1] < record.size), "its lines begin outside its code")
    _check(all(a < b for a, b in pairwise(starts)), "its lines are not in order")
    inside = all(f.offset < record.size and f.first_bit + f.bits <= 8 * INSTRUCTION for f in record.fields)
    _check(inside, "it leaves out fields outside its code")


def _check(sound: bool, what: str) -> None:
    if not sound:
        raise UnreadableBinary(f"a record of a line pack is damaged: {what}")


def _rows(read: ColumnReader) -> list[tuple[int, int, int]]:
    flat = read.column()
    _check(len(flat) % 3 == 0, "a table has rows of another length")
    return list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
