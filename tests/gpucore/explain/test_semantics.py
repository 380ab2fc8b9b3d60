"""What instructions compute whose operands are not numbers of the code, against the arithmetic that they stand for."""

import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucore.explain.algebra import Atom, atom, constant, join, leaf, pair, zx
from gpucore.explain.code import Code, Routine
from gpucore.explain.evaluate import Unknown, Values
from gpucore.explain.slice import Slice, find_roles
from gpucore.sass import Register, read_listings

M32 = 0xFFFFFFFF
GIVEN = ("R2", "R3", "R4", "R5")


def values_of(rows: Sequence[tuple[str, str]], *, kernel: bool) -> Slice:
    written = [{"opcode": name, "operands": rest} for name, rest in rows]
    listing = [{}, [{"function-name": "f", "start": 0, "length": 16 * len(rows), "sass-instructions": written}]]
    (function,) = read_listings(json.dumps(listing))
    routine = Routine("f", 0, 16 * len(rows))
    return Slice(Code(function.instructions, [routine], routine), lambda *at: leaf("bank", *at), kernel)


def computed(opcode: str, operands: str, words: list[int], *before: tuple[str, str]) -> int:
    """Return R6 and R7 after an instruction that finds these words in R2 to R5, and the carry of R2 + R3 in P0."""
    rows = [("LDC", f"{r},c[0x0][{0x160 + 4 * k:#x}]") for k, r in enumerate(GIVEN)]
    rows += [("IADD3", "RZ,P0,R2,R3,RZ"), ("MOV", "R7,RZ"), *before, (opcode, operands), ("EXIT", "")]
    values = values_of(rows, kernel=True)

    def held(a: Atom) -> int:
        assert a.kind == "bank", a
        return words[(int(str(a.args[1])) - 0x160) // 4]

    low, high = (Values(held).of(values.register(Register("R", n), len(rows) - 1)) for n in (6, 7))
    return high << 32 | low


@pytest.mark.parametrize(
    ("opcode", "operands", "meant"),
    [
        ("SHF.R.U64", "R6,R2,R4,R3", lambda a, b, c, d: (b << 32 | a) >> min(c, 64) & M32),
        ("SHF.R.W.U64", "R6,R2,R4,R3", lambda a, b, c, d: (b << 32 | a) >> (c & 63) & M32),
        ("SHF.R.W.U32", "R6,R2,R4,R3", lambda a, b, c, d: (b << 32 | a) >> (c & 31) & M32),
        ("SHF.L.U64.HI", "R6,R2,R4,R3", lambda a, b, c, d: ((b << 32 | a) << min(c, 64)) >> 32 & M32),
        ("FLO.U32.SH", "R6,R2", lambda a, b, c, d: 32 - a.bit_length() if a else M32),
        ("IMAD.WIDE.U32.X", "R6,R2,R3,R4,P0",
         lambda a, b, c, d: a * b + (d << 32 | c) + (a + b >> 32) & 0xFFFFFFFFFFFFFFFF),
    ],
)  # fmt: skip
@settings(max_examples=40, deadline=None)
@given(words=st.lists(st.one_of(st.integers(0, 70), st.integers(0, M32)), min_size=4, max_size=4))
def test_an_instruction_has_the_value_of_its_arithmetic(
    opcode: str, operands: str, meant: Callable[[int, int, int, int], int], words: list[int]
) -> None:
    assert computed(opcode, operands, words) == meant(*words)


@pytest.mark.parametrize(("part", "first"), [("", 0), (".B1", 8), (".B2", 16), (".B3", 24)])
@settings(max_examples=40, deadline=None)
@given(word=st.integers(0, M32), mask=st.integers(0, 0x7F))
def test_bits_of_one_byte_become_predicates_where_the_mask_has_them(
    part: str, first: int, word: int, mask: int
) -> None:
    before = [("ISETP.NE.AND", f"P{k},PT,RZ,RZ,PT") for k in range(7)]
    back = ("P2R", "R6,PR,RZ,0x7f")
    assert computed(*back, [word] * 4, *before, ("R2P", f"PR,R2{part},{mask:#x}")) == word >> first & mask


@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.sampled_from((0, 1, 7, M32 - 1, M32)), min_size=4, max_size=4))
def test_what_a_wide_product_carries_out_is_added_by_the_next_sum(words: list[int]) -> None:
    a, b, c, d = words
    product = ("IMAD.WIDE.U32", "R8,P1,R2,R3,R4")
    assert computed("IADD3.X", "R6,RZ,RZ,RZ,P1,!PT", words, product) == a * b + (d << 32 | c) >> 64
    again = ("IMAD.WIDE.U32.X", "R8,P1,R2,R3,R4,P0")
    assert computed("IADD3.X", "R6,RZ,RZ,RZ,P1,!PT", words, again) == a * b + (d << 32 | c) + (a + b >> 32) >> 64


