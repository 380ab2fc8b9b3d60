"""What is said about the accesses of compiled kernels, and that the published tree has the value of the formula."""

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucore import CodeMap
from gpucore.core import Scope, find_faults, with_callers
from gpucore.core_reader import CoreSections, read_core
from gpucore.explain import Program, Why, explain_place, explain_wait, wait_json, wait_text, why_json, why_text
from gpucore.explain import operations as op
from gpucore.explain.address import access_of
from gpucore.explain.algebra import ZERO64, Atom, Poly, atom, constant, inside, leaf, of, zx
from gpucore.explain.barrier import Held, held_at
from gpucore.explain.code import Code, Routine
from gpucore.explain.equations import Equations
from gpucore.explain.evaluate import Unknown, Values
from gpucore.explain.fault import explain_fault
from gpucore.explain.judgement import Judgement, judge_numbers
from gpucore.explain.notation import Legend, Words
from gpucore.explain.numbers import Lane, Numbers, Snapshot
from gpucore.explain.slice import Slice
from gpucore.explain.thread import choose_thread
from gpucore.sass import WORD, Immediate, Instruction, Memory, Register, RegisterOperand, decode, read_listings
from gpucore.sass.model import Known
from tests.builders.core_builder import (
    BlockSpec,
    CoreSpec,
    DeviceSpec,
    LaneSpec,
    LaunchSpec,
    ModuleSpec,
    WarpSpec,
    build_core,
)
from tests.support.golden import assert_golden

DATA = Path(__file__).parents[2] / "data" / "explain"
KERNELS = ("cache", "gather", "overflow", "quotients", "clamped", "calls", "window", "wait")
SPECIAL = {"blockDim.x": 128, "blockDim.y": 2, "blockDim.z": 1, "gridDim.x": 64, "gridDim.y": 8, "gridDim.z": 1}
BLOCK = (5, 3, 0)


def source(file: str) -> list[str] | None:
    name = Path(file).name
    return (DATA / name).read_text().splitlines() if name == "why.cu" else None


@cache
def program(kernel: str) -> Program:
    code = CodeMap((DATA / "why_sm90.cubin").read_bytes())
    listings = {x.name: x.instructions for x in read_listings((DATA / "why_sm90.json").read_text())}
    (found,) = [f for f in code.kernels if f.demangled.startswith(f"{kernel}(")]
    return Program(code, found.section, listings[found.name], source)


def answers(kernel: str) -> Iterator[Why]:
    for i in program(kernel).instructions:
        if access_of(i) is not None:
            why = explain_place(program(kernel), i.offset)
            assert why is not None
            yield why


def the_access(kernel: str, opcode: str, number: int = -1) -> Why:
    return [w for w in answers(kernel) if w.address.opcode == opcode][number]


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_accesses_of_a_kernel_in_words(kernel: str) -> None:
    lines: list[str] = []
    for why in answers(kernel):
        lines += [f"{why.address.opcode} at {why.address.offset:#x}", *(f"    {line}" for line in why_text(why))]
    assert_golden(f"explain/{kernel}.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("kernel", "opcode", "number", "base"),
    [
        ("cache", "STG", -1, "key_cache"),
        ("cache", "LDG", 0, "slot_mapping"),
        ("gather", "LDG", -1, "in"),
        ("overflow", "LDG", -1, "view"),
        ("quotients", "STG", -1, "out"),
        ("clamped", "LDG", -1, "in"),
        ("calls", "STG", -1, "out"),
        ("wait", "LDG", -1, "flag"),
    ],
)
def test_the_base_is_the_argument_that_the_source_subscripts(kernel: str, opcode: str, number: int, base: str) -> None:
    found = the_access(kernel, opcode, number).address.base
    assert found is not None
    assert found.argument is not None
    assert found.argument.name == base


def test_a_called_function_is_explained_as_called_from_each_place() -> None:
    why = the_access("calls", "LDG")
    assert "at entry" in why_text(why)[1]
    calls = [i.offset for i in program("calls").instructions if i.opcode == "CALL"]
    for call, is_second in zip(calls, (False, True), strict=True):
        inside = explain_place(program("calls"), why.address.offset, [call])
        assert inside is not None
        (line,) = [x for x in why_text(inside) if x.startswith("=")]
        assert line.startswith("= table (argument 2, int const*) + 4 * ")
        assert "threadIdx.x" in line
        assert line.endswith(" + 1)") is is_second


def test_the_thread_that_is_elected_has_a_name_and_the_place_of_its_election() -> None:
    whole = json.loads((DATA / "why_sm90.json").read_text())
    (function,) = [x for x in whole[1] if x["function-name"].startswith("_Z7clamped")]
    body = function["sass-instructions"]
    body[8] = {"opcode": "ELECT", "operands": "P0,UR6,PT"}
    body[10] = {"opcode": "MOV", "operands": "R0,UR6"}
    (listing,) = [x for x in read_listings(json.dumps(whole)) if x.name == function["function-name"]]
    code, section = CodeMap((DATA / "why_sm90.cubin").read_bytes()), program("clamped").section
    why = explain_place(Program(code, section, listing.instructions, source), 0xF0)
    assert why is not None
    here = "at why.cu:37"
    index = f"(min({{electedLane {here}}}, count - 1) << ({{elected {here}}} ? 1 : 0))"
    assert why_text(why)[1] == f"= in (argument 2, float const*) + 4 * {index}"
    told = json.dumps(why_json(why))
    assert '{"special": "elected", "bits": 1, "at": 128, "register": "P0"}' in told
    assert '{"special": "electedLane", "bits": 32, "at": 128, "register": "UR6"}' in told
    assert json.loads(told)["not_known"] == []


