"""Writes a proof of line info as JSON, schema `vdbg-env/verify/v1`; these types are where the published schema is from.

Fields are only ever added.
"""

from __future__ import annotations

import json
from typing import Literal

from typing_extensions import (
    TypedDict,
)  # pydantic makes the published schema of these, before Python 3.12 of these only

from vdbg_env.cuda.lines.coverage import BOUND
from vdbg_env.cuda.lines.lineinfo import Counts, Covered, FileReport, LineinfoReport, Missing, Witness

SCHEMA: Literal["vdbg-env/verify/v1"] = "vdbg-env/verify/v1"

VerdictName = Literal["full", "partial", "none", "no-device-code", "unreadable"]


class CountsDocument(TypedDict):
    """Numbers of cubins; with_debug_line, partly and device_debug count among those with code, ptx and other apart.

    with_debug_line counts those whose line table covers every function, partly those whose table covers less, yet
    something; a table without rows counts in neither.
    """

    cubins: int
    with_code: int
    with_debug_line: int
    device_debug: int
    ptx: int
    other: int
    partly: int


class CoverageDocument(TypedDict):
    """What line tables cover, over the cubins that have one; a function is covered from a share of bound on.

    compiler_made functions are CUDA's own and the compiler's, which no flag gives rows: they count in nothing else.
    lowest is the smallest share of a function, null where no table was read.
    """

    bound: float
    functions: int
    functions_covered: int
    compiler_made: int
    instructions: int
    instructions_covered: int
    lowest: float | None


class ArchDocument(CountsDocument):
    """The numbers of one target, such as sm_90a or compute_90."""

    arch: str


CauseName = Literal["no-line-table", "empty-line-table", "linked-without", "rows-missing", "damaged-line-table"]


class FunctionDocument(TypedDict):
    """A function that rows do not cover; name is mangled."""

    name: str
    kernel: bool
    instructions: int
    covered: int


class MissingDocument(TypedDict):
    """A cubin with code that line info does not cover; kernels are mangled and the first of kernel_count.

    functions are the first of function_count that its line table does not cover; none where there is no table.
    """

    arch: str
    identifier: str | None
    member: str | None
    kernels: list[str]
    kernel_count: int
    cause: CauseName
    functions: list[FunctionDocument]
    function_count: int


class WitnessDocument(TypedDict):
    """What another tool says of the same file; reason says why it does not agree, explained that it is at fault."""

    tool: str
    listed: int | None
    rc: int | None
    agrees: bool
    reason: str | None
    explained: bool


class ElsewhereDocument(CountsDocument):
    """Device code outside the sections that nvcc writes; sections names where, with the number of entries."""

    sections: dict[str, int]


class FileDocument(CountsDocument):
    """One file; problem says why it is unreadable, witness is null when none was asked.

    The numbers are those of the sections that nvcc writes, which cuobjdump reads too; elsewhere has the others.
    The verdict, coverage and missing are of both.
    """

    path: str
    elsewhere: ElsewhereDocument
    verdict: VerdictName
    coverage: CoverageDocument
    archs: list[ArchDocument]
    missing: list[MissingDocument]
    witness: WitnessDocument | None
    problem: str | None


class VerifyDocument(CountsDocument):
    """The whole proof; the numbers are those of all files together."""

    schema: Literal["vdbg-env/verify/v1"]
    verdict: VerdictName
    elsewhere: CountsDocument
    coverage: CoverageDocument
    files: list[FileDocument]
    without_device_code: int


def render(report: LineinfoReport) -> str:
    """Return the report as indented JSON that ends with a newline."""
    return json.dumps(document(report), indent=2, ensure_ascii=False) + "\n"


def document(report: LineinfoReport) -> VerifyDocument:
    """Return the report as plain values."""
    return {
        "schema": SCHEMA,
        "verdict": report.verdict.value,
        **_counts(report.counts),
        "elsewhere": _counts(report.elsewhere),
        "coverage": _coverage(report.covered),
        "files": [_file(file) for file in report.files],
        "without_device_code": report.without_device_code,
    }


def _file(file: FileReport) -> FileDocument:
    return {
        "path": file.path,
        "verdict": file.verdict.value,
        **_counts(file.counts),
        "elsewhere": {**_counts(file.elsewhere), "sections": dict(file.sections)},
        "coverage": _coverage(file.covered),
        "archs": [{"arch": arch, **_counts(counts)} for arch, counts in file.archs],
        "missing": [_missing(missing) for missing in file.missing],
        "witness": _witness(file.witness) if file.witness else None,
        "problem": file.problem,
    }


def _counts(counts: Counts) -> CountsDocument:
    return {
        "cubins": counts.cubins,
        "with_code": counts.with_code,
        "with_debug_line": counts.with_debug_line,
        "device_debug": counts.device_debug,
        "ptx": counts.ptx,
        "other": counts.other,
        "partly": counts.partly,
    }


def _coverage(covered: Covered) -> CoverageDocument:
    return {
        "bound": BOUND,
        "functions": covered.functions,
        "functions_covered": covered.functions_covered,
        "compiler_made": covered.compiler_made,
        "instructions": covered.instructions,
        "instructions_covered": covered.instructions_covered,
        "lowest": covered.lowest,
    }


def _missing(missing: Missing) -> MissingDocument:
    return {
        "arch": missing.arch,
        "identifier": missing.identifier or None,
        "member": missing.member or None,
        "kernels": list(missing.kernels),
        "kernel_count": missing.kernel_count,
        "cause": missing.cause.value,
        "functions": [
            {"name": f.name, "kernel": f.kernel, "instructions": f.instructions, "covered": f.covered}
            for f in missing.functions
        ],
        "function_count": missing.function_count,
    }


def _witness(witness: Witness) -> WitnessDocument:
    return {
        "tool": witness.tool,
        "listed": witness.listed,
        "rc": witness.rc,
        "agrees": witness.agrees,
        "reason": witness.reason,
        "explained": witness.explained,
    }
