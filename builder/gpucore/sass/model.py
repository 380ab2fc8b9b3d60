"""SASS as data: registers, operands and instructions, as both readers (own decoder, nvdisasm's JSON) return them.

Destinations are first, in the order of nvdisasm's text, and are kept apart from sources. What carries no meaning is
left out: `.reuse`, scoreboards, stall counts, and the spellings of one operation (`IMAD.MOV.U32`, `IMAD.SHL` and
`IMAD.IADD` are all `IMAD`). Every value is frozen, compares by its contents and can be a key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

RegisterFile = Literal["R", "UR", "P", "UP"]
"""General registers of a thread, uniform registers of a warp, predicates of a thread, uniform predicates."""

Known = Literal["all", "writes", "nothing"]
"""How much of an instruction is known: all; what it writes, and perhaps sources; nothing, and it may write anything."""

HARDWIRED: Final = -1
WORD: Final = 16  # bytes of an instruction on every architecture from sm_70

OCTETS: Final = ("EFL2", "ENL2", "ELL2")
"""Modifiers of an access of 32 bytes, which names two ranges of four registers."""
ATOMICS: Final = frozenset({"ATOM", "ATOMG", "ATOMS", "RED", "REDG", "REDS"})
_SIZES: Final = {"64": 2, "96": 3, "128": 4, "256": 8}


class Register(NamedTuple):
    """One register of 32 bits, or one predicate; a wide value is several consecutive ones, lowest word first."""

    file: RegisterFile
    number: int
    """From 0; HARDWIRED for RZ and URZ, which read as 0, and PT and UPT, which read as true. Writes to them vanish."""

    @property
    def hardwired(self) -> bool:
        """Whether this is RZ, URZ, PT or UPT."""
        return self.number == HARDWIRED

    @property
    def predicate(self) -> bool:
        """Whether this is a predicate: one bit."""
        return self.file in ("P", "UP")

    def __str__(self) -> str:
        if self.number != HARDWIRED:
            return f"{self.file}{self.number}"
        return self.file + ("T" if self.predicate else "Z")


RZ: Final = Register("R", HARDWIRED)
URZ: Final = Register("UR", HARDWIRED)
PT: Final = Register("P", HARDWIRED)
UPT: Final = Register("UP", HARDWIRED)


@dataclass(frozen=True, slots=True)
class RegisterOperand:
    """A register where an instruction writes or reads it.

    The value is that of `count` registers from `register` on, then `absolute`, then `negated` or `inverted`. A negated
    predicate is `negated`. Of RZ all `count` words are 0.
    """

    register: Register
    count: int = 1
    """How many consecutive registers hold the value: 2 for 64 bits. R2P and P2R have P0 and 7 for the whole file."""
    negated: bool = False
    inverted: bool = False
    """Bitwise complement: `~R4`."""
    absolute: bool = False
    parts: tuple[str, ...] = ()
    """Suffixes that pick a part or a type, as printed: `H0_H0`, `H1`, `B2`, `F32`, `U32` ..."""

    @property
    def registers(self) -> tuple[Register, ...]:
        """Every register that holds the value, lowest word first; none for RZ, URZ, PT and UPT."""
        file, number = self.register
        if number == HARDWIRED:
            return ()
        if self.count == 1:
            return (self.register,)
        return tuple([Register(file, number + k) for k in range(self.count)])

    def __str__(self) -> str:
        sign = ("!" if self.register.predicate else "-") if self.negated else "~" if self.inverted else ""
        text = f"|{self.register}|" if self.absolute else str(self.register)
        return ".".join((sign + text, *self.parts))


@dataclass(frozen=True, slots=True)
class Immediate:
    """A number in the instruction, exact.

    Integers are as nvdisasm prints them: with a sign where the operation takes them as signed, so reduce them modulo
    2^32 or 2^64. Floating-point numbers are the bits of the format that the operation has (`float32` of FADD, the upper
    32 bits of a double in DADD). The two halves of HFMA2 and its like are one number of 32 bits, the first as its upper
    half: `HFMA2.MMA R7, -RZ, RZ, 0, 2.38e-07` has the integer 4.
    """

    value: int

    def __str__(self) -> str:
        return hex(self.value)


@dataclass(frozen=True, slots=True)
class Constant:
    """A value in a constant bank: `c[0x0][0x160]`, `-c[0x2][R4+0x10]`, `cx[UR4][0x8]`.

    The address in the bank is `offset` plus the index register, in bytes; the value has `count` words of 32 bits.
    """

    bank: int | None
    """None where `handle` names the bank."""
    offset: int
    index: Register | None = None
    """A register of 32 bits in bytes, general or uniform; None for none and for RZ."""
    handle: Register | None = None
    """The uniform register pair that names a bindless bank (`cx[UR4]`)."""
    count: int = 1
    negated: bool = False
    inverted: bool = False
    absolute: bool = False
    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        bank = f"cx[{self.handle}]" if self.bank is None else f"c[{self.bank:#x}]"
        sign = "-" if self.negated else "~" if self.inverted else ""
        text = f"{bank}[{_sum(self.index, None if self.index and not self.offset else self.offset)}]"
        return ".".join((sign + (f"|{text}|" if self.absolute else text), *self.parts))


@dataclass(frozen=True, slots=True)
class Memory:
    """An address: `base * scale + uniform + offset`, in bytes.

    `desc[UR4][R2.64+UR6+0x10]` has base R2 of two registers, uniform UR6, offset 16 and descriptor UR4. Registers that
    are RZ or URZ are None. The width of what is loaded or stored is in the other operands and in the modifiers.
    """

    base: Register | None
    base_count: int = 1
    """2 where base is a pair that holds 64 bits; else it is extended with zeros where the address has 64 bits."""
    scale: int = 1
    """1, 4, 8 or 16: `R4.X4`."""
    uniform: Register | None = None
    uniform_count: int = 1
    """2 where `uniform` is a pair that holds 64 bits."""
    offset: int = 0
    """Signed, in bytes."""
    descriptor: Register | None = None
    """The uniform register pair of `desc[UR4]`: access properties, not part of the address."""
    kind: str = ""
    """What precedes the bracket where it is not plain memory: `gdesc`, `tmem`, `idesc` ..."""

    def __str__(self) -> str:
        base = None if self.base is None else f"{self.base}{'.64' if self.base_count == 2 else ''}"
        if base and self.scale != 1:
            base += f".X{self.scale}"
        offset = self.offset if self.offset or not (base or self.uniform) else None
        before = self.kind if self.descriptor is None else f"desc[{self.descriptor}]"
        return f"{before}[{_sum(base, self.uniform, offset)}]"


@dataclass(frozen=True, slots=True)
class SpecialRegister:
    """A special register by its name without `SR_`: `TID.X`, `CTAID.Y`, `LANEID`, `CLOCKLO`; `SRZ` is 0."""

    name: str

    def __str__(self) -> str:
        return self.name if self.name == "SRZ" else f"SR_{self.name}"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a branch, call or BSSY leads: an offset in the same section, in bytes.

    A call out of the section has a `symbol` and no offset, if the reader had symbols, and otherwise whatever offset
    the word has before relocation.
    """

    offset: int | None
    symbol: str = ""

    def __str__(self) -> str:
        return self.symbol if self.offset is None else hex(self.offset)


