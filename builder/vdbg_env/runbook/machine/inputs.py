"""Turn what the user gives into the final, typed inputs of a runbook."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import assert_never

from vdbg_env.common.errors import BadInput, nearest
from vdbg_env.runbook.model import Data, Input, Runbook
from vdbg_env.runbook.workload.inputs import Inputs


def final_inputs(
    runbook: Runbook, given: Mapping[str, str], argv: Sequence[str], environment: Mapping[str, str]
) -> Inputs:
    """Return every input of the runbook: what was given, else its variable of `environment`, else its default.

    `argv` is the workload's command line and becomes the input of that name. Raises BadInput for a name the runbook
    does not have, a value that is not of its type, and a required input that nothing gives.
    """
    for name in given:
        if name not in runbook.inputs:
            close = nearest(name, runbook.inputs)
            hint = f" (did you mean {close!r}?)" if close else ""
            raise BadInput(
                f"runbook {runbook.name!r} has no input {name!r}{hint}",
                next_step=f"vdbg-env runbooks show {runbook.name}",
            )
    return Inputs({name: _value(runbook, wanted, given, argv, environment) for name, wanted in runbook.inputs.items()})


def _value(
    runbook: Runbook, wanted: Input, given: Mapping[str, str], argv: Sequence[str], environment: Mapping[str, str]
) -> Data:
    if wanted.name in given:
        return typed(wanted, given[wanted.name])
    if wanted.name == "argv" and wanted.type == "array" and argv:
        return list(argv)
    if wanted.from_env and wanted.from_env in environment:
        return typed(wanted, environment[wanted.from_env])
    if wanted.required and wanted.name == "argv":
        raise BadInput(
            f"runbook {runbook.name!r} needs a command to run",
            cause="none follows --, ./vdbg.yaml names none, and only illegal-memory-access has a bundled sample",
            next_step=f"vdbg-env runbook {runbook.name} -- COMMAND ...",
        )
    if wanted.required:
        raise BadInput(
            f"runbook {runbook.name!r} needs the input {wanted.name!r}",
            cause=wanted.description or None,
            next_step=f"vdbg-env runbook {runbook.name} -i {wanted.name}=VALUE",
        )
    default: Data = wanted.default
    return default


def typed(wanted: Input, text: str) -> Data:
    """Return the text as the input's type; raises BadInput."""
    match wanted.type:
        case "string" | "path":
            if wanted.choices and text not in wanted.choices:
                raise BadInput(f"input {wanted.name!r} is one of {', '.join(wanted.choices)}, not {text!r}")
            return text
        case "bool":
            if text.lower() in {"true", "yes", "1"}:
                return True
            if text.lower() in {"false", "no", "0"}:
                return False
            raise BadInput(f"input {wanted.name!r} is true or false, not {text!r}")
        case "int":
            return int(_number(wanted, text, int))
        case "float":
            return _number(wanted, text, float)
        case "array":
            return list(text.split(","))
        case _:
            assert_never(wanted.type)


def _number(wanted: Input, text: str, kind: type[int] | type[float]) -> float:
    try:
        number = kind(text)
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError(text)  # no record could hold it: JSON has no such number
        return number
    except ValueError:
        raise BadInput(f"input {wanted.name!r} is a number ({wanted.type}), not {text!r}") from None
