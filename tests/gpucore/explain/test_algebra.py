"""What the algebra says equals what the hardware computes, for every value of the leaves."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucore.explain import operations as op
from gpucore.explain.algebra import (
    MASK32,
    MASK64,
    Atom,
    Poly,
    TooLarge,
    carry,
    constant,
    hi,
    join,
    leaf,
    lo,
    norm,
    pair,
    sign,
    sx,
    zx,
)
from gpucore.explain.evaluate import Unknown, Values
from gpucore.explain.operations import signed
from gpucore.explain.slice import _step

LEAVES = [leaf("special", "threadIdx.x"), leaf("special", "blockIdx.x"), *(leaf("bank", 0, 4 * k, 4) for k in range(4))]
EDGES = [0, 1, 2, 3, 7, 31, 32, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF]
words = st.one_of(st.sampled_from(EDGES), st.integers(0, MASK32))


class Walk:
    """Registers of a made-up program, each as a formula and as the number that the hardware would hold."""

    def __init__(self, seed: int, leaves: list[int]) -> None:
        self.random = random.Random(seed)
        leaves[0] &= 1023
        leaves[1] = min(leaves[1], 2**31 - 2)
        self.given = dict(zip((p.single for p in LEAVES), leaves, strict=True))
        self.registers: list[tuple[Poly, int]] = list(zip(LEAVES, leaves, strict=True))
        self.registers += [(constant(v), v) for v in (0, 1, 4, 0x4EC4EC4F, MASK32)]

    def pick(self) -> tuple[Poly, int]:
        return self.random.choice(self.registers)

    def step(self) -> None:
        (a, x), (b, y), (c, z) = self.pick(), self.pick(), self.pick()
        k = self.random.randrange(32)
        match self.random.randrange(13):
            case 0:  # a 64-bit sum in halves
                (d, u), (e, v) = self.pick(), self.pick()
                self.put(a + d, x + u)
                self.put(b + e + carry([(a, False), (d, False)]), y + v + (x + u >> 32))
            case 1:  # a 64-bit difference in halves
                (d, u), (e, v) = self.pick(), self.pick()
                self.put(a - d, x - u)
                carried = x + (~u & MASK32) + 1 >> 32
                self.put(b + ~e + carry([(a, False), (d, True)]), y + ~v + carried)
            case 2:
                wide = (zx(a) * zx(b) + pair(c, a), x * y + (z | x << 32))
                self.put(lo(wide[0]), wide[1])
                self.put(hi(wide[0]), wide[1] >> 32 & MASK32)
            case 3:
                wide = (sx(a) * sx(b) + pair(c, b), signed(x) * signed(y) + (z | y << 32))
                self.put(lo(wide[0]), wide[1])
                self.put(hi(wide[0]), wide[1] >> 32 & MASK32)
            case 4:
                self.put(a * b + c, x * y + z)
            case 5:
                self.put(op.shift_right(a, k), x >> k)
                self.put(op.shift_right_signed(a, k), signed(x) >> k)
            case 6:
                table = self.random.randrange(256)
                bits = [table >> (4 * (x >> j & 1) + 2 * (y >> j & 1) + (z >> j & 1)) & 1 for j in range(32)]
                self.put(op.lop3(a, b, c, table), sum(bit << j for j, bit in enumerate(bits)))
            case 7:
                self.put(op.funnel_right(a, b, k), (y << 32 | x) >> k)
                self.put(hi(pair(a, b) * (1 << k)), (y << 32 | x) << k >> 32)
            case 8:
                self.put(op.smallest(a, b, "smin"), min(signed(x), signed(y)))
                self.put(op.smallest(a, b, "umax"), max(x, y))
                self.put(op.absolute(a), abs(signed(x)))
            case 9:
                unsigned = self.random.random() < 0.5
                relation = self.random.choice(["LT", "LE", "GT", "GE", "EQ", "NE"])
                p, q = (x, y) if unsigned else (signed(x), signed(y))
                truth = {"LT": p < q, "LE": p <= q, "GT": p > q, "GE": p >= q, "EQ": p == q, "NE": p != q}[relation]
                condition = op.compare(relation, a, b, unsigned)
                assert condition is not None
                self.put(op.select(condition, a, c), x if truth else z)
            case 10:
                selector = self.random.randrange(1 << 16)
                data, value = y << 32 | x, 0
                for j in range(4):
                    nibble = selector >> 4 * j & 15
                    byte = data >> 8 * (nibble & 7) & 255
                    value |= (255 * (byte >> 7) if nibble & 8 else byte) << 8 * j
                self.put(op.permute(a, constant(selector), b), value)
            case 11:
                self.put(op.extend_field(a, constant(k + 1), True), signed(x, k + 1))
                self.put(op.extend_field(a, constant(k + 1), False), x & (1 << k + 1) - 1)
                self.put(sign(a), signed(x) >> 31)
            case 12:
                self.put(op.high_product(a, b, True), x * y >> 32)
                self.put(op.high_product(a, b, False), signed(x) * signed(y) >> 32)

    def put(self, p: Poly, value: int) -> None:
        self.registers.append((p, value & MASK32))

    def leaf(self, a: Atom) -> int:
        return self.given[a]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 40), st.lists(words, min_size=6, max_size=6))
def test_formulas_of_made_up_programs_have_the_values_of_the_hardware(seed: int, leaves: list[int]) -> None:
    walk = Walk(seed, leaves)
    for _ in range(14):
        try:
            walk.step()
        except TooLarge:
            continue
    values = Values(walk.leaf)
    for p, number in walk.registers:
        assert values.of(p) == number
    for (a, x), (b, y) in zip(walk.registers[6:], walk.registers[7:], strict=False):
        try:
            joined = join(norm(pair(a, b)))
        except TooLarge:
            continue
        assert values.of(joined) == (x | y << 32) & MASK64


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 40), words, words, words)
def test_a_pointer_sum_in_halves_is_the_pointer_and_the_index(scale: int, first: int, second: int, third: int) -> None:
    low, high, index = LEAVES[2], LEAVES[3], LEAVES[4]
    product = sx(index) * sx(constant(scale))
    total = join(pair(low + lo(product), high + hi(product) + carry([(low, False), (lo(product), False)])))
    (pointer,) = (a for a in total.atoms() if a.kind == "wide")
    assert total.terms[(pointer,)] == 1
    assert {a.kind for a in total.atoms()} == {"wide", "sx"}
    given = {low.single: first, high.single: second, index.single: third}
    wanted = (first | second << 32) + scale * signed(third)
    assert Values(lambda a: given[a]).of(total) == wanted & MASK64


@pytest.mark.parametrize("byte", range(4))
@pytest.mark.parametrize("value", [0, 0x80, 0x7FFFFFFF, 0x80808080])
def test_four_copies_of_a_sign_are_a_number_or_its_complement(byte: int, value: int) -> None:
    formula = op.permute(LEAVES[2], constant((8 + byte) * 0x1111), constant(0))
    assert Values(lambda _: value).of(formula) == (MASK32 if value >> 8 * byte + 7 & 1 else 0)


@given(words, st.integers(0, 1))
def test_what_only_the_upper_bits_come_from_is_no_part_of_the_lower_ones(value: int, chosen: int) -> None:
    x, condition = LEAVES[2], op.compare("NE", LEAVES[0], constant(0), True)
    assert condition is not None
    kept = op.select(condition, op.bit_and(x, constant(0xFFFF0000)), op.permute(x, constant(0x3254), constant(1)))
    flag = op.extend_field(kept, constant(16), True)
    byte = op.bit_and(op.select(condition, kept, x), constant(0xFF))
    assert flag == op.select(condition, constant(0), constant(1))
    values = Values(lambda a: chosen if a.kind == "special" else value)
    assert [values.of(p) for p in (flag, byte)] == [1 - chosen, 0 if chosen else value & 0xFF]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([0, 1, 2, 3]), st.integers(1, 31), st.lists(words, min_size=6, max_size=6), st.booleans())
def test_a_shift_in_halves_is_a_product(which: int, by: int, leaves: list[int], sign_extended: bool) -> None:
    walk = Walk(0, leaves)
    value = [LEAVES[1], LEAVES[2], LEAVES[2] + LEAVES[3], LEAVES[0]][which]
    high = (op.shift_right_signed if sign_extended else op.shift_right)(value, 32 - by)
    total = join(pair(value * (1 << by), high))
    assert all(c == 1 << by for c in total.terms.values())
    assert {a.kind for a in total.atoms()} <= {"special", "bank", "sx", "zx"}
    number = Values(walk.leaf).of(value)
    assert Values(walk.leaf).of(total) == (signed(number) if sign_extended else number) << by & MASK64


@settings(max_examples=300, deadline=None)
@given(words, st.integers(3, 1 << 20))
def test_a_division_by_a_number_is_known_by_its_multiplication(x: int, d: int) -> None:
    shift = (d - 1).bit_length() - 1
    magic = (1 << (32 + shift)) // d + 1
    value = LEAVES[2]
    high = op.high_product(value, constant(magic), False)
    product = signed(x) * signed(magic) >> 32
    if magic >> 31:
        high, product = high + value, product + signed(x)
    product = signed(product)
    quotient = op.quotient_folded(op.shift_right_signed(high, shift) + op.shift_right(high, 31))
    exact = (product >> shift) + (product >> 31 & 1)
    assert Values(lambda a: x).of(quotient) == exact & MASK32
    if d & (d - 1):
        assert quotient.single is not None
        assert quotient.single.kind == "sdiv"


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 40), st.lists(st.integers(0, 4), min_size=3, max_size=3))
def test_choices_of_choices_have_the_value_of_the_one_that_is_taken(seed: int, given_: list[int]) -> None:
    draw = random.Random(seed)
    leaves = LEAVES[2:5]
    numbers = dict(zip((p.single for p in leaves), given_, strict=True))
    values = Values(lambda a: numbers[a])
    made = [*zip(leaves, given_, strict=True), *((constant(k), k) for k in range(3))]
    for _ in range(10):
        (a, x), (b, y), (c, z), (d, w) = (draw.choice(made) for _ in range(4))
        k = draw.randrange(5)
        condition, holds = (op.compare("EQ", a, b + k, True), x == y + k)
        assert condition is not None
        if draw.random() < 0.5:
            condition, holds = op.negate(condition), not holds
        made.append((op.select(condition, c, d), z if holds else w))
        made.append((op.select(condition, a, b + k), x if holds else y + k))
        assert values.of_atom(condition) == holds
    for p, number in made:
        assert values.of(p) == number


def test_a_condition_that_does_not_hold_decides_where_the_other_has_no_value() -> None:
    known, unknown = (op.compare("EQ", x, constant(0), True) for x in LEAVES[2:4])
    assert known is not None
    assert unknown is not None

    def one(value: int) -> Values:
        def give(a: Atom) -> int:
            if a is LEAVES[2].single:
                return value
            raise Unknown(a)

        return Values(give)

    for both in (op.both(known, unknown), op.both(unknown, known)):
        assert one(7).of_atom(both) == 0
        with pytest.raises(Unknown):
            one(0).of_atom(both)


def test_the_end_of_an_unrolled_loop_is_one_condition() -> None:
    left = LEAVES[2]

    def ends(k: int) -> Atom:
        found = op.compare("EQ", left, constant(k), True)
        assert found is not None
        return found

    last = op.compare("EQ", left - 3, constant(0), True)
    assert last is not None
    rest = op.select(last, constant(0), left - 3)
    assert rest == left - 3
    after = op.select(ends(1), constant(0), op.select(ends(2), constant(0), rest))
    assert op.compare("EQ", after, constant(0), True) is op.either(op.either(ends(1), ends(2)), last)
    assert op.assuming(after, ends(2)) == constant(0)


@settings(max_examples=200, deadline=None)
@given(words, st.integers(1, 30))
def test_a_shift_that_rounds_towards_0_is_a_division(x: int, k: int) -> None:
    value = LEAVES[2]
    rounded = value + op.shift_right(sign(value), 32 - k)
    quotient = (abs(signed(x)) >> k) * (-1 if x >> 31 else 1)
    shifted, masked = op.shift_right_signed(rounded, k), op.bit_and(rounded, constant(-(1 << k)))
    values = Values(lambda a: x)
    assert values.of(shifted) == quotient & MASK32
    assert values.of(masked) == quotient << k & MASK32
    assert shifted == leaf("sdiv", value, constant(1 << k))
    assert masked == shifted * (1 << k)


def test_a_sum_of_many_choices_is_given_up() -> None:
    me = leaf("phi", 3, "R", 5)
    (word,) = me.atoms()
    value = constant(0)
    for k in range(16):  # every order of them, twice for each, would never end
        condition = op.compare("EQ", leaf("entry", "R", k), leaf("entry", "R", k + 40), True)
        assert condition is not None
        value = value + op.select(condition, me + k, leaf("entry", "R", k + 80))
    assert _step(value, me, {word}) is None
