"""Proofs of line info for people and for programs, and why code lacks it: for `verify`, and where `build` refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, assert_never

from gpucore.lineinfo import BOUND, Cause, Counts, Covered, FileReport, LineinfoReport, Missing, Verdict, Witness
from gpucore.mangling import demangle, short_name
from vdbg_env.common.printable import printable
from vdbg_env.crash.line_packs import PackCoverage

_CACHE: Final = (
    "a compiler cache handed back objects compiled without the flag: ccache does not look at "
    "NVCC_PREPEND_FLAGS, and a build folder used before counts as fresh. CCACHE_DISABLE=1, "
    "VLLM_DISABLE_SCCACHE=1 and a clean folder, as the shipped profiles have them, prevent it"
)


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A cause in words: a heading for what it concerns, the usual reason, and what to type instead."""

    heading: str
    short: str
    reason: str
    remedy: str


EXPLAINED: Final = {
    Cause.NO_TABLE: Explained(
        heading="without line info",
        short="as after a compiler cache hit",
        reason=_CACHE,
        remedy="build again with NVCC_PREPEND_FLAGS=-lineinfo CCACHE_DISABLE=1, in an empty build folder",
    ),
    Cause.EMPTY_TABLE: Explained(
        heading="with a line table that has no rows",
        short="the line table has no rows",
        reason="only ptxas was given -lineinfo, as by -Xptxas -lineinfo, or it assembled PTX without .loc",
        remedy="give -lineinfo to nvcc itself (NVCC_PREPEND_FLAGS=-lineinfo), or to whatever compiler wrote the PTX",
    ),
    Cause.LINKED_WITHOUT: Explained(
        heading="device-linked from units with and without line info",
        short="a device link took in units without line info",
        reason="some units of a device link (-rdc=true, -dlink) were compiled without -lineinfo, or are from a cache",
        remedy="compile the units of these functions again with -lineinfo and CCACHE_DISABLE=1, then link again",
    ),
    Cause.ROWS_MISSING: Explained(
        heading="with a line table that covers only part of the code",
        short="the line table covers only part of the code",
        reason="the PTX has .loc for a part of its code, as PTX written by hand or joined from several compilers",
        remedy="give -lineinfo, or the like, to every compiler that wrote a part of the PTX",
    ),
    Cause.DAMAGED_TABLE: Explained(
        heading="with a damaged line table",
        short="the line table is damaged",
        reason="the file was cut short or overwritten, or its assembler writes line tables of an unknown form",
        remedy="build the file again; nvdisasm -g CUBIN says whether NVIDIA's own tool reads the table",
    ),
}


_COLUMNS: Final = ("arch", "cubins", "with code", "with lines", "of these -G")
_MISSING_SHOWN: Final = 10
_MISSING_SHOWN_OF_NONE: Final = 3  # where nothing has lines, which ones lack them is no news
_KERNELS_SHOWN: Final = 3
_APART: Final = "verify what you built apart from what others did, as IMAGE:/opt/vdbg/out; or "


def verify_text(report: LineinfoReport, *, every_missing: bool = False) -> str:
    """Return the report as text, newline at the end; `every_missing` names all that lacks lines, however much."""
    blocks = ["\n".join(_file(file, every_missing)) for file in report.files]
    return "\n\n".join([*blocks, "\n".join(_summary(report))]) + "\n"


def _file(file: FileReport, every_missing: bool) -> Iterator[str]:
    yield f"{printable(file.path)}: {file.verdict}"
    if file.problem is not None:
        yield f"  {printable(file.problem)}"
        if file.next_step:
            yield f"  try: {printable(file.next_step)}"
        return
    if file.total.cubins:
        yield from _table(file)
    if file.elsewhere != Counts():
        yield f"  {_elsewhere(file)}"
    if file.covered.functions:
        yield f"  {coverage_text(file.covered)}"
    if file.counts.ptx:
        yield f"  {_number(file.counts.ptx, 'PTX entry', 'PTX entries')}, compiled when the program starts: not judged"
    if file.counts.other:
        yield f"  {_number(file.counts.other, 'entry', 'entries')} of another kind, such as LTO-IR: not judged"
    if file.witness:
        yield f"  {_witness(file.witness, file.missing)}"
    few = _MISSING_SHOWN_OF_NONE if file.verdict is Verdict.NONE else _MISSING_SHOWN
    yield from _missing(file.missing, len(file.missing) if every_missing else few)


def _elsewhere(file: FileReport) -> str:
    """Return what was found outside the sections that nvcc writes."""
    found = file.elsewhere
    kinds = [
        (found.cubins, "cubin", "cubins"),
        (found.ptx, "PTX entry", "PTX entries"),
        (found.other, "other", "others"),
    ]
    named = ", ".join(_number(*kind) for kind in kinds if kind[0])
    lines = f"; {found.with_debug_line:,} of {found.with_code:,} with code have lines" if found.with_code else ""
    where = ", ".join(printable(name) for name, _ in file.sections[:_KERNELS_SHOWN])
    return f"outside the sections that nvcc writes, where cuobjdump does not look: {named} in {where}{lines}"


