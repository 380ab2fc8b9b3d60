"""The crash samples of images/samples: what is planted in each, where, and how it is built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.common.yaml_source import read, validate

FOLDER = SHIPPED_DATA / "images" / "samples"
MARK = "// PLANTED"
# memcheck 2025.3 tells an overflow of the stack where the frame is made, not at the store that leaves the stack.
_AT_ENTRY = {"stack-overflow": "int descend("}


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
    planted_in: str | None = None


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
    planted_in: Path

    @property
    def python(self) -> bool:
        """Whether it needs PyTorch rather than nvcc."""
        return self.source.suffix == ".py"

    @property
    def has_lines(self) -> bool:
        """Whether its guilty kernel is compiled with line info: PyTorch's own kernels are not, in its wheels."""
        return not self.python or self.planted_in != self.source

    @property
    def judged_by(self) -> Literal["GPU core", "sanitizer", "class"]:
        """What shows its fault best: a core; where it leaves none a sanitizer tool; else the text it ends with."""
        if self.exceptions or self.ends == "hang":
            return "GPU core"
        return "sanitizer" if self.tool and self.kernel else "class"

    @property
    def shown_by(self) -> str:
        """`judged_by` in words for a table: what a verdict of "found" stands for."""
        match self.judged_by:
            case "GPU core":
                return "GPU core: line" if self.has_lines and self.kernel else "GPU core: kernel, it has no lines"
            case "sanitizer":
                return f"{self.tool} in a runbook: line"
            case "class":
                return "class of what it prints"

    @property
    def planted(self) -> int | None:
        """The 1-based line of the planted fault; None where nothing is planted."""
        marks = [f"# PLANTED {self.args[0]}"] if self.python else [MARK]
        lines = enumerate(self.planted_in.read_text().splitlines(), 1)
        found = [number for number, line in lines if any(line.endswith(mark) for mark in marks)]
        return found[0] if found else None

    @property
    def sanitized(self) -> int | None:
        """The 1-based line that the sanitizer names; None where nothing is planted."""
        if self.name not in _AT_ENTRY:
            return self.planted
        lines = enumerate(self.source.read_text().splitlines(), 1)
        return next(number for number, line in lines if _AT_ENTRY[self.name] in line)


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
        planted_in=FOLDER / (document.planted_in or document.program),
    )