def a_core_of_calls(stands: int, calls: tuple[int, ...]) -> tuple[Sequence[Instruction], bytes]:
    """The called function of `calls` with a store in place of its load, which failed; its threads stand elsewhere."""
    load = the_access("calls", "LDG").address.offset
    whole = json.loads((DATA / "why_sm90.json").read_text())
    (function,) = [x for x in whole[1] if x["function-name"].startswith("_Z5calls")]
    stores = [x for x in function["sass-instructions"] if x["opcode"].startswith("STG")]
    function["sass-instructions"][load // 16] = stores[-1]
    (listing,) = [x for x in read_listings(json.dumps(whole)) if x.name == function["function-name"]]
    warp = WarpSpec(offset=load + stands, error_offset=load, exception=14, calls=calls)
    device = DeviceSpec(
        modules=[ModuleSpec(cubin=(DATA / "why_sm90.cubin").read_bytes())], launches=[LaunchSpec(kernel="calls(")],
        blocks=[BlockSpec(block=BLOCK, warps=[warp])],
    )  # fmt: skip
    return listing.instructions, build_core(CoreSpec(devices=[device]))


@pytest.mark.parametrize(("number", "hold"), [(0, True), (1, False)])
def test_a_store_whose_thread_may_be_in_a_later_call_is_explained_without_calls(number: int, hold: bool) -> None:
    call = [i.offset for i in program("calls").instructions if i.opcode == "CALL"][number]
    changed, data = a_core_of_calls(16, (call + 16,))
    core = read_core(data)
    (fault,) = with_callers(core, data, find_faults(core))
    assert len(fault.calls) == 1
    why = explain_fault(
        core, CoreSections(data), fault, lambda code, place: Program(code, place.section, changed, source)
    )
    assert why is not None
    assert why.address.direction == "write"
    assert (why.calls_hold, bool(why.address.calls), why.numbers is not None) == (hold, hold, hold)


def test_the_calls_of_a_thread_that_has_returned_are_not_those_of_its_store() -> None:
    (call, *_) = [i.offset for i in program("calls").instructions if i.opcode == "CALL"]
    load = the_access("calls", "LDG").address.offset
    _, data = a_core_of_calls(call + 16 - load, (call + 32,))
    core = read_core(data)
    (fault,) = with_callers(core, data, find_faults(core))
    assert fault.location is not None
    assert fault.calls == ()


# The tree, evaluated by nothing but its own description.


def evaluate(tree: dict[str, object], leaves: dict[str, int]) -> int:
    bits = tree["bits"]
    assert isinstance(bits, int)
    if "op" not in tree:
        value = tree["constant"] if "constant" in tree else leaves[json.dumps(tree, sort_keys=True)]
        assert isinstance(value, int)
        return value & ((1 << bits) - 1)
    arguments = tree["args"]
    assert isinstance(arguments, list)
    op = tree["op"]
    if op == "select":
        return evaluate(arguments[1 if evaluate(arguments[0], leaves) else 2], leaves)
    v = [evaluate(x, leaves) for x in arguments]
    width = arguments[0]["bits"]

    def s(x: int) -> int:
        return x - (1 << width) if x >> (width - 1) else x

    match op:
        case "add":
            value = sum(v)
        case "mul":
            value = 1
            for x in v:
                value *= x
        case "and":
            value = v[0] & v[1]
        case "or":
            value = v[0] | v[1]
        case "xor":
            value = v[0] ^ v[1]
        case "not":
            value = 1 - v[0]
        case "eq":
            value = int(v[0] == v[1])
        case "lt_u":
            value = int(v[0] < v[1])
        case "lt_s":
            value = int(s(v[0]) < s(v[1]))
        case "shl":
            value = v[0] << v[1] if v[1] < width else 0
        case "shr":
            value = v[0] >> v[1]
        case "sar":
            value = s(v[0]) >> min(v[1], width)
        case "zero_extend":
            value = v[0]
        case "sign_extend":
            value = s(v[0])
        case "low":
            value = v[0]
        case "high":
            value = v[0] >> 32
        case "pair":
            value = v[0] | v[1] << 32
        case "min_s":
            value = min(s(v[0]), s(v[1]))
        case "max_s":
            value = max(s(v[0]), s(v[1]))
        case "div_u":
            value = v[0] // v[1] if v[1] else -1
        case "rem_u":
            value = v[0] % v[1] if v[1] else -1
        case "div_s" | "rem_s":
            a, b = s(v[0]), s(v[1])
            quotient = (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else -1
            value = quotient if op == "div_s" else a - b * quotient if b else -1
        case _:
            raise AssertionError(f"the description does not have {op}")
    return value & ((1 << bits) - 1)


class Given:
    """Values of leaves, the same for the formula and for the published leaf."""

    def __init__(self, why: Why, draw: list[int]) -> None:
        self.why, self.draw = why, draw
        self.atoms: dict[Atom, int] = {}

    def __call__(self, a: Atom) -> int:
        if a not in self.atoms:
            value = self.draw[len(self.atoms) % len(self.draw)]
            self.atoms[a] = min(value, a.most) & ((1 << a.bits) - 1)
        return self.atoms[a]

    def leaves(self) -> dict[str, int]:
        found = {}
        for a, value in self.atoms.items():
            found[json.dumps(self.why.legend.leaf(a, 1 if a.bits == 32 else 2), sort_keys=True)] = value
        for a, value in self.atoms.items():
            for b in self.atoms:
                step = {"bank": 4, "load": 1}.get(a.kind)
                if a.kind == b.kind and step and a.args[0] == b.args[0] and a.args[1] + step == b.args[1]:  # type: ignore[operator]
                    wide = self.why.legend.leaf(atom("wide", a, b, bits=64), 2)
                    found[json.dumps(wide, sort_keys=True)] = value | self.atoms[b] << 32
        return found


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(KERNELS),
    st.lists(st.one_of(st.integers(0, 50), st.integers(0, (1 << 32) - 1)), min_size=6, max_size=20),
)
def test_the_published_tree_has_the_value_of_the_formula(kernel: str, draw: list[int]) -> None:
    for why in answers(kernel):
        given_values = Given(why, draw)
        wanted = Values(given_values).of(why.address.formula)
        tree = why_json(why)["formula"]
        assert isinstance(tree, dict)
        if "div_s" in json.dumps(tree) and any(v == 0 for v in given_values.atoms.values()):
            continue  # 64-bit quotients have no value for a divisor of 0
        assert evaluate(tree, given_values.leaves()) == wanted


def large(seed: int) -> Poly:
    """A formula of some hundred values, each of which the next one uses twice: some 2^30 nodes as a tree."""
    draw = Random(seed)
    value = leaf("special", "threadIdx.x") + leaf("special", "blockIdx.x") * 128
    for _ in range(30):
        condition = op.compare("LT", value, op.bit_and(value, constant(draw.randrange(1 << 31))), True)
        assert condition is not None
        value = op.select(condition, value + draw.randrange(9), op.bit_xor(value, constant(draw.randrange(1 << 20))))
    return value


@pytest.mark.parametrize("seed", range(6))
def test_a_formula_that_is_too_large_for_a_tree_is_published_in_parts(seed: int) -> None:
    store = the_access("gather", "STG").address
    assert store.base is not None
    index = zx(large(seed))
    address = replace(store, formula=of(store.base.value) + index * 4, scale=4, index=index)
    why = Why(address, Legend(address))
    document = json.loads(json.dumps(why_json(why)))
    assert (document["formula"], document["index"]["formula"]) == (None, None)
    given_values = Given(why, [7, 300, 12345])
    wanted = Values(given_values).of(index)
    leaves = given_values.leaves()
    in_parts = document["in_parts"]
    for number, part in enumerate(in_parts["parts"]):
        tree = json.dumps({"part": number, "bits": part["bits"]}, sort_keys=True)
        leaves[tree] = evaluate(part, leaves)  # it refers to earlier ones alone
    assert evaluate(in_parts["formulas"]["/index/formula"], leaves) == wanted
    assert len(json.dumps(in_parts)) < 40_000
    lines = why_text(why)
    assert "..." not in "\n".join(lines)
    assert max(map(len, lines)) < 400
    named = [line.split()[0] for line in lines if " is " in line and line.startswith("part")]
    assert named == [f"part{n + 1}" for n in range(len(named))]
    assert len(named) > 20


def test_what_is_too_large_even_in_parts_is_left_out() -> None:
    store = the_access("gather", "STG").address
    index = constant(0, 64)
    for seed in range(60):
        index = index + zx(large(seed))
    address = replace(store, formula=index, index=index)
    document = why_json(Why(address, Legend(address)))
    assert (document["formula"], document["in_parts"]) == (None, None)


def in_loop(formula: Callable[[int], Poly]) -> Why:
    """Return the answer for an address that is this formula, given the header of a loop of the kernel."""
    store = the_access("gather", "STG").address
    address = replace(store, formula=formula(next(iter(store.slice.code.loops))), bases=(), index=None, guards=())
    return Why(address, Legend(address))


def test_a_word_of_a_loop_variable_of_two_is_published_as_that() -> None:
    def words(header: int) -> Poly:
        low, high = (atom("phi", header, "R", n) for n in (60, 61))
        return of(atom("wide", low, high, bits=64)) + zx(leaf("and", of(low), constant(96))) + zx(of(high)) * 2

    why = in_loop(words)
    text = json.dumps(why_json(why)["formula"])
    assert ("opaque" in text, len(why.legend.loops)) == (False, 1)
    for half in ("low", "high"):
        assert json.dumps({"op": half, "bits": 32, "args": [{"loop": 0, "bits": 64}]}) in text
    assert "(lower32(loop1) & 96)" in why_text(why)[1]


def test_text_describes_some_of_many_loop_variables_and_json_more() -> None:
    def sum_of(count: int) -> Why:
        return in_loop(lambda header: sum((zx(leaf("phi", header, "R", n)) * n for n in range(1, count)), ZERO64))

    why = sum_of(41)
    described = [line for line in why_text(why) if line.startswith("loop")]
    assert (len(described), "16 more variables of loops are in the JSON alone" in why_text(why)) == (24, True)
    document = why_json(why)
    assert isinstance(document["loops"], list)
    assert (len(document["loops"]), "opaque" in json.dumps(document["formula"])) == (40, False)
    assert '{"opaque": "phi", "bits": 32' in json.dumps(why_json(sum_of(81))["formula"])
    assert not [line for line in why_text(sum_of(25)) if "more variables" in line]


def test_answers_of_small_formulas_have_no_parts() -> None:
    assert [why_json(why)["in_parts"] for why in answers("cache")] == [None] * len(list(answers("cache")))


# Numbers, from registers that the formulas themselves give.


def snapshot(why: Why, leaves: dict[Atom, int], later: int = 0) -> Snapshot:
    """Return a warp that stopped `later` instructions behind the access, with the registers that it then has."""
    values, n = why.address.slice, why.address.instruction
    at = min(n + later, values.code.blocks[values.code.block_of(n)][1])
    lanes = []
    for number in range(32):
        own = {**leaves, atom("special", "threadIdx.x"): number, atom("special", "laneId"): number}
        computed = Values(lambda a, own=own: own[a] if a in own else _no(a))  # type: ignore[misc]
        lanes.append(Lane(number, (number, 0, 0), at, tuple(_register(values, computed, k, n, at) for k in range(48))))
    return Snapshot(BLOCK, tuple(lanes), (), SPECIAL)


def _no(a: Atom) -> int:
    raise Unknown(a)


def _register(values: Slice, computed: Values, k: int, n: int, at: int) -> int:
    code = values.code
    r = Register("R", k)
    site = code.definition(r, at)
    if site.kind == "entry" or site.at == n:
        return 0xABCD0000 + k
    try:
        return computed.of(values.run(lambda: values.value_of(site, r)))
    except Unknown:
        return 0xABCD0000 + k


def gathered(row: int = 0xFFFFFFFF, turn: int = 7, stride: int = 4096) -> tuple[Why, Snapshot]:
    why = the_access("gather", "LDG")
    base = 0x7F1260000000
    words = {0x210: 0x1000, 0x214: 0x7F20, 0x218: base & 0xFFFFFFFF, 0x21C: base >> 32, 0x220: 0x40, 0x224: 0x7F33,
             0x228: stride, 0x22C: 1000}  # fmt: skip
    leaves = {atom("bank", 0, at, 4): value for at, value in words.items()}
    leaves |= {atom("special", name): value for name, value in SPECIAL.items()}
    leaves |= {atom("special", f"blockIdx.{x}"): v for x, v in zip("xyz", BLOCK, strict=True)}
    for a in inside(why.address.formula):
        if a.kind in {"load", "phi"}:
            leaves[a] = row if a.kind == "load" else turn
    return why, snapshot(why, leaves)


def with_numbers(why: Why, held: Snapshot) -> Why:
    return Why(why.address, why.legend, why.names, Numbers(why.address, held))


def judged(why: Why) -> list[Judgement]:
    assert why.numbers is not None
    if why.numbers.disagree:
        return []
    return judge_numbers(why.address, why.numbers, Words(why.legend, why.names), why.index_as_fact)


def test_a_table_that_holds_minus_one_is_named_with_its_index() -> None:
    why, held = gathered()
    text = "\n".join(why_text(with_numbers(why, held)))
    assert_golden("explain/gather-numbers.txt", text + "\n")
    document = why_json(with_numbers(why, held))
    assert document["value"] == 0x7F1260000000 + 4 * (7 - 4096)
    kinds = [one["kind"] for one in document["judgement"]]  # type: ignore[attr-defined]
    assert kinds == ["negative index", "not compared"]  # -1 is not all of the index


def test_the_thread_whose_address_is_bad_is_explained_where_its_whole_warp_failed() -> None:
    why, bad = gathered(3, -(1 << 20) & 0xFFFFFFFF)
    _, good = gathered(3)
    lanes = (*good.lanes[:9], bad.lanes[9], *good.lanes[10:])
    mixed = with_numbers(why, Snapshot(BLOCK, lanes, (), SPECIAL))
    assert mixed.numbers is not None
    assert mixed.numbers.disagree == 0
    assert not judged(mixed)
    choose_thread(mixed.numbers)
    assert mixed.numbers.lane is not None
    assert mixed.numbers.lane.thread == (9, 0, 0)
    assert [j.kind for j in judged(mixed)] == ["negative index"]


def warp_of_two_turns(far: int) -> bytes:
    """A core whose warp is marked in all threads, as an H100 marks it: thread 9 is in turn `far`, all others in 7."""
    (why, odd), (_, even) = gathered(3, far), gathered(3)
    at = why.address.offset
    lanes = {
        n: LaneSpec(offset=at, registers=(odd if n == 9 else even).lanes[n].general) for n in range(32)
    }  # fmt: skip
    uniform = {6: 128, 7: 1000, 8: 4096, 10: 0x60000000, 11: 0x7F12}
    warp = WarpSpec(
        offset=at, error_offset=at, exception=14, lanes=lanes, uniform=[uniform.get(n, 0) for n in range(63)]
    )
    launch = LaunchSpec(kernel="gather(", grid=(64, 8, 1), block=(128, 2, 1))
    device = DeviceSpec(
        modules=[ModuleSpec(cubin=(DATA / "why_sm90.cubin").read_bytes())], launches=[launch],
        blocks=[BlockSpec(block=BLOCK, warps=[warp])],
    )  # fmt: skip
    return build_core(CoreSpec(devices=[device]))


@pytest.mark.parametrize(("far", "thread"), [(1 << 20, (9, 0, 0)), (8, (0, 0, 0))])
def test_of_a_warp_that_is_marked_as_a_whole_the_thread_is_explained_that_is_farthest_away(
    far: int, thread: tuple[int, int, int]
) -> None:
    data = warp_of_two_turns(far)
    core = read_core(data)
    (fault,) = find_faults(core)
    assert (fault.scope, fault.threads) == (Scope.LANE, 32)
    instructions = program("gather").instructions
    why = explain_fault(
        core, CoreSections(data), fault, lambda code, place: Program(code, place.section, instructions, source)
    )
    assert why is not None
    assert why.numbers is not None
    assert why.numbers.lane is not None
    assert why.numbers.lane.thread == thread
    assert why.numbers.choice.certain
    far_away = "of 32 threads of the warp this one is the farthest from the pointer, so it is out of bounds"
    alike = "the addresses of all 32 threads of the warp are bad alike"
    assert (far_away in why_text(why), alike in why_text(why)) == (thread != (0, 0, 0), thread == (0, 0, 0))


STORE, MEET = 0x200, 0x210  # of branch.cu: the store, and where its branch meets those who passed it by


def met_again(flags: dict[int, int]) -> Why:
    """A warp behind the branch, all of it marked; a thread stored where its flag is positive."""
    out, stride, far = 0x7F1260000000, 3, 1 << 30
    code = CodeMap((DATA / "branch_sm90.cubin").read_bytes())
    (kernel,) = code.kernels
    words = code.elf.contents(code.elf.sections[kernel.section])
    branch = Program(code, kernel.section, decode(words, 90), source)
    why = explain_place(branch, STORE)
    assert why is not None
    at = why.address.slice.code.place(MEET)
    lanes = []
    for n in range(32):
        i, flag = 5 * 128 + n, flags.get(n, 0)
        to = out + 4 * (i * stride + far)
        stored = {0: flag, 7: i, 4: to & 0xFFFFFFFF, 5: to >> 32, 2: i * stride + far, 3: 0x3F800000}
        passed = {0: flag, 7: i, 4: 0x5EED, 5: 0x5EED, 2: 0x5EED, 3: 0x5EED}
        registers = stored if flag > 0 else passed
        lanes.append(Lane(n, (n, 0, 0), at, tuple(registers.get(k, 0) for k in range(16))))
    uniform = {6: out & 0xFFFFFFFF, 7: out >> 32, 8: stride, 9: far}
    given = struct.pack("<QQQii", out, 0x7F2000001000, 0x7F3300000040, stride, far)
    return with_numbers(why, Snapshot(BLOCK, tuple(lanes), tuple(uniform.get(k, 0) for k in range(16)), SPECIAL, given))


def test_a_thread_that_passed_the_access_by_is_not_said_to_have_run_it() -> None:
    why = met_again({3: 2, 9: 1})
    assert why.numbers is not None
    assert why.numbers.disagree == 0
    assert why.numbers.accessing() == [3, 9]
    assert why.numbers.sure
    assert why_text(why)[0].startswith("thread (3,0,0) of block (5,3,0) wrote 4 bytes of global memory at 0x7f13600")


def test_where_registers_do_not_tell_who_ran_the_access_the_answer_says_so() -> None:
    why = met_again({3: 2})
    assert why.numbers is not None
    lanes = tuple(replace(lane, general=()) for lane in why.numbers.snapshot.lanes)
    less = with_numbers(why, replace(why.numbers.snapshot, lanes=lanes))
    assert less.numbers is not None
    assert len(less.numbers.accessing()) == 32
    assert why_text(less)[0].startswith("thread (0,0,0) of block (5,3,0), if it ran this, wrote 4 bytes")


def walked(access: int) -> Why:
    """The walk of a list, explained at one of its two loads of each turn; thread k is at place 7 + k."""
    code = CodeMap((DATA / "walk_sm90.cubin").read_bytes())
    (kernel,) = code.kernels
    walk = Program(code, kernel.section, decode(code.elf.contents(code.elf.sections[kernel.section]), 90), source)
    loads = [i.offset for i in walk.instructions if i.opcode == "LDG"]
    why = explain_place(walk, loads[access])
    assert why is not None
    words = (0x1000, 0x7F20, 0x60000000, 0x7F12, 0x40, 0x7F33, 100)
    leaves = {atom("bank", 0, 0x210 + 4 * k, 4): word for k, word in enumerate(words)}
    leaves |= {atom("special", name): value for name, value in SPECIAL.items()}
    leaves |= {atom("special", f"blockIdx.{x}"): v for x, v in zip("xyz", BLOCK, strict=True)}
    leaves |= {a: 7 for a in inside(why.address.formula) if a.kind == "phi"}
    return with_numbers(why, replace(snapshot(why, leaves), parameters=struct.pack("<7I", *words)))


def test_what_only_a_later_turn_loads_is_not_said_to_have_been_loaded() -> None:
    why = walked(access=0)
    assert why.index == (7, "solved")
    (later,) = [line for line in why_text(why) if line.startswith("loaded1")]
    assert later == "loaded1 is loaded at walk.cu:8: argument1[loop1]"
    load = why_json(why)["loads"][0]  # type: ignore[index]
    assert (load["index"]["value"], load["value"]) == (None, None)


def test_the_bad_load_itself_is_not_said_to_have_loaded_what_a_later_turn_has() -> None:
    why = walked(access=1)
    assert why.index is not None
    assert "loaded1 is loaded at walk.cu:8: argument1[loop1]" in why_text(why)


def test_registers_that_the_bad_load_was_to_write_do_not_hold_its_address() -> None:
    plain = walked(access=0)
    assert plain.numbers is not None
    held = plain.numbers.snapshot
    returned = [  # on an H100 the load has returned 0 when the thread stops at the first use
        replace(lane, at=(lane.at or 0) + 5, general=(*lane.general[:2], 0, lane.general[3], 0, 0, *lane.general[6:]))
        for lane in held.lanes
    ]
    later = with_numbers(plain, replace(held, lanes=tuple(returned)))
    assert later.numbers is not None
    assert later.numbers.disagree == 0
    assert (later.value_of_address, later.index) == (None, None)


def test_the_last_bytes_of_the_arguments_count_where_they_fill_no_word() -> None:
    why, held = gathered()
    words = (0x1000, 0x7F20, 0x60000000, 0x7F12, 0x40, 0x7F33, 4096, 1000)
    given = with_numbers(why, replace(held, parameters=struct.pack("<8IHB", *words, 0x2120, 0x22)))
    assert given.value(leaf("bank", 0, 0x210 + 32, 2)) == 0x2120
    assert given.value(leaf("bank", 0, 0x210 + 34, 1)) == 0x22


def test_a_register_tells_what_was_computed_where_none_has_what_it_was_computed_from() -> None:
    why = the_access("clamped", "LDG")
    words = (0x1000, 0x7F20, 0x60000000, 0x7F12, 0x40, 0x7F33, 10)
    leaves = {atom("bank", 0, 0x210 + 4 * k, 4): word for k, word in enumerate(words)}
    leaves |= {atom("special", name): value for name, value in SPECIAL.items()}
    leaves |= {a: 1000 for a in inside(why.address.formula) if a.kind == "load"}  # min(1000, 9) is 9 for any above, too
    held = replace(snapshot(why, leaves, later=2), parameters=struct.pack("<7I", *words))
    clamped = with_numbers(why, held)
    assert clamped.index == (9, "one register")
    assert "not known: loaded1" in why_text(clamped)
    assert clamped.numbers is not None
    registers = (11, *held.lanes[0].general[1:])  # R0 contradicts the lower word of the address, in R4
    flipped = with_numbers(why, replace(held, lanes=(replace(held.lanes[0], general=registers), *held.lanes[1:])))
    assert flipped.numbers is not None
    assert flipped.index_as_fact is None


def staged(kernel: str, **at_the_end: Any) -> Why:
    """The store to a place that a thread has from its own memory, or from that of its block.

    `at_the_end` changes the instruction behind it.
    """
    code = CodeMap((DATA / "staged_sm90.cubin").read_bytes())
    (found,) = [k for k in code.kernels if k.demangled.startswith(f"{kernel}(")]
    words = code.elf.contents(code.elf.sections[found.section])
    instructions = list(decode(words, 90))
    last = [n for n, i in enumerate(instructions) if i.opcode == "STG"][-1]
    instructions[last + 1] = replace(instructions[last + 1], **at_the_end)
    why = explain_place(Program(code, found.section, instructions, source), instructions[last].offset)
    assert why is not None
    return why


GIVEN = struct.pack("<QQI", 0x7F3300000040, 0x7F2000001000, 7)


def test_local_memory_confirms_what_was_loaded_from_it() -> None:
    why, stack = staged("local"), 0xFFFDC0 - 64
    at = why.address.instruction + 1

    def with_memory(index: int, held: int | None) -> Why:
        memory = (held or 0).to_bytes(4, "little") + bytes(60)  # what was loaded from global memory went there
        local = None if held is None else (stack, memory)
        given = struct.pack("<QQI", 0x7F3300000040, 0x7F2000001000, 16)
        return with_numbers(
            why, Snapshot(BLOCK, (Lane(0, (0, 0, 0), at, (index, stack), True, local),), (), SPECIAL, given)
        )

    assert with_memory(24, None).index == (24, "one register")
    assert with_memory(24, 24).index_as_fact == 24
    assert with_memory(24, 25).index_as_fact is None


def test_local_memory_that_still_has_what_the_thread_stored_there_makes_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    why, stack = staged("local"), 0xFFFDC0 - 64
    held = Numbers._value_of
    used_again = Register("R", 0)  # the register of the index
    monkeypatch.setattr(Numbers, "_value_of", lambda self, r, lane: None if r == used_again else held(self, r, lane))

    def with_memory(word: int, value: int, *stacks: int) -> Why:
        memory = bytes(4 * word) + value.to_bytes(4, "little") + bytes(60 - 4 * word)
        given = struct.pack("<QQI", 0x7F3300000040, 0x7F2000001000, word)
        at = why.address.instruction + 1
        lanes = [
            Lane(k, (16 * k, 0, 0), at, (0, one), True, (stack, memory)) for k, one in enumerate(stacks or [stack] * 2)
        ]
        return with_numbers(why, Snapshot(BLOCK, tuple(lanes), (), SPECIAL, given))

    assert with_memory(7, 0).index_as_fact == 0  # the zeros that the array starts with
    assert with_memory(7, 0, stack).index == (0, "one register")  # where the array is, one register says
    damaged = with_memory(7, 1), with_memory(7, 0, stack, stack ^ 32)
    assert [(one.index, bool(one.numbers and one.numbers.disagree)) for one in damaged] == [(None, True)] * 2
    assert with_memory(0, 24).index == (24, "one register")  # no register has what was stored there last


def test_shared_memory_has_an_index_that_no_register_has_and_makes_no_fact_alone() -> None:
    why = staged("shared")
    at, address = why.address.instruction + 1, 0x7F2000001000 + 4 * 24
    memory = bytes(1532) + (24).to_bytes(4, "little")

    def with_registers(*general: int) -> Why:
        lane = Lane(0, (0, 0, 0), at, general)
        return with_numbers(why, Snapshot(BLOCK, (lane,), (), SPECIAL, GIVEN, shared=memory))

    assert with_registers().index == (24, "one register")
    assert with_registers(0, 0, address & 0xFFFFFFFF, address >> 32).index_as_fact == 24
    assert with_registers(0, 0, address + 8 & 0xFFFFFFFF, address >> 32).index_as_fact is None


@pytest.mark.parametrize(
    ("opcode", "known", "keeps"), [("NOP", "all", True), ("STAS", "writes", False), ("?", "nothing", False)]
)
def test_shared_memory_is_not_asked_where_an_instruction_may_write_there_later(
    opcode: str, known: Known, keeps: bool
) -> None:
    why = staged("shared", opcode=opcode, known=known)
    memory = bytes(1532) + (24).to_bytes(4, "little")
    lane = Lane(0, (0, 0, 0), why.address.instruction + 1, ())
    told = with_numbers(why, Snapshot(BLOCK, (lane,), (), SPECIAL, GIVEN, shared=memory))
    assert told.index == ((24, "one register") if keeps else None)


@pytest.mark.parametrize(
    ("opcode", "known", "told"), [("NOP", "all", True), ("UBLKCP", "writes", False), ("?", "nothing", False)]
)
def test_no_pointer_is_one_that_nothing_writes_through_where_an_instruction_is_not_read(
    opcode: str, known: Known, told: bool
) -> None:
    equations = Equations(staged("shared", opcode=opcode, known=known).address, 0, True)
    assert (equations._written is not None) is told


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 31), st.integers(2, 20), st.integers(0, 31))
def test_a_flipped_register_gives_fewer_words_and_no_other_answer(lane: int, register: int, bit: int) -> None:
    why, held = gathered()
    truth = with_numbers(why, held)
    lanes = list(held.lanes)
    words = list(lanes[lane].general)
    words[register] ^= 1 << bit
    lanes[lane] = Lane(lane, lanes[lane].thread, lanes[lane].at, tuple(words))
    other = with_numbers(why, Snapshot(held.block, tuple(lanes), held.uniform, held.special))
    assert other.numbers is not None
    assert truth.index is not None
    assert other.index in (None, truth.index)
    assert other.value_of_address in (None, truth.value_of_address)
    suspect = other.numbers.suspect
    if suspect is not None:
        assert (suspect.register, suspect.thread) == (f"R{register}", (lane, 0, 0))
        assert suspect.held ^ suspect.expected == 1 << bit


