"""Reads the output of `nvdisasm -json`, of a cubin or of the raw words of one section (`nvdisasm -b SM90`).

The raw words are the better input: targets are offsets there and not symbols, and nvdisasm does not hang on the
relocations of an image from a core. This is also where spellings that carry no meaning are made one.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from gpucore.errors import UnreadableBinary
from gpucore.sass.model import (
    ATOMICS,
    HARDWIRED,
    OCTETS,
    WORD,
    Barrier,
    Constant,
    Immediate,
    Instruction,
    Known,
    Memory,
    Operand,
    Register,
    RegisterOperand,
    SpecialRegister,
    Target,
    Unread,
    access_count,
)

# A bracket may follow a register without a comma: "R4[R5.X4]", "R8desc[UR8][R14.64]".
_NO_COMMA: Final = re.compile(r"\b(U?[RP](?:\d+|[ZT])(?:\.\w+?)*)(?=(?:[a-z]+)?\[)")
_TOKEN: Final = re.compile(r"[-~!|+]*[a-z]\w*(?:\[[^\]]*\])+\|?(?:\.\w+)*|\[[^\]]*\](?:\.\w+)*|[^,\[]+")
_REGISTER: Final = re.compile(r"([-~!]*)(\|?)(UR|R|UP|P)(\d+|Z|T)\|?((?:\.\w+)*)")
_CONSTANT: Final = re.compile(r"([-~]*)(\|?)c(?:\[(0x[0-9a-f]+)\]|x\[(UR\d+)\])\[([^\]]*)\]\|?((?:\.\w+)*)")
_MEMORY: Final = re.compile(r"(\w*)(?:\[(UR(?:\d+|Z))\])?\[([^\]]*)\]")
_TERM: Final = re.compile(r"(U?R)(\d+|Z)((?:\.\w+)*)")
_INTEGER: Final = re.compile(r"-?0x[0-9a-f]+")
_NUMBER: Final = re.compile(r"[-+]?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|INF)")
_SPECIAL: Final = re.compile(r"SR_(\w+(?:\.\w+)*)|(SRZ)")
_BARRIER: Final = re.compile(r"S?B\d+")
_WITH_TARGET: Final = frozenset({"BRA", "BSSY", "CALL", "JMP", "RET", "WARPSYNC"})
_NO_MEANING: Final = frozenset({"MOV", "SHL", "IADD"})  # of IMAD: the operands say it all
_WIDE_ADDRESSES: Final = frozenset({"LDG", "STG", "LD", "ST", "ATOM", "ATOMG", "RED", "REDG", "QSPC"})


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The instructions of one section, in order; offsets count from its start."""

    name: str
    instructions: tuple[Instruction, ...]


def read_listings(text: str | bytes) -> tuple[Listing, ...]:
    """Return the functions in the output of `nvdisasm -json`.

    Raises UnreadableBinary when it is not that.
    """
    try:
        document = json.loads(text, strict=False)
        return tuple([_listing(function) for function in document[1]])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error, OverflowError) as error:
        raise UnreadableBinary(
            f"the output of nvdisasm -json could not be read: {error}",
            cause="a release of nvdisasm that is older than 13.0, or one that was interrupted",
            next_step="run `nvdisasm --version`",
        ) from error


def _listing(function: Mapping[str, object]) -> Listing:
    start, rows = function["start"], function["sass-instructions"]
    if not isinstance(start, int) or not isinstance(rows, list):
        raise TypeError("a function without start or instructions")
    instructions = [_instruction(start + WORD * number, row) for number, row in enumerate(rows)]
    return Listing(name=str(function["function-name"]), instructions=tuple(instructions))


def _instruction(offset: int, row: Mapping[str, str]) -> Instruction:
    opcode, *rest = row["opcode"].strip().split(".")
    modifiers = _meaningful(opcode, tuple(rest))
    text = _NO_COMMA.sub(r"\1,", row.get("operands", ""))
    tokens = [token.strip().replace(".reuse", "") for token in _TOKEN.findall(text)]
    guards = [token for token in tokens if token.startswith("@")]  # P2R has its guard among the operands
    tokens = [token for token in tokens if token and token not in guards]
    guarded = row.get("predicate") or next(iter(guards), "")
    guard = _register(guarded.lstrip("@"), 1) if guarded else None
    shape = _SHAPES.get(opcode, _UNKNOWN)
    if shape.known == "nothing":
        return Instruction(offset, opcode, modifiers, guard=guard, known="nothing")
    split = _destinations(opcode, modifiers, tokens)
    written = [_written(opcode, modifiers, token) for token in tokens[:split]]
    known = "all" if (opcode, *modifiers[:1]) == ("SYNCS", "PHASECHK") else shape.known
    sources = _sources(opcode, modifiers, tokens[split:]) if known == "all" else ()
    return Instruction(offset, opcode, modifiers, tuple(written), sources, guard, known)


