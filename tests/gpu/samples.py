"""The crash samples of images/samples: what is planted in each, where, and how it is built."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from vdbg_env.resources import data_dir
from vdbg_env.yaml_source import read, validate

FOLDER = data_dir("images") / "samples"
MARK = "// PLANTED"


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    program: str
    args: list[str] = []
    failure: str = Field(alias="class")
    also: list[str] = []
    ends: Literal["fault", "hang", "status", "signal", "clean"]
    says: str | None = None
    kernel: str | None = None
    exceptions: list[str] = []
    tool: Literal["memcheck", "racecheck", "initcheck", "synccheck"] | None = None
    build: Literal["native", "foreign"] = "native"


class Manifest(BaseModel):
    """images/samples/samples.yaml."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)
    schema_: Literal["vdbg-env/samples/v1"] = Field(alias="schema")
    samples: list[_Document]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One program with one planted fault; see images/samples/samples.yaml for the fields."""

    name: str
    source: Path
    args: tuple[str, ...]
    classes: tuple[str, ...]
    ends: Literal["fault", "hang", "status", "signal", "clean"]
    says: str | None
    kernel: str | None
    exceptions: tuple[str, ...]
    tool: str | None
    foreign: bool

    @property
    def python(self) -> bool:
        """Whether it needs PyTorch rather than nvcc."""
        return self.source.suffix == ".py"

    @property
    def planted(self) -> int | None:
        """The 1-based line of the planted fault; None where nothing is planted."""
        marks = [f"# PLANTED {self.args[0]}"] if self.python else [MARK]
        lines = enumerate(self.source.read_text().splitlines(), 1)
        found = [number for number, line in lines if any(line.endswith(mark) for mark in marks)]
        return found[0] if found else None


def samples() -> tuple[Sample, ...]:
    """Return every sample of the manifest, in its order; raises BadDocument where the manifest is wrong."""
    path = FOLDER / "samples.yaml"
    manifest = validate(Manifest, read(path.read_bytes(), str(path)))
    return tuple(_sample(document) for document in manifest.samples)


def _sample(document: _Document) -> Sample:
    return Sample(
        name=document.name,
        source=FOLDER / document.program,
        args=tuple(document.args),
        classes=(document.failure, *document.also),
        ends=document.ends,
        says=document.says,
        kernel=document.kernel,
        exceptions=tuple(document.exceptions),
        tool=document.tool,
        foreign=document.build == "foreign",
    )


def build(nvcc: str, sample: Sample, target: Path, arch: str, *, lineinfo: bool = True, cubin: bool = False) -> None:
    """Compile a sample for one architecture (`sm_90`): machine code only, so that no other GPU can run it."""
    flags = (
        ["-std=c++17", f"-arch={arch}"] if cubin else ["-std=c++17", f"-gencode=arch=compute_{arch[3:]},code={arch}"]
    )
    flags += ["-lineinfo"] if lineinfo else []
    flags += ["-cubin"] if cubin else []
    done = subprocess.run([nvcc, *flags, "-o", str(target), str(sample.source)], capture_output=True, text=True)
    assert done.returncode == 0, f"{sample.source.name} for {arch}:\n{done.stderr}"