def facts(why: Why) -> list[object]:
    """Return everything that an answer says as a fact."""
    document = why_json(why)
    weak = ("one register", "parameters")
    found: list[object] = [document["value"] if document["value_how_known"] not in weak else None]
    parts = (document["base"], document["index"], *document["loads"])  # type: ignore[misc]
    found += [part["value"] if part and part["how_known"] not in weak else None for part in parts]
    lanes = document["lanes"]
    assert isinstance(lanes, dict)
    addresses = (one["value"] for one in lanes["addresses"]) if lanes["how_known"] not in weak else ()
    return [*found, *addresses, *map(str, judged(why))]


@pytest.mark.parametrize("count", [1, 2, 32])
@pytest.mark.parametrize("whole", [True, False], ids=["parameters", "registers"])
def test_no_single_register_makes_a_fact(count: int, whole: bool) -> None:
    why, held = gathered()
    words = (0x1000, 0x7F20, 0x60000000, 0x7F12, 0x40, 0x7F33, 4096, 1000)
    held = replace(held, lanes=held.lanes[:count], parameters=struct.pack("<8I", *words) if whole else None)
    said = {str(one) for one in facts(with_numbers(why, held)) if one is not None}
    assert bool(said) == (whole or count > 1)
    for register in range(24):
        for bit in (0, 7, 31):
            general = list(held.lanes[0].general)
            general[register] ^= 1 << bit
            lanes = (replace(held.lanes[0], general=tuple(general)), *held.lanes[1:])
            flipped = with_numbers(why, replace(held, lanes=lanes))
            assert (flipped.numbers is not None and flipped.numbers.suspect is None) or count == 32
            assert {str(one) for one in facts(flipped) if one is not None} <= said


