"""Compare a cubin compiled again with the stock one, function by function: is it the same code?"""

from __future__ import annotations

from dataclasses import dataclass

from gpucore.code_identity import CodeIdentity, identify
from gpucore.code_map import CodeMap, identifier_in
from gpucore.elf import Buffer
from gpucore.mangling import demangle, short_name
from vdbg_env.application.lines.stock import StockCubin


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Mangled names of the stock cubin's functions: with identical instructions, with others, and not built at all.

    `renamed` are those of `identical` whose name in the build is another: stock name -> name built. nvcc puts a hash of
    the source's path into names with internal linkage, and other headers give other names to a template's arguments.
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
    """Compare by the exact name, then by the name without its path's hash, then by the code of the same template.

    Raises UnreadableBinary when the build's cubin is damaged.
    """
    by_name: dict[str, CodeIdentity] = {}
    by_stable: dict[str, CodeIdentity] = {}
    for function in identify(CodeMap(built)):
        by_name[function.function.name] = function
        by_stable.setdefault(function.stable_name, function)
    taken = {ours.function.name for ours in stock.functions} | {ours.stable_name for ours in stock.functions}
    by_code: dict[bytes, list[CodeIdentity]] = {}
    for name, function in by_name.items():
        if name not in taken and function.stable_name not in taken:
            by_code.setdefault(function.hash, []).append(function)
    identical, differing, missing, renamed = [], [], [], []
    for ours in stock.functions:
        name = ours.function.name
        theirs = by_name.get(name) or by_stable.get(ours.stable_name)
        if theirs is None:
            theirs = _alike(ours, by_code.get(ours.hash, []))
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


def _alike(ours: CodeIdentity, same_code: list[CodeIdentity]) -> CodeIdentity | None:
    """Take the function of the same name but for its template arguments, the one most alike, out of those left.

    Small functions of other names are often the same instructions, and their lines are not this one's.
    """
    stem = _stem(ours)
    near = [theirs for theirs in same_code if _stem(theirs) == stem]
    if not near:
        return None
    found = max(near, key=lambda theirs: _alike_letters(ours.function.name, theirs.function.name))
    same_code.remove(found)
    return found


def _alike_letters(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _stem(identity: CodeIdentity) -> str:
    return identifier_in(short_name(demangle(identity.function.name)))
