"""Which bytes of code a sequence of the line table covers, without making its rows.

A row covers from its address to the next row's, the last one to the end of the sequence. Addresses only grow behind a
DW_LNE_set_address, so a sequence covers all from its first row to its end, unless a row names no file of the table, or
line 0, which DWARF keeps for code without a source. Both are decided over the distinct opcodes up to a row, which are
few; a sequence in which they do not hold, or of another form, is decoded row by row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Final

from vdbg_env.cuda.lines.line_program import Buffer, Machine, Opcodes, Sequence, Unit, decode
from vdbg_env.cuda.lines.opcode_patterns import step_pattern

Span = tuple[int, int]
"""A half-open range of byte offsets."""

AddressOf = Callable[[int, int], int]

_STANDARD: Final = (0, 1, 1, 1, 1, 0, 0, 0, 1)  # the operand counts that ptxas, nvlink and nvcc -G write
_SET_ADDRESS: Final = b"\0\x09\x02"
_BODY: Final = len(_SET_ADDRESS) + 8
_END: Final = b"\0\x01\x01"
_UNSET: Final = -1
_LARGEST_LINE: Final = 1 << 31
_MOST_KEPT: Final = 1 << 13  # steps; an extension of vLLM has 13,000, and 5 MiB hold these
_LARGEST_ADDRESS: Final = 1 << 64


class CoverageReader:
    """Finds what the sequences of one unit cover; what the unit's opcodes do is worked out once for all of them."""

    def __init__(self, section: Buffer, unit: Unit, address_of: AddressOf) -> None:
        self._section: Final = section
        self._unit: Final = unit
        self._address_of: Final = address_of
        steps = _steps(unit.opcodes)
        if len(steps) > _MOST_KEPT:
            _steps.cache_clear()
        self._steps: Final = steps
        self._standard: Final = unit.opcodes.operand_counts == _STANDARD

    def spans(self, sequence: Sequence) -> list[Span]:
        """Return what a sequence covers, in order and apart from each other."""
        span = self._in_one(sequence)
        return merged(self._row_by_row(sequence) if span is None else [span])

    def _in_one(self, sequence: Sequence) -> Span | None:
        """Return the one span of a sequence, or None when its rows must be looked at one by one."""
        code = bytes(self._section[sequence.start : sequence.end])
        known = self._standard and sequence.operand is not None and sequence.address is not None
        if not known or not sequence.ended or code.find(_SET_ADDRESS, _BODY) >= 0:
            return None
        steps = self._steps
        taken = step_pattern().findall(code, _BODY, len(code) - len(_END))
        if 0 in accumulate(map(steps.__getitem__, taken), initial=1):
            return None
        times = Counter(taken)
        files = set(map(steps.files.__getitem__, times)) - {None}
        if not self._unit.files or not all(file and file <= len(self._unit.files) for file in files):
            return None
        if sum(map(mul, map(abs, map(steps.__getitem__, times)), times.values())) >= _LARGEST_LINE:
            return None
        start = self._address_of(sequence.operand or 0, sequence.address or 0)
        end = start + sum(map(mul, map(steps.advances.__getitem__, times), times.values()))
        first = start
        for step in taken:
            first += steps.advances[step]
            if step in steps.rows:
                return (first, end) if end < _LARGEST_ADDRESS else None
        return (end, end)  # not one row

    def _row_by_row(self, sequence: Sequence) -> list[Span]:
        rows = decode(self._section, self._unit, sequence, self._address_of)
        ends = [*rows.addresses[1:], rows.end_address if rows.end_address is not None else 0]
        named = range(1, len(self._unit.files) + 1)
        return [
            (start, end)
            for start, end, file, line in zip(rows.addresses, ends, rows.files, rows.lines, strict=False)
            if line and file in named
        ]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order, those that touch made one and empty ones left out."""
    whole: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if whole and start <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(whole[-1][1], end))
        else:
            whole.append((start, end))
    return whole


class _Steps(dict[bytes, int]):
    """What the opcodes up to a row do to the registers, worked out on first use: by the opcodes, their lines' advance.

    `advances` are those of the address, `files` the number that is set, if any; `rows` are the steps that end in a row.
    """

    def __init__(self, opcodes: Opcodes) -> None:
        super().__init__()
        self.advances: Final[dict[bytes, int]] = {}
        self.files: Final[dict[bytes, int | None]] = {}
        self.rows: Final[set[bytes]] = set()
        self._opcodes: Final = opcodes

    def __missing__(self, code: bytes) -> int:
        machine = Machine(code, self._opcodes, file=_UNSET, line=0)
        machine.run()
        if machine.rows.lines:
            self.rows.add(code)
        self.advances[code], self.files[code] = machine.address, None if machine.file == _UNSET else machine.file
        self[code] = machine.line  # last: another thread that finds it here finds the others too
        return machine.line


@lru_cache(maxsize=4)
def _steps(opcodes: Opcodes) -> _Steps:
    """Return the steps of all units whose opcodes mean the same: each is worked out once for a whole library."""
    return _Steps(opcodes)
