"""Device code is found outside the sections that nvcc writes, and counted apart."""

import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucore.errors import UnreadableBinary
from gpucore.fatbin import NO_SECTION, Compression, find_device_code, find_embedded, may_hold_device_code
from gpucore.lineinfo import Verdict, verify
from tests.builders.cubin import cubin
from tests.builders.elf import ElfSpec, SectionSpec, build_elf
from tests.builders.fatbin import EM_X86_64, EntrySpec, archive, container, dll

BARE = cubin("bare", arch=80)
ONE = container(EntrySpec(payload=cubin("one"), identifier="one.cu"))
TWO = container(EntrySpec(payload=cubin("two"), identifier="two.cu", how=Compression.ZSTD))
WITH_LINES = container(EntrySpec(payload=cubin("k", lines=True)))
CUBINS = Path(__file__).parents[2] / "data" / "cubins"
WHEELS = Path(__file__).parents[3] / ".cache" / "wheels"


def host(*sections: tuple[str, bytes]) -> bytes:
    held = [SectionSpec(name=name, data=data) for name, data in sections]
    return build_elf(ElfSpec(sections=held, machine=EM_X86_64, flags=0))


def found(data: bytes) -> list[tuple[str, str, str]]:
    return [(code.section, code.entry.target, code.entry.identifier) for code in find_device_code(data)]


def test_containers_in_the_data_of_a_library_are_found() -> None:
    data = host((".data", b"\1" * 24 + ONE + bytes(8) + TWO + b"\2" * 9))
    assert found(data) == [(".data", "sm_90", "one.cu"), (".data", "sm_90", "two.cu")]


def test_bare_cubins_are_found_whole_whatever_their_section() -> None:
    data = host((".rodata", b"\1" * 3 + BARE + b"\2" * 5 + BARE), (".cask_resource", BARE))
    codes = list(find_device_code(data))
    assert [(c.section, c.entry.target) for c in codes] == [
        (".rodata", "sm_80"), (".rodata", "sm_80"), (".cask_resource", "sm_80")
    ]  # fmt: skip
    assert all(bytes(c.entry.payload()) == BARE for c in codes)


@pytest.mark.parametrize("path", sorted(CUBINS.glob("*.cubin")), ids=lambda path: path.stem)
def test_a_cubin_of_nvcc_has_its_program_headers_wherever_it_is_embedded(path: Path) -> None:
    """They are behind the section headers, at the very end."""
    whole = path.read_bytes()
    around = b"\1" * 7 + whole + b"\2" * 999 + whole
    for data in (host((".rodata", around)), dll((".rdata", around)), archive(("odd.bin", around))):
        codes = list(find_device_code(data))
        assert len(codes) == 2 and all(bytes(c.entry.payload()) == whole for c in codes)


def test_a_segment_behind_all_else_belongs_to_a_cubin() -> None:
    whole = bytearray((CUBINS / "no_lines_sm90.cubin").read_bytes())
    at = len(whole) - 56  # the last program header
    whole[at + 8 : at + 16] = len(whole).to_bytes(8, "little")
    whole[at + 32 : at + 40] = (40).to_bytes(8, "little")
    whole += b"\3" * 40
    (code,) = find_device_code(host((".rodata", b"\1" * 5 + whole + b"\2" * 64)))
    assert bytes(code.entry.payload()) == whole


def test_a_cubin_that_is_cut_in_its_program_headers_is_damaged() -> None:
    whole = (CUBINS / "no_lines_sm90.cubin").read_bytes()
    with pytest.raises(UnreadableBinary, match="a damaged cubin"):
        found(b"\x7fELF\x01\x01" + bytes(46) + whole[:-8])


@given(st.binary(min_size=12, max_size=12), st.binary(max_size=4), st.integers(0, (1 << 64) - 1))
def test_program_headers_that_cannot_be_true_are_an_error_or_add_nothing(row: bytes, count: bytes, at: int) -> None:
    bad = bytearray((CUBINS / "shared_leaf_sm90.cubin").read_bytes())
    bad[32:40] = at.to_bytes(8, "little")
    bad[54:58] = count.ljust(4, b"\0")
    bad[-56:-44] = row
    try:
        codes = list(find_device_code(host((".rodata", bytes(bad)))))
    except UnreadableBinary:
        return
    assert all(len(code.entry.payload()) <= len(bad) for code in codes)


def test_what_spans_two_pieces_of_the_search_is_found() -> None:
    for at in (0xFFFF9, 0xFFFFF, 0x100000, 0x1FFFFC):
        assert [c.entry.target for c in find_device_code(host((".data", b"\1" * at + BARE)))] == ["sm_80"]


def test_a_container_over_several_pieces_is_one() -> None:
    large = container(EntrySpec(payload=cubin("k") + bytes(3 << 20)), EntrySpec(payload=BARE, arch=80))
    codes = list(find_device_code(host((".data", bytes(5) + large + ONE))))
    assert [c.entry.target for c in codes] == ["sm_90", "sm_80", "sm_90"]


def test_who_maps_the_file_hears_of_each_piece_that_was_searched() -> None:
    heard: list[int] = []
    assert list(find_device_code(host((".data", bytes(20 << 20))), lambda: heard.append(1))) == []
    assert 2 <= len(heard) <= 6


