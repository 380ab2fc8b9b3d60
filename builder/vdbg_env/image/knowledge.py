"""Dated tables of what works with what, from CUDA and drivers to torch and vLLM, and the check by them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from vdbg_env.common import yaml_source
from vdbg_env.common.console import nearest
from vdbg_env.common.errors import BadInput
from vdbg_env.image.context import FileBytes
from vdbg_env.image.profile import (
    AptPackage,
    Arch,
    Form,
    ImageSpec,
    Name,
    Part,
    ProfileFile,
    Requirement,
    Text,
    VariableName,
    Version,
    read_spec,
)

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
        """Return the row of a release, else of the next release that is known, else of the newest, or None."""
        known = version if version in self.vllm else closest_version(version, self.vllm)
        return self.vllm[known] if known else None


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


# What ships with the program and the user's own: profiles, knowledge, templates, bundled projects.


@dataclass(frozen=True, kw_only=True)
class ImageLibrary:
    """Everything the planner reads; `bundled` are the files of each bundled project."""

    profiles: Mapping[str, ProfileFile]
    knowledge: Knowledge
    step_templates: Mapping[str, str]
    entrypoint: bytes
    launcher: bytes
    object_cache: bytes = b""
    bundled: Mapping[str, tuple[FileBytes, ...]] = field(default_factory=dict)

    def spec(self, name: str) -> ImageSpec:
        """Return the profile called `name`; raises BadInput when there is none, BadDocument when it is wrong."""
        found = self.profile(name)
        spec = read_spec(found, self.profiles)
        if spec.name != name:
            raise BadInput(
                f"{found.file} has the name {spec.name!r} in it",
                next_step=f"change that to {name!r}, or rename the file to {spec.name}.yaml",
            )
        return spec

    def profile(self, name: str) -> ProfileFile:
        """Return a profile's file; raises BadInput when there is none of that name."""
        found = self.profiles.get(name)
        if found is None:
            near = nearest(name, self.profiles)
            cause = f"did you mean {near!r}?" if near else "a profile in a file is given by its path, as in ./my.yaml"
            raise BadInput(f"no profile is called {name!r}", cause=cause, next_step="vdbg-env images list")
        return found


# Check a combination of CUDA, driver, architecture, compiler, torch and vLLM before anything is built.
#
# What the tables rule out is refused, with the reason and the nearest choice that works; what is not in them gives a
# warning, since tables age and a new toolkit is not an error.


@dataclass(frozen=True, kw_only=True)
class Combination:
    """What is built together; None where it is not known or not needed."""

    cuda: str
    arch: tuple[str, ...]
    gcc: str | None = None
    python: str | None = None
    torch: str | None = None
    vllm: str | None = None
    driver: str | None = None


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """One result from the tables: `refused` cannot work, `warned` is not known or may surprise."""

    level: Literal["refused", "warned"]
    what: str
    instead: str | None = None


def require_compatible(combination: Combination, knowledge: Knowledge) -> tuple[str, ...]:
    """Return warnings; raises BadInput when the tables rule the combination out, with every reason at once."""
    judgements = tuple(judge(combination, knowledge))
    refused = [j for j in judgements if j.level == "refused"]
    if refused:
        raise BadInput(
            refused[0].what,
            cause=f"the tables of {knowledge.as_of} (images/knowledge) rule it out",
            next_step=refused[0].instead,
            details=tuple(j.what for j in refused[1:]),
        )
    return tuple(j.what + (f"; {j.instead}" if j.instead else "") for j in judgements)


def judge(combination: Combination, knowledge: Knowledge) -> Iterator[Conflict]:
    """Yield every refusal and warning that the tables give for a combination."""
    cuda = knowledge.cuda.get(".".join(combination.cuda.split(".")[:2]))
    if cuda is None:
        near = closest_version(combination.cuda, knowledge.cuda)
        yield _unknown(f"CUDA {combination.cuda}", near)
    else:
        yield from _arch(combination, cuda.arch, f"CUDA {cuda.version}", knowledge)
        yield from _driver(combination, cuda, knowledge)
        yield from _span("GCC", combination.gcc, cuda.gcc, f"nvcc of CUDA {cuda.version}")
    if combination.vllm is None:
        return
    vllm = knowledge.vllm.get(combination.vllm)
    if vllm is None:
        yield _unknown(f"vLLM {combination.vllm}", closest_version(combination.vllm, knowledge.vllm))
        return
    yield from _vllm(combination, vllm, knowledge)


