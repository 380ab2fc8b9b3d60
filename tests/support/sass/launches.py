"""A kernel whose every access is known, and one thread of a launch of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tests.support.sass.cpp import (
    BYTE,
    CHAR,
    HALF,
    INT,
    LONG,
    SHORT,
    SIZE,
    UNSIGNED,
    Env,
    Type,
    Undefined,
)
from tests.support.sass.memory import Memory, Region

TURNS: Final = 48  # of a loop; a launch whose loops turn more often is not used
TRIES: Final = 12  # launches tried until C++ defines one


@dataclass(frozen=True)
class Element:
    """An element type of an array: its name, size in bytes, and how a value of it is used up."""

    name: str
    size: int
    use: str
    make: str
    kind: Type | None = None


ELEMENTS: Final = (
    Element("float", 4, "facc += {}", "facc"),
    Element("float", 4, "facc += {}", "facc"),
    Element("int", 4, "acc += (unsigned){}", "(int)acc", INT),
    Element("unsigned char", 1, "acc += {}", "(unsigned char)acc", BYTE),
    Element("short", 2, "acc += (unsigned){}", "(short)acc", SHORT),
    Element("double", 8, "facc += (float){}", "(double)facc"),
    Element("long long", 8, "acc += (unsigned){}", "(long long)acc", LONG),
    Element("float2", 8, "{{ float2 v = {}; facc += v.x * v.y; }}", "make_float2(facc, facc)"),
    Element("float4", 16, "{{ float4 v = {}; facc += v.x * v.y + v.z * v.w; }}", "make_float4(facc, facc, facc, facc)"),
    Element("int4", 16, "{{ int4 v = {}; acc += v.x ^ v.y ^ v.z ^ v.w; }}", "make_int4(acc, acc, 0, acc)"),
    Element("Twelve", 12, "{{ Twelve v = {}; acc += v.a ^ v.b ^ v.c; }}", "Twelve{{(int)acc, (int)acc, 1}}"),
)
TABLES: Final = (INT, INT, INT, UNSIGNED, LONG, BYTE, SHORT, CHAR, HALF)
SCALARS: Final = (INT, INT, INT, UNSIGNED, LONG, LONG, SIZE, SHORT, BYTE)


@dataclass(frozen=True)
class Access:
    """An access that C++ makes: its line, `load`, `store` or `atomic`, the space, the array, its address and size.

    In shared memory the address counts from the start of the array.
    """

    line: int
    kind: str
    space: str
    array: str
    address: int
    size: int


@dataclass(frozen=True)
class Array:
    """An array behind a pointer: how C++ names the pointer, and where it is passed."""

    name: str
    element: str
    size: int
    table: Type | None = None
    pointers: str | None = None  # the array of pointers that holds this one's addresses

    @property
    def of_pointers(self) -> bool:
        """Whether its elements are pointers."""
        return self.element.endswith("*")


@dataclass(frozen=True)
class Parameter:
    """A parameter: its declaration, size, alignment, and its bytes for a launch."""

    declaration: str
    size: int
    align: int
    pack: Callable[[Env], bytes]


@dataclass(frozen=True)
class Launch:
    """One thread of one launch, and what C++ says that it accesses.

    `pointers` gives of each array its address, the argument that holds it (counted from 0) and the offset in it.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    block_index: tuple[int, int, int]
    thread: tuple[int, int, int]
    parameters: bytes
    places: tuple[tuple[int, int], ...]
    pointers: dict[str, tuple[int, int, int]]
    memory: Memory
    accesses: tuple[Access, ...]
    finished: bool  # whether the thread reached the end of the kernel
    env: Env = field(repr=False)


class Stop(Exception):
    """The thread has returned."""


class Leave(Exception):
    """A loop is left."""


@dataclass
class State:
    """A thread on its way."""

    env: Env
    memory: Memory
    accesses: list[Access] = field(default_factory=list)
    stored: dict[tuple[str, int], int] = field(default_factory=dict)  # shared and local arrays, by element


Step = Callable[[State], None]
Block = list[Step]


def run(steps: Sequence[Step], state: State) -> None:
    """Run statements in order."""
    for step in steps:
        step(state)


@dataclass(frozen=True)
class Kernel:
    """A kernel: its name and text, its parameters in order, and its body as Python."""

    name: str
    lines: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    arrays: dict[str, tuple[Array, int, int]]  # argument and offset in it; -1 where it is behind a pointer in memory
    scalars: tuple[tuple[str, Type], ...]
    steps: tuple[Step, ...]
    dimensions: int
    numbers: tuple[int, ...]

    def launch(self, rng: random.Random) -> Launch | None:
        """Return a launch that C++ defines, or None when none was found."""
        for _ in range(TRIES):
            found = self._launch(rng)
            if found is not None:
                return found
        return None

    def _launch(self, rng: random.Random) -> Launch | None:
        block = (rng.choice((1, 8, 32, 33, 64, 128)), *(rng.choice((1, 2, 4)) for _ in range(2)))
        grid = (rng.choice((1, 2, 5, 40)), *(rng.choice((1, 3)) for _ in range(2)))
        if self.dimensions < 3:
            block, grid = (*block[:2], 1), (*grid[:2], 1)
        if self.dimensions < 2:
            block, grid = (block[0], 1, 1), (grid[0], 1, 1)
        index = tuple(rng.randrange(n) for n in grid)
        thread = tuple(rng.randrange(n) for n in block)
        env: Env = {"rank": thread[0] + block[0] * (thread[1] + block[1] * thread[2])}
        for name, at in (("threadIdx", thread), ("blockIdx", index), ("blockDim", block), ("gridDim", grid)):
            env.update({f"{name}.{axis}": value for axis, value in zip("xyz", at, strict=True)})
        for name, kind in self.scalars:
            value = rng.randint(1, 40) if kind.bits > 8 else rng.randint(1, 9)
            env[name] = -value if kind.signed and rng.random() < 0.06 else value
        regions, bases = [], {}
        for n, (name, (array, _, _)) in enumerate(self.arrays.items()):
            bases[name] = (n + 1 << 40) + (rng.randrange(1, 1 << 20) << 8)
            regions.append(
                Region(bases[name] >> 40, array.table.bits // 8 if array.table else 0, rng.randrange(1 << 30))
            )
        for name, (array, _, _) in self.arrays.items():
            if array.pointers:  # the table of pointers is filled with addresses inside the array
                held = bases[array.pointers] >> 40
                regions = [
                    Region(held, 8, region.salt, pointer=bases[name]) if region.number == held else region
                    for region in regions
                ]
        env.update(bases)
        state, finished = State(env, Memory(regions)), True
        try:
            run(self.steps, state)
        except Stop:
            finished = False
        except Undefined:
            return None
        packed, places = b"", []
        for parameter in self.parameters:
            packed += bytes(-len(packed) % parameter.align)
            places.append((len(packed), parameter.size))
            packed += parameter.pack(env)
        return Launch(
            grid=_three(grid), block=_three(block), block_index=_three(index), thread=_three(thread),
            parameters=packed, places=tuple(places),
            pointers={name: (bases[name], at, offset) for name, (_, at, offset) in self.arrays.items()},
            memory=Memory(regions), env=env, finished=finished,
            accesses=tuple(replace(one, line=self.numbers[one.line]) for one in state.accesses),
        )  # fmt: skip


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = values
    return x, y, z