def _table(file: FileReport) -> Iterator[str]:
    rows = [(arch, counts) for arch, counts in file.archs if counts.cubins]
    if file.elsewhere.cubins:
        rows.append(("elsewhere", file.elsewhere))
    if len(rows) > 1:
        rows.append(("all", file.total))
    width = max(len(arch) for arch, _ in rows) + 2
    yield "  " + _COLUMNS[0].ljust(width) + "".join(name.rjust(len(name) + 2) for name in _COLUMNS[1:])
    for arch, counts in rows:
        numbers = (counts.cubins, counts.with_code, counts.with_debug_line, counts.device_debug)
        cells = (f"{n:,}".rjust(len(name) + 2) for n, name in zip(numbers, _COLUMNS[1:], strict=True))
        yield "  " + arch.ljust(width) + "".join(cells)


def coverage_text(covered: Covered) -> str:
    """Return how much of the code rows cover, in one line; a share is never rounded up to all."""
    share = f"{covered.instructions_covered:,} of {covered.instructions:,} instructions"
    apart = f", {covered.compiler_made:,} of CUDA's own apart" if covered.compiler_made else ""
    least = ""
    if covered.lowest is not None and covered.lowest < 1:
        least = f"; the least covered function to {int(covered.lowest * 1000) / 10:g} %"
    return f"rows cover {share} of {_number(covered.functions, 'function', 'functions')}{apart}{least}"


def _witness(witness: Witness, missing: Iterable[Missing]) -> str:
    if not witness.agrees:
        return f"{witness.tool} does not agree: {printable(witness.reason or 'it gave no reason')}"
    listed = f"{witness.tool} lists {_number(witness.listed or 0, 'cubin', 'cubins')} too"
    stricter = any(m.cause is not Cause.NO_TABLE for m in missing)
    return f"{listed}; it does not look at the rows of their line tables" if stricter else listed


def _missing(missing: Iterable[Missing], shown: int) -> Iterator[str]:
    groups = _by_unit(missing)
    left = shown
    for cause in dict.fromkeys(unit.cause for unit in groups):
        units = [unit for unit in groups if unit.cause is cause][:left]
        left -= len(units)
        yield from [f"  {EXPLAINED[cause].heading}:"] if units else []
        for unit in units:
            yield f"    {', '.join(groups[unit])}: {printable(_unit(unit))}"
    if len(groups) > shown:
        yield f"    and {len(groups) - shown:,} more (--all names them, --json with their kernels)"


class _Unit(NamedTuple):
    """What the cubins of one translation unit have in common, whatever their architecture."""

    cause: Cause
    member: str
    identifier: str
    kernels: tuple[str, ...]
    kernel_count: int
    functions: tuple[str, ...]
    function_count: int


def _by_unit(missing: Iterable[Missing]) -> dict[_Unit, list[str]]:
    """Group by translation unit: one source file is compiled once for each architecture."""
    groups: dict[_Unit, list[str]] = {}
    for cubin in missing:
        unit = _Unit(
            cubin.cause, cubin.member, cubin.identifier, cubin.kernels, cubin.kernel_count,
            tuple(f.name for f in cubin.functions[:_KERNELS_SHOWN]), cubin.function_count,
        )  # fmt: skip
        archs = groups.setdefault(unit, [])
        if cubin.arch not in archs:
            archs.append(cubin.arch)
    return groups


def _unit(unit: _Unit) -> str:
    if unit.cause in (Cause.LINKED_WITHOUT, Cause.ROWS_MISSING):  # the kernels of the cubin may be good ones
        held = _named("function", unit.functions, unit.function_count)
    else:
        held = _named("kernel", unit.kernels, unit.kernel_count) if unit.kernels else "device functions only"
    return ": ".join(part for part in (unit.member, unit.identifier, held) if part)


def _named(what: str, mangled: Iterable[str], count: int) -> str:
    names = list(dict.fromkeys(short_name(demangle(name)) for name in mangled))[:_KERNELS_SHOWN]
    more = f" and {count - len(names):,} more" if count > len(names) else ""
    return f"{what if count == 1 else what + 's'} {', '.join(names)}{more}"


def _summary(report: LineinfoReport) -> Iterator[str]:
    counts = report.total
    where = f" ({_number(len(report.files), 'file', 'files')})" if len(report.files) > 1 else ""
    yield f"verdict: {report.verdict}{where}: {_said(report, counts)}"
    if len(report.files) > 1 and counts.cubins:
        outside = f"; {report.elsewhere.cubins:,} of them outside nvcc's sections" if report.elsewhere.cubins else ""
        lines = f"{counts.with_code:,} with code, {counts.with_debug_line:,} of these with lines"
        yield f"  in all: {_number(counts.cubins, 'cubin', 'cubins')}, {lines}{outside}"
    if report.without_device_code:
        yield f"  {_number(report.without_device_code, 'other file holds', 'other files hold')} no device code"
    if report.cores:
        what = "a core dump, which is no library" if report.cores == 1 else "core dumps, which are no libraries"
        yield f"  {_number(report.cores, 'other file is', 'other files are')} {what}: vdbg-env core FILE"
    yield from (f"  note: {printable(note)}" for note in report.notes)
    if report.verdict in (Verdict.NONE, Verdict.PARTIAL):
        apart = report.verdict is Verdict.PARTIAL and not _mixed(report)
        for number, cause in enumerate(report.causes):
            yield f"  try: {_APART if apart and not number else ''}{EXPLAINED[cause].remedy}"


