"""Random CUDA kernels whose every access is known: the text for nvcc, and the same statements as Python.

    kernel = random_kernel(seed, "k0001")
    launch = kernel.launch(random.Random(1))       # grid, block, thread, parameters; None where C++ defines nothing
    for access in launch.accesses: ...             # line, address, size, which argument it goes through

One thread is evaluated at a time, with the memory that it sees itself. What other threads would have written is never
used in an index, so one thread tells the same as all of them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tests.support.sass.cpp import (
    INT,
    LONG,
    SIZE,
    UNSIGNED,
    Env,
    Type,
    binary,
    variable,
)
from tests.support.sass.launches import ELEMENTS, SCALARS, TABLES, Array, Block, Kernel, Parameter, State, Stop
from tests.support.sass.statements import Body

PRELUDE: Final = """\
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
struct Twelve { int a, b, c; };
"""


def unit(kernels: Sequence[Kernel]) -> tuple[str, dict[str, int]]:
    """Return one translation unit with all the kernels, and the line before the first of each."""
    text, starts = PRELUDE, {}
    for kernel in kernels:
        starts[kernel.name] = text.count("\n")
        text += "\n".join(kernel.lines) + "\n"
    return text, starts


def random_kernel(seed: int, name: str) -> Kernel:
    """Return the kernel that a seed stands for."""
    rng = random.Random(seed)
    writer = Body(rng, name, dimensions=rng.choice((1, 1, 2, 3)))
    writer.emit("unsigned acc = 1; float facc = 1.f;")
    made = _parameters(writer)
    steps = [*_start(writer), *writer.statements(3)]
    writer.emit("facc = __uint_as_float(acc ^ __float_as_uint(facc)); acc = __float_as_uint(facc);")
    steps += writer.write()
    return _assemble(writer, made, steps)


def _assemble(writer: Body, made: _Signature, steps: Block) -> Kernel:
    """Put the text together; marks of accesses become line numbers, counted from the kernel's first line."""
    before = [*made.types, *writer.before]
    declared = ", ".join(one.declaration for one in made.declared)
    head = [f"__global__ void {writer.name}({declared}) {{"]
    tail = ["}"]
    lines = [*before, *head, *writer.body, *tail]
    numbers = tuple(len(made.types) + n if early else len(before) + 1 + n for early, n in writer.marks)
    return Kernel(
        name=writer.name, lines=tuple(lines), parameters=tuple(made.declared), arrays=made.where,
        scalars=tuple(writer.scalars), steps=tuple(steps), dimensions=writer.dimensions, numbers=numbers,
    )  # fmt: skip


@dataclass
class _Signature:
    """What a kernel is passed: the parameters, the definitions before it, and where each pointer lies."""

    declared: list[Parameter] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    where: dict[str, tuple[Array, int, int]] = field(default_factory=dict)


def _packed(form: str, name: str) -> Callable[[Env], bytes]:
    mask = (1 << 8 * struct.calcsize(form)) - 1
    return lambda env: (int(env[name]) & mask).to_bytes(struct.calcsize(form), "little")


_FORM: Final = {8: "B", 16: "H", 32: "I", 64: "Q"}


def _parameters(writer: Body) -> _Signature:
    """Choose arrays and scalars and how they are passed: alone, in a struct, in an array in a struct, by a template."""
    rng, made = writer.rng, _Signature()
    arrays = [_value_array(rng, f"dat{n}") for n in range(rng.randint(1, 3))]
    arrays += [_table(rng, f"tab{n}") for n in range(rng.randint(1, 3))]
    if rng.random() < 0.25:
        inner = _value_array(rng, "inner")
        arrays.append(Array("rows", f"{inner.element}*", 8, table=SIZE))
        arrays.append(Array("inner", inner.element, inner.size, pointers="rows"))
    scalars = [(f"arg{n}", rng.choice(SCALARS)) for n in range(rng.randint(2, 5))]
    writer.arrays, writer.scalars = arrays, scalars
    pieces: list[tuple[Array | None, str, Type | None]] = [(a, a.name, None) for a in arrays if not a.pointers]
    pieces += [(None, name, kind) for name, kind in scalars]
    rng.shuffle(pieces)
    made.where.update({one.name: (one, -1, 0) for one in arrays if one.pointers})
    while pieces:
        if len(pieces) > 2 and rng.random() < 0.25:
            size = rng.randint(2, 4)
            _in_a_struct(writer, made, pieces[:size])
            pieces = pieces[size:]
        else:
            _alone(writer, made, pieces.pop(0))
        if rng.random() < 0.12:
            unused = rng.choice(_UNUSED)
            made.declared.append(replace(unused, declaration=f"{unused.declaration}{len(made.declared)}"))
    return made


_UNUSED: Final = (
    Parameter("double unused", 8, 8, lambda env: struct.pack("<d", 1.5)),
    Parameter("char unused", 1, 1, lambda env: b"\x07"),
    Parameter("long unused", 8, 8, lambda env: struct.pack("<q", 12345678)),
    Parameter("short unused", 2, 2, lambda env: b"\x05\x00"),
)


