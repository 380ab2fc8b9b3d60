"""Patterns by which opcodes of a line program are told from their operands at the speed of the `re` module.

The repetitions are possessive: each byte is looked at once, whatever the input.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import Final


def _extended_pattern() -> bytes:
    """Return a pattern of one extended opcode: 0, length, sub-opcode, operands.

    A length of one byte covers everything ptxas writes, the common ones first. Length 1 is end_sequence, which must end
    the match and is left out, or an unknown marker.
    """
    lengths = [4, 5, 3, 9, *sorted(set(range(2, 128)) - {3, 4, 5, 9})]
    bodies = [rb"\x%02x.{%d}" % (length, length) for length in lengths]
    return rb"\x00(?:" + b"|".join([*bodies, rb"\x01[^\x01]"]) + rb")"


_EXTENDED: Final = _extended_pattern()
_LEB128: Final = rb"[\x80-\xff]*+[\x00-\x7f]"


def _all_of(body: bytes) -> bytes:
    """Return a repetition of `body` that gives nothing back.

    Before Python 3.11.5 a possessive repetition of alternatives could end too early (python/cpython#106052). An atomic
    group never did, and is slower.
    """
    return rb"(?:" + body + rb")*+" if sys.version_info >= (3, 11, 5) else rb"(?>(?:" + body + rb")*)"


@cache
def sequence_pattern(opcode_base: int, counts: tuple[int, ...]) -> re.Pattern[bytes]:
    """Compile a pattern that matches one whole sequence, so that skipping runs at the speed of the `re` module.

    Walking the opcodes in Python takes half a second for a line section of 2 MB; this takes a fiftieth of that.
    """
    single, longer = bytearray(), []
    for opcode in range(1, 256):
        operands = counts[opcode - 1] if opcode < opcode_base else 0
        if opcode == 9 and opcode < opcode_base:  # DW_LNS_fixed_advance_pc: one uhalf, not a LEB128
            longer.append(rb"\x09..")
        elif operands:
            longer.append(rb"\x%02x(?:%b){%d}" % (opcode, _LEB128, operands))
        else:
            single.append(opcode)
    ones = b"[" + b"".join(rb"\x%02x" % byte for byte in single) + b"]++"
    body = b"|".join(([ones] if single else []) + longer + [_EXTENDED])
    return re.compile(_all_of(body) + rb"\x00\x01\x01", re.DOTALL)


@cache
def step_pattern() -> re.Pattern[bytes]:
    """Compile a pattern that finds, one row after the other, the standard and special opcodes up to and with the row.

    It reads the opcodes as `sequence_pattern` does, so none is read out of step.
    """
    operands = b"|".join([rb"[\x02-\x05]" + _LEB128, rb"[\x06-\x08]", rb"\x09.."])
    return re.compile(_all_of(_EXTENDED) + rb"(" + _all_of(operands) + rb"[\x01\x0a-\xff]?+)", re.DOTALL)
