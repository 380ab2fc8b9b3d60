"""Which thread of a warp had the bad address: a GPU marks all that ran the access, and one bad address is enough.

A thread is named for certain where its address cannot be one, where every other address is good, or where what is out
of bounds of an array must be the address that is farthest from its pointer. Else its choice says how many may be it.

An array is one piece of memory with its pointer inside. So where a thread past the pointer is out of bounds, the
farthest one past it is too, and likewise before it. Where some are past it and some before it, it may be either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Final, Literal

from gpucore.explain.algebra import Atom, of
from gpucore.explain.numbers import SHARED_WINDOW, Choice, Numbers, Reason
from gpucore.explain.operations import signed

ADDRESSES: Final = 1 << 49
"""No device address reaches this: today's GPUs have virtual addresses of 49 bits at most."""
FIRST_ADDRESS: Final = 1 << 16
"""No memory is mapped below: what is there is a null pointer and an index."""
MISALIGNED: Final = frozenset({6, 11})
"""Exceptions that only an address raises which is no multiple of what the access needs."""
_PAGE: Final = 4096  # bytes: memory is mapped in no smaller piece
_STACK_POINTER: Final = 1  # R1
_BEFORE: Final = 1024  # how much likelier than past its pointer an address is bad before it, by the same distance

Holds = Callable[[int, int], bool]
"""Says whether a core has the memory of an address and of so many bytes: it was mapped then."""


@dataclass(frozen=True)
class _Access:
    """What is known of the access of one thread, by its place in the warp."""

    place: int
    address: int | None
    pointer: int | None
    """The value of the pointer that it is based on."""
    near: object
    """What it has in common with those that are based on the same pointer; None where that is not known."""
    distance: int | None
    """Bytes from its pointer."""
    kind: Literal["bad", "good", "possible"] = "possible"


def alignment(width: int) -> int:
    """Return what an address of an access of so many bytes is a multiple of; 1 where that is not known."""
    return min(width, 16) if width & (width - 1) == 0 else 1


def choose_thread(
    numbers: Numbers, exception: int | None = None, holds: Holds | None = None, mapped: Holds | None = None
) -> None:
    """Choose the thread to explain, and say how sure that choice is.

    `exception` is the code of what was raised, `holds` asks the core's own global memory. `mapped` asks a map that may
    be of another moment: it shows what is likely and makes nothing certain.
    """
    places = numbers.accessing()
    if not places:
        return
    wrong = numbers.suspect.thread if numbers.suspect is not None else None
    if wrong is not None:
        numbers.chosen = next(place for place in places if numbers.thread_of(place) == wrong)
        numbers.choice = Choice(False, len(places), "likeliest")
        return
    found = [_access(numbers, place) for place in places]
    # Of pointers that differ by thread each may be the bad one.
    shared = len({one.pointer for one in found}) == 1
    accesses = [_judged(numbers, one, exception, holds, shared) for one in found]
    numbers.chosen, numbers.choice = _choose(numbers, accesses, exception)
    if not numbers.choice.certain and mapped is not None and exception not in MISALIGNED:
        width = numbers.address.width
        known = [one for one in accesses if one.kind != "good" and one.address is not None]
        outside = [one for one in known if one.address is not None and not mapped(one.address, width)]
        if outside and len(outside) < len(known):  # a map that has none of them is not of this memory
            likeliest = _farthest(outside)[0]
            numbers.chosen = outside[0].place if likeliest is None else likeliest
            numbers.choice = Choice(False, numbers.choice.possible, "likeliest", numbers.choice.bad)


def _choose(numbers: Numbers, accesses: Sequence[_Access], exception: int | None) -> tuple[int, Choice]:
    count, first, width = len(accesses), accesses[0], numbers.address.width
    whole = numbers.is_whole and (count == 1 or not numbers.disagree)
    ran = whole and numbers.sure
    bad = [one for one in accesses if one.kind == "bad"]
    possible = [one for one in accesses if one.kind != "good"]
    if len(possible) == 1 and whole:
        numbers.sure = True  # one address was bad, so this thread ran the access
        return possible[0].place, Choice(True, 1, "bad" if bad else "alone", 1)
    if bad:
        reason: Reason = "alike" if len(bad) == count else "bad"
        return bad[0].place, Choice(numbers.sure, len(possible), reason, len(bad))
    if ran and (count == 1 or _is_same(accesses) or (exception not in MISALIGNED and _in_one_page(accesses, width))):
        return first.place, Choice(True, count, "alike", count)
    if not possible:  # what is known contradicts the exception
        return first.place, Choice(False, count, "unknown")
    likeliest, decided, known = (None, False, 0) if exception in MISALIGNED else _farthest(possible)
    if likeliest is None or known == 1 < len(possible):
        return possible[0].place, Choice(False, len(possible), "unknown")
    if known < len(possible):  # that of which nothing is known may be farther
        return likeliest, Choice(False, len(possible), "unknown", farthest_of=known)
    certain = ran and decided
    return likeliest, Choice(certain, len(possible), "farthest" if certain else "likeliest")