def other_warps(held: Snapshot, *warps: slice, **changes: object) -> tuple[Snapshot, ...]:
    """Return some threads of a warp as other warps of its launch."""
    return tuple(replace(held, lanes=held.lanes[threads], **changes) for threads in warps)  # type: ignore[arg-type]


def flipped(held: Snapshot, register: int, bit: int) -> Snapshot:
    general = list(held.lanes[0].general)
    general[register] ^= 1 << bit
    return replace(held, lanes=(replace(held.lanes[0], general=tuple(general)), *held.lanes[1:]))


def said(why: Why) -> set[str]:
    return {str(one) for one in facts(why) if one is not None}


def test_other_warps_confirm_arguments_and_what_was_loaded_from_one_address() -> None:
    why, held = gathered()
    alone = replace(held, lanes=held.lanes[:1])
    assert not said(with_numbers(why, alone))
    others = other_warps(held, slice(1, 2), slice(2, 3))
    helped = with_numbers(why, replace(alone, others=others))
    assert {str(0x7F1260000000), str(0xFFFFFFFF)} <= said(helped)  # the base, and what was loaded
    true = said(with_numbers(why, held)) | said(helped)
    for register in range(24):
        for bit in (0, 31):
            for damaged in (
                replace(alone, others=(flipped(others[0], register, bit), others[1])),
                replace(flipped(alone, register, bit), others=others),
            ):
                answer = with_numbers(why, damaged)
                assert said(answer) <= true
                assert answer.numbers is not None
                assert answer.numbers.suspect is None