def _mixed(report: LineinfoReport) -> bool:
    """Whether a single file has cubins with and without lines: one build made them, so something went wrong in it."""
    return any(file.verdict is Verdict.PARTIAL for file in report.files)


def _tables(report: LineinfoReport) -> list[Cause]:
    """The reasons that are found in line tables."""
    return [cause for cause in report.causes if cause is not Cause.NO_TABLE]


def _said(report: LineinfoReport, counts: Counts) -> str:
    match report.verdict:
        case Verdict.FULL:
            return f"{_number(counts.with_code, 'cubin', 'cubins')} with code, every function with line info"
        case Verdict.PARTIAL:
            lacking = f"{counts.with_code - counts.with_debug_line:,} of {counts.with_code:,} cubins with code lack"
            bare = sum(file.verdict is Verdict.NONE for file in report.files)
            whole = f"those of {_number(bare, 'file', 'files')} all"
            why = "; ".join(EXPLAINED[cause].short for cause in report.causes) if _mixed(report) else whole
            return f"{lacking} line info{': ' if _tables(report) else ', '}{why}"
        case Verdict.NONE:
            none = f"none of {_number(counts.with_code, 'cubin', 'cubins')} with code carries line info"
            return f"{none}: {'; '.join(EXPLAINED[c].short for c in _tables(report))}" if _tables(report) else none
        case Verdict.NO_DEVICE_CODE:
            return _why_nothing(counts)
        case Verdict.UNREADABLE:
            unread = sum(f.problem is not None for f in report.files)
            return f"{_number(unread, 'file', 'files')} could not be judged, so nothing is proven"
        case never:
            assert_never(never)


def _why_nothing(counts: Counts) -> str:
    if counts.cubins:
        return f"{_number(counts.cubins, 'cubin', 'cubins')}, but none with code"
    if counts.ptx:
        return "PTX alone, no compiled device code"
    return "no device code was found"


def _number(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def coverage_by_packs(found: Sequence[PackCoverage]) -> str:
    """Return of how many functions the line packs have the lines, by file and architecture."""
    if not found:
        return ""
    lines = ["", "lines by line packs, of identical code:"]
    for one in found:
        parts = [f"{one.other:,} with other code"] if one.other else []
        parts += [f"{one.unknown:,} in no pack"] if one.unknown else []
        rest = f" ({', '.join(parts)})" if parts else ""
        lines.append(printable(f"  {one.file}  {one.arch}: {one.identical:,} of {one.functions:,} functions{rest}"))
        lines += [printable(f"    other code: {demangle(name)}") for name in one.other_named]
    return "\n".join(lines) + "\n"


# JSON: docs/schemas/verify-v1.schema.json is the contract and says what each field means.


def verify_json(report: LineinfoReport, packed: Sequence[PackCoverage] = ()) -> dict[str, Any]:
    """Return the whole proof; `packed` is what line packs have of it."""
    return {
        "schema": "vdbg-env/verify/v1",
        "verdict": report.verdict.value,
        **asdict(report.counts),
        "elsewhere": asdict(report.elsewhere),
        "total": asdict(report.total),
        "coverage": _coverage_json(report.covered),
        "files": [_file_json(file) for file in report.files],
        "without_device_code": report.without_device_code,
        "cores": report.cores,
        "notes": report.notes,
        **({"line_packs": [_packed_json(one) for one in packed]} if packed else {}),
    }


def _file_json(file: FileReport) -> dict[str, Any]:
    return {
        "path": file.path,
        "verdict": file.verdict.value,
        **asdict(file.counts),
        "elsewhere": {**asdict(file.elsewhere), "sections": dict(file.sections)},
        "total": asdict(file.total),
        "coverage": _coverage_json(file.covered),
        "archs": [{"arch": arch, **asdict(counts)} for arch, counts in file.archs],
        "missing": [_missing_json(missing) for missing in file.missing],
        "witness": file.witness and asdict(file.witness),
        "problem": file.problem,
    }


def _coverage_json(covered: Covered) -> dict[str, Any]:
    return {"bound": BOUND, **asdict(covered)}


def _missing_json(missing: Missing) -> dict[str, Any]:
    return {
        "arch": missing.arch,
        "identifier": missing.identifier or None,
        "member": missing.member or None,
        "kernels": missing.kernels,
        "kernel_count": missing.kernel_count,
        "cause": missing.cause.value,
        "functions": [asdict(function) for function in missing.functions],
        "function_count": missing.function_count,
    }


def _packed_json(one: PackCoverage) -> dict[str, Any]:
    return {
        "file": one.file, "arch": one.arch, "functions": one.functions, "identical": one.identical, "other": one.other,
        "other_named": one.other_named, "unknown": one.unknown,
    }  # fmt: skip