@pytest.mark.parametrize("kind", [2, 11, 0x6FFFFFF6, 0x6FFFFFFF])
@pytest.mark.parametrize("field", ["offset", "size"])
def test_a_table_that_lies_outside_the_file_is_not_searched_for_and_hides_nothing(kind: int, field: str) -> None:
    data = bytearray(host((".symtab", b"\1" * 48), (".data", ONE)))
    row = int.from_bytes(data[40:48], "little") + 64
    data[row + 4 : row + 8] = kind.to_bytes(4, "little")
    at = row + {"offset": 24, "size": 32}[field]
    data[at : at + 8] = (0x7FFFFFFFFFFF0000).to_bytes(8, "little")
    assert [code.section for code in find_device_code(bytes(data), at_most(100))] == [".data"]


def test_a_range_to_skip_may_reach_over_the_end() -> None:
    data = memoryview(bytes(24) + BARE)
    assert [at for at, _ in find_embedded(data, [(1 << 62, 1 << 63), (0, 8)], at_most(100))] == [24]


def at_most(count: int) -> Callable[[], None]:
    """Return what fails when it is told of more than `count` searches: one behind the end of a file never ends."""
    left = iter(range(count))

    def searched() -> None:
        assert next(left, None) is not None, "it searches behind the end of the file"

    return searched


def test_a_file_full_of_headers_is_refused_in_bounded_time() -> None:
    header = bytearray(BARE[:64])
    rows = 0xFEFF
    table = struct.pack("<IIQQQQIIQQ", 0, 1, 0, 0, 1 << 40, 1, 0, 0, 0, 0) * rows
    header[60:62] = rows.to_bytes(2, "little")
    bait = b""
    for number in range(200):
        header[40:48] = ((200 - number) * 64).to_bytes(8, "little")  # each leads to the one table behind all
        bait += header
    began = time.process_time()
    with pytest.raises(UnreadableBinary, match="full of headers"):
        found(host((".data", bait + table)))
    assert time.process_time() - began < 2.5


def test_code_of_the_known_sections_is_found_once_and_first() -> None:
    data = host((".data", TWO), (".nv_fatbin", ONE))
    assert found(data) == [("", "sm_90", "one.cu"), (".data", "sm_90", "two.cu")]


def test_a_dll_has_its_known_section_and_others() -> None:
    data = dll((".nv_fatbin", ONE), (".rdata", BARE))
    assert may_hold_device_code(data[:8])
    assert found(data) == [("", "sm_90", "one.cu"), (".rdata", "sm_80", "")]


def test_any_member_of_an_archive_is_searched() -> None:
    (code,) = find_device_code(archive(("win.obj", b"\x64\x86" + BARE)))
    assert (code.member, code.section) == ("win.obj", NO_SECTION)


def test_a_32_bit_host_file_is_searched() -> None:
    (code,) = find_device_code(b"\x7fELF\x01\x01" + bytes(46) + BARE)
    assert code.section == NO_SECTION


@pytest.mark.parametrize(
    "header", [ONE[:16], ONE[:8], BARE[:64], host()[:64], b"\x50\xed\x55\xba\1\0\x10\0" + b"\xff" * 90]
)
def test_headers_that_no_code_follows_are_no_device_code(header: bytes) -> None:
    assert found(host((".rodata", header + b"text"))) == []


def test_a_container_damaged_further_on_is_not_passed_over() -> None:
    body = bytearray(ONE + ONE)
    body[8:16] = (len(body) - 16).to_bytes(8, "little")  # one container, whose second entry is a container's header
    with pytest.raises(UnreadableBinary):
        found(host((".data", bytes(body))))


@pytest.mark.parametrize("size", [0, 1 << 20, 1 << 63])
def test_a_container_that_does_not_end_is_not_passed_over(size: int) -> None:
    with pytest.raises(UnreadableBinary, match="runs past the end"):
        found(host((".data", TWO[:8] + size.to_bytes(8, "little") + TWO[16:])))


def test_no_proof_passes_with_code_elsewhere_that_has_no_lines() -> None:
    report = verify(host((".nv_fatbin", WITH_LINES), (".data", ONE)))
    assert report.verdict is Verdict.PARTIAL
    assert (report.counts.cubins, report.elsewhere.cubins, report.sections) == (1, 1, ((".data", 1),))


def test_code_elsewhere_alone_is_judged_and_not_called_no_device_code() -> None:
    assert verify(host((".data", ONE))).verdict is Verdict.NONE
    assert verify(host((".data", WITH_LINES))).verdict is Verdict.FULL


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_noise_around_code_hides_nothing(before: bytes, behind: bytes) -> None:
    identifiers = [identifier for _, _, identifier in found(host((".data", before + bytes(8) + ONE + behind)))]
    assert "one.cu" in identifiers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wheel", "member", "known", "elsewhere"),
    [
        ("nvidia_cufft-12.5.0.14-*", "libcufft.so.12", 0, 3527),
        ("nvidia_cuda_cupti-13.5.25-*", "libcupti.so.13", 0, 86),
        ("nvidia_nvjpeg-13.3.2.43-*win_amd64*", "nvjpeg64_13.dll", 100, 0),
    ],
)
def test_published_libraries(wheel: str, member: str, known: int, elsewhere: int) -> None:
    path = next(iter(WHEELS.glob(wheel)), None) if WHEELS.is_dir() else None
    if path is None:
        pytest.skip(f"no {wheel}: pip download --no-deps -d .cache/wheels fetches it")
    with zipfile.ZipFile(path) as archived:
        name = next(n for n in archived.namelist() if n.endswith(member))
        report = verify(archived.read(name))
    assert (report.counts.cubins, report.elsewhere.cubins) == (known, elsewhere)