def test_a_division_may_take_its_dividend_in_registers_of_both_files() -> None:
    rows = (
        ("ULDC.64", "UR8,c[0x0][0x1a8]"), ("I2F.U64.RP", "R4,UR8"), ("R2UR", "UR16,R7"),
        ("UIADD3", "UR16,UP4,URZ,-UR16,URZ"), ("UIADD3.X", "UR17,URZ,~UR7,URZ,UP4,!UPT"),
        ("USEL", "UR4,UR16,0xffffffff,UP0"), ("USEL", "UR5,UR17,0xffffffff,UP0"), ("RET.REL.NODEC", "R2,0x0"),
    )  # fmt: skip
    roles = find_roles(values_of(rows, kernel=False), unsigned=False)
    assert roles is not None
    assert roles.over == join(pair(leaf("entry", "R", 7), leaf("entry", "UR", 7)))
    assert roles.result == (Register("UR", 4), Register("UR", 5))


DIVISOR = (("ULDC.64", "UR8,c[0x0][0x1a8]"), ("I2F.U64.RP", "R4,UR8"), ("IMAD.WIDE.U32", "R4,R4,UR8,RZ"))
LOW_WORD = (
    *DIVISOR, ("IADD3", "R13,P2,-R4,R7,RZ"), ("IMAD.X", "R15,RZ,RZ,~R5,P2"), ("IADD3", "R9,P3,RZ,R13,RZ"),
    ("SEL", "R6,R9,0xffffffff,P0"), ("RET.REL.NODEC", "R2,0x0"),
)  # fmt: skip
BOTH_WORDS = (
    *DIVISOR, ("MOV", "R10,R7"), ("MOV", "R11,RZ"), ("IADD.64", "R12,R10,-R4"), ("SEL.64", "R8,R12,-0x1,P1"),
    ("RET.REL.NODEC", "R2,0x0"),
)  # fmt: skip


@pytest.mark.parametrize(("rows", "result"), [(LOW_WORD, (6,)), (BOTH_WORDS, (8, 9))])
def test_a_division_may_take_a_word_with_zeros_above_it(
    rows: tuple[tuple[str, str], ...], result: tuple[int, ...]
) -> None:
    roles = find_roles(values_of(rows, kernel=False), unsigned=False)
    assert roles is not None
    assert roles.over == zx(leaf("entry", "R", 7))
    assert roles.result == tuple(Register("R", n) for n in result)


@pytest.mark.parametrize(
    "rows",
    [
        [("IADD3.X", "R15,0x1,~R5,RZ,P2,!PT") if row[0] == "IMAD.X" else row for row in LOW_WORD],
        [("IADD3.X", "R15,R13,~R5,RZ,P2,!PT") if row[0] == "IMAD.X" else row for row in LOW_WORD],
        [("IADD3.X", "R15,c[0x0][0x160],~R5,RZ,P2,!PT") if row[0] == "IMAD.X" else row for row in LOW_WORD],
        [row for row in LOW_WORD if row[0] != "IMAD.X"],
        [("MOV", "R11,0x1") if row == ("MOV", "R11,RZ") else row for row in BOTH_WORDS],
        [("SHF.R.S32.HI", "R11,RZ,0x1f,R7") if row == ("MOV", "R11,RZ") else row for row in BOTH_WORDS],
    ],
)
def test_a_division_of_a_word_with_something_else_above_it_is_not_taken_for_one(rows: list[tuple[str, str]]) -> None:
    assert find_roles(values_of(tuple(rows), kernel=False), unsigned=False) is None


def test_a_product_with_zero_is_zero_whatever_else_is_in_it() -> None:
    known = {atom("special", "threadIdx.x"): 0, atom("special", "laneId"): 2}

    def value(a: Atom) -> int:
        if a not in known:
            raise Unknown(a)
        return known[a]

    loaded = leaf("load", 7, 0, "")
    assert Values(value).of(leaf("special", "threadIdx.x") * loaded + constant(5)) == 5
    with pytest.raises(Unknown):
        Values(value).of(leaf("special", "laneId") * loaded)


@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.sampled_from((0, 1, 7, 1 << 29, M32)), min_size=4, max_size=4))
def test_what_a_shifted_and_subtracted_word_carries_out_is_added_by_the_next_sum(words: list[int]) -> None:
    a, b = words[:2]
    total = (1 << 32) - (a << 3 & M32) + b
    difference = ("LEA", "R7,P1,-R2,R3,0x3")
    assert computed("IADD3.X", "R6,RZ,RZ,RZ,P1,!PT", words, difference) == (total & M32) << 32 | total >> 32
