"""Make the JSON Schema of a document from its type, as docs/schemas publishes it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from enum import Enum
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from vdbg_env.report.codec.document import Document, Hex, fields, is_object, optional

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_SIMPLE: Final[Mapping[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    Hex: {"type": "string", "pattern": "^0x[0-9a-f]+$"},
}


def json_schema(*documents: type[Document]) -> dict[str, Any]:
    """Return the schema of a document, or of one of several that a command prints, the first by its name."""
    defs: dict[str, Any] = {}
    name = get_args(fields(documents[0])["schema"][0])[0]
    roots = [_object(document, defs) for document in documents]
    body = roots[0] if len(roots) == 1 else {"oneOf": roots}
    return {"$schema": _DIALECT, "$id": name, **body, **({"$defs": dict(sorted(defs.items()))} if defs else {})}


def _object(document: type, defs: dict[str, Any]) -> dict[str, Any]:
    properties, required = _properties(document, defs)
    return {
        "type": "object",
        **({"description": inspect.cleandoc(document.__doc__)} if document.__doc__ else {}),
        "properties": properties,
        "required": required,
    }


def _properties(document: type, defs: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, (hint, spec) in fields(document).items():
        if spec.inline:
            more, needed = _properties(hint, defs)
            properties |= more
            required += needed
            continue
        properties[name] = {**_of(hint, defs), **({"description": spec.doc} if spec.doc else {})}
        required += [] if spec.may_be_absent else [name]
    return properties, required


def _of(hint: Any, defs: dict[str, Any]) -> dict[str, Any]:
    inner, may_be_none = optional(hint)
    if may_be_none:
        return {"anyOf": [_of(inner, defs), {"type": "null"}]}
    origin, arguments = get_origin(inner), get_args(inner)
    if is_object(inner):
        defs.setdefault(inner.__name__, _object(inner, defs))
        return {"$ref": f"#/$defs/{inner.__name__}"}
    if isinstance(inner, type) and issubclass(inner, Enum):
        return {"enum": [one.value for one in inner]}
    if origin is Literal:
        return {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
    if origin in (Union, UnionType):
        return {"anyOf": [_of(one, defs) for one in arguments]}
    if origin is list or (origin is tuple and arguments[-1] is Ellipsis):
        return {"type": "array", "items": _of(arguments[0], defs)}
    if origin is tuple:
        return {
            "type": "array",
            "items": _of(arguments[0], defs),
            "minItems": len(arguments),
            "maxItems": len(arguments),
        }
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _of(arguments[1], defs)}
    if inner is Any:
        return {}
    return dict(_SIMPLE[inner])