def test_warps_that_have_other_arguments_are_believed_in_nothing() -> None:
    why, held = gathered()
    _, elsewhere = gathered(stride=4097)
    others = (*other_warps(held, slice(1, 2)), *other_warps(elsewhere, slice(2, 3)))
    answer = with_numbers(why, replace(held, others=others))
    assert (answer.numbers and answer.numbers.disagree, said(answer)) == (1, set())


def test_another_thread_that_loaded_something_else_from_the_address_takes_the_confirmation_away() -> None:
    why, held = gathered()
    _, elsewhere = gathered(row=5)
    words = (0x1000, 0x7F20, 0x60000000, 0x7F12, 0x40, 0x7F33, 4096, 1000)
    given = struct.pack("<8I", *words)
    alone = replace(held, lanes=(replace(held.lanes[0], general=held.lanes[0].general[:8]),), parameters=given)
    agreeing = other_warps(held, slice(1, 2), parameters=given)
    torn = other_warps(elsewhere, slice(2, 3), parameters=given)

    def load_is(others: tuple[Snapshot, ...]) -> object:
        document = json.loads(json.dumps(why_json(with_numbers(why, replace(alone, others=others)))))
        return document["loads"][0]["value"], document["loads"][0]["how_known"]

    assert load_is(()) == (0xFFFFFFFF, "one register")
    assert load_is(agreeing) == (0xFFFFFFFF, "solved")
    assert load_is((*agreeing, *torn)) == (0xFFFFFFFF, "one register")


