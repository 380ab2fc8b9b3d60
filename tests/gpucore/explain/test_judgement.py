"""What is said to be wrong with a number: only what every reading of it bears out."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucore.explain.algebra import Atom, Poly, join, leaf, of, sx
from gpucore.explain.judgement import _exact, _is_multiple, judge_numbers
from gpucore.explain.notation import Legend, Words
from gpucore.explain.numbers import Numbers
from gpucore.explain.operations import signed
from gpucore.explain.program import Argument
from tests.gpucore.explain.test_answers import gathered, the_access

A, B = leaf("bank", 0, 0x210, 4), leaf("bank", 0, 0x214, 4)
WORD = st.integers(0, (1 << 32) - 1)


def readings(p: Poly, values: dict[Poly, int], unsigned: frozenset[Poly] = frozenset()) -> list[int]:
    numbers = SimpleNamespace(fact=lambda q: values[q])
    legend = SimpleNamespace(is_unsigned=lambda a: of(a) in unsigned)
    return _exact(p, cast(Numbers, numbers), cast(Legend, legend))


@settings(max_examples=200, deadline=None)
@given(WORD, WORD, st.sampled_from([1, 2, 7, -3, 1 << 20, 2654435761]))
def test_every_reading_of_a_sum_is_asked_for_and_all_are_the_same_in_32_bits(a: int, b: int, factor: int) -> None:
    found = readings(A * factor + A * B, {A: a, B: b})
    assert len({one % (1 << 32) for one in found}) == 1
    for x in {a, signed(a)}:
        for y in {b, signed(b)}:
            assert factor * x + x * y in found


def test_the_reading_by_the_types_comes_first() -> None:
    start = 0x80000000
    assert readings(A + B * -4, {A: start, B: 400}, frozenset({A}))[0] == start - 1600
    assert readings(A + B * -4, {A: start, B: 400})[0] == -start - 1600
    assert start - 1600 in readings(A + B * -4, {A: start, B: 400})  # so it does fit 32 bits


@pytest.mark.parametrize(
    ("index", "whole"),
    [(A, True), (A * B, True), (A * 3, True), (A + B, False), (A * B + 1, False), (A * B + A, True), (B, False)],
)
def test_a_placeholder_is_all_of_an_index_or_that_times_a_stride(index: Poly, whole: bool) -> None:
    a = A.single
    assert a is not None
    for p in (index, join(sx(index))):
        assert _is_multiple(p, a) is whole


def test_minus_one_is_a_placeholder_only_of_a_thread_that_is_certain_and_is_said_to_be_likely() -> None:
    why, held = gathered(0xFFFFFFFF, 0)
    numbers = Numbers(why.address, held)
    words = Words(why.legend, why.names)
    assert why.address.index is not None  # row * stride, and the turn of a loop
    alone = replace(why.address, index=Poly({m: c for m, c in why.address.index.terms.items() if len(m) > 1}, 64))

    def kinds() -> list[str]:
        return [one.text for one in judge_numbers(alone, numbers, words, -4096) if one.kind == "placeholder"]

    assert kinds() == ["row is -1, which often means no index"]
    assert not [one for one in judge_numbers(why.address, numbers, words, -4096) if one.kind == "placeholder"]
    numbers.choice = replace(numbers.choice, certain=False)
    assert kinds() == []


@pytest.mark.parametrize(
    ("written", "unsigned"),
    [("unsigned int", True), ("unsigned int const*", True), ("unsigned char*", True), ("int", False), ("float*", False),
     ("unsigned int**", False), ("unsigned_thing", False)],
)  # fmt: skip
def test_a_type_says_whether_its_numbers_have_a_sign(written: str, unsigned: bool) -> None:
    assert Argument(1, 0, 8, written, None).unsigned is unsigned


def test_unsigned_arguments_are_numbers_without_a_sign() -> None:
    why = the_access("quotients", "LDG")
    by_number = {a.number: a for a in why.address.program.arguments}
    assert [by_number[n].unsigned for n in (3, 4, 5, 6)] == [False, False, True, True]

    def argument(n: int) -> Atom:
        found = leaf("bank", 0, why.address.program.bank_offset + by_number[n].offset, 4).single
        assert found is not None
        return found

    assert why.legend.is_unsigned(argument(5))
    assert not why.legend.is_unsigned(argument(3))
