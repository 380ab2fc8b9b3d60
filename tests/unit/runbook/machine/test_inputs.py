"""Inputs: typed from text, from their variable, or their default."""

import pytest

from vdbg_env.common.errors import BadInput
from vdbg_env.runbook.machine import typed
from vdbg_env.runbook.model import Input


def one(kind: str) -> Input:
    return Input.model_validate({"name": "deep", "type": kind})


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("bool", "Yes", True),
        ("bool", "0", False),
        ("int", "12", 12),
        ("float", "0.5", 0.5),
        ("array", "a,b", ["a", "b"]),
        ("path", "/dumps", "/dumps"),
    ],
)
def test_text_becomes_a_value_of_the_input_s_type(kind: str, text: str, value: object) -> None:
    found = typed(one(kind), text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"), [("bool", "maybe"), ("int", "1.5"), ("float", "fast"), ("float", "inf"), ("float", "1e999")]
)
def test_text_of_another_type_is_refused(kind: str, text: str) -> None:
    with pytest.raises(BadInput, match=f"'deep' is .*not '{text}'"):
        typed(one(kind), text)