def test_a_uniform_register_of_another_warp_counts_where_no_other_thread_can_have_written_it() -> None:
    why = staged("local")
    lane = Lane(0, (0, 0, 0), why.address.instruction + 1, ())

    def arguments(together: bool) -> tuple[int | None, int | None]:
        other = Snapshot((1, 0, 0), (lane,), (0, 0, 0, 0, 0x11, 0x22, 7), SPECIAL, together=together)
        held = Snapshot(BLOCK, (replace(lane, at=None),), (0,) * 7, SPECIAL, others=(other,))
        numbers = Numbers(why.address, held)
        return numbers.value(leaf("bank", 0, 0x220, 4)), numbers.value(leaf("bank", 0, 0x208, 4))

    assert arguments(together=True) == (7, 0x11)
    assert arguments(together=False) == (7, None)  # two instructions write UR4


def test_a_uniform_register_that_a_choice_of_the_thread_decides_is_no_evidence() -> None:
    why = staged("local")
    equations = Equations(why.address, 0, True)
    one, other = leaf("bank", 0, 0x210, 4), leaf("bank", 0, 0x214, 4)
    for name, is_of_one_way in (("threadIdx.x", True), ("blockIdx.x", False)):
        chosen = op.select(atom("lt_u", leaf("special", name), one, bits=1), one, other)
        assert equations._is_of_one_way(chosen) is is_of_one_way


def test_the_atoms_of_a_formula_are_its_own_when_others_have_been_dropped() -> None:
    """Python gives the identity of a dropped object to the next one."""
    equations = Equations(staged("local").address, 0, True)
    for n in range(50):
        bank = atom("bank", 0, 4 * n, 4)
        assert equations.contents_of(Poly({(bank,): 3}, 32)) == {bank}


@pytest.mark.parametrize(("at", "arrived"), [(15, None), (22, 99)])
def test_of_a_thread_before_the_access_a_load_counts_once_the_thread_has_used_it(at: int, arrived: int | None) -> None:
    why = staged("local")
    code = why.address.slice.code
    (load,) = [n for n, i in enumerate(code.instructions) if i.opcode == "LDG"]
    (used,) = [n for n, i in enumerate(code.instructions) if i.opcode == "STL" and n > load + 11]
    assert load < 15 < used < 22 < why.address.instruction
    numbers = Numbers(why.address, Snapshot(BLOCK, (Lane(0, (0, 0, 0), at, (0,) * 7 + (99,)),), (), SPECIAL, GIVEN))
    assert numbers._states[0].known.get(atom("load", load, 0, "")) == arrived


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[Numbers]:
    """Every solution of a warp, as it is made."""
    found: list[Numbers] = []
    solve = Numbers._solve

    def counted(numbers: Numbers) -> None:
        found.append(numbers)
        solve(numbers)

    monkeypatch.setattr(Numbers, "_solve", counted)
    return found


def test_a_warp_is_solved_twice_however_many_registers_carry_its_values(solved: list[Numbers]) -> None:
    assert len(facts(with_numbers(*gathered()))) > 32
    assert len(solved) == 2  # with what is certain, and with what is likely too


def test_a_damaged_register_is_looked_for_only_among_those_behind_every_contradiction(solved: list[Numbers]) -> None:
    why, held = gathered()
    general = list(held.lanes[3].general)
    general[6] ^= 64
    lanes = (*held.lanes[:3], replace(held.lanes[3], general=tuple(general)), *held.lanes[4:])
    flipped = with_numbers(why, replace(held, lanes=lanes)).numbers
    assert flipped is not None
    assert flipped.disagree == 3
    assert flipped.suspect is not None
    assert flipped.suspect.register == "R6"
    assert len(solved) <= 1 + 2


def test_a_value_that_one_register_alone_carries_is_marked() -> None:
    why, held = gathered()
    alone = with_numbers(why, replace(held, lanes=held.lanes[:1]))
    assert why_json(alone)["value_how_known"] == "one register"
    assert "row = -1 (by one register alone)" in "\n".join(why_text(alone))
    assert not judged(alone)


def stored(turn: int, later: int = 1, why: Why | None = None) -> tuple[Why, Snapshot]:
    """Return the store of `gather` by four threads that stand behind it in a turn of its loop, counted from 0."""
    why = why or the_access("gather", "STG")
    words = (0x1000, 0x7F20, 0x60000000, 0x7F12, 0x40, 0x7F33, 4096, 1000)
    leaves = {atom("bank", 0, 0x210 + 4 * k, 4): word for k, word in enumerate(words)}
    leaves |= {atom("special", name): value for name, value in SPECIAL.items()}
    leaves |= {atom("special", f"blockIdx.{x}"): v for x, v in zip("xyz", BLOCK, strict=True)}
    loads = [n for n, i in enumerate(why.address.slice.code.instructions) if i.opcode.startswith("LDG")]
    leaves |= {atom("load", n, 0, ""): 3 for n in loads}
    variables = [a for a in inside(why.address.formula) if a.kind == "phi"]
    turns = [leaves | dict.fromkeys(variables, k + 128 * turn) for k in range(4)]
    lanes = [snapshot(why, known, later=later).lanes[k] for k, known in enumerate(turns)]
    return why, Snapshot(BLOCK, tuple(lanes), (), SPECIAL, struct.pack("<8I", *words))


def test_a_store_in_a_loop_has_an_index_where_its_thread_is_still_in_the_first_turn() -> None:
    why, held = stored(turn=0)
    first = with_numbers(why, held)
    assert first.index_as_fact == 5 * 1000
    assert "some turns further" not in "\n".join(why_text(first))
    assert first.value_of_address == 0x7F2000001000 + 4 * 5 * 1000
    assert first.numbers is not None
    assert [value - 0x7F2000001000 for _, value in first.numbers.addresses()] == [4 * (5000 + k) for k in range(4)]


@pytest.mark.parametrize("turn", [1, 3])
@pytest.mark.parametrize("behind", [1, 0])  # a thread may wait at the store of the next turn
def test_a_store_whose_thread_ran_on_for_more_turns_has_no_index(turn: int, behind: int) -> None:
    why, held = stored(turn, behind)
    later = with_numbers(why, held)
    assert later.numbers is not None
    assert later.numbers.disagree == 0
    assert (later.index, later.value_of_address, later.numbers.addresses()) == (None, None, [])
    assert "the thread may be some turns further" in "\n".join(why_text(later))
    assert why_json(later)["base"]["value"] == 0x7F2000001000  # type: ignore[index]
    for register, bit in ((r, b) for r in range(16) for b in (0, 7, 31)):
        general = list(held.lanes[0].general)
        general[register] ^= 1 << bit
        lanes = (replace(held.lanes[0], general=tuple(general)), *held.lanes[1:])
        assert with_numbers(why, replace(held, lanes=lanes)).index_as_fact is None


def test_a_copy_that_writes_no_register_stops_no_loop_either() -> None:
    store = the_access("gather", "STG")
    copied = replace(store, address=replace(store.address, direction="read"))
    later = with_numbers(*stored(3, 1, copied))
    assert (later.index, later.value_of_address) == (None, None)
    assert "a copy stops no loop" in "\n".join(why_text(later))


