"""Dated tables of what works with what: CUDA, drivers, architectures, compilers, torch and vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from vdbg_env.common import yaml_source
from vdbg_env.image.profile.spec import AptPackage, Arch, Form, Name, Part, Requirement, Text, VariableName, Version

SCHEMA_FILE = "knowledge-v1.schema.json"

Date = Annotated[str, Form(r"\d{4}-\d{2}-\d{2}", "a date, as in 2026-11-21")]
Stem = Annotated[str, Form(r"[a-z0-9_]+", "the name of a file of cmake/external_projects, without .cmake")]


class Span(Part):
    """The lowest and highest version that work, both included; a missing bound is not known."""

    least: Version | None = None
    most: Version | None = None


class Driver(Part):
    """`least` is the first driver with minor-version compatibility, `own` the one released with the toolkit."""

    least: Version
    own: Version


class CudaRow(Part):
    """One CUDA toolkit."""

    version: Version
    driver: Driver
    arch: tuple[Arch, ...]
    gcc: Span = Span()
    source: Text = Field(description="where this row was read")


class ReleaseImage(Part):
    """What the image of a release has: versions, apt and Python packages in addition to the requirements.

    `cuda12` rewrites requirements for CUDA 12, as the release's own Dockerfile does.
    """

    cuda: Version
    python: Version
    nccl: Version | None = None
    apt: tuple[AptPackage, ...] = ()
    packages: tuple[Requirement, ...] = ()
    cuda12: dict[Text, Text] = Field(default={})


class VllmRow(Part):
    """One vLLM release; `arch` by CUDA version, `dependencies` the variable that names a local tree."""

    version: Version
    torch: Version
    gcc: Span = Span()
    python: Span = Span()
    arch: dict[Version, tuple[Arch, ...]] = Field(default={})
    dependencies: dict[Name, VariableName] = Field(default={})
    targets: dict[Text, Stem | None] = Field(default={})
    image: ReleaseImage | None = None
    source: Text = Field(description="where this row was read")


class KnowledgeFile(Part):
    """One file of rows, with the day on which they were true."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="vdbg-env knowledge")

    schema_: Literal["vdbg-env/knowledge/v1"] = Field(alias="schema")
    as_of: Date
    cuda: tuple[CudaRow, ...] = ()
    vllm: tuple[VllmRow, ...] = ()


class Knowledge(Part):
    """All rows, by version."""

    as_of: str
    cuda: dict[str, CudaRow]
    vllm: dict[str, VllmRow]

    def vllm_row(self, version: str) -> VllmRow | None:
        """Return the row of a release, else that of the newest release known, else None."""
        newest = max(self.vllm, key=version_key, default=None)
        return self.vllm.get(version) or (self.vllm[newest] if newest else None)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a knowledge file."""
    schema = KnowledgeFile.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_FILE, **schema}


def read_knowledge(files: Iterable[tuple[str, bytes]]) -> Knowledge:
    """Read (name, text) pairs in order; a later row wins over an earlier one of the same version.

    Raises BadDocument at the first file that has complaints.
    """
    cuda: dict[str, CudaRow] = {}
    vllm: dict[str, VllmRow] = {}
    dates: list[str] = []
    for name, text in files:
        file = yaml_source.validate(KnowledgeFile, yaml_source.read(text, name))
        cuda.update({row.version: row for row in file.cuda})
        vllm.update({row.version: row for row in file.vllm})
        dates.append(file.as_of)
    return Knowledge(as_of=max(dates, default="0000-00-00"), cuda=cuda, vllm=vllm)


def version_key(version: str) -> tuple[int, ...]:
    """Return a dotted version as a key to compare by; what follows the first part without a number is left out."""
    numbers: list[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def closest_version(version: str, known: Mapping[str, object]) -> str | None:
    """Return the known version nearest to `version`: the next higher one, else the highest."""
    ordered = sorted(known, key=version_key)
    return next((v for v in ordered if version_key(v) >= version_key(version)), ordered[-1] if ordered else None)
