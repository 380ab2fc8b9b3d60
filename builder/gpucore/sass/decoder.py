"""Decodes SASS from its words: 16 bytes to an instruction, without nvdisasm.

NVIDIA publishes no encodings. These were learned from nvdisasm by flipping the bits of words and looking at what
changes in its listing. `scripts/accept-why decoder` compares millions of instructions of the stock vLLM wheel with
nvdisasm's JSON. An encoding that was not proven is opaque: `known` is "writes" where its destinations are sure, and
"nothing" where they are not either.
Bit numbers are those of the 128-bit word, little endian.

    0-11 opcode, of it 9-11 the form: what is at bits 32 to 63 (register, immediate, constant, uniform register)
    12-15 guard    16-23 destination    24-31 a    32-63 b (or c)    64-71 c (or b)
    72-104 modifiers; predicates at 77, 81, 84, 87    105-125 scheduling, of no meaning here
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Final

from gpucore.elf import Buffer
from gpucore.errors import UnreadableBinary
from gpucore.sass import encodings as table
from gpucore.sass.model import (
    HARDWIRED,
    OCTETS,
    RZ,
    WORD,
    Barrier,
    Constant,
    Immediate,
    Instruction,
    Memory,
    Operand,
    Register,
    RegisterFile,
    RegisterOperand,
    SpecialRegister,
    Target,
    access_count,
)

Decoded = tuple[tuple[str, ...], tuple[RegisterOperand, ...], tuple[Operand, ...]]
Handler = Callable[[str, int, int, int], Decoded | None]

_WORDS: Final = struct.Struct("<QQ")
_MEANING: Final = (1 << 41) - 1  # of the upper half: behind it is scheduling
_TILES: Final = frozenset({"UTMALDG", "UTMASTG", "UTMAREDG"})
_PRODUCTS: Final = {(0, 0): "UTCHMMA", (0, 3): "UTCQMMA", (1, 0): "UTCOMMA"}
"""By the bit for scale factors, and what is multiplied: all that nvcc made in the stock wheel."""
_LEADING: Final = frozenset({"BRA", "BSSY", "CALL", "RET"})
_REGISTER_C: Final = frozenset({2, 3, 7})  # forms whose bits 64 to 71 hold b, and bits 32 to 63 c


def decode(code: Buffer, sm: int, start: int = 0) -> tuple[Instruction, ...]:
    """Return the instructions of a section's bytes; `sm` is the architecture as a number: 90 for sm_90.

    The first one has the offset `start`. Never raises for what the words say: an unknown one is opaque. Raises
    UnreadableBinary when the bytes are not whole instructions or the architecture is older than sm_70 or unknown.
    """
    if len(code) % WORD:
        raise UnreadableBinary(f"{len(code)} bytes of code are not whole instructions of {WORD} bytes", offset=start)
    one = _decoder(sm).one
    words = _WORDS.iter_unpack(code)
    return tuple([one(start + WORD * number, low, high) for number, (low, high) in enumerate(words)])


@cache
def _decoder(sm: int) -> _Decoder:
    if sm not in table.ARCHITECTURES:
        known = ", ".join(f"sm_{number}" for number in table.ARCHITECTURES)
        raise UnreadableBinary(f"the encoding of sm_{sm} is not known", next_step=f"known are {known}")
    return _Decoder(sm)


@cache
def _register(
    file: RegisterFile,
    number: int,
    count: int = 1,
    negated: bool = False,
    inverted: bool = False,
    absolute: bool = False,
) -> RegisterOperand:
    return RegisterOperand(Register(file, number), count, negated, inverted, absolute)


@cache
def _predicate(bits: int, file: RegisterFile = "P") -> RegisterOperand:
    """Three bits of number, one of negation."""
    number = HARDWIRED if bits & 7 == 7 else bits & 7
    return RegisterOperand(Register(file, number), negated=bits > 7)


@cache
def _immediate(value: int) -> Immediate:
    return Immediate(value)


def _moved(operand: Operand, offset: int) -> Operand:
    """Return the target counted from the start of the section."""
    if isinstance(operand, Target) and operand.offset is not None:
        return Target(offset + operand.offset)
    return operand


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value


class _Decoder:
    """The tables of one architecture."""

    def __init__(self, sm: int) -> None:
        self._sm = sm
        self._blackwell = sm >= 100
        self._uniform_mask = 0xFF if self._blackwell else 0x3F
        self._table: dict[int, tuple[str, Handler, int, int, int, int]] = {}
        for key, (opcode, family) in table.whole(sm).items():
            mask, value = table.fixed(sm, key)
            half = (1 << 64) - 1
            self._table[key] = (opcode, getattr(self, f"_{family}"), mask & half, value & half, mask >> 64, value >> 64)
        self._opaque = table.opaque(sm)

    def one(self, offset: int, low: int, high: int) -> Instruction:
        """Decode one word, given as its two halves."""
        key = low & 0xFFF
        found = self._table.get(key)
        if found is not None:
            opcode, handler, low_mask, low_value, high_mask, high_value = found
            if low & low_mask == low_value and high & high_mask == high_value:
                decoded = handler(opcode, key, low, high)
                if decoded is not None:
                    modifiers, destinations, sources = decoded
                    if opcode in _LEADING:
                        sources = tuple([_moved(operand, offset) for operand in sources])
                    return Instruction(offset, opcode, modifiers, destinations, sources, self._guard(opcode, low))
        return self._unread(offset, key, low, high)

    def _guard(self, opcode: str, low: int) -> RegisterOperand | None:
        if low & 0xF000 == 0x7000:
            return None
        uniform = opcode[0] == "U" or opcode in table.UNIFORM_GUARDS or low & 0xFFF == 0x5B2
        return _predicate(low >> 12 & 0xF, "UP" if uniform else "P")

    def _unread(self, offset: int, key: int, low: int, high: int) -> Instruction:
        """Return an instruction of which at most the destinations are known."""
        rows = [(n, w, c if isinstance(c, int) else c(low, high)) for n, w, c in self._opaque.get(key, ())]
        last = rows[-1] if rows else ("?", "", None)
        opcode, writes, number = next((row for row in rows if row[2] is not None), last)
        if opcode == "UTCHMMA":  # all products in tensor memory have its key
            opcode = _PRODUCTS.get((low >> 63, high >> 8 & 3), "?")
            number = None if opcode == "?" else number
        if number is None:
            return Instruction(offset, opcode, guard=self._guard(opcode, low), known="nothing")
        made = tuple([self._destination(one, low, high, number) for one in writes])
        if opcode == "USETMAXREG" and made[0].register.hardwired:
            made = ()
        if opcode in _TILES:  # [UR8], [UR6]: what it moves and where to, and the tensor map
            moved, tensor_map = self._u(low, 32).register, self._u(low, 24).register
            sources = (Memory(None, uniform=moved), Memory(None, uniform=tensor_map, uniform_count=2))
            # Four rows and a column, each with its own number: a gathering load, a scattering store.
            modifiers = (f"{(high >> 15 & 7) + 1}D", *(("ROWS",) if high >> 19 & 3 else ()))
            return Instruction(offset, opcode, modifiers, made, sources, self._guard(opcode, low), "writes")
        return Instruction(
            offset, opcode, (), made, self._read_by(opcode, key, low, high), self._guard(opcode, low), "writes"
        )

    def _read_by(self, opcode: str, key: int, low: int, high: int) -> tuple[Operand, ...]:
        """Return what arithmetic of 32-bit floating-point numbers reads, without signs; nothing of other opcodes."""
        if opcode == "FFMA":
            return (self._r(low, 24), *self._b_and_c(key, low, high, (1, 1), ("", "", "")))
        if opcode in {"FADD", "FMUL"}:
            return self._r(low, 24), self._slot(key, low, 1)
        return ()

    def _destination(self, one: str, low: int, high: int, count: int) -> RegisterOperand:
        match one:
            case "d":
                return self._r(low, 16, count)
            case "c":
                return self._r(high, 0, count)
            case "u":
                return self._u(low, 16, count)
            case _:
                return _predicate(high >> (17 if one in "pv" else 20) & 7, "P" if one in "pq" else "UP")

    # --- operands ---------------------------------------------------------------------------------------------------

    def _r(self, half: int, at: int, count: int = 1, negated: bool = False, inverted: bool = False) -> RegisterOperand:
        number = half >> at & 0xFF
        return _register("R", HARDWIRED if number == 0xFF else number, count, negated, inverted)

    def _u(self, half: int, at: int, count: int = 1, negated: bool = False, inverted: bool = False) -> RegisterOperand:
        number = half >> at & self._uniform_mask
        return _register("UR", HARDWIRED if number == self._uniform_mask else number, count, negated, inverted)

    def _d(self, uniform: bool, low: int, count: int = 1) -> RegisterOperand:
        return self._u(low, 16, count) if uniform else self._r(low, 16, count)

    def _any(
        self, uniform: bool, half: int, at: int, count: int = 1, negated: bool = False, inverted: bool = False
    ) -> RegisterOperand:
        make = self._u if uniform else self._r
        return make(half, at, count, negated, inverted)

    def _slot(self, key: int, low: int, count: int, sign: str = "", signed: bool = False) -> Operand:
        """Return the operand at bits 32 to 63; bit 63 means `sign`, "-" or "~", where there is one."""
        form = key >> 9
        if form in (2, 4):
            value = low >> 32
            return _immediate(_signed(value, 32) if signed else value)
        on = sign if low >> 63 else ""
        if form in (3, 5):
            bank, offset = low >> 54 & 0x1F, _signed(low >> 38 & 0xFFFF, 16) & ~3
            return Constant(bank, offset, None, None, count, on == "-", on == "~")
        make = self._u if form in (6, 7) or table.is_uniform(key) else self._r
        return make(low, 32, count, on == "-", on == "~")

    def _b_and_c(
        self, key: int, low: int, high: int, counts: tuple[int, int], signs: tuple[str, str, str], signed: bool = False
    ) -> tuple[Operand, Operand]:
        """Return b and c; `signs` are of what is at bit 32 as b, at bit 32 as c, and at bit 64."""
        uniform = table.is_uniform(key)
        sign = signs[2] if high >> 11 & 1 else ""
        if key >> 9 in _REGISTER_C:
            b = self._any(uniform, high, 0, counts[0])
            return b, self._slot(key, low, counts[1], signs[1], signed)
        c = self._any(uniform, high, 0, counts[1], sign == "-", sign == "~")
        return self._slot(key, low, counts[0], signs[0], signed), c

    def _carries(self, uniform: bool, high: int, places: tuple[int, ...]) -> tuple[RegisterOperand, ...]:
        """Return predicates that are written behind a register; before sm_100 the true one is not printed."""
        made = [_predicate(high >> place & 7, "UP" if uniform else "P") for place in places]
        return tuple([one for one in made if self._blackwell or not one.register.hardwired])

    # --- integers ---------------------------------------------------------------------------------------------------

    def _imad(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        uniform, kind = table.is_uniform(key), key & 3
        modifiers = () if kind == 0 else ("WIDE",) if kind == 1 else ("HI",)
        if kind and not high >> 9 & 1:
            modifiers = (*modifiers, "U32")
        extended = high >> 10 & 1
        sign = "~" if extended else "-"
        wide = 1 if kind == 0 else 2
        b, c = self._b_and_c(key, low, high, (1, wide), ("", sign, sign), signed=True)
        written = self._carries(uniform, high, (17,)) if kind else ()
        if kind and self._blackwell and written[0].register.hardwired:
            written = ()
        sources: tuple[Operand, ...] = (self._any(uniform, low, 24), b, c)
        if extended:
            modifiers, sources = (*modifiers, "X"), (*sources, _predicate(high >> 23 & 15, "UP" if uniform else "P"))
        return modifiers, (self._d(uniform, low, 2 if kind == 1 else 1), *written), sources

    def _iadd3(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        uniform, extended = table.is_uniform(key), high >> 10 & 1
        count = 2 if key & 0x1FF == 0x97 else 1
        sign = "~" if extended else "-"
        on = sign if high >> 8 & 1 else ""
        b, c = self._b_and_c(key, low, high, (count, count), (sign, sign, sign), signed=True)
        sources: tuple[Operand, ...] = (self._any(uniform, low, 24, count, on == "-", on == "~"), b, c)
        modifiers = ("64",) if count == 2 else ()
        if extended:
            file: RegisterFile = "UP" if uniform else "P"
            modifiers = (*modifiers, "X")
            sources = (*sources, _predicate(high >> 23 & 15, file), _predicate(high >> 13 & 15, file))
        return modifiers, (self._d(uniform, low, count), *self._carries(uniform, high, (17, 20))), sources

    def _lea(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        uniform, extended, upper, wide = table.is_uniform(key), high >> 10 & 1, high >> 16 & 1, high >> 9 & 1
        sign = "~" if extended else "-"
        on = sign if high >> 8 & 1 else ""
        b, c = self._b_and_c(key, low, high, (1, 1), (sign, sign, ""))
        modifiers = (*(("HI",) if upper else ()), *(("X",) if extended else ()), *(("SX32",) if wide else ()))
        sources: tuple[Operand, ...] = (self._any(uniform, low, 24, 1, on == "-", on == "~"), b)
        if upper and not wide:
            sources = (*sources, c)
        sources = (*sources, _immediate(high >> 11 & 31))
        if extended:
            sources = (*sources, _predicate(high >> 23 & 15, "UP" if uniform else "P"))
        carry = self._carries(uniform, high, (17,))
        if carry and carry[0].register.hardwired:
            carry = ()
        return modifiers, (self._d(uniform, low), *carry), sources

    def _lop3(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        uniform = table.is_uniform(key)
        file: RegisterFile = "UP" if uniform else "P"
        b, c = self._b_and_c(key, low, high, (1, 1), ("", "", ""))
        written = _predicate(high >> 17 & 7, file)
        modifiers = ("LUT", "PAND") if high >> 16 & 1 else ("LUT",)
        destinations = (self._d(uniform, low),) if written.register.hardwired else (written, self._d(uniform, low))
        return (
            modifiers,
            destinations,
            (self._any(uniform, low, 24), b, c, _immediate(high >> 8 & 0xFF), _predicate(high >> 23 & 15, file)),
        )

    def _isetp(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        uniform, signed, extended = table.is_uniform(key), high >> 9 & 1, high >> 8 & 1
        file: RegisterFile = "UP" if uniform else "P"
        joined, long = high >> 10 & 3, self._sm >= 120 and high >> 16 & 1
        if joined == 3:
            return None
        kind = ("S64" if signed else "U64",) if long else () if signed else ("U32",)
        modifiers = (table.COMPARISONS[high >> 12 & 7], *kind, table.JOINS[joined])
        count = 2 if long else 1
        sources: tuple[Operand, ...] = (
            self._any(uniform, low, 24, count),
            self._slot(key, low, count, "", True),
            _predicate(high >> 23 & 15, file),
        )
        if extended:
            modifiers = (*modifiers, "EX")
        if extended if uniform or self._sm >= 80 else high >> 4 & 15 != 7:
            sources = (*sources, _predicate(high >> 4 & 15, file))
        return modifiers, (_predicate(high >> 17 & 7, file), _predicate(high >> 20 & 7, file)), sources

    def _shf(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        uniform = table.is_uniform(key)
        b, c = self._b_and_c(key, low, high, (1, 1), ("", "", ""))
        modifiers = ("R" if high >> 12 & 1 else "L", *(("W",) if high >> 11 & 1 else ()), table.SHIFTED[high >> 9 & 3])
        if high >> 16 & 1:
            modifiers = (*modifiers, "HI")
        return modifiers, (self._d(uniform, low),), (self._any(uniform, low, 24), b, c)

    def _select(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        uniform = table.is_uniform(key)
        file: RegisterFile = "UP" if uniform else "P"
        b: Operand
        if key in (0x407, 0x487):
            count, b = 2, _immediate(_signed(low >> 32, 32))
        elif key == 0x607 and self._sm >= 120:
            count, b = 2, self._r(low, 32, 2)
        elif key == 0xC87 and self._sm >= 120:
            count, b = 2, self._u(low, 32, 2)
        else:
            count, b = 1, self._slot(key, low, 1)
        sources = (self._any(uniform, low, 24, count), b, _predicate(high >> 23 & 15, file))
        return (("64",) if count == 2 else ()), (self._d(uniform, low, count),), sources

    def _prmt(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        uniform = table.is_uniform(key)
        mode = 0 if uniform else high >> 8 & 7
        if mode == 7:
            return None
        b, c = self._b_and_c(key, low, high, (1, 1), ("", "", ""))
        return ((table.PERMUTES[mode],) if mode else ()), (self._d(uniform, low),), (self._any(uniform, low, 24), b, c)

    def _mov(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        uniform, lanes = table.is_uniform(key), high >> 8 & 15
        long = self._sm >= 120 and high >> 16 & 1 and key >> 9 != 4
        source = self._slot(key, low, 2 if long else 1)
        modifiers = ("64",) if long else ()
        if self._blackwell and key == 0xC02 and high >> 24 & 1:
            modifiers = (*modifiers, "SPILL")
        return (
            modifiers,
            (self._d(uniform, low, 2 if long else 1),),
            (source,) if uniform or long or lanes == 15 else (source, _immediate(lanes)),
        )

    def _mov64(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        if high & _MEANING & ~0x8FFFFFF:
            return None
        return ("64",), (self._d(table.is_uniform(key), low, 2),), (_immediate(low >> 24 | (high & 0xFFFFFF) << 40),)

    def _iadd(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        count = 2 if high >> 9 & 1 else 1
        extended = high >> 10 & 1
        sign = "~" if extended else "-"
        on = sign if high >> 8 & 1 else ""
        modifiers = (*(("64",) if count == 2 else ()), *(("X",) if extended else ()))
        a = self._r(low, 24, count, on == "-", on == "~")
        carry = _predicate(high >> 17 & 7)
        written = (self._r(low, 16, count), *(() if carry.register.hardwired else (carry,)))
        carried = (_predicate(high >> 23 & 15),) if extended else ()
        return modifiers, written, (a, self._slot(key, low, count, sign, True), *carried)

    def _one_source(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        return (), (self._d(table.is_uniform(key), low),), (self._slot(key, low, 1, "~" if "POPC" in opcode else ""),)

    def _flo(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        modifiers = (*(() if high >> 9 & 1 else ("U32",)), *(("SH",) if high >> 10 & 1 else ()))
        return modifiers, (self._d(table.is_uniform(key), low),), (self._slot(key, low, 1, "~"),)

    def _viadd(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        named = ("32",) if self._sm >= 120 else ()
        return named, (self._r(low, 16),), (self._r(low, 24), self._slot(key, low, 1, "-"))

    def _vimnmx(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        uniform, signed = table.is_uniform(key), bool(high >> 8 & 1)
        if high >> 9 & 1 or high >> 12 & 1:
            return None  # packed halves, or not below 0
        name = ("S32",) if self._sm >= 120 else ()
        file: RegisterFile = "UP" if uniform else "P"
        between = (
            () if self._sm not in (100, 103) else (_predicate(high >> 17 & 7, file), _predicate(high >> 20 & 7, file))
        )
        sources = (self._any(uniform, low, 24), self._slot(key, low, 1, "", True), _predicate(high >> 23 & 15, file))
        return (name if signed else ("U32",)), (self._d(uniform, low), *between), sources

    def _vimnmx3(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        sources = (self._r(low, 24), self._slot(key, low, 1), self._r(high, 0), _predicate(high >> 23 & 15))
        return (() if high >> 8 & 1 else ("U32",)), (self._r(low, 16),), sources

    def _imnmx(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        signed = bool(high >> 9 & 1)
        sources = (self._r(low, 24), self._slot(key, low, 1, "", True), _predicate(high >> 23 & 15))
        return (() if signed else ("U32",)), (self._r(low, 16),), sources

    def _imnmx64(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        if high & _MEANING & ~0xFFFE200 != 0x400 or (key >> 9 == 4 and low >> 63):
            return None
        uniform = table.is_uniform(key)
        file: RegisterFile = "UP" if uniform else "P"
        conditions = [_predicate(high >> at & 15, file) for at in (23, 13)]
        sources = (self._any(uniform, low, 24, 2), self._slot(key, low, 2), *conditions)
        destinations = (*self._carries(uniform, high, (17, 20)), self._d(uniform, low, 2))
        return ("S64" if high >> 9 & 1 else "U64",), destinations, sources

    def _viaddmnmx(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        b, c = self._b_and_c(key, low, high, (1, 1), ("-", "", ""))
        if key >> 9 in _REGISTER_C:
            b = self._r(high, 0, 1, bool(high >> 11 & 1))
        sources = (self._r(low, 24), b, c, _predicate(high >> 23 & 15))
        return (() if high >> 8 & 1 else ("U32",)), (self._r(low, 16),), sources

    # --- conversions that divisions are made of ---------------------------------------------------------------------

    def _mufu(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        function = high >> 10 & 15
        if function >= len(table.FUNCTIONS) or key >> 9 == 4 or low >> 62 & 1:
            return None
        return (table.FUNCTIONS[function],), (self._r(low, 16),), (self._slot(key, low, 1, "-"),)

    def _f2i(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        uniform, long = table.is_uniform(key), key & 0x1FF == 0x111
        if low >> 62 & 1 or high >> 20 & 3 != 2 or high >> 11 & 3 != (3 if long else 2):
            return None
        signed = high >> 8 & 1
        kind = ("S64" if signed else "U64",) if long else () if signed else ("U32",)
        rounding = table.ROUNDED[high >> 14 & 3]
        modifiers = (
            *(("FTZ",) if high >> 16 & 1 else ()),
            *kind,
            *((rounding,) if rounding else ()),
            *(("NTZ",) if high >> 13 & 1 else ()),
        )
        return modifiers, (self._d(uniform, low, 2 if long else 1),), (self._slot(key, low, 1, "-"),)

    def _i2f(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        uniform, long = table.is_uniform(key), key & 0x1FF == 0x112
        if high >> 20 & 3 != (3 if long else 2) or high >> 11 & 7 != 2:
            return None
        signed = high >> 10 & 1
        kind = ("S64" if signed else "U64",) if long else () if signed else ("U32",)
        rounding = table.I2F_ROUNDED[high >> 14 & 3]
        source = self._slot(key, low, 2 if long else 1, "", bool(signed))
        return (*kind, *((rounding,) if rounding else ())), (self._d(uniform, low),), (source,)

    def _i2fp(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        if high >> 11 & 7 != 2 or high >> 20 & 3 != 2:
            return None
        rounding = high >> 14 & 3
        if rounding not in (0, 3):
            return None
        modifiers = ("F32", "S32" if high >> 10 & 1 else "U32", *(("RZ",) if rounding else ()))
        return modifiers, (self._d(table.is_uniform(key), low),), (self._slot(key, low, 1),)

    def _hfma2(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        """Read what ptxas uses as a move: -0 * 0 + immediate."""
        if low >> 24 & 0xFF != 0xFF or high & 0xFF != 0xFF or high >> 8 & 3 != 1:
            return None
        modifiers = (*(("MMA",) if key & 0x1FF == 0x35 else ()), *(("BF16_V2",) if high >> 21 & 1 else ()))
        return (
            modifiers,
            (self._r(low, 16),),
            (RegisterOperand(RZ, negated=True), RegisterOperand(RZ), _immediate(low >> 32)),
        )

    # --- predicates, special registers, other lanes -----------------------------------------------------------------

    def _vote(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        uniform, mode = opcode == "VOTEU", high >> 8 & 3
        if mode == 3:
            return None
        written = _predicate(high >> 17 & 7, "UP" if uniform else "P")
        register = self._d(uniform, low)
        destinations = (written,) if register.register.hardwired else (register, written)
        return (table.VOTES[mode],), destinations, (_predicate(high >> 23 & 15),)

    def _elect(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        return (), (_predicate(high >> 17 & 7), self._u(low, 16)), (_predicate(high >> 23 & 15),)

    def _plop3(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        uniform = opcode == "UPLOP3"
        file: RegisterFile = "UP" if uniform else "P"
        third: RegisterFile = "UP" if uniform or high >> 3 & 1 else "P"
        destinations = (_predicate(high >> 17 & 7, file), _predicate(high >> 20 & 7, file))
        sources = (
            _predicate(high >> 23 & 15, file),
            _predicate(high >> 13 & 15, file),
            _predicate(high >> 4 & 15, third),
            _immediate((high >> 8 & 31) << 3 | high & 7),
            _immediate(low >> 16 & 0xFF),
        )
        return ("LUT",), destinations, sources

    def _special(self, high: int) -> str | None:
        name = table.SPECIAL.get(high >> 8 & 0xFF)
        return None if name is None or (name.startswith("Cga") and self._sm < table.SPECIAL_SINCE[name]) else name

    def _s2r(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        name = self._special(high)
        return None if name is None else ((), (self._d(opcode == "S2UR", low),), (SpecialRegister(name),))

    def _cs2r(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        name = self._special(high)
        short = not high >> 16 & 1
        if name is None:
            return None
        return (
            (("32",) if short else ()),
            (self._d(opcode == "CS2UR", low, 1 if short else 2),),
            (SpecialRegister(name),),
        )

    def _shfl(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        form = key >> 9
        lane = self._r(low, 32) if form in (1, 2) else _immediate(low >> 53 & 31)
        bounds = self._r(high, 0) if form in (1, 4) else _immediate(low >> 40 & 0x1FFF)
        destinations = (_predicate(high >> 17 & 7), self._r(low, 16))
        return (table.SHUFFLES[low >> 58 & 3],), destinations, (self._r(low, 24), lane, bounds)

    def _r2ur(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        written = _predicate(high >> 17 & 7)
        register = self._u(low, 16)
        special = high >> 22 & 3 if self._blackwell else 0
        if high >> 20 & 1 or special == 3:
            return None
        modifiers = ((), ("FILL",), ("BROADCAST",))[special]
        return modifiers, (register,) if written.register.hardwired else (written, register), (self._r(low, 24),)

    def _p2r(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        if opcode == "R2P":
            byte = high >> 12 & 3  # B0 is not printed
            word = replace(self._r(low, 24), parts=(f"B{byte}",) if byte else ())
            return (), (_register("P", 0, 7),), (word, self._slot(key, low, 1))
        uniform = opcode == "UP2UR"
        file = _register("UP" if uniform else "P", 0, 7)
        return (), (self._d(uniform, low),), (file, self._any(uniform, low, 24), self._slot(key, low, 1, "", True))

    # --- memory -----------------------------------------------------------------------------------------------------

    def _ldc(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        size = high >> 9 & 7
        wide = opcode == "LDCU"
        if size > (6 if wide else 5):
            return None
        modifiers = (table.SIZES[size],) if table.SIZES[size] else ()
        count = access_count(opcode, modifiers)
        index = self._r(low, 24) if opcode == "LDC" else self._u(low, 24) if wide or key == 0xABB else None
        offset = _signed(low >> 37 & 0x1FFFF, 17) if wide else _signed(low >> 38 & 0xFFFF, 16)
        constant = Constant(low >> 54 & 0x1F, offset, None if index is None else self._named(index), None, count)
        return modifiers, (self._d(opcode != "LDC", low, count),), (constant,)

    def _named(self, operand: RegisterOperand) -> Register | None:
        return None if operand.register.hardwired else operand.register

    def _address(self, low: int, high: int, number: int | None, described: bool, offset: int | None = None) -> Memory:
        """Return `desc[UR4][R2.64+0x10]` or `[R2.64+UR4+0x10]`; `number` is of the uniform register there."""
        extended = bool(high >> 8 & 1)
        base = self._named(self._r(low, 24))
        uniform = None if number is None else self._named(self._u(number, 0))
        if described:
            descriptor = Register("UR", HARDWIRED) if uniform is None else uniform
            uniform = None
        else:
            descriptor = None
        return Memory(
            base,
            2 if base and (described or (extended and (number is None or high >> 26 & 1))) else 1,
            1,
            uniform,
            2 if extended and uniform else 1,
            _signed(low >> 40, 24) if offset is None else offset,
            descriptor if self._sm >= 90 else None,
        )

    def _scope(self, high: int) -> tuple[str, ...] | None:
        return (table.SCOPES if self._sm >= 80 else table.SCOPES_75).get(high >> 13 & 15)

    def _access(self, opcode: str, high: int) -> tuple[str, ...] | None:
        """Return the modifiers of a load or store of global memory."""
        size, scope, policy = high >> 9 & 7, self._scope(high), high >> 20 & 7
        if policy > 5 or scope is None or (size == 7 and not (opcode == "LDG" and self._sm < 80)):
            return None
        ahead = table.AHEAD[high >> 4 & 3] if opcode.startswith("L") else ""
        made = ["E"] if high >> 8 & 1 else []
        named = ("U", "128") if size == 7 else (table.SIZES[size],)
        made += [one for one in (table.POLICIES[policy], ahead, *named) if one]
        return (*made, *scope)

    def _global(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        modifiers = self._access(opcode, high)
        load = opcode.startswith("L")
        if modifiers is None or (load and high & 15) or (not load and "CONSTANT" in modifiers):
            return None
        count = access_count(opcode, modifiers)
        number, described = None, False
        if key >> 8 == 9 and high >> 27 & 1:
            described = bool(self._sm >= 80 and high >> 12 & 1)
            number = low >> 32 & 0xFF if load else high & 0xFF
        if key in (0x380, 0x980, 0x385) and number is None:
            address = self._address(low, high, None, False, _signed(low >> 32, 32))
            data = self._r(high, 0, count)
        else:
            address, data = self._address(low, high, number, described), self._r(low, 32, count)
        if load:
            return modifiers, (self._r(low, 16, count),), (address,)
        return modifiers, (), (address, data)

    def _octet(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        """Read an access of 32 bytes, which has two ranges of four registers."""
        load = opcode == "LDG"
        reach, scope, policy, ahead = high >> 17 & 3, self._scope(high), high >> 20 & 7, high >> 9 & 3
        every = 0x7F if load else 0x7C  # its data is not masked
        if scope is None or policy > 5 or reach == 3 or low >> 57 != every or high >> 11 & 0x10003 != 0x10003:
            return None
        if (load and not high >> 8 & 1) or (not load and ahead):
            return None
        named = (table.POLICIES[policy], OCTETS[reach], table.AHEAD[ahead], "256")
        offset = _signed(low >> 40 & 0x1FFFF, 17) * 32
        number = low >> 32 & 0xFF if load else high & 0xFF
        address = self._address(low, high, number, True, offset)
        modifiers = ("E", *[one for one in named if one], *scope)
        if load:
            return modifiers, (self._r(high, 0, 4), self._r(low, 16, 4)), (address,)
        return modifiers, (), (address, self._r(low, 32, 4), self._r(low, 16, 4))

    def _atomic(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        """Read an atomic on integers, and on older architectures also on floats."""
        scope, policy = self._scope(high), high >> 20 & 7
        kinds = table.ATOMIC_KINDS if self._sm >= 90 else table.ATOMIC_KINDS_75
        kind = high >> 9 & 7
        reduces = opcode.startswith("RED")
        function = high >> 23 & (7 if reduces else 15)
        if scope is None or "CONSTANT" in scope or policy > 5 or kind >= len(kinds) or function >= len(table.ATOMICS):
            return None
        number, described = None, False
        if key >> 8 == 9 and high >> 27 & 1 | (not reduces):
            described = bool(high >> (7 if not self._blackwell else 17 if reduces else 12) & 1) and self._sm >= 80
            number = high & (0xFF if self._blackwell else 0x3F)
            if not reduces and not described and low >> 24 & 0xFF != 0xFF and not high >> 26 & 1:
                return None  # the width of such a base was never seen
        made = ["E"] if high >> 8 & 1 else []
        made += [one for one in (table.ATOMICS[function], table.POLICIES[policy], *kinds[kind].split(".")) if one]
        modifiers = (*made, *scope)
        offset = _signed(low >> 40 & 0x7FFFFF, 23) if self._blackwell and not reduces else None
        sources = (
            self._address(low, high, number, described, offset),
            self._r(low, 32, access_count(opcode, modifiers)),
        )
        if reduces:
            return modifiers, (), sources
        return modifiers, (_predicate(high >> 17 & 7), self._r(low, 16, access_count(opcode, modifiers))), sources

    def _compare_and_swap(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        scope, policy, kind = self._scope(high), high >> 20 & 7, {0: "", 2: "64"}.get(high >> 9 & 7)
        if scope is None or "CONSTANT" in scope or policy > 5 or kind is None or high & _MEANING & ~0x7FEFFF:
            return None
        made = [*(["E"] if high >> 8 & 1 else []), "CAS", *[one for one in (table.POLICIES[policy], kind) if one]]
        count = 2 if kind else 1
        sources = (self._address(low, high, None, False), self._r(low, 32, count), self._r(high, 0, count))
        return (*made, *scope), (_predicate(high >> 17 & 7), self._r(low, 16, count)), sources

    def _shared_atomic(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        kind, swaps, function = high >> 9 & 7, key == 0x38D, high >> 23 & 7
        if high & _MEANING & ~(0x380CEFF if swaps else 0x380CE00):
            return None
        name = {0: "CAS", 3: "CAST.SPIN"}.get(function) if swaps else table.ATOMICS[function]
        if name is None or kind > (2 if swaps else 1) or (swaps and kind == 1):
            return None
        count = 2 if kind == 2 else 1
        base = self._named(self._r(low, 24))
        address = Memory(base, 1, (1, 4, 8, 16)[high >> 14 & 3] if base else 1, None, 1, _signed(low >> 40, 24))
        swapped = (self._r(high, 0, count),) if swaps else ()
        modifiers = (*name.split("."), *((("", "S32", "64")[kind],) if kind else ()))
        return modifiers, (self._r(low, 16, count),), (address, self._r(low, 32, count), *swapped)

    def _phase_check(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        """Read the question to an mbarrier whether a phase is over: its address, and the parity of the phase."""
        fixed = 0x8001000 if self._blackwell else 0x8000040
        variable = 0xE01FF if self._blackwell else 0xE013F
        if high & _MEANING & ~variable != fixed or low >> 16 & 0xFF:
            return None
        base, uniform = self._named(self._r(low, 24)), self._named(self._u(high, 0))
        address = Memory(base, 1, 1, uniform, 1, _signed(low >> 40, 24))
        modifiers = ("PHASECHK", "TRANS64", *(("TRYWAIT",) if high >> 8 & 1 else ()))
        return modifiers, (_predicate(high >> 17 & 7),), (address, self._r(low, 32))

    def _float_atomic(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        scope, kind = self._scope(high), table.FLOAT_KINDS.get(high >> 9 & 15)
        if scope is None or kind is None or high >> 20 & 0x7F != (0x41 if self._blackwell else 1) or not high >> 8 & 1:
            return None
        if (not low >> 63) if self._blackwell else high >> 6 & 3 != 3:
            return None
        offset = _signed(low >> 40 & 0x7FFFFF, 23) if self._blackwell else None
        address = self._address(low, high, high & self._uniform_mask, True, offset)
        destinations = (_predicate(high >> 17 & 7), self._r(low, 16))
        return ("E", "ADD", *kind, *scope), destinations, (address, self._r(low, 32))

    def _copy(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        """Read a copy of 16 bytes from global to shared memory, the only one that was seen often enough."""
        at = 8 if self._blackwell else 7
        fixed = 0x8181800 if self._blackwell else 0x8101C40
        if high & 0x87FFFFF & ~(3 << at | (0xFF if self._blackwell else 0x3F)) != fixed or low >> 43 & 1 or low >> 63:
            return None
        ahead = table.AHEAD[high >> at & 3]
        shared = Memory(self._named(self._r(low, 16)), offset=low >> 44)
        address = self._address(low, high | 1 << 8, high & self._uniform_mask, True, low >> 32 & 0x7FF)
        return ("E", "BYPASS", *((ahead,) if ahead else ()), "128"), (), (shared, address, *self._asked(high))

    def _matrix(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        modifiers = table.MATRICES.get(high & 0x7FFFFFFF)
        if modifiers is None:
            return None
        address = Memory(self._named(self._r(low, 24)), offset=_signed(low >> 40, 24))
        count = int(modifiers[-1])
        if opcode == "LDSM":
            return modifiers, (self._r(low, 16, count),), (address,)
        return modifiers, (), (address, self._r(low, 32, count))

    def _shared(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        load = opcode == "LDS"
        size = high >> 9 & 7
        if size == 7:
            return None
        modifiers = (table.SIZES[size],) if table.SIZES[size] else ()
        count = access_count(opcode, modifiers)
        if load and self._sm < 80 and high >> 12 & 1:
            modifiers = ("U", *modifiers)
        uniform = None
        if key >> 8 == 9 and high >> 27 & 1:
            uniform = self._named(self._u(low, 32) if load else self._u(high, 0))
        base = self._named(self._r(low, 24))
        scale = (1, 4, 8, 16)[high >> 14 & 3] if base else 1
        offset = _signed(low >> 40, 24) if base or uniform else low >> 40
        address = Memory(base, 1, scale, uniform, 1, offset)
        if load:
            return modifiers, (self._r(low, 16, count),), (address,)
        return modifiers, (), (address, self._r(low, 32, count))

    def _local(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        load = opcode == "LDL"
        size, policy = high >> 9 & 7, high >> 20 & 7
        if size == 7 or policy > 5:
            return None
        modifiers = tuple([one for one in (table.POLICIES[policy], table.SIZES[size]) if one])
        count = access_count(opcode, modifiers)
        uniform = None
        if key >> 8 == 9 and high >> 27 & 1:
            uniform = self._named(self._u(low, 32) if load else self._u(high, 0))
        address = Memory(self._named(self._r(low, 24)), 1, 1, uniform, 1, _signed(low >> 40, 24))
        if load:
            return modifiers, (self._r(low, 16, count),), (address,)
        return modifiers, (), (address, self._r(low, 32, count))

    # --- control flow -----------------------------------------------------------------------------------------------

    def _leads(self, low: int, high: int) -> Target:
        """Return the target as seen from the branch: from sm_90 on the distance has its low byte at bit 16."""
        distance = low >> 34 | (high & 0x3FFFF) << 30
        if self._sm >= 90:
            return Target(WORD + _signed(distance << 8 | low >> 16 & 0xFF, 56) * 4)
        return Target(WORD + _signed(distance, 48) * 4)

    def _asked(self, high: int) -> tuple[RegisterOperand, ...]:
        """Return the predicate of a branch; none where it is the true one."""
        bits = high >> 23 & 15
        return () if bits == 7 else (_predicate(bits),)

    def _bra(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        if (self._sm < 90 and high >> 20 & 1) or (key == 0x547 and low >> 32 & 3 != 1):
            return None
        if key == 0x547:
            asked = (*self._asked(high), _predicate(low >> 24 & 15, "UP"))
            return ("U",) if not high >> 20 & 1 else ("U", "ANY"), (), (*asked, self._leads(low, high))
        mode = low >> 32 & 3
        lanes: tuple[RegisterOperand, ...] = ()
        if high >> 27 & 1:
            lanes = (self._u(low, 24, 1, False, bool(high >> 18 & 1 if self._blackwell else low >> 30 & 1)),)
        modifiers = (table.BRANCHES[mode],) if mode else ()
        return (
            (*modifiers, *(("ANY",) if mode == 1 and high >> 20 & 1 else ())),
            (),
            (*self._asked(high), *lanes, self._leads(low, high)),
        )

    def _converges(self, high: int) -> tuple[str, ...] | None:
        return ((), ("RELIABLE",), ("RECONVERGENT",), None)[high >> 8 & 3] if self._blackwell else ()

    def _bssy(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        modifiers = self._converges(high)
        if modifiers is None:
            return None
        target = Target(WORD + _signed(low >> 34, 30) * 4)
        return modifiers, (), (Barrier(f"B{low >> 16 & 15}"), *self._asked(high), target)

    def _bsync(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        modifiers = self._converges(high)
        barrier = Barrier(f"B{low >> 16 & 15}")
        asked = self._asked(high)
        sources: tuple[Operand, ...] = (barrier, *asked) if opcode == "BREAK" else (*asked, barrier)
        return None if modifiers is None else (modifiers, (), sources)

    def _warpsync(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        return None if high >> 22 & 1 else (("ALL",), (), self._asked(high))

    def _brx(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        distance = (self._leads(low, high).offset or 0) - WORD
        return (), (), (*self._asked(high), self._any(opcode == "BRXU", low, 24, 2), _immediate(distance))

    def _exit(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        return (), (), self._asked(high)

    def _plain(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        return (), (), ()

    def _bar(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        """Read a barrier of the block: its number, and how many threads it takes where it says so."""
        form, mode, reduction = key >> 9, high >> 13 & 3, high >> 10 & 3
        if high & _MEANING & ~0x7816C00 or mode == 3 or (reduction if mode != 2 else reduction == 3):
            return None
        if high >> 23 & 15 and mode != 2:
            return None
        name = ("SYNC", "ARV", "RED")[mode]
        modifiers = (name, *((("POPC", "AND", "OR")[reduction],) if mode == 2 else ()))
        modifiers = (*modifiers, *(("DEFER_BLOCKING",) if high >> 16 & 1 else ()))
        register, count = self._r(low, 32), low >> 42 & 0xFFF
        counted = (_immediate(count),) if count or mode == 1 else ()
        number: Operand = register if form in (1, 2) else _immediate(low >> 54 & 15)
        sources = (number, *((register,) if form in (1, 4) else counted))
        return modifiers, (), (*sources, *((_predicate(high >> 23 & 15),) if mode == 2 else ()))

    def _call(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        return ("REL", "NOINC"), (), (*self._asked(high), self._leads(low, high))

    def _ret(self, opcode: str, key: int, low: int, high: int) -> Decoded | None:
        return ("REL", "NODEC"), (), (*self._asked(high), self._r(low, 24, 2), self._leads(low, high))
