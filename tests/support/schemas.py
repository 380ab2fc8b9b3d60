"""The published JSON Schemas as contracts: a document keeps to one and says nothing else, and each field is met."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"
Field = tuple[str, ...]


class Contract:
    """A schema, and which of its fields documents have had."""

    def __init__(self, name: str, part: str | None = None) -> None:
        """Read the schema of a name, or the definition in it that `part` names."""
        self.schema: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text())
        if part:
            self.schema = {"$ref": f"#/$defs/{part}", "$defs": self.schema["$defs"]}
        jsonschema.Draft202012Validator.check_schema(self.schema)
        self._valid = jsonschema.Draft202012Validator(self.schema)
        self._met: set[Field] = set()

    def check(self, document: object) -> None:
        """Raise where a document breaks the schema, or has a field that the schema does not describe."""
        self._valid.validate(document)
        self._walk(self.schema, document, ())

    def never_met(self) -> set[Field]:
        """Return the fields that were null, or not there, in every document that was checked."""
        return set(self._fields(self.schema, (), ())) - self._met

    def _walk(self, node: dict[str, Any], value: Any, at: Field) -> None:
        node, at = self._resolved(node, at)
        for branch in self._branches(node, value, at):
            self._walk(branch, value, at)
        if isinstance(value, dict) and "properties" in node:
            unknown = set(value) - set(node["properties"])
            assert not unknown, f"the schema does not describe {sorted(unknown)} of {'.'.join(at) or 'the document'}"
            for name, inner in node["properties"].items():
                if value.get(name) is not None:
                    self._met.add((*at, name))
                    self._walk(inner, value[name], (*at, name))
        elif isinstance(value, dict) and isinstance(node.get("additionalProperties"), dict):
            for inner in value.values():
                self._walk(node["additionalProperties"], inner, at)
        elif isinstance(value, list) and "items" in node:
            for inner in value:
                self._walk(node["items"], inner, at)

    def _branches(self, node: dict[str, Any], value: Any, at: Field) -> list[dict[str, Any]]:
        """Return the alternatives that a value fits: of several objects the one that describes all its fields."""
        found = []
        for branch in [*node.get("anyOf", ()), *node.get("oneOf", ())]:
            target, _ = self._resolved(branch, at)
            if jsonschema.Draft202012Validator({**target, "$defs": self.schema.get("$defs", {})}).is_valid(value):
                whole = not isinstance(value, dict) or set(value) <= set(target.get("properties", value))
                found.append((whole, branch))
        return [branch for whole, branch in found if whole] or [branch for _, branch in found[:1]]

    def _fields(self, node: dict[str, Any], at: Field, seen: tuple[str, ...]) -> Iterator[Field]:
        reference = node.get("$ref", "")
        if reference in seen:
            return
        seen = (*seen, reference) if reference else seen
        node, at = self._resolved(node, at)
        for name, inner in node.get("properties", {}).items():
            yield (*at, name)
            yield from self._fields(inner, (*at, name), seen)
        for inner in (
            *node.get("anyOf", ()),
            *node.get("oneOf", ()),
            node.get("items"),
            node.get("additionalProperties"),
        ):
            if isinstance(inner, dict):
                yield from self._fields(inner, at, seen)

    def _resolved(self, node: dict[str, Any], at: Field) -> tuple[dict[str, Any], Field]:
        """Return what a reference names; the fields of a definition are counted once, wherever it is used."""
        if "$ref" not in node:
            return node, at
        name = node["$ref"].rpartition("/")[2]
        found: dict[str, Any] = self.schema["$defs"][name]
        return found, (name,)
