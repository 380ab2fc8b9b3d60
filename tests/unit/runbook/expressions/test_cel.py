"""Expressions see what they are given and nothing else; templates keep types and never reach Python."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.runbook import expressions
from vdbg_env.runbook.expressions import BadExpression, ExpressionFailed, Names, compile_condition, compile_expression
from vdbg_env.runbook.model import Data

NAMES: Names = {"a": None, "ended": {"by": None, "code": None}}
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def evaluate(text: str, **values: Data) -> Data:
    return compile_expression(text, NAMES).evaluate(values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 1", 2),
        ("a.x == 'y' ? [1, 2.5] : dyn({})", [1, 2.5]),
        ("{'k': [true, null, 's', b'x', {'z': 1}]}", {"k": [True, None, "s", "x", {"z": 1}]}),
        ("[1, 2, 3].filter(x, x > 1).map(y, y * 2)", [4, 6]),
        ("has(a.x) && !has(a.z)", True),
        ("'a.b.c' + \"ended.nope\"", "a.b.cended.nope"),
        ("a.x.startsWith('y')", True),
        ("size(a) == 1", True),
        ("[1.0 / 0.0, 1.5]", ["inf", 1.5]),  # JSON, and so the record, has no such number
    ],
)
def test_an_expression_gives_plain_data(text: str, expected: Data) -> None:
    assert evaluate(text, a={"x": "y"}) == expected


@pytest.mark.parametrize(
    ("text", "what", "offset", "suggestion"),
    [
        ("endd.code == 1", "unknown name 'endd'; known here: a, ended", 0, "ended"),
        ("1 == 1 && endd", "unknown name 'endd'", 10, "ended"),
        ("ended.cod == 1", "'ended' has no member 'cod'; known: by, code", 6, "code"),
        ("a ==", "the expression ends too early", 4, None),
        ("(1 + 2", "syntax error", 6, None),
        ("", "the expression ends too early", 0, None),
        ("'a' + 1", "found no matching overload", 4, None),
        ("x" * 5000, "an expression of 5000 characters", 0, None),
    ],
)
def test_a_wrong_expression_is_told_where(text: str, what: str, offset: int, suggestion: str | None) -> None:
    with pytest.raises(BadExpression) as caught:
        compile_expression(text, NAMES)
    assert caught.value.what.startswith(what)
    assert (caught.value.offset, caught.value.suggestion) == (offset, suggestion)


@pytest.mark.parametrize(
    "text", ["a.nope", "a.x + 1", "1 / (a.n - a.n)", "a.big", "a[99]", "a.all(p, a.all(q, a.all(r, r == r)))"]
)
def test_a_value_that_cannot_be_had_is_a_typed_error(text: str) -> None:
    many: list[Data] = list(range(300))
    some: dict[str, Data] = {"x": "y", "n": 1, "big": 2**80}
    with pytest.raises(ExpressionFailed):
        evaluate(text, a=many if "all" in text else some)


@pytest.mark.parametrize(
    "text",
    ["a.__class__", "''.__class__", "a.x.__init__.__globals__", "open('/etc/passwd')", "__import__('os')",
     "a.x.format(a)", "lambda: 1", "(" * 5000, "[" * 5000, "!" * 4000 + "true", "-" * 4000 + "1", "a" + ".b" * 2000],
)  # fmt: skip
def test_no_expression_reaches_python(text: str) -> None:
    try:
        value = evaluate(text, a={"x": "y"})
    except (BadExpression, ExpressionFailed):
        return
    assert value in (True, 1)


def test_a_condition_is_true_or_false() -> None:
    with pytest.raises(BadExpression, match="this one gives INT"):
        compile_condition("1 + 1", NAMES)
    with pytest.raises(ExpressionFailed, match="not true or false"):
        compile_condition("a", NAMES).holds({"a": "yes"})


@given(st.text(max_size=60))
def test_any_text_compiles_or_is_complained_about_within_itself(text: str) -> None:
    try:
        compile_expression(text, NAMES)
    except BadExpression as error:
        assert error.what
        assert 0 <= error.offset <= len(text)


@given(DATA)
def test_a_template_that_is_one_expression_keeps_the_type(value: Any) -> None:
    assert expressions.fill("${{ a }}", NAMES, {"a": value}) == value


def test_a_text_of_the_workload_is_kept_whole_whatever_bytes_it_held() -> None:
    assert evaluate("a", a="x\0y") == "x\u2400y"
    assert evaluate("a.t", a={"t": b"x\xff".decode("utf-8", "surrogateescape")}) == "x\udcff"


@given(DATA)
def test_what_is_filled_in_is_not_read_as_a_template(value: Any) -> None:
    assert expressions.fill("${{ a }}", NAMES, {"a": "${{ ended.code }}"}) == "${{ ended.code }}"
    assert expressions.fill_text("x${{ a }}y", NAMES, {"a": value}) == f"x{expressions.as_text(value)}y"


@given(st.text(max_size=40))
def test_a_text_without_a_template_stays_as_it_is(text: str) -> None:
    if "${{" not in text:
        assert expressions.fill(text, NAMES, {}) == text
    else:
        try:
            expressions.check(text, NAMES)
        except BadExpression as error:
            assert 0 <= error.offset <= len(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a ${{ a.n }} b ${{ a.n + 1 }}", "a 1 b 2"),
        ("$${{ a.n }}", "${{ a.n }}"),
        ("x$${{ y }}${{ a.n }}", "x${{ y }}1"),
        ("${{ '}}' }}", "}}"),
        ("${{ {'k': {'j': a.n}}.k.j }}!", "1!"),
        ("${{ rank.dir }}/core.%p", "${{ rank.dir }}/core.%p"),
        ("${{rank.dir}}", "${{ rank.dir }}"),
        ("${{ a.list }}!", "1 2!"),
        ("${{ a.yes }}!", "true!"),
    ],
)
def test_templates_are_filled(text: str, expected: str) -> None:
    assert expressions.fill(text, NAMES, {"a": {"n": 1, "list": [1, 2], "yes": True}}) == expected
