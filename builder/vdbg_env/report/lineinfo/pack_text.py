"""Write what is known of line packs for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpucore.line_pack import LineRecord
from gpucore.line_packs import Provenance
from gpucore.mangling import demangle
from vdbg_env.common.printable import printable
from vdbg_env.common.size import size_text
from vdbg_env.lines.packs import PackSummary

if TYPE_CHECKING:
    from vdbg_env.lines.packs import Packed  # loads the plans of builds: `verify` does without


def packed(result: Packed, name: str) -> str:
    """Return what was packed."""
    head = f"{printable(name)}: lines of {result.functions:,} functions in {size_text(len(result.data))}"
    return "\n".join([head, *_binaries(result.binaries), *(f"note: {printable(p)}" for p in result.problems)]) + "\n"


def summary(found: PackSummary) -> str:
    """Return what a pack has."""
    lines = [
        f"{printable(found.name)}: lines of {found.functions:,} functions in {size_text(found.size)}",
        f"  sha256   {found.digest}",
        *_binaries(found.binaries),
    ]
    return "\n".join(lines) + "\n"


def functions(records: Iterable[LineRecord]) -> Iterator[str]:
    """Yield a line for each function."""
    for record in records:
        covered = record.covered / record.size if record.size else 0.0
        yield printable(
            f"{record.hash.hex()[:16]}  {' '.join(record.archs):12} {record.size:8} bytes {covered:6.1%}  "
            f"{demangle(record.name)}"
        )


def table(found: Iterable[PackSummary]) -> str:
    """Return a line for each pack."""
    rows = [
        f"{one.digest[:12]}  {size_text(one.size):>9}  {one.functions:8,}  {printable(f'{one.builds}  {one.name}')}\n"
        for one in found
    ]
    return "".join([f"{'SHA256':12}  {'SIZE':>9}  {'FUNCTIONS':>8} BUILD, FILE\n", *rows]) if rows else ""


def _binaries(binaries: Iterable[Provenance]) -> Iterator[str]:
    for binary in binaries:
        build = ", ".join(part for part in (binary.release, binary.compiler and f"nvcc {binary.compiler}") if part)
        yield printable(
            f"  {binary.binary:40} {binary.with_lines:,} of {binary.functions:,} functions with lines"
            + (f"  ({build})" if build else "")
        )
        if binary.headers is None:
            yield "    headers: unknown (the pack does not say which releases of other projects its lines are of)"
        for headers in binary.headers or ():
            said = headers.other or f"{headers.project} {headers.used}, as the wheel was built with"
            yield printable(f"    headers: {said}")
