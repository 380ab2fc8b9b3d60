"""A build profile as written in images/*.yaml, checked; its JSON Schema is published beside the profiles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
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
        raise ValueError("a control character (a line break, a tab) stands in this value")
    return value


def _version(value: object) -> object:
    if isinstance(value, float):
        raise ValueError(f'write the version in quotes, "{value}": as a number it loses its last zero')
    return value


@dataclass(frozen=True)
class Form:
    """The form of a text: a pattern for the published schema, and words for whoever got it wrong."""

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
    """What all parts of a profile share: unknown keys are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Base(Part):
    """The image the build starts from, and what is known of it."""

    image: Text = Field(description="image reference; --base names another")
    digest: Digest | None = Field(default=None, description="pins the image whatever its tag says later")
    distribution: Literal["debian", "ubuntu"] = "debian"
    suite: Name = Field(description="the distribution's release by its apt name, as in trixie or noble")
    gcc: Version | None = Field(default=None, description="version of the compiler its packages bring")
    python: Version | None = Field(default=None, description="version of the Python its packages bring")
    path: Text = Field(
        default="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", description="what its PATH holds"
    )


class Toolchain(Part):
    """The CUDA toolkit: `base` when the base image brings it, `wheels` when it comes from the package index."""

    cuda: Version
    provided_by: Literal["base", "wheels"]
    home: Text = Field(default="/usr/local/cuda", description="where a base image keeps it")
    wheels: tuple[Requirement, ...] = ()


class Packages(Part):
    """What is installed beside the toolchain."""

    apt: tuple[AptPackage, ...] = ()
    build: tuple[Requirement, ...] = Field(default=(), description="Python packages the build needs")
    tools: tuple[Requirement, ...] = Field(default=(), description="Python packages for whoever debugs")
    indexes: tuple[Text, ...] = Field(default=(), description="package indexes beside the usual one")
    needs: tuple[Text, ...] = Field(default=(), description="programs a bare machine must have in place of `apt`")


class Build(Part):
    """How the source is compiled."""

    system: Literal["vllm", "cmake"]
    arch: Arch = Field(description="compute capability built for when neither a GPU nor --arch says")
    cmake_args: tuple[Text, ...] = Field(default=(), description="given last, so they win over ours")
    prepare: tuple[tuple[Text, ...], ...] = Field(
        default=(), description="commands run in the source folder before the build, each a list of words"
    )
    memory_per_job_gib: float = Field(default=5.0, gt=0, description="what one compiler process needs")
    artifacts: tuple[Text, ...] = Field(
        default=("out",), description="folders below the root whose every cubin must carry line info"
    )


class Tool(Part):
    """A debug tool that must be there, start, and say what is expected."""

    name: Name
    argv: tuple[Text, ...] = Field(min_length=1)
    expect: Text = Field(default="", description="text its output must hold, such as its version")


class ImageSpec(Part):
    """One build profile."""

    schema_: Literal["vdbg-env/image/v1"] = Field(alias="schema")
    name: Name
    summary: Text
    extends: Name | None = Field(default=None, description="a profile whose values hold where this one says nothing")
    base: Base
    toolchain: Toolchain
    packages: Packages = Packages()
    source: Text = Field(description="PROJECT==VERSION, git+https://...@REF, a folder, or bundled:NAME")
    build: Build
    environment: dict[VariableName, Text | None] = Field(
        default={}, description="set in the image; null takes one of ours away"
    )
    tools: tuple[Tool, ...] = ()

    @property
    def parsed_source(self) -> Source:
        """The source as a value."""
        return parse_source(self.source)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a profile file, which need not say again what the profile it extends says."""
    schema = ImageSpec.model_json_schema(by_alias=True)
    schema["required"] = ["schema", "name"]
    for name, part in schema["$defs"].items():
        if name != Tool.__name__:  # stands in a list, and lists are replaced whole
            part.pop("required", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_FILE, **schema}


def read_spec(text: bytes | str, name: str, known: Mapping[str, bytes], trail: tuple[str, ...] = ()) -> ImageSpec:
    """Read one profile file, with what it extends taken from `known` (profile name -> text of its file).

    Raises BadDocument with every complaint at its line and column.
    """
    source = resolve(yaml_source.read(text, name), known, trail)
    spec = yaml_source.validate(ImageSpec, source)
    try:
        _ = spec.parsed_source
    except BadInput as error:
        raise BadDocument((source.complaint(("source",), error.what),), next_step=error.next_step) from None
    return spec


def resolve(source: YamlSource, known: Mapping[str, bytes], trail: tuple[str, ...] = ()) -> YamlSource:
    """Lay a profile over the one it extends: mappings merge key by key, everything else is replaced."""
    child = source.value
    if not isinstance(child, dict):
        raise BadDocument((source.complaint((), "a profile is a mapping of keys to values"),))
    parent_name = child.get("extends")
    if not isinstance(parent_name, str):
        return source
    place = ("extends",)
    if parent_name in trail or parent_name == child.get("name"):
        round_trip = " -> ".join((*trail, parent_name))
        raise BadDocument((source.complaint(place, f"profiles extend each other in a circle: {round_trip}"),))
    if parent_name not in known:
        suggestion = nearest(parent_name, known)
        raise BadDocument((source.complaint(place, f"no profile is called {parent_name!r}", suggestion=suggestion),))
    parent = yaml_source.read(known[parent_name], parent_name)
    parent = resolve(parent, known, (*trail, parent_name))
    if not isinstance(parent.value, dict):
        raise BadDocument((parent.complaint((), "a profile is a mapping of keys to values"),))
    inherited = {key: value for key, value in parent.value.items() if key != "extends"}
    merged = _merge(inherited, child)
    return YamlSource(
        name=source.name, value=merged, text=source.text, places=source.places, key_places=source.key_places
    )


def _merge(under: yaml_source.Value, over: yaml_source.Value) -> yaml_source.Value:
    if isinstance(under, dict) and isinstance(over, dict):
        return {
            **under,
            **{key: _merge(under.get(key), value) if key in under else value for key, value in over.items()},
        }
    return over
