"""Values of a run as JSON and back: observations, step results and facts, by their own types.

It stands alone because a list of runs, which has an index, takes longer to import these types than to do its work.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter

from vdbg_env.evidence.finding import Observation
from vdbg_env.runbook.state import Facts, Finish, StepResult

Value = TypeVar("Value", Observation, StepResult, Facts, Finish)


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {
    kind: TypeAdapter(kind) for kind in (Observation, StepResult, Facts, Finish)
}


def to_document(value: Observation | StepResult | Facts | Finish) -> dict[str, Any]:
    """Return a value as plain JSON values; what stands at its default is left out."""
    document: dict[str, Any] = _ADAPTERS[type(value)].dump_python(value, mode="json", exclude_defaults=True)
    return document


def from_document(kind: type[Value], document: object) -> Value:
    """Return the value a document was made of; raises pydantic's ValidationError (a ValueError) for any other."""
    value: Value = _ADAPTERS[kind].validate_python(document)
    return value
