"""Takes shared steps into a runbook: `from: NAME`, with what the runbook says going before what the library says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vdbg_env.common.errors import Complaint, nearest
from vdbg_env.common.yaml_source import Path, YamlSource, validate
from vdbg_env.runbook.parsing import schema, schema_step
from vdbg_env.runbook.parsing.locations import Places

_MERGED = ("env", "with")  # key by key; every other field is replaced as a whole

FullStep = schema_step.RunStep | schema_step.UsesStep | schema_step.ManualStep

_FULL: Mapping[type[schema_step.Part], type[FullStep]] = {
    schema_step.RunFields: schema_step.RunStep,
    schema_step.UsesFields: schema_step.UsesStep,
    schema_step.ManualFields: schema_step.ManualStep,
}
_DOES: Mapping[type[schema_step.Part], str] = {
    schema_step.RunStep: "runs a command",
    schema_step.UsesStep: "uses a built-in",
    schema_step.ManualStep: "asks a person",
}


class Library:
    """The shared steps by name; each is read and checked when the first runbook asks for it."""

    def __init__(self, sources: Mapping[str, YamlSource]) -> None:
        self._sources = sources
        self._files: dict[str, schema.StepFile] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names a runbook may take steps from."""
        return tuple(self._sources)

    def take(
        self, step: schema_step.SharedStep, path: Path, places: Places
    ) -> tuple[FullStep, dict[Path, tuple[YamlSource, Path]]] | Complaint:
        """Return the whole step with the places of what was borrowed, or the complaint why there is none.

        Raises BadDocument when the shared step's own file is wrong.
        """
        if step.from_ not in self._sources:
            what = f"no shared step {step.from_!r}; there are: {', '.join(sorted(self._sources)) or 'none'}"
            return places.complaint((*path, "from"), what, suggestion=nearest(step.from_, self._sources))
        source = self._sources[step.from_]
        shared = self._read(step.from_).spec
        model = _FULL[type(shared)]
        fields: dict[str, Any] = {_key(model, name): getattr(shared, name) for name in shared.model_fields_set}
        borrowed: dict[Path, tuple[YamlSource, Path]] = {(*path, key): (source, ("spec", key)) for key in fields}
        for name in step.model_fields_set - {"id", "from_"}:
            key = _key(schema_step.SharedStep, name)
            if name not in model.model_fields:
                what = f"{key!r} means nothing to the shared step {step.from_!r}, which {_DOES[model]}"
                return places.complaint((*path, key), what, key=True)
            own = getattr(step, name)
            if key in _MERGED:
                fields[key] = {**fields.get(key, {}), **own}
                borrowed |= {(*path, key, inner): (places.source, (*path, key, inner)) for inner in own}
            else:
                fields[key] = own
                borrowed.pop((*path, key), None)
        fields.setdefault("name", self._read(step.from_).metadata.title)
        return model.model_construct(id=step.id, **fields), borrowed

    def about(self, name: str) -> tuple[str, str]:
        """Return a shared step's title and explanation; raises BadDocument when its file is wrong."""
        file = self._read(name)
        return file.metadata.title, file.spec.explain or ""

    def text(self, name: str) -> tuple[str, ...]:
        """Return the lines of a shared step's file."""
        return self._sources[name].text

    def _read(self, name: str) -> schema.StepFile:
        if name not in self._files:
            self._files[name] = validate(schema.StepFile, self._sources[name])
        return self._files[name]


def _key(model: type[schema_step.Part], field: str) -> str:
    return model.model_fields[field].alias or field
