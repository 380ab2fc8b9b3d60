"""Device code is found in every kind of file that carries it."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucore import elf
from gpucore.elf import CUDA_12, CUDA_13, ET_CORE, Identity
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import Compression, find_device_code, may_hold_device_code
from tests.builders.cubin import cubin
from tests.builders.elf import ElfSpec, SectionSpec, build_elf
from tests.builders.fatbin import EntrySpec, archive, container, host_library

CUBINS = Path(__file__).parents[2] / "data" / "cubins"
ONE = container(EntrySpec(payload=cubin("one"), identifier="one.cu"))
TWO = container(EntrySpec(payload=cubin("two"), identifier="two.cu"))


def identifiers(data: bytes) -> list[str]:
    assert may_hold_device_code(data[:8])
    return [code.entry.identifier for code in find_device_code(data)]


def test_final_and_relocatable_code_of_a_library_are_both_found() -> None:
    assert identifiers(host_library(ONE, relocatable=[TWO])) == ["one.cu", "two.cu"]


def test_a_library_without_device_code_holds_none() -> None:
    assert identifiers(host_library()) == []


def test_a_bare_fat_binary_is_read() -> None:
    assert identifiers(ONE + TWO) == ["one.cu", "two.cu"]


def test_a_bare_cubin_is_one_entry() -> None:
    (code,) = find_device_code(cubin("k", arch=100))
    assert code.entry.target == "sm_100"
    assert bytes(code.entry.payload()) == cubin("k", arch=100)


@pytest.mark.parametrize(("option", "target"), [("sm_90a", "sm_90a"), ("sm_90f", "sm_90f"), ("sm_90", "sm_90")])
def test_the_suffix_of_a_bare_cubin_comes_from_the_note_of_ptxas(option: str, target: str) -> None:
    for written in (f"-arch {option}", f"-arch={option}", f"--gpu-name={option}", f"--gpu-name {option}"):
        note = SectionSpec(name=".note.nv.tkinfo", data=f"ptxas\0{written} -m 64 \0".encode())
        (code,) = find_device_code(build_elf(ElfSpec(sections=[note])))
        assert code.entry.target == target


def test_the_suffix_is_known_without_the_options_of_ptxas() -> None:
    """A compiler that calls ptxas as a library notes no options; `.nv.compat` says it too."""
    real = (CUBINS / "parameters_sm90a.cubin").read_bytes()
    for data in (real, real.replace(b"-arch sm_90a", b"            ")):
        (code,) = find_device_code(data)
        assert code.entry.target == "sm_90a"
    (code,) = find_device_code((CUBINS / "no_lines_sm90.cubin").read_bytes())
    assert code.entry.target == "sm_90"


@pytest.mark.parametrize(
    ("identity", "flags", "target"),
    [
        (CUDA_12, 0x5A0D5A, "sm_90a"),  # as CuTe DSL 4.8 writes it, without a note of any kind
        (CUDA_12, 0x5A055A, "sm_90"),
        (CUDA_13, 0x600640C, "sm_100a"),
        (CUDA_13, 0x6005A04, "sm_90"),
    ],
)
def test_the_suffix_is_known_from_the_flags_alone(identity: Identity, flags: int, target: str) -> None:
    (code,) = find_device_code(build_elf(ElfSpec(identity=identity, flags=flags)))
    assert code.entry.target == target


def test_members_of_a_static_library_are_named() -> None:
    data = archive(("a.o", host_library(ONE)), ("readme", b"text\n"), ("a_rather_long_name.o", host_library(TWO)))
    assert [(c.member, c.entry.identifier) for c in find_device_code(data)] == [
        ("a.o", "one.cu"),
        ("a_rather_long_name.o", "two.cu"),
    ]


def test_a_thin_archive_says_where_to_look() -> None:
    with pytest.raises(UnreadableBinary, match="thin archive"):
        list(find_device_code(b"!<thin>\n"))


def test_bsd_names_are_read() -> None:
    header = f"{'#1/8':<16}{0:<12}{0:<6}{0:<6}{644:<8}{11:<10}`\n".encode()
    (member,) = elf.members(b"!<arch>\n" + header + b"name.o\0\0abc\n")
    assert (member.name, bytes(member.data)) == ("name.o", b"abc")


def test_sections_of_device_code_that_share_bytes_are_refused() -> None:
    """A thousand headers that lead to the same code would have it read a thousand times."""
    data = bytearray(host_library(ONE, relocatable=[TWO]))
    row = int.from_bytes(data[40:48], "little") + 64 * 2
    data[row + 64 + 24 : row + 64 + 40] = data[row + 24 : row + 40]
    with pytest.raises(UnreadableBinary, match="share bytes"):
        list(find_device_code(bytes(data)))


@pytest.mark.parametrize("wrapped", [False, True])
def test_claims_of_a_thousand_times_the_file_are_refused(wrapped: bool) -> None:
    zeros = EntrySpec(payload=cubin("k") + bytes(1 << 20), how=Compression.ZSTD, claimed_size=400 << 20)
    library = host_library(container(zeros, zeros, zeros))
    with pytest.raises(UnreadableBinary, match="300 times the file's size"):
        list(find_device_code(archive(("a.o", library)) if wrapped else library))


def test_a_long_name_ends_within_its_table() -> None:
    """A table without line breaks would be copied whole for each member."""
    names = b"x" * 100_000
    header = f"{'//':<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(names):<10}`\n".encode()
    member = f"{'/7':<16}{0:<12}{0:<6}{0:<6}{644:<8}{2:<10}`\nab".encode()
    (found,) = elf.members(b"!<arch>\n" + header + names + member)
    assert len(found.name) == 4096


def test_a_32_bit_host_file_holds_none() -> None:
    assert list(find_device_code(b"\x7fELF\x01\x01" + bytes(46))) == []


def test_a_gpu_core_is_sent_to_its_own_command() -> None:
    with pytest.raises(UnreadableBinary) as caught:
        list(find_device_code(build_elf(ElfSpec(type=ET_CORE))))
    assert caught.value.next_step == "vdbg-env core FILE"


def test_any_other_file_is_refused() -> None:
    assert not may_hold_device_code(b"#!/bin/s")
    with pytest.raises(UnreadableBinary, match="neither ELF"):
        list(find_device_code(b"#!/bin/sh\n"))


@given(st.binary(max_size=300))
def test_any_archive_ends_in_an_answer_or_a_typed_error(noise: bytes) -> None:
    base = archive(("a.o", host_library(ONE)), ("a_rather_long_name.o", host_library(TWO)))
    with contextlib.suppress(UnreadableBinary):
        list(find_device_code(base[:120] + noise + base[120:]))
