"""A build profile as written in images/*.yaml, checked; its JSON Schema is published next to the profiles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from vdbg_env.common import yaml_source
from vdbg_env.common.errors import BadDocument, BadInput, nearest
from vdbg_env.common.yaml_source import YamlSource
from vdbg_env.image.profile.source import Source, parse_source

SCHEMA = "vdbg-env/image/v1"
SCHEMA_FILE = "image-v1.schema.json"


def _printable(value: object) -> object:
    if isinstance(value, str) and not value.isprintable():
        raise ValueError("this value contains a control character (a line break, a tab)")
    return value


def _version(value: object) -> object:
    if isinstance(value, float):
        raise ValueError(f'write the version in quotes, "{value}": as a number it loses its last zero')
    return value


@dataclass(frozen=True)
class Form:
    """The form of a text: a pattern for the published schema, and its description for error messages."""

    pattern: str
    says: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "pattern": f"^({self.pattern})$"}

    def _checked(self, value: str) -> str:
        if not re.fullmatch(self.pattern, value, re.ASCII):
            raise ValueError(f"{value!r} is not {self.says}")
        return value


@dataclass(frozen=True)
class _OneOrMore:
    """Takes a single value for a list of one."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._listed, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        several = handler(schema)
        return {"anyOf": [several["items"], several]}

    def _listed(self, value: object) -> object:
        return value if isinstance(value, list | tuple) else (value,)


