"""Compare a cubin compiled again with the stock one, function by function: is it the same code?"""

from __future__ import annotations

from dataclasses import dataclass

from vdbg_env.application.lines.stock import StockCubin
from vdbg_env.cuda.binary.elf import Buffer
from vdbg_env.cuda.line_pack.identity import CodeIdentity, identify
from vdbg_env.cuda.lines.code_map import CodeMap


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Mangled names of the stock cubin's functions: with identical instructions, with others, and not built at all.

    `renamed` are those of `identical` whose name in the build is another: stock name -> name built. nvcc puts a hash of
    the source's path into names with internal linkage.
    """

    identical: tuple[str, ...]
    differing: tuple[str, ...]
    missing: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]

    @property
    def total(self) -> int:
        """How many functions the stock cubin has."""
        return len(self.identical) + len(self.differing) + len(self.missing)

    @property
    def complete(self) -> bool:
        """Whether every function of the stock cubin has identical instructions in the build."""
        return not self.differing and not self.missing


def compare(stock: StockCubin, built: Buffer) -> Comparison:
    """Compare by the exact name, then by the name without its path's hash, then by the code alone.

    Raises UnreadableBinary when the build's cubin is damaged.
    """
    by_name: dict[str, CodeIdentity] = {}
    by_stable: dict[str, CodeIdentity] = {}
    by_code: dict[bytes, CodeIdentity] = {}
    for function in identify(CodeMap(built)):
        by_name[function.function.name] = function
        by_stable.setdefault(function.stable_name, function)
        by_code.setdefault(function.hash, function)
    identical, differing, missing, renamed = [], [], [], []
    for ours in stock.functions:
        name = ours.function.name
        theirs = by_name.get(name) or by_stable.get(ours.stable_name)
        if theirs is None or theirs.hash != ours.hash:
            theirs = by_code.get(ours.hash) or theirs
        if theirs is None:
            missing.append(name)
        elif theirs.hash != ours.hash:
            differing.append(name)
        else:
            identical.append(name)
            if theirs.function.name != name:
                renamed.append((name, theirs.function.name))
    return Comparison(
        identical=tuple(identical), differing=tuple(differing), missing=tuple(missing), renamed=tuple(renamed)
    )
