"""Two builds of a function are the same code when their instructions are, but for what is filled in later."""

import struct

import pytest

from gpucore.code_identity import CodeIdentity, PatchedField, compiler_notes, identify, stable_name
from gpucore.code_map import CodeMap
from tests.builders.elf import ElfSpec, SectionSpec, SymbolSpec, build_elf
from tests.builders.relocate import relocate
from tests.support.cubins import cubin

LO32, CALL55, UNKNOWN = 56, 75, 200


def of(data: bytes) -> list[CodeIdentity]:
    return list(identify(CodeMap(data)))


def test_line_info_does_not_change_the_hash() -> None:
    with_lines = {i.function.name: i.hash for i in of(cubin("inline_chain_sm90"))}
    without = {i.function.name: i.hash for i in of(cubin("no_lines_sm90"))}
    assert with_lines == without
    assert with_lines


def test_the_image_in_a_core_has_the_same_hash() -> None:
    plain = cubin("inline_chain_sm90")
    assert [i.hash for i in of(plain)] == [i.hash for i in of(relocate(plain, 0x7FFD00000000))]


def test_kernels_that_differ_have_different_hashes() -> None:
    found = of(cubin("inline_chain_sm90"))
    assert len({i.hash for i in found}) == len(found) > 1


def test_a_callee_inside_a_kernel_belongs_to_it() -> None:
    for identity in of(cubin("inline_chain_sm90")):
        assert all(f.start + f.size <= identity.function.start + identity.function.size for f in identity.inner)
    assert any(i.inner for i in of(cubin("inline_chain_sm90")))


def linked(code: bytes, *relocations: tuple[int, int], wide: bool = True) -> bytes:
    rows = b"".join(
        struct.pack("<QQq" if wide else "<QQ", at, kind, *([0] if wide else [])) for at, kind in relocations
    )
    sections = [
        SectionSpec(name=".text.k", data=code, flags=6),
        SectionSpec(name=".rela.text.k", data=rows, type=4 if wide else 9, info=1),
    ]
    return build_elf(ElfSpec(sections=sections, symbols=[SymbolSpec(name="k", section=1, size=len(code))]))


CODE = bytes(range(64))


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(
    ("kind", "first_byte", "last_byte"), [(LO32, 4, 7), (CALL55, 2, 2), (CALL55, 5, 9), (UNKNOWN, 0, 15)]
)
def test_a_field_that_is_filled_in_later_does_not_count(
    kind: int, first_byte: int, last_byte: int, *, wide: bool
) -> None:
    filled = bytearray(CODE)
    for at in (16 + first_byte, 16 + last_byte):
        filled[at] ^= 0xFF
    (one,), (other,) = of(linked(CODE, (16, kind), wide=wide)), of(linked(bytes(filled), (16, kind), wide=wide))
    assert one.hash == other.hash
    assert one.fields == other.fields


@pytest.mark.parametrize(("kind", "byte"), [(LO32, 3), (LO32, 8), (CALL55, 3), (CALL55, 12), (UNKNOWN, 16)])
def test_what_is_next_to_a_field_counts(kind: int, byte: int) -> None:
    changed = bytearray(CODE)
    changed[16 + byte] ^= 0xFF
    (one,), (other,) = of(linked(CODE, (16, kind))), of(linked(bytes(changed), (16, kind)))
    assert one.hash != other.hash


def test_a_field_is_named_by_its_instruction() -> None:
    (found,) = of(linked(CODE, (32, LO32), (0, CALL55)))
    assert found.fields == (PatchedField(0, 16, 8), PatchedField(0, 34, 47), PatchedField(32, 32, 32))


@pytest.mark.parametrize(
    ("name", "stable"),
    [
        (
            "_ZN36_GLOBAL__N__89b8bf71_4_t_cu_2f1254c86hiddenEPi",
            "_ZN36_GLOBAL__N__00000000_4_t_cu_000000006hiddenEPi",
        ),
        (
            "_ZN36_INTERNAL_6b53167d_6_ops_cu_240d8d5a4cuda3std3__438_GLOBAL__N__6b53167d_6_ops_cu_240d8d5a6ignoreE",
            "_ZN36_INTERNAL_00000000_6_ops_cu_000000004cuda3std3__438_GLOBAL__N__00000000_6_ops_cu_000000006ignoreE",
        ),
        ("_Z4kernIfEvPT_iS0_", "_Z4kernIfEvPT_iS0_"),
        ("_GLOBAL__N__89b8bf71_999_", "_GLOBAL__N__00000000_999_"),
    ],
)
def test_a_name_without_the_hash_of_a_path(name: str, stable: str) -> None:
    assert stable_name(name) == stable


@pytest.mark.parametrize(("process", "length"), [("_7593", 66), ("_151", 65), ("", 61)])
def test_the_number_of_a_process_is_no_part_of_a_name(process: str, length: int) -> None:
    name = (
        f"_ZN{length}_GLOBAL__N__24963849_28_dcp_direct_a2a_lse_reduce_cu_6b687e18{process}23wait_lse_combine_kernelEv"
    )
    stable = "_ZN61_GLOBAL__N__00000000_28_dcp_direct_a2a_lse_reduce_cu_0000000023wait_lse_combine_kernelEv"
    assert stable_name(name) == stable
    assert stable_name(stable_name(name)) == stable


def test_what_the_compiler_noted() -> None:
    (note,) = compiler_notes(CodeMap(cubin("inline_chain_sm90")).elf)
    assert (note.tool, note.release) == ("ptxas", "13.0.88")
    assert "-lineinfo" in note.options