def _farthest(possible: Sequence[_Access]) -> tuple[int | None, bool, int]:
    """Return the thread whose address is the likeliest to be bad, whether that is decided, and of how many it is.

    It is None where nothing sets a thread apart.
    """
    far = {one.place: one.distance for one in possible if one.distance is not None and one.near is not None}
    if len({one.near for one in possible if one.place in far}) == 1:
        likeliest = max(far, key=lambda place: -_BEFORE * far[place] if far[place] < 0 else far[place])
        one_side = len({distance < 0 for distance in far.values()}) == 1
        return likeliest, one_side and len(far) == len(possible), len(far)
    held = {one.place: one.address for one in possible if one.address is not None}
    if len(set(held.values())) < 2:
        return None, False, 0
    middle = median_low(held.values())
    return max(held, key=lambda place: abs(held[place] - middle)), False, len(held)


def _is_same(accesses: Sequence[_Access]) -> bool:
    """Say whether all threads accessed one address."""
    first = accesses[0]
    if None in {first.near, first.distance}:
        return False
    return all((one.near, one.distance) == (first.near, first.distance) for one in accesses)


def _in_one_page(accesses: Sequence[_Access], width: int) -> bool:
    pages = {_page(one.address, width) for one in accesses}
    return len(pages) == 1 and None not in pages


def _page(address: int | None, width: int) -> int | None:
    """Return the page that an access is in; None for one that is in two."""
    if address is None or address // _PAGE != (address + width - 1) // _PAGE:
        return None
    return address // _PAGE


def _access(numbers: Numbers, place: int) -> _Access:
    address, at = numbers.address, numbers.address_of(place)
    if address.space == "shared":
        return _Access(place, at, None, "shared memory", None if at is None else at & SHARED_WINDOW)
    if address.space == "local":
        general = numbers.registers_of(place)
        stack = general[_STACK_POINTER] if len(general) > _STACK_POINTER else None
        return _Access(place, at, stack, stack, None if at is None or stack is None else at - stack)
    base = numbers.base_of(place)
    pointer = numbers.value(of(base), place) if base is not None else None
    index = numbers.value(address.index, place) if address.index is not None else None
    distance = None
    if index is not None:
        distance = signed(index * address.scale, 64)
    elif at is not None and pointer is not None:
        distance = signed(at - pointer, 64)
    near: object = pointer
    if pointer is None and base is not None and _is_argument(base):
        near = base  # which all threads have
    return _Access(place, at, pointer, near, distance)


def _is_argument(base: Atom) -> bool:
    low = base.args[0] if base.kind == "wide" else base
    return isinstance(low, Atom) and low.kind == "bank"


def _judged(numbers: Numbers, one: _Access, exception: int | None, holds: Holds | None, shared: bool) -> _Access:
    """Return an access with what its own address says of it; `shared` says whether all have one pointer."""
    address, width = numbers.address, numbers.address.width
    if exception in MISALIGNED:
        if one.address is None:
            return one
        return replace(one, kind="bad" if one.address % alignment(width) else "good")
    if address.space == "shared":
        size = numbers.snapshot.shared_size
        if one.distance is None or size is None or one.address != one.distance:
            return one
        return replace(one, kind="bad" if one.distance + width > size else "good")
    if address.space == "local":
        return replace(one, kind=_of_stack(numbers, one, width))
    return replace(one, kind=_of_global(one, width, holds, shared))


def _of_stack(numbers: Numbers, one: _Access, width: int) -> Literal["bad", "good", "possible"]:
    local = numbers.local_of(one.place)
    if local is None or one.address is None:
        return "possible"
    return "good" if local[0] <= one.address and one.address + width <= local[0] + len(local[1]) else "bad"


def _of_global(one: _Access, width: int, holds: Holds | None, shared: bool) -> Literal["bad", "good", "possible"]:
    at, pointer = one.address, one.pointer
    for value, end in ((at, width), (pointer, 1)):
        if value is not None and (value < FIRST_ADDRESS or value + end > ADDRESSES):
            return "bad"
    if one.distance is not None and abs(one.distance) >= ADDRESSES:
        return "bad"
    if at is None:
        return "possible"
    if holds is not None and holds(at, width):
        return "good"
    return "good" if shared and pointer is not None and _page(at, width) == pointer // _PAGE else "possible"
