"""Every sample has its planted line, compiles for every architecture, and keeps that line in its line table."""

import json
import re
from pathlib import Path

import pytest

from tests.gpu.samples import FOLDER, Manifest, Sample, build, samples
from tests.support.command_line import vdbg_env
from tests.support.toolchain import cuda_tool
from vdbg_env.cuda.code_map import CodeMap
from vdbg_env.cuda.demangle import short_name
from vdbg_env.cuda.gpu_core.names import GpuException
from vdbg_env.cuda.line_table import Place
from vdbg_env.resources import data_dir
from vdbg_env.yaml_source import read

SAMPLES = samples()
CUDA = [sample for sample in SAMPLES if not sample.python]


def named(sample: Sample) -> str:
    return sample.name


@pytest.mark.parametrize("sample", SAMPLES, ids=named)
def test_each_sample_has_one_planted_line_but_the_clean_one(sample: Sample) -> None:
    marks = re.findall(r"(?://|#) PLANTED(?: \w+)?$", sample.source.read_text(), re.MULTILINE)
    assert len(marks) == (4 if sample.python else 0 if sample.name == "clean" else 1)
    if sample.name == "torch-triton":
        assert sample.planted is None and "# PLANTED triton" in (FOLDER / "torch_crash_triton.py").read_text()
    else:
        assert (sample.planted is None) == (sample.name == "clean")


def test_the_published_schema_is_the_one_the_manifest_is_checked_against() -> None:
    published = json.loads((data_dir("images") / "samples-v1.schema.json").read_text())
    assert published == Manifest.model_json_schema()


def test_the_manifest_knows_every_program_and_speaks_the_words_of_triage_and_of_the_core_reader() -> None:
    programs = {path.name for path in FOLDER.iterdir()} - {"samples.yaml", "crash.h", "torch_crash_triton.py"}
    assert {sample.source.name for sample in SAMPLES} == programs
    document = read((data_dir("runbooks") / "triage" / "classes.yaml").read_bytes(), "classes.yaml").value
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


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("sample", CUDA, ids=named)
def test_the_planted_line_is_in_the_line_table(sample: Sample, arch: str, tmp_path: Path) -> None:
    cubin = tmp_path / "sample.cubin"
    build(cuda_tool("nvcc"), sample, cubin, arch, cubin=True)
    code = CodeMap(cubin.read_bytes())
    if sample.kernel is None:
        return
    assert sample.kernel in {short_name(kernel.demangled) for kernel in code.kernels}
    assert (sample.source.name, sample.planted) in set(leaves(code))


def leaves(code: CodeMap) -> list[tuple[str, int]]:
    """Return the leaf of every instruction's chain: file name and line."""
    places = (Place(section=s.number, offset=offset) for s in code.code_sections for offset in range(0, s.size, 16))
    chains = (code.locate(place).chain for place in places)
    return [(Path(chain[0].file).name, chain[0].line) for chain in chains if chain]


@pytest.mark.nvcc
@pytest.mark.parametrize("lineinfo", [True, False], ids=["lineinfo", "plain"])
def test_a_program_links_with_and_without_line_info(lineinfo: bool, tmp_path: Path) -> None:
    program = tmp_path / "sample"
    build(cuda_tool("nvcc"), CUDA[0], program, "sm_90", lineinfo=lineinfo)
    assert program.stat().st_mode & 0o111
