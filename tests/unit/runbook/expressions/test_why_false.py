"""The part of a condition that does not hold, with the values that decide it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.runbook.expressions import Names, Value, compile_expression, conjuncts, why_false

NAMES: Names = {"inputs": None, "workload": None, "steps": None}
VALUES: dict[str, Value] = {
    "inputs": {"deep": False, "quick": True, "text": "a && b", "long": "x" * 200},
    "workload": {"ranks": 1, "size": 1048577, "vllm": True, "command": "serve", "model": None},
    "steps": {},
}


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("inputs.deep", "inputs.deep is false; -i deep=true changes that"),
        ("!inputs.quick", "inputs.quick is true; -i quick=false changes that"),
        ("workload.vllm && inputs.deep", "inputs.deep is false; -i deep=true changes that"),
        ("steps.baseline.ok && inputs.deep", "inputs.deep is false; -i deep=true changes that"),
        ("!workload.vllm", "workload.vllm is true"),
        ("workload.ranks > 1", "workload.ranks > 1 (workload.ranks is 1)"),
        (
            "workload.vllm && (workload.ranks > 1 || !workload.vllm)",
            "(workload.ranks > 1 || !workload.vllm) (workload.ranks is 1, workload.vllm is true)",
        ),
        (
            "inputs.deep || workload.model != null",
            "inputs.deep || workload.model != null (inputs.deep is false, workload.model is null)",
        ),
        ("inputs.text == 'x && y'", "inputs.text == 'x && y' (inputs.text is 'a && b')"),
        ("inputs.long == ''", "inputs.long == ''"),
        ("workload.size > 2097152", "workload.size > 2097152 (workload.size is 1048577)"),
        ("has(workload.server)", "has(workload.server)"),
    ],
)  # fmt: skip
def test_the_false_part_is_named_with_its_values(condition: str, reason: str) -> None:
    assert compile_expression(condition, NAMES).evaluate(VALUES) is False
    assert str(why_false(condition, NAMES, VALUES)) == reason


_ATOMS = st.sampled_from(
    ["true", "false", "inputs.deep", "!inputs.quick", "workload.ranks == 1", "'&&' == '||'", "has(inputs.no)"]
)
_CONDITIONS = st.recursive(
    _ATOMS,
    lambda inner: st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(lambda x: f"({x[0]} {x[1]} {x[2]})"),
    max_leaves=6,
)


@given(parts=st.lists(_CONDITIONS, min_size=1, max_size=4))
def test_the_parts_joined_again_are_the_condition(parts: list[str]) -> None:
    assert conjuncts(" && ".join(parts)) == parts
    either = " || ".join([*parts, "true"])
    assert conjuncts(either) == [either]