def test_a_store_in_a_loop_with_two_entries_has_no_index() -> None:
    """No header leads such a loop, so no variable says in which turn it is."""
    whole = json.loads((DATA / "why_sm90.json").read_text())
    (function,) = [x for x in whole[1] if x["function-name"].startswith("_Z6gather")]
    body = function["sass-instructions"]
    body[17] = {**body[31], "predicate": "P1", "operands": "0x180"}  # into the loop, past its header
    code = CodeMap((DATA / "why_sm90.cubin").read_bytes())
    (kernel,) = [k for k in code.kernels if k.demangled.startswith("gather(")]
    (listing,) = [x for x in read_listings(json.dumps(whole)) if x.name == function["function-name"]]
    entered_twice = Program(code, kernel.section, listing.instructions, source)
    (at,) = [i.offset for i in entered_twice.instructions if i.opcode.startswith("STG")]
    why = explain_place(entered_twice, at)
    assert why is not None
    assert why.address.slice.code.loops == {}
    _, held = stored(turn=3, why=why)
    later = with_numbers(why, held)
    assert (later.index, later.value_of_address) == (None, None)


def kernel_of(*rows: tuple[str, str, str]) -> Slice:
    """Return the values of a kernel of these guards, opcodes and operands."""
    written = [
        {"opcode": opcode, "operands": operands, **({"predicate": guard} if guard else {})}
        for guard, opcode, operands in rows
    ]
    listing = [{}, [{"function-name": "f", "start": 0, "length": 16 * len(rows), "sass-instructions": written}]]
    (function,) = read_listings(json.dumps(listing))
    routine = Routine("f", 0, 16 * len(rows))
    return Slice(Code(function.instructions, [routine], routine), lambda *at: leaf("bank", *at), kernel=True)


@pytest.mark.parametrize("branch", ["BRA.DIV", "BRA.CONV"])
def test_a_branch_that_is_taken_where_threads_are_apart_or_together_may_not_be_taken(branch: str) -> None:
    values = kernel_of(
        ("", "MOV", "R0,RZ"), ("", branch, "0x40"), ("", "IADD3", "R0,R0,0x1,RZ"), ("", "EXIT", ""), ("", "EXIT", ""),
    )  # fmt: skip
    assert values.register(Register("R", 0), 3) == constant(1)


