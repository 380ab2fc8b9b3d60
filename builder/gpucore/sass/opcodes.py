"""What each opcode writes and how wide its operands are: one table for both readers.

An opcode that is not here may write anything. Widths are counted in registers of 32 bits; `scripts/accept-why` checks
them against the live ranges of `nvdisasm -plr`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from gpucore.sass.model import Known


class Shape(NamedTuple):
    """Where an opcode's destinations are in the text: predicates, then registers, then predicates (carries)."""

    before: int
    registers: int
    after: int
    known: Known = "all"


def _table(shape: Shape, names: str) -> dict[str, Shape]:
    return dict.fromkeys(names.split(), shape)


SHAPES: Final = {
    # nothing is written but memory, barriers and the program counter
    **_table(
        Shape(0, 0, 0),
        "STG ST STS STSM STL RED REDG REDS LDGSTS BRA BRX JMP JMX BRXU JMXU CALL RET EXIT NOP BSSY BSYNC BREAK BAR "
        "YIELD WARPSYNC WARPSYNCALL DEPBAR LDGDEPBAR MEMBAR ERRBAR CGAERRBAR CCTL CCTLL NANOSLEEP BPT KILL FENCE "
        "PREEXIT ENDCOLLECTIVE ACQBULK UCGABAR_ARV UCGABAR_WAIT WARPGROUP ARRIVES PMTRIG",
    ),
    **_table(
        Shape(0, 0, 0, "writes"),
        "STAS STTM SUST SURED IDE RTT ACQSHMINIT UTMALDG UTMASTG UTMAREDG UTMAPF UTMACCTL UTMACMDFLUSH UBLKCP "
        "UBLKPF UBLKRED UTCBAR UTCHMMA UTCQMMA UTCOMMA UTCIMMA UTCCP UTCSHIFT UGETNEXTWORKID UVIRTCOUNT WARPGROUPSET",
    ),
    # one register or register range
    **_table(
        Shape(0, 1, 0),
        "MOV UMOV MOV32I LDC ULDC LDCU S2R S2UR CS2R CS2UR SEL USEL FSEL SHF USHF SHL SHR PRMT UPRMT IABS UIABS POPC "
        "UPOPC FLO UFLO BREV UBREV SGXT USGXT BMSK UBMSK P2R UP2UR VIADD UVIADD I2F UI2F F2I UF2I I2FP UI2FP F2F FRND "
        "MUFU UMUFU FADD UFADD FMUL UFMUL FFMA UFFMA FMNMX FMNMX3 UFMNMX FSET HADD2 HMUL2 HFMA2 HMNMX2 F2FP UF2FP "
        "FADD2 FMUL2 FFMA2 DADD DMUL DFMA IDP IDP4A I2I I2IP UI2IP LDS LDSM LDL LEPC GETLMEMBASE B2R CREDUX REDUX UR2R "
        "FSWZADD",
    ),
    **_table(
        Shape(0, 1, 0, "writes"),
        "HMMA IMMA DMMA BMMA QMMA OMMA HGMMA QGMMA IGMMA BGMMA LDSMT LDTM MOVM TEX TLD TLD4 TXD TMML TXQ SULD "
        "AL2P ALD IPA ISBERD HSET2 VABSDIFF VABSDIFF4 USETSHMSZ SUATOM FOOTPRINT BMOV UBMOV RPCMOV VHMNMX UFSEL",
    ),
    # a register, then predicates
    **_table(Shape(0, 1, 2), "IADD3 UIADD3 IADD UIADD LEA ULEA IMAD UIMAD"),
    **_table(Shape(2, 1, 2), "IMNMX UIMNMX VIMNMX UVIMNMX VIMNMX3 UVIMNMX3 VIADDMNMX UVIADDMNMX"),
    # predicates, then perhaps a register
    **_table(Shape(2, 0, 0), "ISETP UISETP FSETP UFSETP DSETP HSETP2 PLOP3 UPLOP3 PSETP UPSETP"),
    **_table(Shape(1, 0, 0), "FCHK"),
    **_table(Shape(1, 1, 0), "LOP3 ULOP3 SHFL MATCH LDG LD ATOM ATOMG ATOMS R2UR QSPC ELECT"),
    **_table(Shape(1, 1, 0, "writes"), "SYNCS SYNCSU UTCATOMSWS USETMAXREG PIXLD OUT"),
    # all operands but the last
    **_table(Shape(1, 1, 1), "VOTE VOTEU"),
    **_table(Shape(0, 0, 0), "R2P UR2UP"),
}

