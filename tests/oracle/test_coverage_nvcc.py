"""Real builds against the bound of coverage: genuine ones reach it everywhere, what only looks like one does not."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from gpucore.code_map import CodeMap
from gpucore.lineinfo import Cause, Coverage, FileReport, Verdict, read_coverage, verify
from tests.support.toolchain import cuda_tool

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "tests" / "data" / "kernels"
SAMPLE = ROOT / "images" / "sample"
KERNEL = "__global__ void k(float* o) { int i = threadIdx.x; if (i < 100) o[i] = sinf(o[i + 1]) / o[2]; }\n"
CALLER = "extern __device__ float far(float);\n__global__ void caller(float* o) { o[0] = far(o[1]); }\n"
CALLEE = "__device__ float far(float x) { return x * x; }\n"


def run(folder: Path, *argv: str | Path, **environment: str) -> None:
    ran = subprocess.run(argv, cwd=folder, capture_output=True, text=True, env={**os.environ, **environment})
    assert ran.returncode == 0, ran.stderr


def nvcc(folder: Path, *options: str | Path, **environment: str) -> Path:
    """Run nvcc; the output is the last option but one, behind -o."""
    run(folder, cuda_tool("nvcc"), *options, **environment)
    return folder / options[options.index("-o") + 1]


def coverage(path: Path) -> Coverage:
    return read_coverage(path.read_bytes())


def report(path: Path) -> FileReport:
    return verify(path.read_bytes(), path.name)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_90a", "sm_100", "sm_120"])
def test_sixty_kernels_are_covered_to_the_last_instruction(arch: str, tmp_path: Path) -> None:
    source = KERNELS / "many_kernels.cu"
    found = coverage(nvcc(tmp_path, "-std=c++17", "-lineinfo", f"-arch={arch}", "-cubin", "-o", "a.cubin", source))
    assert found.functions > 60
    assert (found.lowest, found.covered, found.compiler_made) == (1.0, found.instructions, 0)


@pytest.mark.parametrize("source", ["normalise.cu", "scatter.cu"])
def test_the_sample_is_covered_to_the_last_instruction(source: str, tmp_path: Path) -> None:
    include = f"-I{SAMPLE / 'include'}"
    path = nvcc(tmp_path, "-lineinfo", "-arch=sm_90", include, "-cubin", "-o", "a.cubin", SAMPLE / "src" / source)
    assert coverage(path).lowest == 1.0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("flag", ["-lineinfo", "-G"])
def test_what_cuda_adds_to_separately_compiled_code_is_not_held_against_it(
    flag: str, arch: str, tmp_path: Path
) -> None:
    (tmp_path / "far.cu").write_text(CALLEE)
    options = ("-rdc=true", flag, f"-arch={arch}", "-c", "-o")
    units = [
        nvcc(tmp_path, *options, "a.o", KERNELS / "toolkit_calls.cu"),
        nvcc(tmp_path, *options, "b.o", "far.cu"),
    ]
    linked = nvcc(tmp_path, f"-arch={arch}", "-dlink", "-cubin", "-o", "linked.cubin", *units, "-lcudadevrt")
    found = coverage(linked)
    assert found.complete, found.below
    assert (found.lowest, found.covered) == (1.0, found.instructions)
    assert found.compiler_made > 30, "the device runtime was linked in"
    assert [report(unit).verdict for unit in units] == [Verdict.FULL, Verdict.FULL]


@pytest.mark.parametrize("flag", ["-lineinfo", "-G"])
def test_whole_programs_are_covered_as_well(flag: str, tmp_path: Path) -> None:
    source = (KERNELS / "toolkit_calls.cu").read_text()
    (tmp_path / "all.cu").write_text(
        source.replace("extern __device__ float far(float);", CALLEE).replace("child<<<1, 32>>>(o)", "o[0] = far(o[0])")
    )
    found = coverage(nvcc(tmp_path, flag, "-arch=sm_90", "-cubin", "-o", "a.cubin", "all.cu"))
    assert (found.complete, found.lowest) == (True, 1.0)


def test_nvdisasm_shows_lines_in_exactly_the_functions_that_are_covered(tmp_path: Path) -> None:
    """The witness of the same depth; it shows nothing for one instruction: a line is valid until the next one."""
    for name, flag in (("a", "-lineinfo"), ("b", "-lineinfo"), ("c", "--restrict")):
        (tmp_path / f"{name}.cu").write_text(KERNEL.replace("void k(", f"void {name}("))
        nvcc(tmp_path, "-rdc=true", flag, "-arch=sm_90", "-cubin", "-o", f"{name}.cubin", f"{name}.cu")
    run(tmp_path, cuda_tool("nvlink"), "-arch=sm_90", "-o", "linked.cubin", "a.cubin", "b.cubin", "c.cubin")
    argv = [cuda_tool("nvdisasm"), "-ndf", "-c", "-g", str(tmp_path / "linked.cubin")]
    listing = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    parts = re.split(r"^//-+ \.text\.(\S+)\s+-+$", listing, flags=re.MULTILINE)
    shown = {name for name, text in zip(parts[1::2], parts[2::2], strict=True) if "//## File" in text}
    found = coverage(tmp_path / "linked.cubin")
    assert shown == {"_Z1aPf", "_Z1bPf"}
    assert [f.name for f in found.below] == ["_Z1cPf"]
    assert set(parts[1::2]) - shown >= {"_Z1cPf"}


def test_the_flag_given_to_ptxas_alone_is_no_proof(tmp_path: Path) -> None:
    (tmp_path / "t.cu").write_text(KERNEL)
    options = ("-arch=sm_90", "-shared", "-Xcompiler", "-fPIC", "-o", "t.so", "t.cu")
    found = report(nvcc(tmp_path, *options, NVCC_PREPEND_FLAGS="-Xptxas -lineinfo"))
    assert (found.verdict, found.counts.with_code, found.counts.with_debug_line) == (Verdict.NONE, 1, 0)
    assert [m.cause for m in found.missing] == [Cause.EMPTY_TABLE]


def test_ptx_without_loc_is_no_proof_whatever_ptxas_is_told(tmp_path: Path) -> None:
    (tmp_path / "t.cu").write_text(KERNEL)
    ptx = nvcc(tmp_path, "-arch=sm_90", "-ptx", "-o", "t.ptx", "t.cu")
    assert "\t.loc\t" not in ptx.read_text()
    run(tmp_path, cuda_tool("ptxas"), "-lineinfo", "-arch=sm_90", "t.ptx", "-o", "t.cubin")
    table = CodeMap((tmp_path / "t.cubin").read_bytes()).elf.section(".debug_line")
    assert table is not None
    assert table.size == 26
    found = report(tmp_path / "t.cubin")
    assert (found.verdict, [m.cause for m in found.missing]) == (Verdict.NONE, [Cause.EMPTY_TABLE])


@pytest.mark.parametrize("with_flag", ["caller", "callee"])
def test_a_device_link_of_a_unit_with_and_one_without_the_flag_is_partial(with_flag: str, tmp_path: Path) -> None:
    units = []
    for name, text in (("caller", CALLER), ("callee", CALLEE)):
        (tmp_path / f"{name}.cu").write_text(text)
        flag = ("-lineinfo",) if name == with_flag else ()
        units.append(nvcc(tmp_path, "-rdc=true", *flag, "-arch=sm_90", "-c", "-o", f"{name}.o", f"{name}.cu"))
    found = report(nvcc(tmp_path, "-arch=sm_90", "-dlink", "-cubin", "-o", "linked.cubin", *units))
    assert found.verdict is Verdict.PARTIAL
    (missing,) = found.missing
    bare = {"caller": "_Z3farf", "callee": "_Z6callerPf"}[with_flag]
    assert (missing.cause, [f.name for f in missing.functions]) == (Cause.LINKED_WITHOUT, [bare])


def test_ptx_with_loc_for_a_part_of_its_code_is_partial(tmp_path: Path) -> None:
    (tmp_path / "t.cu").write_text(KERNEL + KERNEL.replace("void k(", "void other("))
    ptx = nvcc(tmp_path, "-lineinfo", "-arch=sm_90", "-ptx", "-o", "t.ptx", "t.cu")
    before, at, other = ptx.read_text().partition(".entry _Z5otherPf")
    body, end, rest = other.partition("\n}\n")
    kept = [line for line in body.splitlines() if not line.startswith("\t.loc\t")]
    ptx.write_text(before + at + "\n".join(kept) + end + rest)
    run(tmp_path, cuda_tool("ptxas"), "-lineinfo", "-arch=sm_90", "t.ptx", "-o", "t.cubin")
    found = report(tmp_path / "t.cubin")
    assert found.verdict is Verdict.PARTIAL
    assert (found.missing[0].cause, found.missing[0].functions[0].name) == (Cause.ROWS_MISSING, "_Z5otherPf")
