"""Every sample has its planted line, compiles for every architecture, and keeps that line in its line table."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucore.code_map import CodeMap, Function
from gpucore.core_layout import GpuException
from gpucore.dwarf import Place
from gpucore.fatbin import EntryKind, find_device_code
from gpucore.mangling import short_name
from tests.gpu.programs import Compiler, Order
from tests.gpu.samples import FOLDER, Manifest, Sample, samples
from tests.support.command_line import vdbg_env
from tests.support.toolchain import cuda_tool
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.common.yaml_source import read

SAMPLES = samples()
CUDA = [sample for sample in SAMPLES if not sample.python]
ARCHS = ("sm_80", "sm_90", "sm_100")


def named(sample: Sample) -> str:
    return sample.name


@pytest.mark.parametrize("sample", SAMPLES, ids=named)
def test_each_sample_has_one_planted_line_but_the_clean_one(sample: Sample) -> None:
    marks = re.findall(r"(?://|#) PLANTED(?: \w+)?$", sample.source.read_text(), re.MULTILINE)
    assert len(marks) == (4 if sample.python else 0 if sample.name == "clean" else 1)
    assert (sample.planted is None) == (sample.name == "clean")


def test_the_published_schema_is_the_one_the_manifest_is_checked_against() -> None:
    published = json.loads((SHIPPED_DATA / "images" / "samples-v1.schema.json").read_text())
    assert published == Manifest.model_json_schema()


def test_the_manifest_knows_every_program_and_speaks_the_words_of_triage_and_of_the_core_reader() -> None:
    programs = {path.name for path in FOLDER.iterdir()} - {"samples.yaml", "crash.h", "torch_crash_triton.py"}
    assert {sample.source.name for sample in SAMPLES} == programs
    document = read((SHIPPED_DATA / "runbooks" / "triage" / "classes.yaml").read_bytes(), "classes.yaml").value
    assert isinstance(document, dict)
    classes = {entry["name"] for entry in document["classes"]}  # type: ignore[index, union-attr, call-overload]
    assert {name for sample in SAMPLES for name in sample.classes} <= classes
    spoken = {GpuException(code=code).name for code in [None, *range(40)]}
    assert {name for sample in SAMPLES for name in sample.exceptions} <= spoken


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.says], ids=named)
def test_triage_knows_what_a_sample_says(sample: Sample, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"{sample.says}\n")
    said = json.loads(vdbg_env("triage", "--json", str(log)).stdout)
    assert said["class"] in sample.classes, said


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    """nvcc, already at work on every sample for every architecture."""
    made = Compiler(cuda_tool("nvcc"))
    made.start(Order(sample=sample, arch=arch, cubin=True) for sample in CUDA for arch in ARCHS)
    yield made
    made.close()


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("sample", CUDA, ids=named)
def test_the_planted_line_is_in_the_line_table_of_the_guilty_kernel(
    sample: Sample, arch: str, compiler: Compiler
) -> None:
    code = CodeMap(compiler.get(Order(sample=sample, arch=arch, cubin=True)).read_bytes())
    places = {kernel: set(leaves(code, kernel)) for kernel in code.kernels}
    guilty = [kernel for kernel in places if (sample.source.name, sample.planted) in places[kernel]]
    assert [short_name(kernel.demangled) for kernel in guilty] == ([sample.kernel] if sample.kernel else [])


def leaves(code: CodeMap, kernel: Function) -> Iterator[tuple[str, int]]:
    """Yield the leaf of the chain of each instruction in a kernel's section: file name and line."""
    for offset in range(0, code.elf.sections[kernel.section].size, 16):
        chain = code.locate(Place(section=kernel.section, offset=offset)).chain
        if chain:
            yield Path(chain[0].file).name, chain[0].line


@pytest.mark.nvcc
@pytest.mark.parametrize("lineinfo", [True, False], ids=["lineinfo", "plain"])
def test_a_program_links_with_and_without_line_info(lineinfo: bool, compiler: Compiler) -> None:
    program = compiler.get(Order(sample=CUDA[0], arch="sm_90", lineinfo=lineinfo))
    entries = [device.entry for device in find_device_code(program.read_bytes())]
    codes = [CodeMap(entry.payload()) for entry in entries if entry.kind == EntryKind.ELF]  # one is a link stub
    assert [code.lines is not None for code in codes if code.kernels] == [lineinfo]
