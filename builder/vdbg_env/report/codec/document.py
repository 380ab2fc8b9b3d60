"""Write values as JSON documents by their types: a type's annotations are its fields, in order, and its JSON Schema.

    class Ended(Document, of=observation.Ended):
        by: EndedBy
        code: int | None
        signal_name: str | None = field(lambda ended, _: signal_name(ended.signal))

A field is the attribute of the same name, the attribute (or path) that `field` names, or what its function returns for
the value and the context. The types are never instantiated: they say how a value of `of` is written. A trailing
underscore is left out: `class_` is "class". A dataclass whose fields are all promised as they are needs no document.
`tests.support.document_schema` makes the schemas of all of them, and a test compares these with the published ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, ClassVar, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vdbg_env.common.printable import printable_json

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Source = Callable[[Any, Any], object]
_Write = Callable[[Any, Any], Any]
_T = TypeVar("_T")


ABSENT: Final = object()
"""What the source of a field returns to leave it out."""


class Hex(int):
    """An address or offset, written as a hex string."""


class Document:
    """A JSON object, written from a value of type `of`; the docstring is its description in the schema."""

    of: ClassVar[type | None] = None

    def __init_subclass__(cls, of: type | None = None) -> None:
        cls.of = of or cls.of


@dataclass(frozen=True, kw_only=True)
class Field:
    """Where a field's value is from, and its description in the schema; `inline` puts its own fields in its place."""

    source: Source | None = None
    path: str | None = None
    may_be_absent: bool = False
    inline: bool = False
    doc: str = ""


def field(
    source: str | Source | None = None, *, may_be_absent: bool = False, inline: bool = False, doc: str = ""
) -> Any:
    """Say where a field's value is from when it is not the attribute of the same name, and what it means."""
    path, function = (source, None) if isinstance(source, str) else (None, source)
    return Field(path=path, source=function, may_be_absent=may_be_absent, inline=inline, doc=doc)


def fields(document: type) -> Mapping[str, tuple[Any, Field]]:
    """Return each field's type and description, in the order in which they are written."""
    hints = {name: hint for name, hint in get_type_hints(document).items() if name != "of"}
    return {name.rstrip("_"): (hint, _field(document, name)) for name, hint in hints.items()}


def plain(value: object, document: type[Document], context: object = None) -> dict[str, Any]:
    """Return a value as the plain values of its document."""
    hint: Any = document
    written: dict[str, Any] = _writer(hint)(value, context)
    return written


def render(value: object, document: type[Document], context: object = None) -> str:
    """Return a value as indented JSON that ends with a newline."""
    return printable_json(json.dumps(plain(value, document, context), indent=2, ensure_ascii=False)) + "\n"


def optional(hint: Any) -> tuple[Any, bool]:
    """Return a hint without its None, and whether it had one."""
    if get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint):
        others = [one for one in get_args(hint) if one is not NoneType]
        return (others[0] if len(others) == 1 else Union[tuple(others)]), True  # noqa: UP007 - of a list of types
    return hint, False


def is_object(hint: Any) -> bool:
    """Return whether values of a type are written as objects: documents and dataclasses."""
    return isinstance(hint, type) and (issubclass(hint, Document) or is_dataclass(hint))


def _field(document: type, name: str) -> Field:
    found = getattr(document, name, None)
    return found if isinstance(found, Field) else Field()


@cache
def _writer(hint: Any) -> _Write:
    inner, may_be_none = optional(hint)
    if may_be_none:
        write = _writer(inner)
        return lambda value, context: None if value is None else write(value, context)
    origin, arguments = get_origin(inner), get_args(inner)
    if is_object(inner):
        return _object_writer(inner)
    if inner is Hex:
        return lambda value, _: f"{value:#x}"
    if isinstance(inner, type) and issubclass(inner, Enum):
        return lambda value, _: value.value
    if origin in (list, tuple):
        item = _writer(arguments[0])
        return lambda value, context: [item(one, context) for one in value]
    if origin in (dict, Mapping):
        item = _writer(arguments[1])
        return lambda value, context: {key: item(one, context) for key, one in value.items()}
    return lambda value, _: value


def _object_writer(document: type) -> _Write:
    parts = [(name, _reader(name, hint, spec), _writer(hint), spec) for name, (hint, spec) in fields(document).items()]

    def write(value: object, context: object) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for name, read, write_field, spec in parts:
            found = read(value, context)
            if spec.inline:
                written |= write_field(found, context)
            elif found is not ABSENT:
                written[name] = write_field(found, context)
        return written

    return write


def _reader(name: str, hint: Any, spec: Field) -> Source:
    if spec.source:
        return spec.source
    if spec.path is None and get_origin(hint) is Literal and len(get_args(hint)) == 1:
        constant = get_args(hint)[0]
        return lambda _value, _context: constant
    get = attrgetter(spec.path or name)
    return lambda value, _: get(value)