def _vllm(combination: Combination, vllm: VllmRow, knowledge: Knowledge) -> Iterator[Conflict]:
    name = f"vLLM {vllm.version}"
    yield from _span("GCC", combination.gcc, vllm.gcc, name)
    yield from _span("Python", combination.python, vllm.python, name)
    if combination.torch and combination.torch != vllm.torch:
        yield Conflict(
            level="warned", what=f"{name} is built for torch {vllm.torch}, not {combination.torch}",
            instead=f"take torch=={vllm.torch} unless you know that the two fit",
        )  # fmt: skip
    short = ".".join(combination.cuda.split(".")[:2])
    if vllm.arch and short not in vllm.arch:
        yield _unknown(f"{name} with CUDA {combination.cuda}", closest_version(short, vllm.arch))
    elif vllm.arch:
        yield from _arch(combination, vllm.arch[short], name, knowledge)


def _arch(combination: Combination, known: tuple[str, ...], who: str, knowledge: Knowledge) -> Iterator[Conflict]:
    for arch in combination.arch:
        plain = arch.rstrip("af")
        if plain in known:
            continue
        everywhere = {a for row in knowledge.cuda.values() for a in row.arch}
        newer = version_key(plain) > max(map(version_key, everywhere), default=())
        if who.startswith("vLLM") and newer:
            yield Conflict(level="warned", what=f"architecture {arch} is newer than the tables of {who}")
        elif any(a.split(".")[0] == plain.split(".")[0] for a in known) and who.startswith("vLLM"):
            near = _nearest_arch(plain, known)
            yield Conflict(
                level="warned", what=f"{who} does not list architecture {arch}; it may build the kernels of {near}"
            )
        else:
            yield Conflict(
                level="refused", what=f"{who} does not build for architecture {arch}",
                instead=_arch_instead(plain, known, who, knowledge),
            )  # fmt: skip


def _arch_instead(arch: str, known: tuple[str, ...], who: str, knowledge: Knowledge) -> str:
    able = [v for v, row in knowledge.cuda.items() if arch in row.arch]
    if able and who.startswith("CUDA"):
        newest = max(able, key=version_key)
        return f"take a profile with CUDA {newest}, or --arch {_nearest_arch(arch, known)}"
    return f"--arch {_nearest_arch(arch, known)}; known are {', '.join(known)}"


def _nearest_arch(arch: str, known: tuple[str, ...]) -> str:
    lower = [a for a in known if version_key(a) <= version_key(arch)]
    return max(lower, key=version_key) if lower else min(known, key=version_key)


def _driver(combination: Combination, cuda: CudaRow, knowledge: Knowledge) -> Iterator[Conflict]:
    if combination.driver is None:
        return
    driver = version_key(combination.driver)
    if driver < version_key(cuda.driver.least):
        able = [v for v, row in knowledge.cuda.items() if version_key(row.driver.least) <= driver]
        other = f", or a profile with CUDA {max(able, key=version_key)}" if able else ""
        yield Conflict(
            level="refused",
            what=f"driver {combination.driver} cannot run CUDA {cuda.version}: {cuda.driver.least} is the least",
            instead=f"install driver {cuda.driver.own} or newer{other}; --arch X.Y builds for another machine",
        )
    elif driver < version_key(cuda.driver.own):
        yield Conflict(
            level="warned",
            what=f"driver {combination.driver} is older than {cuda.driver.own}, the one of CUDA {cuda.version}: "
            "compiled kernels run, PTX that must be compiled at start does not",
        )


def _span(what: str, version: str | None, span: Span, who: str) -> Iterator[Conflict]:
    if version is None:
        return
    have = version_key(version)
    if span.least and have < version_key(span.least):
        yield Conflict(
            level="refused", what=f"{who} needs {what} {span.least} or newer, and the base image has {version}",
            instead=f"take a base image with {what} {span.least} or newer",
        )  # fmt: skip
    if span.most and have[: len(version_key(span.most))] > version_key(span.most):
        yield Conflict(
            level="refused", what=f"{who} takes {what} up to {span.most}, and the base image has {version}",
            instead=f"take a base image with {what} {span.most} or older",
        )  # fmt: skip


def _unknown(what: str, near: str | None) -> Conflict:
    return Conflict(
        level="warned", what=f"{what} is not in the tables", instead=f"the nearest known is {near}" if near else None
    )