@pytest.mark.parametrize("over", [0, 1, 7, 1000, 0xFFFFFFFE, 0xFFFFFFFF])
@pytest.mark.parametrize("under", [0, 1, 3, 0xFFFFFFFF])
def test_a_division_that_runs_under_a_condition_is_known_where_only_that_uses_it(over: int, under: int) -> None:
    rows = (  # of a stock kernel: x == -1 ? 0 : x / d
        ("", "LDC", "R14,c[0x0][0x160]"), ("", "ULDC", "UR9,c[0x0][0x164]"), ("", "I2F.U32.RP", "R19,UR9"),
        ("", "ISETP.NE.AND", "P3,PT,R14,-0x1,PT"), ("", "PLOP3.LUT", "P2,PT,PT,PT,PT,0x8,0x0"),
        ("", "MUFU.RCP", "R19,R19"), ("", "IADD3", "R20,R19,0xffffffe,RZ"),
        ("", "F2I.FTZ.U32.TRUNC.NTZ", "R21,R20"), ("", "IMAD.MOV.U32", "R20,RZ,RZ,RZ"),
        ("", "IADD3", "R25,RZ,-R21,RZ"), ("", "IMAD", "R25,R25,UR9,RZ"), ("", "IMAD.HI.U32", "R44,R21,R25,R20"),
        ("P3", "IMAD.HI.U32", "R21,R44,R14,RZ"), ("P3", "IADD3", "R25,-R21,RZ,RZ"), ("P3", "IMAD", "R19,R25,UR9,R14"),
        ("P3", "ISETP.GE.U32.AND", "P1,PT,R19,UR9,PT"), ("P3", "PLOP3.LUT", "P2,PT,P1,PT,PT,0x80,0x0"),
        ("", "PLOP3.LUT", "P1,PT,PT,PT,PT,0x8,0x0"), ("P2", "IADD3", "R19,R19,-UR9,RZ"),
        ("P2", "IADD3", "R21,R21,0x1,RZ"),
        ("P3", "ISETP.GE.U32.AND", "P4,PT,R19,UR9,PT"), ("P3", "PLOP3.LUT", "P1,PT,P4,PT,PT,0x80,0x0"),
        ("", "ISETP.NE.U32.OR", "P4,PT,RZ,UR9,!P3"), ("", "MOV", "R19,RZ"), ("P1", "IADD3", "R21,R21,0x1,RZ"),
        ("!P4", "LOP3.LUT", "R21,RZ,UR9,RZ,0x33,!PT"), ("P3", "IMAD.MOV.U32", "R19,RZ,RZ,R21"), ("", "EXIT", ""),
    )  # fmt: skip
    value = kernel_of(*rows).register(Register("R", 19), len(rows) - 1)
    found = Values(lambda a: {0x160: over, 0x164: under}[int(str(a.args[1]))] if a.kind == "bank" else 1 // 0)
    assert found.of(value) == (0 if over == 0xFFFFFFFF else over // under if under else 0xFFFFFFFF)
    assert {a.kind for a in inside(value)} <= {"bank", "eq", "select", "udiv"}


@pytest.mark.parametrize("tid", range(5))
@pytest.mark.parametrize("least", range(5))
def test_a_loop_with_two_ways_in_and_a_condition_that_it_carries_is_known_turn_by_turn(tid: int, least: int) -> None:
    values = kernel_of(
        ("", "S2R", "R2,SR_TID.X"), ("", "MOV", "R0,RZ"), ("", "ISETP.GE.AND", "P0,PT,R2,c[0x0][0x160],PT"),
        ("", "ISETP.NE.AND", "P1,PT,R2,0x3,PT"), ("P0", "BRA", "0x60"), ("", "MOV", "R0,R2"),
        ("", "ISETP.GE.AND", "P2,PT,R0,0x6,PT"), ("P2", "EXIT", ""), ("P1", "IADD3", "R0,R0,0x1,RZ"),
        ("", "ISETP.LT.AND", "P1,PT,R0,0x4,PT"), ("", "BRA", "0x60"),
    )  # fmt: skip
    number, flag = values.register(Register("R", 0), 6).single, values.predicate(Register("P", 1), 6)
    assert number is not None
    assert (number.kind, flag.kind, flag.bits) == ("phi", "phi", 1)
    known: dict[Atom, int] = {}

    def given_leaf(a: Atom) -> int:
        return tid if a.kind == "special" else least if a.kind == "bank" else known[a]

    r0, p1 = (0 if tid >= least else tid), tid != 3
    for turn in range(6):
        if turn:
            r0 += p1
            p1 = r0 < 4
        loops = [values.loop(a) for a in (number, flag)]
        assert [(len(x.starts), len(x.steps), len(x.others)) for x in loops] == [(1, 1, 0), (1, 0, 1)]
        (grows,), (later,) = loops[0].steps, loops[1].others
        of = Values(given_leaf).of
        now = [known[number] + of(grows), of(later)] if turn else [of(x.starts[0]) for x in loops]
        assert now == [r0, p1]
        known.update(zip((number, flag), now, strict=True))


@pytest.mark.parametrize("tid", range(6))
@pytest.mark.parametrize("least", (2, 5))
@pytest.mark.parametrize("limit", range(1, 6))
def test_what_ways_through_a_loop_give_is_a_choice_by_its_last_turn(tid: int, least: int, limit: int) -> None:
    values = kernel_of(
        ("", "S2R", "R2,SR_TID.X"), ("", "MOV", "R0,RZ"), ("", "MOV", "R3,R2"),
        ("", "ISETP.GE.AND", "P0,PT,R2,c[0x0][0x160],PT"), ("P0", "BRA", "0xe0"), ("", "IADD3", "R0,R0,0x1,RZ"),
        ("", "ISETP.GE.AND", "P1,PT,R0,c[0x0][0x164],PT"), ("P1", "BRA", "0xb0"),
        ("", "ISETP.NE.AND", "P2,PT,R0,R2,PT"), ("P2", "BRA", "0x50"), ("", "BRA", "0xd0"),
        ("", "MOV", "R3,0x64"), ("", "BRA", "0xe0"), ("", "MOV", "R3,R0"),
        ("", "EXIT", ""),
    )  # fmt: skip
    variable = values.register(Register("R", 3), 14).single
    assert variable is not None
    (value,), none = values.loop(variable).starts, values.loop(variable).steps
    assert none == ()
    turns = [r0 for r0 in range(1, limit + 1) if r0 >= limit or r0 == tid]
    leaves = {"special": tid, "phi": turns[0] - 1}
    found = Values(lambda a: {0x160: least, 0x164: limit}[int(str(a.args[1]))] if a.kind == "bank" else leaves[a.kind])
    assert found.of(value) == (tid if tid >= least else 100 if turns[0] >= limit else turns[0])
    assert [a.kind for a in inside(value) if a.kind == "phi"] == ["phi"]


@pytest.mark.parametrize(("start", "stays"), [("R2", True), ("R3", False), ("R4", False)])
def test_what_every_way_through_a_turn_leaves_as_it_started_is_no_variable(start: str, stays: bool) -> None:
    values = kernel_of(
        ("", "S2R", "R2,SR_TID.X"), ("", "S2R", "R3,SR_CTAID.X"), ("", "MOV", "R4,RZ"), ("", "MOV", f"R0,{start}"),
        ("", "ISETP.GE.AND", "P0,PT,R4,0x7,PT"), ("P0", "MOV", "R0,R2"), ("", "IADD3", "R4,R4,0x1,RZ"),
        ("", "ISETP.GE.AND", "P1,PT,R4,c[0x0][0x160],PT"), ("!P1", "BRA", "0x40"), ("", "EXIT", ""),
    )  # fmt: skip
    variable = values.register(Register("R", 0), 4).single
    assert variable is not None
    assert values.settle([variable]) == stays
    assert (values.register(Register("R", 0), 4) == leaf("special", "threadIdx.x")) == stays


def test_what_is_added_where_a_condition_of_the_variable_itself_holds_is_no_step() -> None:
    values = kernel_of(
        ("", "MOV", "R0,RZ"), ("", "ISETP.NE.AND", "P0,PT,R0,0x3,PT"), ("P0", "IADD3", "R0,R0,0x1,RZ"),
        ("", "ISETP.GE.AND", "P1,PT,R0,c[0x0][0x160],PT"), ("!P1", "BRA", "0x10"), ("", "EXIT", ""),
    )  # fmt: skip
    variable = values.register(Register("R", 0), 1).single
    assert variable is not None
    loop = values.loop(variable)
    assert (loop.steps, len(loop.others)) == ((), 1)


def test_a_loop_of_which_some_turns_move_nothing_has_no_one_step() -> None:
    values = kernel_of(
        ("", "S2R", "R2,SR_TID.X"), ("", "MOV", "R0,RZ"), ("", "ISETP.GE.AND", "P0,PT,R0,c[0x0][0x160],PT"),
        ("P0", "EXIT", ""), ("", "ISETP.GE.AND", "P1,PT,R2,R0,PT"), ("P1", "BRA", "0x20"),
        ("", "IADD3", "R0,R0,0x1,RZ"), ("", "BRA", "0x20"),
    )  # fmt: skip
    variable = values.register(Register("R", 0), 2).single
    assert variable is not None
    assert {step.constant for step in values.loop(variable).steps} == {0, 1}


def test_a_loop_that_polls_a_flag_says_what_it_waits_for() -> None:
    load = the_access("wait", "LDG").address
    wait = explain_wait(program("wait"), load.offset)
    assert wait is not None
    assert wait_text(wait) == [
        "in a loop at why.cu:60 that ends when flag[blockIdx.x] == wanted",
        "flag[blockIdx.x] is read in each turn at why.cu:60",
    ]
    assert wait_json(wait)["polled"][0]["line"] == "why.cu:60"  # type: ignore[index]
    assert explain_wait(program("wait"), 0) is None


SYNC = {"opcode": "BAR", "modifiers": ("SYNC",), "sources": (Immediate(4), Immediate(96)), "destinations": ()}
NOP = {"opcode": "NOP", "modifiers": (), "sources": (), "destinations": (), "guard": None, "known": "all"}
P0 = RegisterOperand(Register("P", 0))
R5 = RegisterOperand(Register("R", 5))
BY_COUNT, BY_NUMBER, PACKED = (
    {**SYNC, "sources": sources} for sources in ((Immediate(2), R5), (R5, Immediate(64)), (R5, R5))
)
WRITES_R5 = {**NOP, "opcode": "MOV", "destinations": (R5,)}
LOAD = {**NOP, "opcode": "LDS", "destinations": (R5,), "sources": (Memory(Register("R", 2)),)}


@pytest.mark.parametrize(
    ("behind", "replaced", "held"),
    [
        (1, {0: SYNC}, (0, 4, 96)), (2, {0: SYNC}, (0, 4, 96)), (3, {0: SYNC}, None), (0, {0: SYNC}, None),
        (2, {0: SYNC, 1: {**NOP, "opcode": "BRA"}}, None), (1, {0: {**NOP, "opcode": "BRA"}}, None),
        (2, {0: SYNC, 1: LOAD}, None),  # it has passed the barrier
        (1, {0: {**SYNC, "modifiers": ("ARV",)}}, None), (1, {0: {**SYNC, "known": "writes"}}, None),
        (1, {0: {**SYNC, "sources": (Immediate(0),)}}, (0, 0, None)),
        (2, {0: {**SYNC, "guard": P0}, 1: {**BY_COUNT, "guard": replace(P0, negated=True)}}, (0, 4, 96)),
        (2, {0: {**SYNC, "guard": replace(P0, negated=True)}, 1: {**BY_COUNT, "guard": P0}}, (1, 2, 0x30007)),
        (2, {0: {**SYNC, "guard": P0}, 1: {**NOP, "opcode": "ISETP", "destinations": (P0,)}}, None),
        (1, {0: BY_COUNT}, (0, 2, 0x30007)), (1, {0: BY_NUMBER}, (0, 0x30007, 64)), (1, {0: PACKED}, (0, 7, 3)),
        (2, {0: BY_COUNT, 1: WRITES_R5}, (0, 2, 0)), (2, {0: PACKED, 1: WRITES_R5}, (0, None, 0)),
    ],
)  # fmt: skip
def test_a_warp_stands_up_to_two_instructions_behind_its_barrier(
    behind: int, replaced: dict[int, dict[str, Any]], held: tuple[int, int | None, int | None] | None
) -> None:
    """The guard says which of two barriers it is, and registers what nothing has written since."""
    plain, values = program("wait"), {Register("P", 0): 1, Register("R", 5): 0x30007}
    instructions = [replace(i, **{**NOP, **replaced.get(n, {})}) for n, i in enumerate(plain.instructions[:8])]
    found = held_at(Program(plain.code_map, plain.section, instructions), WORD * behind, values.get)
    assert found == (held and Held(WORD * held[0], *held[1:]))


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(KERNELS), st.randoms(use_true_random=False), st.integers(1, 12))
def test_any_order_of_instructions_gives_an_answer_or_none(kernel: str, random: Random, swaps: int) -> None:
    plain = program(kernel)
    instructions = list(plain.instructions)
    for _ in range(swaps):
        at, of = random.randrange(len(instructions)), random.choice(plain.instructions)
        instructions[at] = replace(of, offset=instructions[at].offset)
    broken = Program(plain.code_map, plain.section, instructions)
    for i in instructions:
        why = explain_place(broken, i.offset) if access_of(i) is not None else None
        if why is not None:
            assert why_text(why)
            json.dumps(why_json(why))
        wait = explain_wait(broken, i.offset) if i.opcode == "BRA" else None
        assert wait is None or wait_text(wait)
