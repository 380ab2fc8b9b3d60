"""Planted faults: an interpreter stopped at a bad access becomes a GPU core, and the answer is held to what it knows.

A bad number is put into a table or a parameter, or a pointer is spoilt. The 32 threads of the first warp run until one
leaves its array; they run on for some instructions, as a GPU does, and their registers are the core. Parameters and
local memory are in it where that is asked for, as in a core of the default size; other memory never is.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.builders.core_builder import (
    BlockSpec,
    CoreSpec,
    DeviceSpec,
    LaunchSpec,
    ModuleSpec,
    SmSpec,
    WarpSpec,
    build_core,
)
from tests.support.sass.flow import loops
from tests.support.sass.launches import Kernel, Launch
from tests.support.sass.machine import Machine, Touch
from tests.support.sass.operands import signed
from tests.support.sass.programs import Program, compare_accesses, layout, thread_of
from tests.support.sass.published import Evaluator, Leaves, NotKnown, watched
from tests.support.sass.stopped import FAR, Lane, Stopped, stop
from tests.support.sass.witness import pointers_of, specials

BAD: Final = (-1, 0x7FFFFFFF, 0x3F800000, 1 << 24, -(1 << 22), 0x64636261)
REACH: Final = 1 << 23  # bytes of an array; beyond them is a fault
RUNS_ON: Final = 12


@dataclass(frozen=True)
class Planted:
    """A fault, the core of it, and what is true."""

    program: Program
    name: str
    launch: Launch
    stopped: Stopped
    pointers: tuple[tuple[int, int], ...]
    planted: str

    def core(self, warp: WarpSpec | None = None, *, parameters: bool = False) -> bytes:
        """Return the core, with another warp in it where one is given."""
        module = ModuleSpec(cubin=self.program.cubin)
        held = self.launch.parameters if parameters else None
        warp = warp or self.stopped.warp
        if not parameters:
            warp = replace(warp, lanes={n: replace(lane, local=None) for n, lane in warp.lanes.items()})
        device = DeviceSpec(
            modules=[module],
            launches=[LaunchSpec(kernel=self.name, grid=self.launch.grid, block=self.launch.block,
                                 parameters=held, parameters_offset=layout(self.program.arch)[2])],
            blocks=[BlockSpec(block=self.launch.block_index, warps=[warp])],
            sms={0: SmSpec(exception=14, error_offset=self.stopped.offset)},
        )  # fmt: skip
        return build_core(CoreSpec(devices=[device]))


def plant(
    program: Program, name: str, machine: Machine, kernel: Kernel, start: int, rng: random.Random
) -> Planted | None:
    """Return a fault in a kernel, or None where this try led to none."""
    launch = kernel.launch(random.Random(rng.randrange(1 << 30)))
    if launch is None or launch.block[0] * launch.block[1] * launch.block[2] < 2:
        return None
    clean = thread_of(machine, launch, program.arch)
    machine.run(clean)
    offsets = {touch.offset for touch in clean.touched}
    lines = {at: [line - start for _, line in program.lines(name, at)] for at in offsets}
    found, differences = compare_accesses(launch, clean.touched, lines)
    if differences:
        return None
    ways: dict[int, set[tuple[int, int]]] = {}
    for n, accesses in found.items():
        of_touch = {(argument, at) for _, argument, at in pointers_of(launch, accesses)}
        ways.setdefault(clean.touched[n].offset, set()).update(of_touch)
    spoilt, what = _spoil(kernel, launch, rng)
    if spoilt is None:
        return None
    return _stopped(program, name, machine, spoilt, ways, what, rng)


def _spoil(kernel: Kernel, launch: Launch, rng: random.Random) -> tuple[Launch | None, str]:
    how = rng.random()
    if how < 0.5:
        tables = [one for one in launch.accesses if one.array.startswith("tab") and one.kind == "load"]
        if not tables:
            return None, ""
        one, bad = rng.choice(tables), rng.choice(BAD)
        memory = launch.memory.copy()
        memory.write(one.address, (bad & (1 << 8 * one.size) - 1).to_bytes(one.size, "little"))
        return replace(launch, memory=memory), "table"
    data = bytearray(launch.parameters)
    if how < 0.8:
        places = dict(_scalars(kernel, launch))
        if not places:
            return None, ""
        at, size = rng.choice(sorted(places.values()))
        data[at : at + size] = (rng.choice((1 << 22, 1 << 27, -(1 << 20), 77_777_777)) & (1 << 8 * size) - 1).to_bytes(
            size, "little"
        )
        return replace(launch, parameters=bytes(data)), "parameter"
    _, argument, offset = rng.choice([one for one in launch.pointers.values() if one[1] >= 0])
    at = launch.places[argument][0] + offset
    held = int.from_bytes(data[at : at + 8], "little")
    data[at : at + 8] = rng.choice((0, held ^ 1 << 46, held ^ 1 << 38)).to_bytes(8, "little")
    return replace(launch, parameters=bytes(data)), "pointer"


def _scalars(kernel: Kernel, launch: Launch) -> Iterator[tuple[str, tuple[int, int]]]:
    for parameter, (at, size) in zip(kernel.parameters, launch.places, strict=True):
        name = parameter.declaration.split()[-1]
        if name.startswith("arg") and size >= 4 and "*" not in parameter.declaration:
            yield name, (at, size)


def _stopped(
    program: Program, name: str, machine: Machine, launch: Launch, ways: Mapping[int, set[tuple[int, int]]], what: str,
    rng: random.Random,
) -> Planted | None:  # fmt: skip
    valid = [base for base, _, _ in launch.pointers.values()]
    sizes = launch.block
    ranks = [(n % sizes[0], n // sizes[0] % sizes[1], n // (sizes[0] * sizes[1])) for n in range(32)]
    threads = [thread_of(machine, replace(launch, thread=at), program.arch) for at in ranks if at[2] < sizes[2]]

    def allowed(touch: Touch) -> bool:
        inside = any(base <= touch.address < base + REACH for base in valid)
        return inside or touch.space not in ("global", "generic")

    stopped = stop(machine, threads, allowed, run_on=rng.choice((0, 0, 1, 3, RUNS_ON, rng.randrange(FAR, 8 * FAR))))
    if stopped is None or stopped.offset not in ways or len(stopped.calls) > 1:
        return None
    return Planted(program, name, launch, stopped, tuple(ways[stopped.offset]), what)


@dataclass(frozen=True)
class Damaged:
    """A register of a thread that was changed in the core, and what it had before."""

    thread: tuple[int, ...]
    register: str
    before: int


@dataclass
class Claims:
    """What an answer says as a fact, held against the truth; `weak_index` is one that one register alone carries."""

    lies: list[str] = field(default_factory=list)
    argument: bool = False
    index: bool = False
    weak_index: bool = False
    load: bool = False
    line: bool = False
    value: bool = False
    suspect: bool = False
    said: int = 0
    disagree: int = 0


def check(
    planted: Planted, answer: Mapping[str, Any], machine: Machine, thread: tuple[int, int, int],
    damaged: Collection[Damaged] = (), *, whole: bool = True,
) -> Claims:  # fmt: skip
    """Return what is right and what is wrong in an answer about a planted fault; `thread` is the one it is about.

    `damaged` are the registers that were changed: no other may be named as contradicted. Of a `whole` core also what
    one register alone carries must be true.
    """
    lane = next((one for one in planted.stopped.lanes if one.thread.thread == thread), None)
    claims = Claims(disagree=(answer.get("evidence") or {}).get("disagree") or 0)
    if lane is None:
        claims.lies.append(f"it is about thread {thread}, which did not fault")
        return claims

    def fact(what: str, said: object, true: object, how: str | None = None) -> bool:
        weak = how in ("one register", "parameters")  # said to be no fact
        if said is None or (weak and (not whole or true is None)):
            return False
        claims.said += not weak
        if said != true:
            claims.lies.append(f"{what} is said to be {said}{f' by {how}' if weak else ''}, it is {true}")
        return said == true

    value_how = answer["value_how_known"]
    claims.value = fact("the address", answer["value"], lane.address, value_how) and value_how != "one register"
    lanes_how = (answer["lanes"] or {}).get("how_known")
    by_thread = {one.thread.thread: one.address for one in planted.stopped.lanes}
    for one in (answer["lanes"] or {}).get("addresses", ()):
        fact(f"the address of {one['thread']}", one["value"], by_thread.get(tuple(one["thread"])), lanes_how)
    evaluate = _truth(planted, answer, machine, lane)
    base = answer["base"]
    if base is not None:
        named = (base["argument"] - 1, base["bytes"][0]) if base["argument"] else (-1, 0)
        claims.argument = named in planted.pointers or (named[0] < 0 and any(a < 0 for a, _ in planted.pointers))
        if not claims.argument:
            claims.lies.append(f"the base is said to be {named}, C++ uses {planted.pointers}")
        fact("the base", base["value"], evaluate(base["formula"]), base["how_known"])
        if answer["index"] is not None:
            index, of_formula = answer["index"], evaluate(answer["index"]["formula"])
            true = _of_address(lane, evaluate(base["formula"]), index["scale"])
            if of_formula is not None:
                true = signed(of_formula, 64)
            right = fact("the index", index["value"], true, index["how_known"])
            claims.weak_index = right and index["how_known"] == "one register"
            claims.index = right and not claims.weak_index
    loads = answer["loads"]
    claims.load = True
    for n, one in enumerate(loads):
        claims.load &= one["line"] is not None
        if one["value"] is not None:
            bits = 64 if one["width"] == 8 else 32
            true = evaluate({"loaded": n, "bytes": [0, bits // 8], "bits": bits})
            fact(f"what was loaded at {one['offset']:#x}", one["value"] & (1 << bits) - 1, true, one["how_known"])
        parts = [one[part] for part in ("index", "base") if one[part]]
        if len(parts) == 2 and all(part["value"] is not None and part["how_known"] != "one register" for part in parts):
            said = (one["base"]["value"] + one["index"]["scale"] * one["index"]["value"]) % (1 << 64)
            touched = [t.address for t in lane.thread.touched if t.offset == one["offset"]]
            fact(f"the address of the load at {one['offset']:#x}", said, touched[-1] if touched else None)
    for one in answer["judgement"] or ():
        if one["kind"] == "contradicted register":
            suspect = answer["evidence"]["suspect"]
            claims.suspect = Damaged(tuple(suspect["thread"]), suspect["register"], suspect["expected"]) in damaged
            if not claims.suspect:
                claims.lies.append(f"judged: {one['text']}")
        if one["kind"] == "negative index" and answer["index"] and not (answer["index"]["value"] or -1) < 0:
            claims.lies.append(f"judged: {one['text']}")
    claims.line = all(one["line"] for one in loads)
    return claims


def _of_address(lane: Lane, base: int | None, scale: int) -> int | None:
    """Return the index that the access had by its address, None where no whole number leads to it."""
    index, rest = (0, 1) if base is None else divmod(signed((lane.address - base) % (1 << 64), 64), scale)
    return None if rest else index


def _truth(planted: Planted, answer: Mapping[str, Any], machine: Machine, lane: Lane) -> Callable[[Any], int | None]:
    """Return how a tree is evaluated with what the lane's registers were, not with what the core has of them."""
    inner = tuple(answer["calls"])
    starts = sorted(planted.program.labels(planted.name).values())
    outer = lane.calls[: len(lane.calls) - len(inner)]
    entry = max(one for one in starts if one <= (inner[0] if inner else planted.stopped.offset))

    def destination(offset: int) -> str:
        first = next(one for one in machine.code.lines[offset // 16].operands if one.kind in ("R", "UR"))
        return f"{first.kind}{first.number}"

    launch = replace(planted.launch, thread=lane.thread.thread)
    offsets, heads = watched(answer)
    again, turning = (
        thread_of(machine, launch, planted.program.arch),
        loops(machine.code, planted.program.labels(planted.name)),
    )
    machine.run(
        again, watch=offsets | set(starts), loops={at: turning.get(at, frozenset()) for at in heads},
        until=lambda thread, at: at == lane.offset and thread.steps == lane.step - 1,
    )  # fmt: skip
    leaves = Leaves(
        answer, again, outer, launch.parameters, launch.places, specials(launch), entry, destination
    )  # fmt: skip

    def evaluate(tree: Any) -> int | None:
        try:
            return None if tree is None else Evaluator(leaves).value(tree)
        except NotKnown:
            return None

    return evaluate


def mutate(planted: Planted, rng: random.Random) -> tuple[str, WarpSpec, Sequence[Damaged]]:
    """Return what was done to a planted fault, its warp then, and the registers of one thread that were changed."""
    warp, lanes = planted.stopped.warp, dict(planted.stopped.warp.lanes)
    damaged: list[Damaged] = []
    how, number = (
        rng.choice(("bit", "bit", "word", "lanes", "registers", "later", "uniform", "zero", "local")),
        rng.choice([*lanes]),
    )
    held = lanes[number]
    thread = next(one.thread.thread for one in planted.stopped.lanes if one.number == number)
    if how in ("bit", "word") and held.registers:
        words, at = list(held.registers), rng.randrange(40)
        damaged.append(Damaged(thread, f"R{at}", words[at]))
        words[at] ^= 1 << rng.randrange(32) if how == "bit" else rng.randrange(1, 1 << 32)
        lanes[number] = replace(held, registers=words)
    elif how == "zero":
        damaged += [Damaged(thread, f"R{n}", word) for n, word in enumerate(held.registers or ())]
        lanes[number] = replace(held, registers=(0,) * 255)
    elif how == "registers":
        lanes[number] = replace(held, registers=None)
    elif how == "local" and held.local is not None:
        words, at = list(struct.unpack(f"<{len(held.local[1]) // 4}I", held.local[1])), -rng.randint(1, 16)
        words[at] ^= 1 << rng.randrange(32)
        lanes[number] = replace(held, local=(held.local[0], struct.pack(f"<{len(words)}I", *words)))
    elif how == "lanes":
        gone = sum(1 << n for n in lanes if rng.random() < 0.5 and n != number)
        return how, replace(
            warp, valid=warp.valid & ~gone, active=warp.active & ~gone, marked=warp.marked & ~gone,
            lanes={n: one for n, one in lanes.items() if not gone >> n & 1},
        ), ()  # fmt: skip
    elif how == "later":
        end = 16 * rng.randint(1, 6)
        lanes = {n: replace(one, offset=one.offset + end) for n, one in lanes.items()}
        return how, replace(warp, offset=warp.offset + end, lanes=lanes), ()
    else:
        uniform = list(warp.uniform)
        uniform[rng.randrange(20)] ^= 1 << rng.randrange(32)
        return "uniform", replace(warp, uniform=uniform), ()
    return how, replace(warp, lanes=lanes), damaged
