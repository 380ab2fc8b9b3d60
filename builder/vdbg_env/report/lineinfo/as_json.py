"""Write a proof of line info as JSON, schema `vdbg-env/verify/v1`: the form other programs may rely on.

Each type is a JSON object; the published schema is made from them. Fields are only ever added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpucore import lineinfo
from gpucore.lineinfo import BOUND, Cause, FunctionCoverage, LineinfoReport, Verdict
from vdbg_env.crash.line_packs import PackCoverage
from vdbg_env.report.codec import document as doc
from vdbg_env.report.codec.document import ABSENT, Document, field


class Coverage(Document, of=lineinfo.Covered):
    """What line tables cover, over the cubins that have one; a function is covered from a share of bound on.

    compiler_made functions are CUDA's own and the compiler's, which no flag gives rows: they count in nothing else.
    lowest is the smallest share of a function, null where no table was read.
    """

    bound: float = field(lambda *_: BOUND)
    functions: int
    functions_covered: int
    compiler_made: int
    instructions: int
    instructions_covered: int
    lowest: float | None


class Arch(Document, of=tuple):
    """The numbers of one target, such as sm_90a or compute_90."""

    arch: str = field(lambda pair, _: pair[0])
    counts: lineinfo.Counts = field(lambda pair, _: pair[1], inline=True)


class Missing(Document, of=lineinfo.Missing):
    """A cubin with code that line info does not cover; kernels are mangled and the first of kernel_count.

    functions are the first of function_count that its line table does not cover; none where there is no table.
    """

    arch: str
    identifier: str | None = field(lambda missing, _: missing.identifier or None)
    member: str | None = field(lambda missing, _: missing.member or None)
    kernels: list[str]
    kernel_count: int
    cause: Cause
    functions: list[FunctionCoverage]
    function_count: int


class Elsewhere(Document, of=lineinfo.FileReport):
    """Device code outside the sections that nvcc writes; sections names where, with the number of entries."""

    counts: lineinfo.Counts = field("elsewhere", inline=True)
    sections: dict[str, int] = field(lambda file, _: dict(file.sections))


class File(Document, of=lineinfo.FileReport):
    """One file; problem says why it is unreadable, witness is null when none was asked.

    The numbers are those of the sections that nvcc writes, which cuobjdump reads too; elsewhere has the others.
    The verdict, coverage and missing are of both.
    """

    path: str
    verdict: Verdict
    counts: lineinfo.Counts = field(inline=True)
    elsewhere: Elsewhere = field(lambda file, _: file)
    total: lineinfo.Counts = field(doc="All device code of the file, elsewhere included.")
    coverage: Coverage = field("covered")
    archs: list[Arch]
    missing: list[Missing]
    witness: lineinfo.Witness | None
    problem: str | None


class PackedFunctions(Document, of=PackCoverage):
    """The functions of one file and architecture: of how many the line packs have the lines, by identical code."""

    file: str
    arch: str
    functions: int
    identical: int
    other: int = field(doc="Functions that the packs have with other code only.")
    other_named: list[str] = field(doc="The first of those, mangled.")
    unknown: int = field(doc="Functions that no pack has.")


class Verified(Document, of=LineinfoReport):
    """The whole proof; the numbers are those of all files together."""

    schema: Literal["vdbg-env/verify/v1"]
    verdict: Verdict
    counts: lineinfo.Counts = field(inline=True)
    elsewhere: lineinfo.Counts
    total: lineinfo.Counts = field(doc="All device code, elsewhere included.")
    coverage: Coverage = field("covered")
    files: list[File]
    without_device_code: int
    cores: int = field(doc="Core dumps that were found, which are no libraries and were not judged.")
    notes: list[str] = field(doc="What was not looked at.")
    line_packs: list[PackedFunctions] = field(
        lambda _, packed: packed or ABSENT, may_be_absent=True, doc="With --lines."
    )


def render(report: LineinfoReport, packed: Sequence[PackCoverage] = ()) -> str:
    """Return the report as indented JSON that ends with a newline; `packed` is what line packs have of it."""
    return doc.render(report, Verified, packed)