@dataclass(frozen=True, slots=True)
class Barrier:
    """A convergence barrier, `B0` to `B15`, or a scoreboard `SB0`, by its printed name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Unread:
    """An operand that this package does not model, as nvdisasm prints it."""

    text: str

    def __str__(self) -> str:
        return self.text


Operand = RegisterOperand | Immediate | Constant | Memory | SpecialRegister | Target | Barrier | Unread


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of 16 bytes."""

    offset: int
    """In bytes from the start of the section, as in `Place.offset` and nvdisasm's listing."""
    opcode: str
    """The name before the first dot: `IMAD`. `?` where not even that is known."""
    modifiers: tuple[str, ...] = ()
    """The rest in printed order: `("WIDE", "U32")`."""
    destinations: tuple[RegisterOperand, ...] = ()
    """What is written, in printed order, hardwired registers included: `IADD3 R4, P0, PT, ...` has three."""
    sources: tuple[Operand, ...] = ()
    """What follows; empty unless `known` is "all"."""
    guard: RegisterOperand | None = None
    """The predicate of `@!P0`; None where the instruction always runs. `@!PT` never does."""
    known: Known = "all"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Destinations and sources in printed order."""
        return (*self.destinations, *self.sources)

    @property
    def name(self) -> str:
        """Opcode and modifiers as printed: `IMAD.WIDE.U32`."""
        return ".".join((self.opcode, *self.modifiers))

    @property
    def memory(self) -> Memory | None:
        """The first address among the sources; None when there is none."""
        return next((operand for operand in self.sources if isinstance(operand, Memory)), None)

    @property
    def target(self) -> Target | None:
        """Where it leads, for direct branches, calls and BSSY."""
        return next((operand for operand in self.sources if isinstance(operand, Target)), None)

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        operands = [str(operand) for operand in self.operands] + (["..."] if self.known != "all" else [])
        return f"{guard}{self.name} {', '.join(operands)}".rstrip()


def definitions(instruction: Instruction) -> tuple[Register, ...] | None:
    """Return every register that the instruction may write, hardwired ones left out; None when it may write any.

    Also what a guarded instruction writes only where its guard is true, and what a load writes when it returns. A call
    writes nothing by itself: its callee does.
    """
    if instruction.known == "nothing":
        return None
    return tuple([register for operand in instruction.destinations for register in operand.registers])


def uses(instruction: Instruction) -> tuple[Register, ...] | None:
    """Return every register that the instruction reads: guard, operands, index and descriptor registers.

    None when its sources are not known. A register may be named twice.
    """
    if instruction.known != "all":
        return None
    found = list(instruction.guard.registers) if instruction.guard else []
    for operand in instruction.sources:
        found += _read_by(operand)
    return tuple(found)


def access_count(opcode: str, modifiers: tuple[str, ...]) -> int:
    """Return how many registers a load, store or atomic moves."""
    if opcode in ATOMICS and "F64" in modifiers:
        return 2
    found = [_SIZES[m] for m in modifiers if m in _SIZES]
    if not set(modifiers).isdisjoint(OCTETS):
        return 4
    return found[-1] if found else 2 if opcode in ATOMICS and {"S64", "U64"} & set(modifiers) else 1


def _read_by(operand: Operand) -> Iterator[Register]:
    match operand:
        case RegisterOperand():
            yield from operand.registers
        case Memory():
            yield from _words(operand.base, operand.base_count)
            yield from _words(operand.uniform, operand.uniform_count)
            yield from _words(operand.descriptor, 2)
        case Constant():
            yield from _words(operand.index, 1)
            yield from _words(operand.handle, 2)


def _words(register: Register | None, count: int) -> Iterator[Register]:
    if register is not None:
        yield from (Register(register.file, register.number + k) for k in range(count))


def _sum(*terms: Register | str | int | None) -> str:
    return "+".join(hex(term) if isinstance(term, int) else str(term) for term in terms if term is not None)