def _meaningful(opcode: str, modifiers: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out what other operands say already: IMAD.MOV.U32 and IMAD.SHL.U32 are IMAD."""
    if opcode not in ("IMAD", "UIMAD"):
        return modifiers
    found = tuple([m for m in modifiers if m not in _NO_MEANING])
    return found if "WIDE" in found or "HI" in found else tuple([m for m in found if m != "U32"])


def _destinations(opcode: str, modifiers: tuple[str, ...], tokens: list[str]) -> int:
    """Return how many of the first operands are written."""
    shape = _SHAPES[opcode]
    if opcode in ("VOTE", "VOTEU"):
        return len(tokens) - 1
    if opcode in ("R2P", "UR2UP"):
        return 1
    place = 0
    while place < shape.before and _is_predicate(tokens, place):
        place += 1
    registers = shape.registers if set(modifiers).isdisjoint(OCTETS) else 2
    while registers and _is_register(tokens, place):
        place, registers = place + 1, registers - 1
    last = place + shape.after
    while place < last and _is_predicate(tokens, place):
        place += 1
    return place


def _is_predicate(tokens: list[str], place: int) -> bool:
    return place < len(tokens) and re.fullmatch(r"U?P(\d+|T)", tokens[place]) is not None


def _is_register(tokens: list[str], place: int) -> bool:
    return place < len(tokens) and re.fullmatch(r"U?R(\d+|Z)(\.\w+)*", tokens[place]) is not None


def _written(opcode: str, modifiers: tuple[str, ...], token: str) -> RegisterOperand:
    if token in ("PR", "UPR"):
        return RegisterOperand(Register("P" if token == "PR" else "UP", 0), 7)
    count = 1 if _is_predicate([token], 0) else _written_count(opcode, modifiers)
    found = _register(token, count)
    if found is None:
        raise ValueError(f"{token!r} is not a destination of {opcode}")
    return found


def _sources(opcode: str, modifiers: tuple[str, ...], tokens: list[str]) -> tuple[Operand, ...]:
    found: list[Operand] = []
    for number, token in enumerate(tokens):
        found.append(_operand(opcode, modifiers, token, number))
    if opcode == "P2R":  # the JSON leaves PR out
        return (RegisterOperand(Register("P", 0), 7), *found)
    if opcode in _HALVES:
        return _packed(opcode, modifiers, tokens, found)
    return tuple(found)


def _operand(opcode: str, modifiers: tuple[str, ...], token: str, number: int) -> Operand:
    if _INTEGER.fullmatch(token):
        value = int(token, 16)
        return Target(value) if opcode in _WITH_TARGET and not _mask(opcode, modifiers) else Immediate(value)
    if token in ("PR", "UPR"):
        return RegisterOperand(Register("P" if token == "PR" else "UP", 0), 7)
    count = _read_count(opcode, modifiers, number)
    register = _register(token, count)
    if register is not None:
        return register
    if token.startswith(("[", "desc[", "gdesc[", "tmem[", "idesc[")):
        return _memory(opcode, modifiers, token) or Unread(token)
    constant = _constant(token, count)
    if constant is not None:
        return constant
    if special := _SPECIAL.fullmatch(token):
        return SpecialRegister(special[1] or special[2])
    if _BARRIER.fullmatch(token):
        return Barrier(token)
    if opcode in _FLOATS or opcode in _HALVES:
        return _float(opcode, modifiers, token)
    return Target(None, token) if opcode in _WITH_TARGET else Unread(token)


def _mask(opcode: str, modifiers: tuple[str, ...]) -> bool:
    return opcode == "WARPSYNC" and "COLLECTIVE" not in modifiers


def _register(token: str, count: int) -> RegisterOperand | None:
    found = _REGISTER.fullmatch(token)
    if found is None:
        return None
    sign, bar, file, number, parts = found.groups()
    register = _named(file, number)
    return RegisterOperand(
        register,
        1 if register.predicate else count,
        negated="-" in sign or "!" in sign,
        inverted="~" in sign,
        absolute=bool(bar),
        parts=tuple(parts.split(".")[1:]),
    )


def _named(file: str, number: str) -> Register:
    at = HARDWIRED if number in ("Z", "T") else int(number)
    match file:
        case "R":
            return Register("R", at)
        case "UR":
            return Register("UR", at)
        case "P":
            return Register("P", at)
        case _:
            return Register("UP", at)


def _constant(token: str, count: int) -> Constant | None:
    found = _CONSTANT.fullmatch(token)
    if found is None:
        return None
    sign, bar, bank, handle, inside, parts = found.groups()
    index, offset = None, 0
    for term in inside.split("+"):
        if register := _TERM.fullmatch(term):
            index = _named(register[1], register[2])
        else:
            offset += int(term, 16)
    return Constant(
        None if bank is None else int(bank, 16),
        offset,
        None if index is None or index.hardwired else index,
        None if handle is None else _named("UR", handle[2:]),
        count,
        negated="-" in sign,
        inverted="~" in sign,
        absolute=bool(bar),
        parts=tuple(parts.split(".")[1:]),
    )


def _memory(opcode: str, modifiers: tuple[str, ...], token: str) -> Memory | None:
    found = _MEMORY.fullmatch(token)
    if found is None:
        return None
    kind, descriptor, inside = found.groups()
    long = opcode in _WIDE_ADDRESSES and "E" in modifiers and kind in ("", "desc")
    base = uniform = None
    base_count = uniform_count = scale = 1
    offset = 0
    for term in inside.replace("+-", "+~").split("+"):
        register = _TERM.fullmatch(term)
        if register is None:
            offset += -int(term[1:], 16) if term.startswith("~") else int(term, 16)
            continue
        named, parts = _named(register[1], register[2]), register[3].split(".")[1:]
        if named.hardwired:
            continue
        if named.file == "UR":
            uniform, uniform_count = named, 2 if long else 1
            continue
        base, base_count = named, 2 if "64" in parts or (long and "U32" not in parts) else 1
        scale = next((int(part[1:]) for part in parts if part in ("X4", "X8", "X16")), 1)
    return Memory(
        base,
        base_count,
        scale,
        uniform,
        uniform_count,
        offset,
        None if descriptor is None else _named("UR", descriptor[2:]),
        "" if kind == "desc" else kind,
    )


# --- floating-point immediates, as bits -----------------------------------------------------------------------------

_HALVES: Final = frozenset({"HADD2", "HMUL2", "HFMA2", "HMNMX2", "HSETP2", "HSET2"})
_FLOATS: Final = frozenset(
    {"FADD", "FMUL", "FFMA", "FSETP", "FMNMX", "FMNMX3", "FSEL", "FCHK", "FSET", "MUFU", "F2I", "F2F", "F2FP", "FRND"}
    | {"UFADD", "UFMUL", "UFFMA", "UFMNMX", "UFSETP", "UF2I", "UMUFU", "UF2FP", "USEL", "FADD2", "FMUL2", "FFMA2"}
    | {"DADD", "DMUL", "DFMA", "DSETP"}
)


def _float(opcode: str, modifiers: tuple[str, ...], token: str) -> Operand:
    if not _NUMBER.fullmatch(token):
        return Unread(token)  # a NaN: the text does not have its bits
    value = float(token)
    if opcode.startswith("D") or (opcode == "F2F" and modifiers[-1:] == ("F64",)):
        return Immediate(int.from_bytes(struct.pack("<d", value)[4:], "little"))
    if opcode not in _HALVES:
        return Immediate(int.from_bytes(_single(value), "little"))
    if any(m.startswith("BF16") for m in modifiers):
        return Immediate(int.from_bytes(_single(value)[2:], "little"))
    return Immediate(int.from_bytes(struct.pack("<e", value), "little"))


def _single(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _packed(opcode: str, modifiers: tuple[str, ...], tokens: list[str], found: list[Operand]) -> tuple[Operand, ...]:
    """Join two halves that follow each other into one number, the first as the upper half."""
    for number, (upper, lower) in enumerate(pairwise(found)):
        plain = not _INTEGER.fullmatch(tokens[number]) and not _INTEGER.fullmatch(tokens[number + 1])
        if plain and isinstance(upper, Immediate | Unread) and isinstance(lower, Immediate | Unread):
            if isinstance(upper, Immediate) and isinstance(lower, Immediate):
                joined: Operand = Immediate(upper.value << 16 | lower.value)
            else:
                joined = Unread(f"{upper},{lower}")
            return (*found[:number], joined, *found[number + 2 :])
    return tuple(found)


# --- what each opcode writes, and how wide its operands are ---------------------------------------------------------

# An opcode that is not here may write anything. Widths are counted in registers of 32 bits; `scripts/accept-why` checks
# them against the live ranges of `nvdisasm -plr`.


class _Shape(NamedTuple):
    """Where an opcode's destinations are in the text: predicates, then registers, then predicates (carries)."""

    before: int
    registers: int
    after: int
    known: Known = "all"


_OPCODES: Final = (
    # nothing is written but memory, barriers and the program counter
    (
        _Shape(0, 0, 0),
        "STG ST STS STSM STL RED REDG REDS LDGSTS BRA BRX JMP JMX BRXU JMXU CALL RET EXIT NOP BSSY BSYNC BREAK BAR "
        "YIELD WARPSYNC WARPSYNCALL DEPBAR LDGDEPBAR MEMBAR ERRBAR CGAERRBAR CCTL CCTLL NANOSLEEP BPT KILL FENCE "
        "PREEXIT ENDCOLLECTIVE ACQBULK UCGABAR_ARV UCGABAR_WAIT WARPGROUP ARRIVES PMTRIG",
    ),
    (
        _Shape(0, 0, 0, "writes"),
        "STAS STTM SUST SURED IDE RTT ACQSHMINIT UTMALDG UTMASTG UTMAREDG UTMAPF UTMACCTL UTMACMDFLUSH UBLKCP "
        "UBLKPF UBLKRED UTCBAR UTCHMMA UTCQMMA UTCOMMA UTCIMMA UTCCP UTCSHIFT UGETNEXTWORKID UVIRTCOUNT WARPGROUPSET",
    ),
    # one register or register range
    (
        _Shape(0, 1, 0),
        "MOV UMOV MOV32I LDC ULDC LDCU S2R S2UR CS2R CS2UR SEL USEL FSEL SHF USHF SHL SHR PRMT UPRMT IABS UIABS POPC "
        "UPOPC FLO UFLO BREV UBREV SGXT USGXT BMSK UBMSK P2R UP2UR VIADD UVIADD I2F UI2F F2I UF2I I2FP UI2FP F2F FRND "
        "MUFU UMUFU FADD UFADD FMUL UFMUL FFMA UFFMA FMNMX FMNMX3 UFMNMX FSET HADD2 HMUL2 HFMA2 HMNMX2 F2FP UF2FP "
        "FADD2 FMUL2 FFMA2 DADD DMUL DFMA IDP IDP4A I2I I2IP UI2IP LDS LDSM LDL LEPC GETLMEMBASE B2R CREDUX REDUX UR2R "
        "FSWZADD",
    ),
    (
        _Shape(0, 1, 0, "writes"),
        "HMMA IMMA DMMA BMMA QMMA OMMA HGMMA QGMMA IGMMA BGMMA LDSMT LDTM MOVM TMML TXQ "
        "AL2P ALD IPA ISBERD HSET2 VABSDIFF VABSDIFF4 USETSHMSZ SUATOM FOOTPRINT BMOV UBMOV RPCMOV VHMNMX UFSEL",
    ),
    # a register, then predicates
    (_Shape(0, 1, 2), "IADD3 UIADD3 IADD UIADD LEA ULEA IMAD UIMAD"),
    (_Shape(2, 1, 2), "IMNMX UIMNMX VIMNMX UVIMNMX VIMNMX3 UVIMNMX3 VIADDMNMX UVIADDMNMX"),
    # predicates, then perhaps a register
    (_Shape(2, 0, 0), "ISETP UISETP FSETP UFSETP DSETP HSETP2 PLOP3 UPLOP3 PSETP UPSETP"),
    (_Shape(1, 0, 0), "FCHK"),
    (_Shape(1, 1, 0), "LOP3 ULOP3 SHFL MATCH LDG LD ATOM ATOMG ATOMS R2UR QSPC ELECT"),
    (_Shape(1, 2, 0, "writes"), "TEX TLD TLD4"),
    (_Shape(1, 1, 0, "writes"), "SULD"),
    (_Shape(1, 1, 0, "writes"), "SYNCS SYNCSU UTCATOMSWS USETMAXREG PIXLD OUT"),
    # all operands but the last
    (_Shape(1, 1, 1), "VOTE VOTEU"),
    (_Shape(0, 0, 0), "R2P UR2UP"),
)
_SHAPES: Final = {name: shape for shape, names in _OPCODES for name in names.split()}
_UNKNOWN: Final = _Shape(0, 0, 0, "nothing")

_DOUBLES: Final = frozenset({"DADD", "DMUL", "DFMA", "DSETP"})
_ACCESSES: Final = frozenset({"LDG", "LD", "LDS", "LDL", "LDC", "ULDC", "LDCU", "STG", "ST", "STS", "STL"})
_CONVERSIONS: Final = frozenset({"F2I", "UF2I", "I2F", "UI2F", "F2F", "FRND"})
_PACKED: Final = frozenset({"FADD2", "FMUL2", "FFMA2"})
_JUMPS: Final = frozenset({"BRX", "JMX", "BRXU", "JMXU", "RET", "CALL"})


def _written_count(opcode: str, modifiers: tuple[str, ...]) -> int:
    """Return how many registers the destination has."""
    if opcode in _ACCESSES or opcode in ATOMICS:
        return access_count(opcode, modifiers)
    if opcode in _DOUBLES or opcode in _PACKED or opcode == "LEPC":
        return 2
    if opcode in _CONVERSIONS:
        return _converted(opcode, modifiers)
    if opcode in ("CS2R", "CS2UR"):
        return 1 if "32" in modifiers else 2
    if opcode in ("IMAD", "UIMAD"):
        return 2 if "WIDE" in modifiers else 1
    if opcode in ("ISETP", "UISETP", "SHF", "USHF", "MATCH"):
        return 1
    if opcode in _MATRIX:
        return _MATRIX[opcode](modifiers)
    return 2 if {"64", "S64", "U64"} & set(modifiers) else 1


def _read_count(opcode: str, modifiers: tuple[str, ...], number: int) -> int:
    """Return how many registers the source `number` (from 0, predicates and addresses counted too) has."""
    if opcode in _ACCESSES or opcode in ATOMICS:
        return access_count(opcode, modifiers)
    if opcode in _DOUBLES or opcode in _PACKED or opcode in _JUMPS:
        return 2
    if opcode in ("IMAD", "UIMAD"):
        return 2 if number == 2 and ("WIDE" in modifiers or "HI" in modifiers) else 1
    if opcode in ("F2I", "UF2I", "F2F", "FRND"):
        return 2 if "F64" in (modifiers[-1:] if opcode == "F2F" else modifiers) else 1
    if opcode in ("I2F", "UI2F"):
        return 2 if {"S64", "U64"} & set(modifiers) else 1
    if opcode in ("SHF", "USHF", "CS2R"):
        return 1
    if opcode == "STSM":
        return _last_number(modifiers)
    return 2 if {"64", "S64", "U64"} & set(modifiers) else 1


def _converted(opcode: str, modifiers: tuple[str, ...]) -> int:
    if opcode in ("F2I", "UF2I"):
        return 2 if {"S64", "U64"} & set(modifiers) else 1
    formats = [m for m in modifiers if re.fullmatch(r"B?F\d+\w*", m)]
    return 2 if formats and formats[0] == "F64" else 1


def _integer_matrix(modifiers: tuple[str, ...]) -> int:
    return 2 if any(m in ("8816", "8832", "88128", "884") for m in modifiers) else 4


def _group_matrix(modifiers: tuple[str, ...]) -> int:
    columns = next((int(m.split("x")[1]) for m in modifiers if m.startswith("64x")), 256)
    return columns // 4 if "F16" in modifiers[:2] else columns // 2


def _last_number(modifiers: tuple[str, ...]) -> int:
    return int(modifiers[-1]) if modifiers and modifiers[-1].isdecimal() else 1


def _tensor_memory(modifiers: tuple[str, ...]) -> int:
    return next((int(m[1:]) for m in modifiers if re.fullmatch(r"x\d+", m)), 4)


_MATRIX: Final[dict[str, Callable[[tuple[str, ...]], int]]] = {
    "HMMA": lambda modifiers: 4 if "F32" in modifiers else 2,
    **dict.fromkeys(("IMMA", "BMMA"), _integer_matrix),
    "DMMA": lambda modifiers: 4 if {"884", "8x8x4"} & {*modifiers} else 8,
    **dict.fromkeys(("TEX", "TLD", "TLD4"), lambda modifiers: 2),  # two pairs: the first two texels are in the second
    "SULD": lambda modifiers: 4 if "P" in modifiers else access_count("LD", modifiers),
    **dict.fromkeys(("HGMMA", "QGMMA", "IGMMA", "BGMMA"), _group_matrix),
    **dict.fromkeys(("LDSM", "LDSMT"), _last_number),
    "LDTM": _tensor_memory,
    **dict.fromkeys(("QMMA", "OMMA", "TMML", "TXQ"), lambda modifiers: 4),
}
