"""The kinds of value that a runbook file holds: names, durations, sizes, environments, places to continue."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StrictInt,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from vdbg_env.runbook.model import quantities

NAME = "[a-z][a-z0-9_-]{0,59}"
Data = str | int | float | bool | None | list["Data"] | dict[str, "Data"]


class Part(BaseModel):
    """A part of a runbook: immutable, and without a key that is not declared."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, given: Any, info: ValidationInfo) -> Any:
        if not info.context or not isinstance(given, dict):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: value for key, value in given.items() if value is not None or key not in known}


def is_name(text: str) -> bool:
    """Return whether a text can name a runbook, a step, an input and the like."""
    return re.fullmatch(NAME, text) is not None


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError(f"{text!r} is not a name: small letters, digits and '-' or '_', a letter first")
    return text


def _runbook_name(text: str) -> str:
    return text if text.startswith("${{") and text.endswith("}}") else _name(text)


def _variable(text: str) -> str:
    if not (text.isascii() and text.replace("_", "a").isalnum() and not text[0].isdigit()):
        raise ValueError(f"{text!r} is not the name of an environment variable")
    return text


def _variable_value(value: object) -> object:
    if value is not None and not isinstance(value, str):
        raise ValueError(f'the value of a variable is text: write it in quotes, "{str(value).lower()}"')
    if isinstance(value, str) and "\0" in value:
        raise ValueError("the value of a variable cannot hold a NUL")
    return value


def _duration(value: object, info: ValidationInfo) -> object:
    return quantities.duration_s(value) if info.context else value


def _size(value: object, info: ValidationInfo) -> object:
    return quantities.size_bytes(value) if info.context else value


def _not_in_file(value: object, info: ValidationInfo) -> object:
    if info.context:
        raise PydanticKnownError("extra_forbidden")
    return value


Text = Annotated[str, StringConstraints(min_length=1)]
Count = Annotated[StrictInt, Field(ge=1, le=1000)]
Condition = Annotated[Text, WithJsonSchema({"type": "string", "description": "CEL"})]
Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": f"^{NAME}$"})]
RunbookName = Annotated[
    str, AfterValidator(_runbook_name), WithJsonSchema({"type": "string", "pattern": rf"^({NAME}|\$\{{\{{.*\}}\}})$"})
]
VariableName = Annotated[str, AfterValidator(_variable)]
Env = Mapping[
    VariableName, Annotated[str | None, BeforeValidator(_variable_value), WithJsonSchema({"type": ["string", "null"]})]
]
Values = Mapping[Name, Any]

# A file has durations and sizes with their unit; a program has seconds and bytes.
Seconds = Annotated[
    float,
    BeforeValidator(_duration),
    WithJsonSchema({"type": "string", "pattern": quantities.DURATION, "examples": ["30s", "15m", "1h30m"]}),
]
Bytes = Annotated[
    int,
    BeforeValidator(_size),
    WithJsonSchema({"type": "string", "pattern": quantities.SIZE, "examples": ["500MB", "2GiB"]}),
]


class Written:
    """Pydantic metadata: how a file writes a part, and how to make the part of that; the part itself passes."""

    def __init__(self, form: Any, read: Callable[[Any], Part]) -> None:
        self.form = form
        self.read = read

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.no_info_after_validator_function(self.read, handler.generate_schema(self.form))
        return core_schema.no_info_wrap_validator_function(
            lambda value, inner: value if isinstance(value, Part) else inner(value),
            written,
            serialization=core_schema.plain_serializer_function_ser_schema(lambda part: part.model_dump()),
        )


T = TypeVar("T")
FromKey = Annotated[T, SkipJsonSchema(), BeforeValidator(_not_in_file)]
"""A value that the file has as the key of the part."""


class Named(Part):
    """A part that its file keeps in a mapping, under its name."""

    name: FromKey[str] = ""


NamedPart = TypeVar("NamedPart", bound=Named)


def _with_names(parts: Mapping[str, NamedPart]) -> Mapping[str, NamedPart]:
    return {name: part.model_copy(update={"name": name}) for name, part in parts.items()}


ByName = Annotated[Mapping[Name, NamedPart], AfterValidator(_with_names)]