def _value_array(rng: random.Random, name: str) -> Array:
    element = rng.choice(ELEMENTS)
    return Array(name, element.name, element.size)


def _table(rng: random.Random, name: str) -> Array:
    kind = rng.choice(TABLES)
    return Array(name, kind.name, kind.bits // 8, table=kind)


def _alone(writer: Body, made: _Signature, piece: tuple[Array | None, str, Type | None]) -> None:
    array, name, kind = piece
    if array is None:
        assert kind
        made.declared.append(
            Parameter(f"{kind.name} {name}", kind.bits // 8, kind.bits // 8, _packed(_FORM[kind.bits], name))
        )
        writer.names.append((name, kind))
        return
    made.where[name] = (array, len(made.declared), 0)
    made.declared.append(Parameter(f"{_pointer(writer, array)} {name}", 8, 8, _packed("Q", name)))


def _pointer(writer: Body, array: Array) -> str:
    if array.of_pointers:
        return f"{array.element} const*" if writer.rng.random() < 0.5 else f"{array.element}*"
    return f"{array.element}*" + (" __restrict__" if writer.rng.random() < 0.3 else "")


def _in_a_struct(writer: Body, made: _Signature, pieces: Sequence[tuple[Array | None, str, Type | None]]) -> None:
    """Pass several as one struct by value; some have an array among their fields."""
    type_name, name = f"{writer.name}_S{len(made.types)}", f"s{len(made.types)}"
    fields: list[str] = []
    packers: list[tuple[int, Callable[[Env], bytes]]] = []
    offset, align = 0, 1
    if writer.rng.random() < 0.3:
        fields.append("int dims[3];")
        packers.append((0, lambda env: struct.pack("<3i", 11, 12, 13)))
        offset, align = 12, 4
    for array, plain, kind in pieces:
        size = 8 if array else (kind.bits // 8 if kind else 0)
        offset += -offset % size
        align = max(align, size)
        if array:
            fields.append(f"{array.element}* {plain};")
            made.where[plain] = (array, len(made.declared), offset)
        else:
            assert kind
            fields.append(f"{kind.name} {plain};")
            writer.names.append((plain, kind))
        packers.append((offset, _packed(_FORM[8 * size], plain)))
        offset += size
    total = offset + -offset % align

    def pack(env: Env) -> bytes:
        data = bytearray(total)
        for at, one in packers:
            held = one(env)
            data[at : at + len(held)] = held
        return bytes(data)

    made.types.append(f"struct {type_name} {{ {' '.join(fields)} }};")
    made.declared.append(Parameter(f"{type_name} {name}", total, align, pack))
    for array, plain, kind in pieces:
        writer.emit(f"{array.element + '*' if array else kind.name if kind else ''} {plain} = {name}.{plain};")


def _start(writer: Body) -> Block:
    """Name the thread's coordinates, in one of the ways in which kernels do."""
    rng = writer.rng
    steps: Block = []
    axes = "xyz"[: writer.dimensions]
    for axis in axes:
        writer.names += [(f"threadIdx.{axis}", UNSIGNED), (f"blockIdx.{axis}", UNSIGNED)]
        name = f"g{axis}"
        how = rng.random()
        block, thread, size = (variable(f"{word}.{axis}", UNSIGNED) for word in ("blockIdx", "threadIdx", "blockDim"))
        value = binary("+", binary("*", block, size), thread)
        kind = rng.choice((INT, INT, UNSIGNED, LONG))
        if how < 0.15:
            here = "cg::this_thread_block()"
            text = f"cg::this_grid().block_index().{axis} * {here}.dim_threads().{axis} + {here}.thread_index().{axis}"
            text = f"(int)({text})"
            kind = INT
        else:
            text = value.text
        writer.emit(f"{kind.name} {name} = {text};")
        writer.names.append((name, kind))
        evaluate = value.value

        def step(state: State, name: str = name, kind: Type = kind, evaluate: Callable[[Env], int] = evaluate) -> None:
            state.env[name] = kind.wrap(evaluate(state.env))

        steps.append(step)
    if rng.random() < 0.2:
        writer.emit("int rank = (int)cg::this_thread_block().thread_rank();")
        writer.names.append(("rank", INT))
    if rng.random() < 0.15:
        writer.emit("int tile = (int)cg::tiled_partition<32>(cg::this_thread_block()).thread_rank();")
        writer.names.append(("tile", INT))

        def tile(state: State) -> None:
            state.env["tile"] = int(state.env["rank"]) % 32

        steps.append(tile)
    if rng.random() < 0.5:
        name = rng.choice([f"g{axis}" for axis in axes])
        bound = rng.choice((10, 100, 5000))
        writer.emit(f"if ({name} >= {bound}) return;")

        def guard(state: State, name: str = name, bound: int = bound) -> None:
            if int(state.env[name]) >= bound:
                raise Stop

        steps.append(guard)
    return steps
