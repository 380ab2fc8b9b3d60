"""Which thread of a warp is explained, and how sure that is: the warp of a kernel whose numbers are made up here."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from gpucore.explain import Why, why_json, why_text
from gpucore.explain.algebra import of
from gpucore.explain.numbers import Choice, Numbers
from gpucore.explain.thread import choose_thread
from tests.gpucore.explain.test_answers import gathered

ILLEGAL, MISALIGNED = 14, 6
IN_PAGE = 8  # an element in the page of the pointer
BASE = 0x7F1260000000
GIVEN = struct.pack("<8I", 0x1000, 0x7F20, BASE & 0xFFFFFFFF, BASE >> 32, 0x40, 0x7F33, 4096, 1000)


def asked(
    turns: Mapping[int, int], exception: int = ILLEGAL, *, width: int = 4, others_left: bool = False,
    holds: Callable[[int, int], bool] | None = None, mapped: Callable[[int, int], bool] | None = None,
) -> Why:  # fmt: skip
    """Explain a warp that gathers from `in`: thread k reads element turns[k], all others one in its first page."""
    why, usual = gathered(0, IN_PAGE)
    unusual = {k: gathered(0, turn & 0xFFFFFFFF)[1].lanes[k] for k, turn in turns.items()}
    lanes = tuple(unusual.get(k, lane) for k, lane in enumerate(usual.lanes))
    why = replace(why, address=replace(why.address, width=width))
    numbers = Numbers(why.address, replace(usual, lanes=lanes, others_left=others_left, parameters=GIVEN))
    assert numbers.disagree == 0
    choose_thread(numbers, exception, holds, mapped)
    return replace(why, numbers=numbers)


def choice_of(why: Why) -> tuple[int, Choice]:
    assert why.numbers is not None
    assert why.numbers.lane is not None
    choice, lines = why.numbers.choice, why_text(why)
    lanes = why_json(why)["lanes"]
    assert isinstance(lanes, dict)
    assert (lanes["certain"], lanes["possible"], lanes["reason"]) == (choice.certain, choice.possible, choice.reason)
    assert any("not confirmed" in line for line in lines) is not choice.certain
    return why.numbers.lane.number, choice


def test_the_only_thread_outside_of_the_page_of_the_pointer_is_certain() -> None:
    """It is so too where it is just before that page: a distance of a page tells nothing."""
    assert choice_of(asked({9: -1})) == (9, Choice(True, 1, "alone", 1))
    assert choice_of(asked({9: 1 << 20})) == (9, Choice(True, 1, "alone", 1))


def test_of_threads_past_their_pointer_the_farthest_is_certain() -> None:
    far = {k: 1000 + 8 * k for k in range(32)}  # from thread 3 on beyond the first page
    number, choice = choice_of(asked(far))
    assert (number, choice.certain, choice.reason, choice.possible) == (31, True, "farthest", 29)


def test_of_threads_past_and_before_their_pointer_none_is_certain() -> None:
    why = asked({14: -5000, 20: 900_000})
    assert choice_of(why) == (14, Choice(False, 2, "likeliest"))
    assert (
        "not confirmed: any of 2 threads of the warp may have had the bad address; this one is the likeliest"
        in why_text(why)
    )


def test_threads_of_one_page_are_bad_alike() -> None:
    number, choice = choice_of(asked(dict.fromkeys(range(32), 1 << 20)))
    assert (number, choice) == (0, Choice(True, 32, "alike", 32))


def test_a_misaligned_address_is_that_of_the_thread_that_is_not_aligned() -> None:
    assert choice_of(asked({5: 9}, MISALIGNED, width=8)) == (5, Choice(True, 1, "bad", 1))
    far = choice_of(asked({5: 9, 7: 1 << 20}, MISALIGNED, width=8))
    assert far == (5, Choice(True, 1, "bad", 1))  # what is far away is aligned
    assert choice_of(asked({7: 1 << 20}, MISALIGNED, width=8))[1].certain is False  # none is: something is not known


def test_memory_that_the_core_has_was_mapped() -> None:
    whole = {14: -5000, 20: 900_000}
    held = asked(whole, holds=lambda at, size: BASE <= at < BASE + (8 << 20))
    assert choice_of(held) == (14, Choice(True, 1, "alone", 1))


def test_a_map_of_another_moment_says_which_thread_is_the_likeliest() -> None:
    first = asked({14: -5000, 20: 900_000}, mapped=lambda at, size: at < BASE)  # what is before the pointer is there
    assert choice_of(first) == (20, Choice(False, 2, "likeliest"))
    stale = asked({14: -5000, 20: 900_000}, mapped=lambda at, size: True)  # it contradicts the exception
    assert choice_of(stale) == (14, Choice(False, 2, "likeliest"))


def test_an_address_that_cannot_be_one_is_bad_whatever_the_others_are() -> None:
    why, held = gathered(0, IN_PAGE)
    words = GIVEN[:8] + bytes(8) + GIVEN[16:]
    lanes = tuple(replace(lane, general=()) for lane in held.lanes)
    null = Numbers(why.address, replace(held, lanes=lanes, parameters=words))
    choose_thread(null, ILLEGAL)
    assert choice_of(replace(why, numbers=null)) == (0, Choice(True, 32, "alike", 32))


def test_of_pointers_that_differ_by_thread_each_may_be_the_bad_one() -> None:
    """One points elsewhere, and its thread stays in the page that it points to."""
    why, held = gathered(0, IN_PAGE)
    numbers = Numbers(why.address, replace(held, parameters=GIVEN))
    accesses = {4: 0x7F9900000000}

    def pointer(place: int) -> int:
        return accesses.get(place, BASE)

    numbers.value = lambda p, lane=None: 32 if p is why.address.index else pointer(lane or 0)  # type: ignore[method-assign]
    numbers.address_of = lambda place: pointer(place) + 4 * 32  # type: ignore[method-assign]
    choose_thread(numbers, ILLEGAL)
    assert (numbers.chosen, numbers.choice) == (4, Choice(False, 32, "likeliest"))


def test_without_registers_no_thread_is_certain_and_nothing_is_likely() -> None:
    why, held = gathered(0, IN_PAGE)
    none = Numbers(why.address, replace(held, lanes=tuple(replace(lane, general=()) for lane in held.lanes)))
    choose_thread(none, ILLEGAL)
    assert choice_of(replace(why, numbers=none)) == (0, Choice(False, 32, "unknown"))


@pytest.mark.parametrize("mapped", [None, lambda at, size: False], ids=["no map", "a map without this memory"])
def test_a_thread_of_which_nothing_is_known_may_be_the_one(mapped: Callable[[int, int], bool] | None) -> None:
    why, held = gathered(0, 1 << 20)
    lanes = (*held.lanes[:31], replace(held.lanes[31], general=()))
    numbers = Numbers(why.address, replace(held, lanes=lanes))
    choose_thread(numbers, ILLEGAL, mapped=mapped)
    told = replace(why, numbers=numbers)
    assert choice_of(told)[1] == Choice(False, 32, "unknown", farthest_of=31)
    assert (
        "not confirmed: any of 32 threads of the warp may have had the bad address; this one is the farthest of the 31 "
        "whose distance is known"
    ) in why_text(told)


def test_the_farthest_of_one_thread_is_no_likely_one() -> None:
    why, held = gathered(0, 1 << 20)
    lanes = (held.lanes[0], *(replace(lane, general=()) for lane in held.lanes[1:]))
    numbers = Numbers(why.address, replace(held, lanes=lanes))
    choose_thread(numbers, ILLEGAL)
    assert choice_of(replace(why, numbers=numbers)) == (0, Choice(False, 32, "unknown"))


def test_the_thread_whose_register_is_wrong_is_the_likeliest() -> None:
    why, held = gathered()
    general = list(held.lanes[6].general)
    general[6] ^= 64
    lanes = (*held.lanes[:6], replace(held.lanes[6], general=tuple(general)), *held.lanes[7:])
    numbers = Numbers(why.address, replace(held, lanes=lanes))
    choose_thread(numbers, ILLEGAL)
    assert numbers.suspect is not None
    assert choice_of(replace(why, numbers=numbers)) == (6, Choice(False, 32, "likeliest"))


@pytest.mark.parametrize("others_left", [True, False])
def test_threads_that_left_the_warp_may_have_had_the_bad_address(others_left: bool) -> None:
    """The warp stands in front of the access, in a loop: who left may have made it in an earlier turn."""
    why, held = gathered(0, 1 << 20)
    before = tuple(replace(lane, at=why.address.instruction - 1) for lane in held.lanes)
    numbers = Numbers(why.address, replace(held, lanes=before, others_left=others_left))
    assert numbers.is_whole is not others_left


@pytest.mark.parametrize("bit", [*range(0, 64, 7)])
def test_no_flipped_bit_of_a_parameter_makes_a_fact(bit: int) -> None:
    why, held = gathered(3, 7)
    at = 8 * 8 + bit  # of the pointer `in`
    wrong = (int.from_bytes(GIVEN, "little") ^ 1 << at).to_bytes(len(GIVEN), "little")
    alone = replace(held, lanes=tuple(replace(lane, general=lane.general[:2]) for lane in held.lanes))
    for given in (GIVEN, wrong):
        numbers = Numbers(why.address, replace(alone, parameters=given))
        base = why.address.base
        assert base is not None
        assert numbers.disagree == 0
        assert numbers.how(of(base.value)) == "parameters"
        said = why_text(replace(why, numbers=numbers))
        assert any(line.startswith("by the core's parameters alone: ") for line in said)
        whole = Numbers(why.address, replace(held, parameters=GIVEN))
        assert whole.how(of(base.value)) in ("read", "computed", "solved")  # registers have it too
