"""The verdict: what counts, what passes, what is only reported."""

from dataclasses import replace

import pytest

from gpucore.errors import UnreadableBinary
from gpucore.fatbin import Compression, EntryKind, find_device_code
from gpucore.lineinfo import Cause, Counts, Covered, FileReport, LineinfoReport, Verdict, file_report, judge
from tests.builders.cubin import EMPTY_TABLE, cubin
from tests.builders.fatbin import EntrySpec, archive, container, host_library

WITH = EntrySpec(payload=cubin("_Z4goodPf", lines=True), identifier="good.cu")
WITHOUT = EntrySpec(payload=cubin("_Z3badPf"))
EMPTY = EntrySpec(payload=cubin("_Z5emptyPf", lines=True, table=EMPTY_TABLE))
LINKED = EntrySpec(payload=cubin("_Z4goodPf", "_Z3badPf", lines=True, covered=["_Z4goodPf"], linked=True))
STUB = EntrySpec(payload=cubin(unused_names=[".debug_line"]), identifier="host.cu ")
PTX = EntrySpec(payload=b".version 9.0", kind=EntryKind.PTX)


def report(*entries: EntrySpec) -> FileReport:
    return report_of(host_library(container(*entries)))


def report_of(data: bytes) -> FileReport:
    return file_report("lib.so", map(judge, find_device_code(data)))


@pytest.mark.parametrize(
    ("entries", "verdict"),
    [
        ([WITH], Verdict.FULL),
        ([WITH, STUB, PTX], Verdict.FULL),
        ([WITH, WITHOUT], Verdict.PARTIAL),
        ([WITHOUT, STUB], Verdict.NONE),
        ([EMPTY], Verdict.NONE),
        ([EMPTY, WITH], Verdict.PARTIAL),
        ([LINKED], Verdict.PARTIAL),
        ([LINKED, WITH], Verdict.PARTIAL),
        ([STUB], Verdict.NO_DEVICE_CODE),
        ([PTX], Verdict.NO_DEVICE_CODE),
        ([], Verdict.NO_DEVICE_CODE),
    ],
)
def test_the_verdict(entries: list[EntrySpec], verdict: Verdict) -> None:
    assert report(*entries).verdict is verdict


def test_a_stub_without_code_is_not_a_failure() -> None:
    judged = report(WITH, STUB)
    assert judged.counts == Counts(cubins=2, with_code=1, with_debug_line=1)
    assert judged.missing == ()


def test_only_cubins_covered_as_a_whole_count_as_having_lines() -> None:
    judged = report(WITH, EMPTY, LINKED, STUB)
    assert judged.counts == Counts(cubins=4, with_code=3, with_debug_line=1, partly=1)
    assert judged.covered == Covered(
        functions=4, functions_covered=2, instructions=32, instructions_covered=16, lowest=0.0
    )


def test_what_lacks_rows_is_named_with_the_cause_and_its_functions() -> None:
    empty, linked, without = report(EMPTY, LINKED, WITHOUT).missing
    assert (empty.cause, [f.name for f in empty.functions]) == (Cause.EMPTY_TABLE, ["_Z5emptyPf"])
    assert (linked.cause, [f.name for f in linked.functions]) == (Cause.LINKED_WITHOUT, ["_Z3badPf"])
    assert (without.cause, without.functions, without.function_count) == (Cause.NO_TABLE, (), 0)


@pytest.mark.parametrize("how", Compression)
def test_a_cubin_without_lines_is_named_by_its_kernels_however_it_is_stored(how: Compression) -> None:
    (missing,) = report(EntrySpec(payload=cubin("_Z3badPf"), how=how, arch=80)).missing
    assert (missing.arch, missing.identifier, missing.kernels) == ("sm_80", "", ("_Z3badPf",))


@pytest.mark.parametrize("how", Compression)
def test_line_info_is_found_however_it_is_stored(how: Compression) -> None:
    assert report(EntrySpec(payload=cubin("_Z4goodPf", lines=True), how=how)).verdict is Verdict.FULL


def test_the_members_of_a_static_library_are_told_apart() -> None:
    data = archive(("good.o", host_library(container(WITH))), ("bad.o", host_library(container(WITHOUT))))
    assert [m.member for m in report_of(data).missing] == ["bad.o"]


def test_counts_are_kept_by_architecture_cubins_first_numbers_in_order() -> None:
    judged = report(EntrySpec(payload=cubin("k"), arch=100), PTX, EntrySpec(payload=cubin("k"), arch=90), WITH)
    assert [(arch, c.cubins, c.with_debug_line) for arch, c in judged.archs] == [
        ("sm_90", 2, 1),
        ("sm_100", 1, 0),
        ("compute_90", 0, 0),
    ]


def test_device_debug_counts_as_line_info_and_is_told_apart() -> None:
    judged = report(EntrySpec(payload=cubin("k", debug=True)), WITH)
    assert (judged.verdict, judged.counts.device_debug) == (Verdict.FULL, 1)


def test_twins_of_one_name_are_judged_one_by_one() -> None:
    twin = EntrySpec(payload=cubin("k"), identifier="good.cu")
    assert report(twin, WITH).verdict is Verdict.PARTIAL


def test_lto_code_is_counted_apart() -> None:
    assert report(EntrySpec(payload=b"\xde\xc9", kind=EntryKind.LTO_IR, flags=0x18011)).counts == Counts(other=1)


def test_one_unreadable_file_leaves_nothing_proven() -> None:
    good = report(WITH)
    bad = FileReport(path="bad.so", problem="damaged")
    assert LineinfoReport(files=(good,)).verdict is Verdict.FULL
    assert LineinfoReport(files=(good, bad)).verdict is Verdict.UNREADABLE
    assert LineinfoReport(files=(good, report(WITHOUT))).verdict is Verdict.PARTIAL
    assert LineinfoReport(files=()).verdict is Verdict.NO_DEVICE_CODE


@pytest.mark.parametrize("how", Compression)
def test_code_in_sections_of_another_name_is_judged_all_the_same(how: Compression) -> None:
    """A hex editor that takes `.text.` out of the names must not make a proof of the rest."""
    hidden = EntrySpec(payload=WITHOUT.payload.replace(b".text.", b".tfxt."), how=how)
    read = report(WITH, hidden)
    assert hidden.payload != WITHOUT.payload
    assert (read.counts.with_code, read.verdict) == (2, Verdict.PARTIAL)


@pytest.mark.parametrize("how", Compression)
@pytest.mark.parametrize("kind", [EntryKind.PTX, EntryKind.LTO_IR, 3, 64])
def test_a_cubin_whose_entry_says_that_it_is_none_is_not_passed_over(kind: int, how: Compression) -> None:
    with pytest.raises(UnreadableBinary, match=f"an entry of kind {kind:d} holds a cubin"):
        report(WITH, replace(WITHOUT, kind=kind, how=how))
