"""Which registers the compiler's subroutine for 64-bit division takes and returns.

ptxas calls `__cuda_sm20_div_s64` and its like with registers of its choice, and drops arguments that are the same
constant in every call. Their code has one shape: the absolute divisor is converted to floating point, a remainder is
compared with it, and both words of the result are replaced by -1 where the divisor is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpucore.explain.algebra import Poly
from gpucore.explain.code import Code, Routine
from gpucore.sass import Register


@dataclass(frozen=True)
class Roles:
    """Dividend and divisor by the callee's registers at its entry, and the two registers of the result."""

    over: Poly
    under: Poly
    result: tuple[Register, Register]


def find_roles(code: Code, callee: Routine, bank: Callable[[int, int, int], Poly]) -> Roles | None:
    return None