UNKNOWN: Final = Shape(0, 0, 0, "nothing")

OCTETS: Final = frozenset({"EFL2", "ENL2", "ELL2"})
"""Modifiers of an access of 32 bytes, which names two ranges of four registers."""
_SIZES: Final = {"64": 2, "96": 3, "128": 4, "256": 8}
_DOUBLES: Final = frozenset({"DADD", "DMUL", "DFMA", "DSETP"})
_ACCESSES: Final = frozenset({"LDG", "LD", "LDS", "LDL", "LDC", "ULDC", "LDCU", "STG", "ST", "STS", "STL"})
_ATOMICS: Final = frozenset({"ATOM", "ATOMG", "ATOMS", "RED", "REDG", "REDS"})
_CONVERSIONS: Final = frozenset({"F2I", "UF2I", "I2F", "UI2F", "F2F", "FRND"})
_PACKED: Final = frozenset({"FADD2", "FMUL2", "FFMA2"})
_JUMPS: Final = frozenset({"BRX", "JMX", "BRXU", "JMXU", "RET", "CALL"})


def written_count(opcode: str, modifiers: tuple[str, ...]) -> int:
    """Return how many registers the destination has."""
    if opcode in _ACCESSES or opcode in _ATOMICS:
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


def read_count(opcode: str, modifiers: tuple[str, ...], number: int) -> int:
    """Return how many registers the source `number` (from 0, predicates and addresses counted too) has."""
    if opcode in _ACCESSES or opcode in _ATOMICS:
        return access_count(opcode, modifiers)
    if opcode in _DOUBLES or opcode in _PACKED or opcode in _JUMPS:
        return 2
    if opcode in ("IMAD", "UIMAD"):
        return 2 if number == 2 and ("WIDE" in modifiers or "HI" in modifiers) else 1
    if opcode in ("F2I", "UF2I", "F2F", "FRND"):
        return 2 if (modifiers and modifiers[-1] == "F64") or _from_double(opcode, modifiers) else 1
    if opcode in ("I2F", "UI2F"):
        return 2 if {"S64", "U64"} & set(modifiers) else 1
    if opcode in ("SHF", "USHF", "CS2R"):
        return 1
    if opcode == "STSM":
        return _last_number(modifiers)
    return 2 if {"64", "S64", "U64"} & set(modifiers) else 1


def access_count(opcode: str, modifiers: tuple[str, ...]) -> int:
    """Return how many registers a load, store or atomic moves."""
    if opcode in _ATOMICS and "F64" in modifiers:
        return 2
    found = [_SIZES[m] for m in modifiers if m in _SIZES]
    if OCTETS & set(modifiers):
        return 4
    return found[-1] if found else 2 if opcode in _ATOMICS and {"S64", "U64"} & set(modifiers) else 1


def _from_double(opcode: str, modifiers: tuple[str, ...]) -> bool:
    return opcode in ("F2I", "UF2I", "FRND") and "F64" in modifiers


def _converted(opcode: str, modifiers: tuple[str, ...]) -> int:
    if opcode in ("F2I", "UF2I"):
        return 2 if {"S64", "U64"} & set(modifiers) else 1
    formats = [m for m in modifiers if re.fullmatch(r"B?F\d+\w*", m)]
    return 2 if formats and formats[0] == "F64" else 1


def _warp_matrix(modifiers: tuple[str, ...]) -> int:
    if "F32" in modifiers:
        return 4
    return 2


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
    "HMMA": _warp_matrix,
    "QMMA": lambda modifiers: 4,
    "OMMA": lambda modifiers: 4,
    "IMMA": _integer_matrix,
    "BMMA": _integer_matrix,
    "DMMA": _integer_matrix,
    "HGMMA": _group_matrix,
    "QGMMA": _group_matrix,
    "IGMMA": _group_matrix,
    "BGMMA": _group_matrix,
    "LDSM": _last_number,
    "LDSMT": _last_number,
    "LDTM": _tensor_memory,
    "TEX": lambda modifiers: 4,
    "TLD": lambda modifiers: 4,
    "TLD4": lambda modifiers: 4,
    "TXD": lambda modifiers: 4,
    "TMML": lambda modifiers: 4,
    "TXQ": lambda modifiers: 4,
    "SULD": lambda modifiers: 4,
}
