"""The statements of a random kernel, each written as C++ and kept as Python."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.sass.cpp import (
    BYTE,
    INT,
    LONG,
    SHORT,
    SIZE,
    UNSIGNED,
    Env,
    Expr,
    Type,
    Undefined,
    binary,
    cast,
    choose,
    compare,
    constant,
    smallest,
    variable,
)
from tests.support.sass.launches import ELEMENTS, TURNS, Access, Array, Block, Leave, State, Step, Stop, run


@dataclass
class Writer:
    """Writes one kernel; `body` and `before` are its lines and those of the functions that it calls."""

    rng: random.Random
    name: str
    body: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    names: list[tuple[str, Type]] = field(default_factory=list)  # what an expression may use
    scalars: list[tuple[str, Type]] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    depth: int = 0
    count: int = 0
    dimensions: int = 1
    lookups: int = 0
    marks: list[tuple[bool, int]] = field(default_factory=list)

    def emit(self, text: str) -> int:
        """Append a line to the body; returns a mark that becomes its line number."""
        self.body.append("  " * (self.depth + 1) + text)
        self.marks.append((False, len(self.body)))
        return len(self.marks) - 1

    def emit_before(self, text: str) -> int:
        """Append a line to the functions before the kernel; returns its mark."""
        self.before.append(text)
        self.marks.append((True, len(self.before)))
        return len(self.marks) - 1

    def fresh(self, stem: str = "v") -> str:
        """Return a name that is not used."""
        self.count += 1
        return f"{stem}{self.count}"

    def number(self) -> Expr:
        """Return a leaf of an expression."""
        rng = self.rng
        if rng.random() < 0.18:
            return constant(rng.choice((0, 1, 2, 3, 5, 7, 8, 16, 100)), rng.choice((INT, INT, UNSIGNED, LONG)))
        name, kind = rng.choice(self.names[-6:] if rng.random() < 0.5 else self.names)
        return variable(name, kind)

    def expression(self, depth: int) -> Expr:
        """Return a random expression."""
        rng = self.rng
        if depth <= 0 or rng.random() < 0.12:
            return self.number()
        pick = rng.random()
        a = self.expression(depth - 1)
        if pick < 0.30:
            return binary("+", a, self.expression(depth - 1))
        if pick < 0.52:
            return binary("*", a, self.number())
        if pick < 0.60:
            return binary("-", a, self.number())
        if pick < 0.66:
            by = constant(rng.choice((2, 3, 4, 7, 8, 10, 12, 100))) if rng.random() < 0.5 else self.positive()
            return binary(rng.choice("/%"), a, by)
        if pick < 0.72:
            kind = rng.choice((INT, INT, UNSIGNED, LONG))
            return smallest(kind, a, self.expression(depth - 1), rng.choice(("min", "max")))
        if pick < 0.79:
            condition = compare(rng.choice(("<", "<=", ">", "==", "!=")), self.number(), self.number())
            return choose(condition, a, self.expression(depth - 1))
        if pick < 0.86:
            return binary(rng.choice(("<<", ">>")), a, constant(rng.randint(1, 4)))
        if pick < 0.93:
            return binary("&", a, constant(rng.choice((1, 3, 7, 15, 31, 63, 12, 0x7F, 0xFF0))))
        if pick < 0.96:
            return binary(rng.choice("|^"), a, constant(rng.choice((1, 2, 8, 5))))
        return cast(rng.choice((LONG, INT, UNSIGNED, SHORT, BYTE, LONG)), a)

    def positive(self) -> Expr:
        """Return a scalar parameter, which is rarely 0."""
        name, kind = self.rng.choice(self.scalars) if self.scalars else ("blockDim.x", UNSIGNED)
        return variable(name, kind)

    def declare(self, value: Expr, kind: Type | None = None) -> tuple[str, Step]:
        """Write `kind name = value`; the name is known from then on."""
        kind = kind or value.type
        name, evaluate = self.fresh(), value.value
        self.emit(f"{kind.name} {name} = {value.text};")
        self.names.append((name, kind))

        def step(state: State) -> None:
            state.env[name] = kind.wrap(evaluate(state.env))

        return name, step


class Body(Writer):
    """The statements."""

    def touch(self, mark: int, kind: str, array: Array, index: Callable[[Env], int]) -> Step:
        """Return the step that notes an access to an element."""

        def step(state: State) -> None:
            base = int(state.env[array.name])
            state.accesses.append(
                Access(mark, kind, "global", array.name, (base + array.size * index(state.env)) % (1 << 64), array.size)
            )

        return step

    def index(self) -> Expr:
        """Return an index; of 64 bits in some kernels."""
        return self.expression(self.rng.choice((1, 2, 2, 3)))

    def value_array(self) -> Array:
        """Return an array whose elements are data."""
        return self.rng.choice([one for one in self.arrays if one.table is None and not one.pointers])

    def read(self) -> Block:
        """`acc += src[index]`"""
        array, index = self.value_array(), self.index()
        element = next(one for one in ELEMENTS if one.name == array.element)
        text = element.use.format(f"{array.name}[{index.text}]")
        mark = self.emit(text if text.endswith("}") else text + ";")
        return [self.touch(mark, "load", array, index.value)]

    def write(self) -> Block:
        """`out[index] = acc`"""
        array, index = self.value_array(), self.index()
        element = next(one for one in ELEMENTS if one.name == array.element)
        mark = self.emit(f"{array.name}[{index.text}] = {element.make.replace('{{', '{').replace('}}', '}')};")
        return [self.touch(mark, "store", array, index.value)]

    def look_up(self) -> Block:
        """`int v = table[index]`, to be used in later indices"""
        tables = [one for one in self.arrays if one.table is not None and not one.of_pointers]
        if not tables or self.lookups >= 3:
            return self.read()
        self.lookups += 1
        array, index = self.rng.choice(tables), self.index()
        assert array.table
        kind, name, evaluate = array.table, self.fresh("t"), index.value
        mark = self.emit(f"{kind.name} {name} = {array.name}[{index.text}];")
        touch = self.touch(mark, "load", array, evaluate)

        def step(state: State) -> None:
            touch(state)
            at = state.accesses[-1].address
            state.env[name] = kind.wrap(int.from_bytes(state.memory.read(at, kind.bits // 8), "little"))

        steps: Block = [step]
        self.names.append((name, kind))
        return steps

    def atomic(self) -> Block:
        """`int slot = atomicAdd(&counter[index], 1)`"""
        tables = [one for one in self.arrays if one.table is INT]
        if not tables:
            return self.read()
        array, index, name = self.rng.choice(tables), self.index(), self.fresh("a")
        evaluate, by = index.value, self.rng.choice((1, 1, 4))
        mark = self.emit(f"int {name} = atomicAdd(&{array.name}[{index.text}], {by});")
        touch = self.touch(mark, "atomic", array, evaluate)

        def step(state: State) -> None:
            touch(state)
            at = state.accesses[-1].address
            old = INT.wrap(int.from_bytes(state.memory.read(at, 4), "little"))
            state.env[name] = old
            state.memory.write(at, ((old + by) & 0xFFFFFFFF).to_bytes(4, "little"))

        self.names.append((name, INT))
        return [step]

    def pointer_look_up(self) -> Block:
        """`acc += rows[i][j]`"""
        inner = [one for one in self.arrays if one.pointers]
        if not inner:
            return self.look_up()
        array = self.rng.choice(inner)
        outer = next(one for one in self.arrays if one.name == array.pointers)
        row, index, held = self.index(), self.index(), self.fresh("p")
        element = next(one for one in ELEMENTS if one.name == array.element)
        first = self.emit(f"const {array.element}* {held} = {outer.name}[{row.text}];")
        text = element.use.format(f"{held}[{index.text}]")
        second = self.emit(text if text.endswith("}") else text + ";")
        touch, at = self.touch(first, "load", outer, row.value), index.value

        def step(state: State) -> None:
            touch(state)
            pointer = int.from_bytes(state.memory.read(state.accesses[-1].address, 8), "little")
            address = (pointer + array.size * at(state.env)) % (1 << 64)
            state.accesses.append(Access(second, "load", "global", array.name, address, array.size))

        return [step]

    def shared(self) -> Block:
        """A round trip through shared memory, whose value may be an index"""
        name, size, value = self.fresh("sh"), self.rng.choice((64, 256)), self.expression(2)
        # By the thread: of a slot that is constant, nvcc knows that nobody writes the one beside it.
        slot = binary("&", binary("+", self.expression(1), variable("threadIdx.x", UNSIGNED)), constant(size - 1))
        self.emit(f"__shared__ int {name}[{size}];")
        kept = self.fresh("i")
        self.emit(f"int {kept} = (int)({slot.text});")
        stored = self.emit(f"{name}[{kept}] = (int)({value.text});")
        self.emit("__syncthreads();")
        back = self.fresh("s")
        loaded = self.emit(f"int {back} = {name}[{kept}];")
        other = self.emit(f"acc += (unsigned){name}[{kept} ^ 1];")
        place, what = slot.value, value.value
        self.names += [(back, INT)]

        def step(state: State) -> None:
            at, held = INT.wrap(place(state.env)), INT.wrap(what(state.env))
            state.env[kept], state.env[back] = at, held
            state.accesses.append(Access(stored, "store", "shared", name, 4 * at, 4))
            state.accesses.append(Access(loaded, "load", "shared", name, 4 * at, 4))
            state.accesses.append(Access(other, "load", "shared", name, 4 * (at ^ 1), 4))

        return [step]

    def local_array(self) -> Block:
        """A small array in local memory, indexed by a value"""
        name, got = self.fresh("loc"), self.fresh("l")
        values = [self.number() for _ in range(4)]
        slot = binary("&", self.expression(1), constant(3))
        self.emit(f"int {name}[4] = {{{', '.join(f'(int)({v.text})' for v in values)}}};")
        self.emit(f"int {got} = {name}[{slot.text}];")
        place = slot.value
        self.names.append((got, INT))

        def step(state: State) -> None:
            state.env[got] = INT.wrap(values[place(state.env)].value(state.env))

        return [step]

    def called(self) -> Block:
        """A function that is not inlined and returns what it loaded"""
        tables = [one for one in self.arrays if one.table is INT]
        if not tables:
            return self.look_up()
        array, function, got = self.rng.choice(tables), f"{self.name}_{self.fresh('f')}", self.fresh("c")
        a, b, factor = self.expression(1), self.expression(1), self.rng.randint(2, 9)
        mark = self.emit_before(
            f"__device__ __noinline__ int {function}(const int* t, int a, long long b)"
            f" {{ return t[a * {factor} + b] + a; }}"
        )
        self.emit(f"int {got} = {function}({array.name}, (int)({a.text}), (long long)({b.text}));")
        first, second = a.value, b.value
        self.names.append((got, INT))

        def step(state: State) -> None:
            left, right = INT.wrap(first(state.env)), LONG.wrap(second(state.env))
            index = LONG.checked(INT.checked(left * factor) + right)
            address = (int(state.env[array.name]) + 4 * index) % (1 << 64)
            state.accesses.append(Access(mark, "load", "global", array.name, address, 4))
            held = INT.wrap(int.from_bytes(state.memory.read(address, 4), "little"))
            state.env[got] = INT.checked(held + left)

        return [step]

    def stored_by_call(self) -> Block:
        """A function that is not inlined and stores"""
        array = self.value_array()
        element = next(one for one in ELEMENTS if one.name == array.element)
        function, index, factor = f"{self.name}_{self.fresh('g')}", self.index(), self.rng.randint(2, 9)
        mark = self.emit_before(
            f"__device__ __noinline__ void {function}({element.name}* p, long long i, int s, {element.name} v)"
            f" {{ p[i * {factor} + s] = v; }}"
        )
        by, value = self.positive(), element.make.replace("{{", "{").replace("}}", "}")
        self.emit(f"{function}({array.name}, (long long)({index.text}), (int){by.text}, {value});")
        first, second = index.value, by.value

        def step(state: State) -> None:
            at = LONG.checked(LONG.checked(LONG.wrap(first(state.env)) * factor) + INT.wrap(second(state.env)))
            address = (int(state.env[array.name]) + array.size * at) % (1 << 64)
            state.accesses.append(Access(mark, "store", "global", array.name, address, array.size))

        return [step]

    def scope(self, write: Callable[[], Block]) -> Block:
        """Return the steps of a block of statements, one deeper; its names are forgotten after it."""
        known, self.depth = len(self.names), self.depth + 1
        steps = write()
        del self.names[known:]
        self.depth -= 1
        return steps

    def guarded(self) -> Block:
        """`if (a < b) { ... } else { ... }`"""
        condition = compare(self.rng.choice(("<", ">=", "!=", "==")), self.expression(1), self.number())
        self.emit(f"if ({condition.text}) {{")
        yes = self.scope(lambda: self.statements(1))
        no: Block = []
        if self.rng.random() < 0.5:
            self.emit("} else {")
            no = self.scope(lambda: self.statements(1))
        self.emit("}")
        test = condition.value
        return [lambda state: run(yes if test(state.env) else no, state)]

    def returns(self) -> Block:
        """`if (a >= b) return;`, which holds for few threads"""
        condition = compare(">=", self.number(), constant(self.rng.choice((40, 100, 1000))))
        self.emit(f"if ({condition.text}) return;")
        test = condition.value

        def step(state: State) -> None:
            if test(state.env):
                raise Stop

        return [step]

    def loop(self) -> Block:
        """A loop of a random kind"""
        kinds = (self.plain, self.strided, self.halved, self.carried, self.pointer, self.searched, self.grid_stride)
        return self.rng.choice(kinds)()

    def counted(
        self,
        head: str,
        name: str,
        kind: Type,
        first: Expr,
        test: Expr,
        advance: Expr,
        ending: tuple[str, Step] | None = None,
    ) -> Block:
        """A `for` loop: `test` and `advance` are over `name`; `ending` is a last statement of its body."""
        pragma = self.rng.choice(("", "", "", "#pragma unroll 1", "#pragma unroll 4", "#pragma unroll"))
        if pragma:
            self.emit(pragma)
        self.emit(head)
        self.names.append((name, kind))
        body = self.scope(lambda: self.statements(self.rng.choice((1, 2))))
        self.names.remove((name, kind))
        if ending:
            self.emit("  " + ending[0])
            body.append(ending[1])
        self.emit("}")
        start, going, following = first.value, test.value, advance.value

        def step(state: State) -> None:
            state.env[name] = kind.wrap(start(state.env))
            turns = 0
            while going(state.env):
                turns += 1
                if turns > TURNS:
                    raise Undefined
                try:
                    run(body, state)
                except Leave:
                    break
                state.env[name] = kind.wrap(following(state.env))

        return [step]

    def plain(self, ending: tuple[str, Step] | None = None) -> Block:
        """`for (int i = 0; i < n; ++i)`"""
        name, kind = self.fresh("i"), self.rng.choice((INT, INT, LONG, UNSIGNED))
        bound = (
            constant(self.rng.randint(1, 9)) if self.rng.random() < 0.4 else binary("&", self.positive(), constant(7))
        )
        here = variable(name, kind)
        return self.counted(
            f"for ({kind.name} {name} = 0; {name} < {bound.text}; ++{name}) {{", name, kind,
            constant(0), compare("<", here, bound), binary("+", here, constant(1)), ending,
        )  # fmt: skip

    def strided(self) -> Block:
        """`for (int i = threadIdx.x; i < n; i += blockDim.x)`"""
        name, kind = self.fresh("i"), self.rng.choice((INT, LONG, UNSIGNED))
        step = self.rng.choice((variable("blockDim.x", UNSIGNED), constant(3), constant(16)))
        first = self.rng.choice((variable("threadIdx.x", UNSIGNED), self.number()))
        times = constant(self.rng.randint(1, 6))
        bound = cast(kind, binary("+", first, binary("*", step, times)))
        limit, keep = self.declare(bound, kind)
        here = variable(name, kind)
        return [keep, *self.counted(
            f"for ({kind.name} {name} = {first.text}; {name} < {limit}; {name} += {step.text}) {{", name, kind,
            first, compare("<", here, variable(limit, kind)), cast(kind, binary("+", here, step)),
        )]  # fmt: skip

    def grid_stride(self) -> Block:
        """`for (i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)`"""
        name, kind = self.fresh("i"), self.rng.choice((INT, LONG, UNSIGNED, SIZE))
        block, size, thread = (variable(f"{word}.x", UNSIGNED) for word in ("blockIdx", "blockDim", "threadIdx"))
        first = binary("+", binary("*", block, size), thread)
        step = binary("*", variable("gridDim.x", UNSIGNED), variable("blockDim.x", UNSIGNED))
        bound = binary("*", step, constant(self.rng.randint(1, 4)))
        here = variable(name, kind)
        return self.counted(
            f"for ({kind.name} {name} = {first.text}; {name} < {bound.text}; {name} += {step.text}) {{", name, kind,
            first, compare("<", here, bound), cast(kind, binary("+", here, step)),
        )  # fmt: skip

    def halved(self) -> Block:
        """`while (x > 0) { ... x >>= 1; }`, also as `do ... while`"""
        name, kind = self.fresh("w"), self.rng.choice((INT, UNSIGNED, LONG))
        first, late = cast(kind, self.positive()), self.rng.random() < 0.3
        down = self.rng.random() < 0.5
        self.emit(f"{kind.name} {name} = {first.text};")
        self.emit("do {" if late else f"while ({name} > 0) {{")
        self.names.append((name, kind))
        body = self.scope(lambda: self.statements(1))
        self.names.remove((name, kind))
        self.emit(f"  {name} {'>>= 1' if not down else '-= 5'};")
        self.emit(f"}} while ({name} > 0);" if late else "}")
        start = first.value

        def step(state: State) -> None:
            state.env[name] = kind.wrap(start(state.env))
            turns = 0
            while (late and turns == 0) or state.env[name] > 0:
                turns += 1
                if turns > TURNS:
                    raise Undefined
                run(body, state)
                state.env[name] = kind.checked(state.env[name] - 5 if down else state.env[name] >> 1)

        return [step]

    def carried(self) -> Block:
        """A loop that carries an index of its own: `x = x + step` beside the counter"""
        name, kind = self.fresh("x"), self.rng.choice((INT, UNSIGNED, LONG))
        first, by = cast(kind, self.number()), self.positive()
        self.emit(f"{kind.name} {name} = {first.text};")
        start, grown = first.value, binary(self.rng.choice("+++-"), variable(name, kind), by)
        self.names.append((name, kind))
        after = cast(kind, grown)
        evaluate = after.value

        def begin(state: State) -> None:
            state.env[name] = kind.wrap(start(state.env))

        def advance(state: State) -> None:
            state.env[name] = evaluate(state.env)

        loop = self.plain((f"{name} = {after.text};", advance))
        return [begin, *loop]

    def pointer(self) -> Block:
        """`for (...; p += stride) acc += *p`"""
        array, index, by = self.value_array(), self.index(), self.positive()
        element = next(one for one in ELEMENTS if one.name == array.element)
        name, times = self.fresh("p"), self.rng.randint(1, 6)
        counter = self.fresh("i")
        self.emit(f"const {element.name}* {name} = {array.name} + {index.text};")
        self.emit(f"for (int {counter} = 0; {counter} < {times}; ++{counter}, {name} += {by.text}) {{")
        text = element.use.format(f"*{name}")
        mark = self.emit("  " + (text if text.endswith("}") else text + ";"))
        self.emit("}")
        first, stride = index.value, by.value

        def step(state: State) -> None:
            at, change = first(state.env), stride(state.env)
            for _ in range(times):
                address = (int(state.env[array.name]) + array.size * at) % (1 << 64)
                state.accesses.append(Access(mark, "load", "global", array.name, address, array.size))
                at += change

        return [step]

    def searched(self) -> Block:
        """A loop that a loaded value ends: `while (table[x] > 9) x += step`"""
        tables = [one for one in self.arrays if one.table is not None and one.table.signed and not one.of_pointers]
        if not tables:
            return self.plain()
        array, name, held = self.rng.choice(tables), self.fresh("x"), self.fresh("h")
        assert array.table
        kind, first, by = array.table, cast(INT, self.expression(1)), self.rng.choice((1, 3, 8))
        self.emit(f"int {name} = {first.text};")
        self.emit("while (true) {")
        mark = self.emit(f"  {kind.name} {held} = {array.name}[{name}];")
        self.emit(f"  if ({held} < 30) break;")
        self.emit(f"  acc += {name};")
        self.emit(f"  {name} += {by};")
        self.emit("}")
        start = first.value
        self.names.append((name, INT))

        def step(state: State) -> None:
            at = start(state.env)
            for _ in range(TURNS):
                address = (int(state.env[array.name]) + array.size * at) % (1 << 64)
                state.accesses.append(Access(mark, "load", "global", array.name, address, array.size))
                if kind.wrap(int.from_bytes(state.memory.read(address, array.size), "little")) < 30:
                    state.env[name] = at
                    return
                at = INT.checked(at + by)
            raise Undefined

        return [step]

    def statements(self, least: int) -> Block:
        """Return some statements, the last of which touches memory."""
        steps: Block = []
        for _ in range(self.rng.randint(least, least + 2)):
            steps += self.statement()
        return steps + self.rng.choice((self.read, self.write))()

    def statement(self) -> Block:
        """Return one statement, with those that it needs."""
        pick, deep = self.rng.random(), self.depth >= 3
        if pick < 0.18:
            value = self.expression(2)
            return [self.declare(value)[1]]
        if pick < 0.40:
            return self.look_up()
        if pick < 0.48:
            return self.read()
        if pick < 0.54:
            return self.write()
        if pick < 0.59:
            return self.pointer_look_up()
        if pick < 0.63 and self.depth == 0:
            return self.shared()
        if pick < 0.66:
            return self.local_array()
        if pick < 0.69:
            return self.atomic()
        if pick < 0.73:
            return self.called()
        if pick < 0.76:
            return self.stored_by_call()
        if deep:
            return self.read()
        return self.guarded() if pick < 0.85 else self.loop()
