"""Every instruction's chain against nvdisasm's listing, apart from the one rule by which the listing goes stale.

The rule (see `nvdisasm_listing`) is applied to our chains and must then give the listing to the letter; that it makes
the listing wrong is shown by itself on the smallest case, whose source says which caller is right.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpucore.code_map import CodeMap
from gpucore.dwarf import Place
from gpucore.fatbin import EntryKind, find_device_code
from tests.oracle.nvdisasm_listing import Instruction, Lines, as_nvdisasm_prints, instructions
from tests.support.cubins import DATA, cubin, place
from tests.support.toolchain import cuda_tool

KERNELS = Path(__file__).parents[1] / "data" / "kernels"
ARCHS = ("sm_80", "sm_90", "sm_100")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Each instruction with our chain and the listing's."""

    kernels: int
    rows: tuple[tuple[Instruction, Lines], ...]

    @property
    def unexplained(self) -> list[tuple[Instruction, Lines]]:
        """The instructions where the listing is not what the stale rule makes of our chains."""
        predicted = as_nvdisasm_prints(ours for _, ours in self.rows)
        return [row for row, shown in zip(self.rows, predicted, strict=True) if shown != row[0].chain]

    @property
    def stale(self) -> int:
        """How many instructions the listing gives another chain than the line table."""
        return sum(instruction.chain != ours for instruction, ours in self.rows)


def nvcc(options: str, source: Path, folder: Path) -> None:
    ran = subprocess.run([cuda_tool("nvcc"), *options.split(), str(source)], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def compare(path: Path) -> Compared:
    listing = subprocess.run(
        [cuda_tool("nvdisasm"), "-ndf", "-c", "-gi", str(path)], capture_output=True, text=True, check=True
    ).stdout
    code = CodeMap(path.read_bytes())
    sections = {code.elf.name(section): section.number for section in code.code_sections}
    rows = []
    for instruction in instructions(listing):
        at = Place(section=sections[instruction.section], offset=instruction.offset)
        chain = code.lines.chain(at) if code.lines else ()
        rows.append((instruction, tuple((frame.file, frame.line) for frame in chain)))
    assert len(rows) == sum(section.size for section in code.code_sections) // 16, "nvdisasm listed every instruction"
    assert code.notes == ()
    return Compared(kernels=len(code.kernels), rows=tuple(rows))


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_every_instruction_of_sixty_kernels_agrees(arch: str, tmp_path: Path) -> None:
    nvcc(f"-std=c++17 -lineinfo -arch={arch} -cubin -o a.cubin", KERNELS / "many_kernels.cu", tmp_path)
    compared = compare(tmp_path / "a.cubin")
    assert compared.kernels == 60
    assert compared.unexplained == []
    assert compared.stale > 0, "the rule was put to the test"
    print(f"{arch}: {len(compared.rows)} instructions, {compared.stale} with a stale chain in the listing")


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ARCHS)
def test_device_debug_code_agrees(arch: str, tmp_path: Path) -> None:
    nvcc(f"-G -arch={arch} -cubin -o a.cubin", DATA / "inline_chain.cu", tmp_path)
    compared = compare(tmp_path / "a.cubin")
    assert compared.rows
    assert compared.unexplained == []
    assert all(len(ours) <= 1 for _, ours in compared.rows)


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ARCHS)
def test_separately_compiled_code_agrees_before_and_after_linking(arch: str, tmp_path: Path) -> None:
    for unit in ("first_unit", "other_unit"):
        nvcc(f"-rdc=true -lineinfo -arch={arch} -cubin -o {unit}.cubin", KERNELS / f"{unit}.cu", tmp_path)
        compared = compare(tmp_path / f"{unit}.cubin")
        assert compared.rows
        assert compared.unexplained == []
    linked = ["-arch=" + arch, "-o", "linked.cubin", "first_unit.cubin", "other_unit.cubin"]
    subprocess.run([cuda_tool("nvlink"), *linked], cwd=tmp_path, check=True, capture_output=True)
    compared = compare(tmp_path / "linked.cubin")
    with_lines = {instruction.section for instruction, ours in compared.rows if ours}
    assert with_lines >= {".text._Z5firstPf", ".text._Z6secondPf"}
    assert compared.unexplained == []


@pytest.mark.nvcc
@pytest.mark.parametrize("option", ["-Xfatbin -compress-all", "--compress-mode=speed", "--compress-mode=none"])
def test_code_out_of_a_compressed_library_agrees(option: str, tmp_path: Path) -> None:
    options = f"-lineinfo -arch=sm_90 -shared -Xcompiler -fPIC {option} -o a.so"
    nvcc(options, DATA / "inline_chain.cu", tmp_path)
    entries = [code.entry for code in find_device_code((tmp_path / "a.so").read_bytes())]
    payloads = [bytes(entry.payload()) for entry in entries if entry.kind == EntryKind.ELF]
    (payload,) = [payload for payload in payloads if CodeMap(payload).code_sections]  # the other is the linker's stub
    path = tmp_path / "payload.cubin"
    path.write_bytes(payload)
    assert compare(path).unexplained == []


def test_the_listing_names_the_wrong_caller_in_the_smallest_case() -> None:
    """At 0x40 the parameter at c[0x0][0x220] is loaded: that is `b`, and only `right` reads `b` (shared_leaf.cu:14)."""
    listing = (DATA / "shared_leaf_sm90.nvdisasm.txt").read_text()
    at_0x40 = next(i for i in instructions(listing) if i.offset == 0x40)
    assert "c[0x0][0x220]" in at_0x40.text
    code = CodeMap(cubin("shared_leaf_sm90"))
    ours = code.locate(place(code, "pick_both", 0x40)).chain
    assert [line for _, line in at_0x40.chain] == [2, 5, 13]  # left, called in line 13
    assert [frame.line for frame in ours] == [2, 8, 14]  # right, called in line 14


def test_the_assembler_itself_leaves_out_a_row_in_the_smallest_case() -> None:
    """At 0x90 the load goes 0xfa0 = 1000 floats further: `right` again, but the table has no row to say so.

    Both chains have been named before, and ptxas writes no row where file and line stay the same. So the table's word
    is the callers' likeliest, and `siblings` says that there are others.
    """
    listing = (DATA / "shared_leaf_sm90.nvdisasm.txt").read_text()
    assert "+0xfa0]" in next(i for i in instructions(listing) if i.offset == 0x90).text
    code = CodeMap(cubin("shared_leaf_sm90"))
    found = code.locate(place(code, "pick_both", 0x90))
    assert [frame.line for frame in found.chain] == [2, 5, 13]
    assert [[frame.line for frame in chain] for chain in found.siblings] == [[2, 8, 14]]
