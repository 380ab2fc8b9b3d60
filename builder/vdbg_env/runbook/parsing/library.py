"""Take shared steps into a runbook: `from: NAME`, with what the runbook gives going before what the library gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vdbg_env.common.errors import Complaint, nearest
from vdbg_env.common.yaml_source import Path, Value, YamlSource, validate
from vdbg_env.runbook.model import Manual, Run, Step, Uses
from vdbg_env.runbook.model.fields import Part
from vdbg_env.runbook.model.runbook import StepFile
from vdbg_env.runbook.model.step import ManualFields, RunFields, SharedStep, UsesFields
from vdbg_env.runbook.parsing.locations import Places

_MERGED = ("env", "parameters")  # key by key; every other field is replaced as a whole

# A step of the library -> the step in a runbook, and what such a step does.
_KINDS: Mapping[type[Part], tuple[type[Step], str]] = {
    RunFields: (Run, "runs a command"),
    UsesFields: (Uses, "uses a built-in"),
    ManualFields: (Manual, "asks a person"),
}


class Library:
    """The shared steps by name; each is read and checked when the first runbook asks for it."""

    def __init__(self, sources: Mapping[str, YamlSource]) -> None:
        self._sources = sources
        self._files: dict[str, StepFile] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names a runbook may take steps from."""
        return tuple(self._sources)

    def take(
        self, step: SharedStep, path: Path, places: Places
    ) -> tuple[Step, dict[Path, tuple[YamlSource, Path]]] | Complaint:
        """Return the whole step with the places of what was borrowed, or the complaint why there is none.

        Raises BadDocument when the shared step's own file is wrong.
        """
        if step.source not in self._sources:
            what = f"no shared step {step.source!r}; there are: {', '.join(sorted(self._sources)) or 'none'}"
            return places.complaint((*path, "from"), what, suggestion=nearest(step.source, self._sources))
        source, shared = self._sources[step.source], self._read(step.source).spec
        kind, does = _KINDS[type(shared)]
        fields = {name: getattr(shared, name) for name in shared.model_fields_set}
        borrowed: dict[Path, tuple[YamlSource, Path]] = {
            (*path, key): (source, ("spec", key)) for key in (_key(shared, name) for name in fields)
        }
        for name in step.model_fields_set - {"id", "source"}:
            key = _key(step, name)
            if name not in kind.model_fields:
                what = f"{key!r} means nothing to the shared step {step.source!r}, which {does}"
                return places.complaint((*path, key), what, key=True)
            own = getattr(step, name)
            if name in _MERGED:
                fields[name] = {**fields.get(name, {}), **own}
                borrowed |= {(*path, key, inner): (places.source, (*path, key, inner)) for inner in own}
            else:
                fields[name] = own
                borrowed.pop((*path, key), None)
        fields = {"title": self._read(step.source).metadata.title, **fields, "id": step.id}
        return kind.model_construct(set(fields), **fields), borrowed

    def about(self, name: str) -> tuple[str, str]:
        """Return a shared step's title and explanation; raises BadDocument when its file is wrong."""
        file = self._read(name)
        return file.metadata.title, file.spec.explanation

    def text(self, name: str) -> tuple[str, ...]:
        """Return the lines of a shared step's file."""
        return self._sources[name].text

    def value(self, name: str) -> Value:
        """Return what a shared step's file says."""
        return self._sources[name].value

    def _read(self, name: str) -> StepFile:
        if name not in self._files:
            self._files[name] = validate(StepFile, self._sources[name])
        return self._files[name]


def _key(part: Part, field: str) -> str:
    fields: Any = type(part).model_fields
    return fields[field].alias or field
