"""An interpreter of SASS for one thread: registers, predicates, uniform registers, memory, calls and loops.

    machine = Machine(code, constants, image)      # compiled once for a function
    thread = machine.thread(thread=(3, 0, 0), block=(5, 0, 0), memory=memory)
    machine.run(thread)                            # `thread.touched` lists every access in order

Here a warp is 32 threads run one after the other. A vote, a shuffle or a barrier acts as in a warp with one active
lane. `blocks` runs the threads of a block together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.support.sass.listing import Code, Line
from tests.support.sass.memory import Memory

Dim3 = tuple[int, int, int]
Where = tuple[int, tuple[int, ...]]
"""An offset in the section, and the offsets of the calls around it."""
EXIT: Final = -1
_NOT_WRITTEN: Final = 256  # where writes to RZ go


class Unsupported(Exception):
    """The interpreter does not know what an instruction does."""


class Endless(Exception):
    """The thread executed more instructions than it may."""


@dataclass(frozen=True)
class Touch:
    """An access that was executed: the offset of its instruction, `load`, `store` or `atomic`, space, address, size."""

    offset: int
    kind: str
    space: str
    address: int
    size: int
    step: int
    calls: tuple[int, ...]


@dataclass
class Snapshot:
    """The registers at a moment."""

    general: list[int]
    uniform: list[int]
    predicates: list[bool]
    uniform_predicates: list[bool]
    step: int = 0


@dataclass
class Thread:
    """The state of a thread.

    `calls` are the offsets of the calls that it is inside of, outermost first. `before` and `after` hold the registers
    around the last execution of watched instructions, by offset and calls; `turns` how often the loops at watched
    offsets have turned.
    """

    thread: Dim3
    block: Dim3
    lane: int
    memory: Memory
    banks: Mapping[int, bytes]
    r: list[int] = field(default_factory=lambda: [0] * 264)
    u: list[int] = field(default_factory=lambda: [0] * 264)
    p: list[bool] = field(default_factory=lambda: [False] * 7 + [True] + [False])
    q: list[bool] = field(default_factory=lambda: [False] * 7 + [True] + [False])
    local: Memory = field(default_factory=Memory)
    shared: Memory = field(default_factory=Memory)
    touched: list[Touch] = field(default_factory=list)
    calls: tuple[int, ...] = ()
    before: dict[Where, Snapshot] = field(default_factory=dict)
    after: dict[Where, Snapshot] = field(default_factory=dict)
    turns: dict[Where, int] = field(default_factory=dict)
    observe: Callable[[Thread, Touch], None] | None = None
    guessed: dict[str, int] = field(default_factory=dict)
    specials: dict[str, int] = field(default_factory=dict)
    steps: int = 0

    def snapshot(self) -> Snapshot:
        """Return a copy of the registers."""
        return Snapshot(self.r[:], self.u[:], self.p[:], self.q[:], self.steps)

    def touch(self, offset: int, kind: str, space: str, address: int, size: int) -> None:
        """Note an access."""
        touch = Touch(offset, kind, space, address, size, self.steps, self.calls)
        self.touched.append(touch)
        if self.observe:
            self.observe(self, touch)


Operation = Callable[[Thread], "int | None"]


class Machine:
    """A function, compiled to one Python function an instruction.

    `banks` are constant banks by number, apart from 0; `strict` refuses what it does not know.
    """

    def __init__(
        self,
        code: Code,
        *,
        labels: Mapping[str, int] | None = None,
        banks: Mapping[int, bytes] | None = None,
        strict: bool = True,
    ) -> None:
        from tests.support.sass.semantics import Compiler

        self.code: Final = code
        self._banks: Final = dict(banks or {})
        self._compiler: Final = Compiler(code, labels or {}, strict=strict)
        self._operations: Final[list[Operation | None]] = [None] * len(code.lines)
        self.executed: Final[set[int]] = set()

    def thread(self, *, thread: Dim3, block: Dim3, block_size: Dim3, memory: Memory, constants: bytes) -> Thread:
        """Return a thread at the function's start."""
        rank = thread[0] + block_size[0] * (thread[1] + block_size[1] * thread[2])
        return Thread(thread, block, rank % 32, memory, {**self._banks, 0: constants})

    def operation(self, index: int) -> Operation:
        """Return what the instruction at an index does."""
        found = self._operations[index]
        if found is None:
            found = self._operations[index] = self._compiler.operation(self.code.lines[index])
            self.executed.add(16 * index)
        return found

    def run(
        self,
        thread: Thread,
        *,
        start: int = 0,
        limit: int = 200_000,
        watch: Iterable[int] = (),
        loops: Mapping[int, frozenset[int]] | None = None,
        until: Callable[[Thread, int], bool] | None = None,
    ) -> int:
        """Run a thread from an offset until it exits; returns the offset where it stopped, -1 for an exit.

        `until` is asked before each instruction and stops there when it says so. `watch` are offsets whose registers
        are kept, `loops` gives for the first offset of a loop the offsets from which it turns. Raises `Endless` and
        `Unsupported`.
        """
        operations, index, last = self._operations, start // 16, -1
        watched, headers = frozenset(offset // 16 for offset in watch), loops or {}
        steps = thread.steps
        while index != EXIT:
            if until and until(thread, 16 * index):
                return 16 * index
            steps += 1
            thread.steps = steps
            if steps > limit:
                raise Endless
            operation = operations[index] or self.operation(index)
            if 16 * index in headers:
                where = 16 * index, thread.calls
                thread.turns[where] = thread.turns.get(where, 0) + 1 if 16 * last in headers[16 * index] else 0
            last, calls = index, thread.calls
            if index in watched:
                thread.before[16 * index, calls] = thread.snapshot()
                following = operation(thread)
                thread.after[16 * index, calls] = thread.snapshot()
            else:
                following = operation(thread)
            if len(thread.calls) < len(calls) and calls[-1] // 16 in watched:
                thread.after[calls[-1], thread.calls] = thread.snapshot()  # what a call wrote is there when it returns
            index = index + 1 if following is None else following
        return EXIT


def place(line: Line) -> str:
    """Return an instruction for a message."""
    return f"{line.offset:#x} {line.opcode} {', '.join(one.text for one in line.operands)}"
