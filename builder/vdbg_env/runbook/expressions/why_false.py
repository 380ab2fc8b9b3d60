"""Say in a few words which part of a condition does not hold, and with what values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from vdbg_env.runbook.expressions.cel import (
    ExpressionFailed,
    Names,
    Value,
    compile_expression,
    conjuncts,
    named_paths,
)

_MOST_VALUES = 3
_LONGEST_VALUE = 40  # characters

_PLAIN = re.compile(r"!?\s*[A-Za-z_][\w.]*")


def why_false(condition: str, names: Names, values: Mapping[str, Value]) -> str:
    """Return the first part of a false condition that is false by itself: `workload.eager is true`.

    For an input the flag that changes it is added. A comparison is followed by the values in it:
    `workload.ranks > 1 (workload.ranks is 1)`.
    """
    for part in conjuncts(condition):
        expression = compile_expression(part, names)
        try:
            if expression.evaluate(values) is not False:
                continue
        except ExpressionFailed:
            continue
        if _PLAIN.fullmatch(part):
            path, now = part.lstrip("! "), part.startswith("!")
            change = f"; -i {path.removeprefix('inputs.')}={str(not now).lower()} changes that"
            return f"{path} is {str(now).lower()}{change if path.startswith('inputs.') else ''}"
        found = list(_values(part, names, values))[:_MOST_VALUES]
        return f"{part} ({', '.join(found)})" if found else part
    return condition


def _values(part: str, names: Names, values: Mapping[str, Value]) -> Iterator[str]:
    for path in named_paths(part, names):
        try:
            value = compile_expression(path, names).evaluate(values)
        except ExpressionFailed:
            continue
        match value:
            case None | bool():
                yield f"{path} is {'null' if value is None else str(value).lower()}"
            case int() | float():
                yield f"{path} is {value:.15g}"
            case str() if len(value) <= _LONGEST_VALUE:
                yield f"{path} is {value!r}"