Text = Annotated[str, BeforeValidator(_printable)]
Name = Annotated[str, Form(r"[a-z0-9][a-z0-9.-]{0,62}", "a name of small letters, digits, '.' and '-'")]
Version = Annotated[str, BeforeValidator(_version), Form(r"[0-9]+(\.[0-9]+){0,3}", "a version, as in 13.0")]
Arch = Annotated[str, BeforeValidator(_version), Form(r"[0-9]{1,2}\.[0-9][af]?", "a compute capability, as in 9.0")]
Digest = Annotated[str, Form(r"sha256:[0-9a-f]{64}", "a digest: sha256: and 64 hexadecimal digits")]
VariableName = Annotated[str, Form(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")]
AptPackage = Annotated[
    str, Form(r"[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+~:-]+)?", "an apt package, as in gdb or gdb=13.1-3")
]
Requirement = Annotated[
    str, BeforeValidator(_printable), Form(r"[A-Za-z0-9][^;@]*", "a requirement, as in torch==2.14.0 (no ; and no @)")
]


class Part(BaseModel):
    """Base of all parts of a profile: unknown keys are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Base(Part):
    """The image that the build starts from, and its properties."""

    image: Text = Field(description="image reference; --base names another")
    digest: Digest | None = Field(default=None, description="pins the image whatever its tag says later")
    distribution: Literal["debian", "ubuntu"] = "debian"
    suite: Name = Field(description="the distribution's release by its apt name, as in trixie or noble")
    gcc: Version | None = Field(default=None, description="version of the compiler in its packages")
    python: Version | None = Field(default=None, description="version of the Python in its packages")
    path: Text = Field(default="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", description="its PATH")


class Toolchain(Part):
    """The CUDA toolkit: `base` if it is in the base image, `wheels` if it is installed from the package index."""

    cuda: Version
    provided_by: Literal["base", "wheels"]
    home: Text = Field(default="/usr/local/cuda", description="its folder in the base image")
    wheels: tuple[Requirement, ...] = ()


class Packages(Part):
    """What is installed in addition to the toolchain."""

    apt: tuple[AptPackage, ...] = ()
    build: tuple[Requirement, ...] = Field(default=(), description="Python packages the build needs")
    tools: tuple[Requirement, ...] = Field(default=(), description="Python packages for debugging")
    indexes: tuple[Text, ...] = Field(default=(), description="package indexes in addition to the usual one")
    needs: tuple[Text, ...] = Field(default=(), description="programs a bare machine must have in place of `apt`")


class Build(Part):
    """How the source is compiled."""

    system: Literal["vllm", "cmake"]
    arch: Annotated[tuple[Arch, ...], _OneOrMore()] = Field(
        min_length=1, description="compute capabilities to build for without --arch and without a GPU; one, or a list"
    )
    cmake_args: tuple[Text, ...] = Field(default=(), description="given last, so they override ours")
    prepare: tuple[tuple[Text, ...], ...] = Field(
        default=(), description="commands run in the source folder before the build, each a list of words"
    )
    memory_per_job_gib: float = Field(default=5.0, gt=0, description="memory for one compiler process")
    artifacts: tuple[Text, ...] = Field(
        default=("out",), description="folders below the root in which every cubin must carry line info"
    )


class Tool(Part):
    """A debug tool that must exist, start, and print the expected text."""

    name: Name
    argv: tuple[Text, ...] = Field(min_length=1)
    expect: Text = Field(default="", description="text that its output must contain, such as its version")


class ImageSpec(Part):
    """One build profile."""

    schema_: Literal["vdbg-env/image/v1"] = Field(alias="schema")
    name: Name
    summary: Text
    extends: Name | None = Field(default=None, description="a profile whose values apply where this one has none")
    base: Base
    toolchain: Toolchain
    packages: Packages = Packages()
    source: Text = Field(description="PROJECT==VERSION, git+https://...@REF, a folder, or bundled:NAME")
    build: Build
    environment: dict[VariableName, Text | None] = Field(
        default={}, description="set in the image; null removes a variable that we set"
    )
    tools: tuple[Tool, ...] = ()

    @property
    def parsed_source(self) -> Source:
        """Return the source as a value."""
        return parse_source(self.source)


@dataclass(frozen=True, kw_only=True)
class ProfileFile:
    """A profile as found: its file as shown to the user, its text, and whether it ships with the program."""

    file: str
    text: bytes
    shipped: bool = False

    @cached_property
    def source(self) -> YamlSource:
        """Return the file's document, parsed once; raises BadDocument when it is not a mapping."""
        source = yaml_source.read(self.text, self.file)
        if not isinstance(source.value, dict):
            raise BadDocument((source.complaint((), "a profile is a mapping of keys to values"),))
        return source


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a profile file, which need not repeat the profile that it extends."""
    schema = ImageSpec.model_json_schema(by_alias=True)
    schema["required"] = ["schema", "name"]
    for name, part in schema["$defs"].items():
        if name != Tool.__name__:  # an entry of a list, and lists are replaced whole
            part.pop("required", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_FILE, **schema}


def read_spec(profile: ProfileFile, known: Mapping[str, ProfileFile]) -> ImageSpec:
    """Check one profile, with what it extends taken from `known`.

    Raises BadDocument with every complaint at its line and column.
    """
    source = _resolve(profile, known, ())
    spec = yaml_source.validate(ImageSpec, source)
    try:
        _ = spec.parsed_source
    except BadInput as error:
        raise BadDocument((source.complaint(("source",), error.what),), next_step=error.next_step) from None
    return spec


def _resolve(profile: ProfileFile, known: Mapping[str, ProfileFile], trail: tuple[str, ...]) -> YamlSource:
    """Merge a profile into the one it extends: mappings key by key, everything else is replaced."""
    source = profile.source
    assert isinstance(source.value, dict)
    name, parent_name = str(source.value.get("name")), source.value.get("extends")
    if not isinstance(parent_name, str):
        return source
    if parent_name in {*trail, name}:
        circle = " -> ".join((*trail, name, parent_name))
        raise BadDocument((source.complaint(("extends",), f"profiles extend each other in a circle: {circle}"),))
    if parent_name not in known:
        what, suggestion = f"no profile is called {parent_name!r}", nearest(parent_name, known)
        raise BadDocument((source.complaint(("extends",), what, suggestion=suggestion),))
    parent = _resolve(known[parent_name], known, (*trail, name)).value
    assert isinstance(parent, dict)
    inherited = {key: value for key, value in parent.items() if key != "extends"}
    return replace(source, value=_merge(inherited, source.value))


def _merge(under: yaml_source.Value, over: yaml_source.Value) -> yaml_source.Value:
    if isinstance(under, dict) and isinstance(over, dict):
        return {
            **under,
            **{key: _merge(under.get(key), value) if key in under else value for key, value in over.items()},
        }
    return over
