"""The tables of `decoder`: opcodes by architecture, and the names of modifier values.

`whole` lists what is decoded to its last operand, by opcode bits 0 to 11 and the method of `decoder` that reads it.
`opaque` lists the opcodes of which only the name and the destinations are known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

ARCHITECTURES: Final = (75, 80, 86, 87, 89, 90, 100, 103, 120, 121)

COMPARISONS: Final = ("F", "LT", "EQ", "LE", "GT", "NE", "GE", "T")
JOINS: Final = ("AND", "OR", "XOR")
SHIFTED: Final = ("S64", "U64", "S32", "U32")
PERMUTES: Final = ("", "F4E", "B4E", "RC8", "ECL", "ECR", "RC16")
FUNCTIONS: Final = ("COS", "SIN", "EX2", "LG2", "RCP", "RSQ", "RCP64H", "RSQ64H", "SQRT", "TANH")
ROUNDED: Final = ("", "FLOOR", "CEIL", "TRUNC")
I2F_ROUNDED: Final = ("", "RM", "RP", "RZ")
VOTES: Final = ("ALL", "ANY", "EQ")
SHUFFLES: Final = ("IDX", "UP", "DOWN", "BFLY")
BRANCHES: Final = ("", "U", "DIV", "CONV")
SIZES: Final = ("U8", "S8", "U16", "S16", "", "64", "128")
POLICIES: Final = ("EF", "", "EL", "LU", "EU", "NA")
AHEAD: Final = ("", "LTC64B", "LTC128B", "LTC256B")
SCOPES: Final[dict[int, tuple[str, ...]]] = {
    0: (),
    4: ("CONSTANT",),
    5: ("STRONG", "SM"),
    7: ("STRONG", "GPU"),
    10: ("STRONG", "SYS"),
}
SCOPES_75: Final[dict[int, tuple[str, ...]]] = {
    2: ("CONSTANT", "GPU"),
    3: ("CONSTANT", "SYS"),
    4: ("CTA",),
    5: ("SM",),
    6: ("GPU",),
    7: ("SYS",),
    8: ("STRONG", "CTA"),
    9: ("STRONG", "SM"),
    10: ("STRONG", "GPU"),
    11: ("STRONG", "SYS"),
}
ATOMICS: Final = ("ADD", "MIN", "MAX", "INC", "DEC", "AND", "OR", "XOR", "EXCH", "SAFEADD")
ATOMIC_KINDS: Final = ("", "S32", "64", "S64", "128")
FLOAT_KINDS: Final = {0: ("F16x2", "RN"), 3: ("BF16x2", "RN"), 9: ("F32", "FTZ", "RN")}
MATRICES: Final = {
    0x100: ("16", "M88", "2"), 0x200: ("16", "M88", "4"), 0x4100: ("16", "MT88", "2"), 0x4200: ("16", "MT88", "4"),
}  # fmt: skip
ATOMIC_KINDS_75: Final = ("", "S32", "64", "F32.FTZ.RN", "F16x2.RN", "S64", "F64.RN")
SPECIAL: Final = {
    0: "LANEID", 33: "TID.X", 34: "TID.Y", 35: "TID.Z", 37: "CTAID.X", 38: "CTAID.Y", 39: "CTAID.Z", 40: "NTID",
    46: "LWINHI", 47: "SWINHI", 48: "SWINLO", 52: "LWINLO", 50: "SMEMSZ", 56: "EQMASK", 57: "LTMASK", 58: "LEMASK",
    59: "GTMASK", 60: "GEMASK", 67: "VIRTUALSMID", 80: "CLOCKLO", 81: "CLOCKHI", 82: "GLOBALTIMERLO",
    83: "GLOBALTIMERHI", 136: "CgaCtaId", 138: "CgaSize", 255: "SRZ",
}  # fmt: skip

SPECIAL_SINCE: Final = {"CgaCtaId": 90, "CgaSize": 100}

# Besides the opcodes whose names start with U, and one SYNCS, these have uniform predicates as guards.
UNIFORM_GUARDS: Final = frozenset({"LDCU", "S2UR", "LDTM", "STTM"})


def is_uniform(key: int) -> bool:
    """Return whether the operands of an opcode of the integer group are uniform registers."""
    return key & 0x180 == 0x80 or key & 0x1FF in _ALSO_UNIFORM


_ALSO_UNIFORM: Final = frozenset({0x04A, 0x05A, 0x05C, 0x05E})


def _forms(low: int, forms: str) -> list[int]:
    """Return the opcode with each of the forms in bits 9 to 11."""
    return [low | int(form) << 9 for form in forms]


# opcode, method of the decoder, bits 0 to 8, forms that were proven
_EVERYWHERE: Final = (
    ("IMAD", "imad", 0x024, "1234567"),
    ("IMAD", "imad", 0x025, "1234567"),
    ("IMAD", "imad", 0x027, "1234567"),
    ("IADD3", "iadd3", 0x010, "1234567"),
    ("LEA", "lea", 0x011, "1234567"),
    ("LOP3", "lop3", 0x012, "1234567"),
    ("ISETP", "isetp", 0x00C, "1456"),
    ("SHF", "shf", 0x019, "1234567"),
    ("SEL", "select", 0x007, "1456"),
    ("PRMT", "prmt", 0x016, "1234567"),
    ("MOV", "mov", 0x002, "1456"),
    ("IABS", "one_source", 0x013, "1456"),
    ("POPC", "one_source", 0x109, "1456"),
    ("FLO", "flo", 0x100, "1456"),
    ("BREV", "one_source", 0x101, "1"),
    ("MUFU", "mufu", 0x108, "1456"),
    ("F2I", "f2i", 0x105, "156"),
    ("F2I", "f2i", 0x111, "156"),
    ("I2F", "i2f", 0x106, "1456"),
    ("I2F", "i2f", 0x112, "156"),
    ("HFMA2", "hfma2", 0x031, "2"),
    ("VOTE", "vote", 0x006, "4"),
    ("VOTEU", "vote", 0x086, "4"),
    ("PLOP3", "plop3", 0x01C, "4"),
    ("UPLOP3", "plop3", 0x09C, "4"),
    ("S2R", "s2r", 0x119, "4"),
    ("S2UR", "s2r", 0x1C3, "4"),
    ("CS2R", "cs2r", 0x005, "4"),
    ("P2R", "p2r", 0x003, "4"),
    ("R2P", "p2r", 0x004, "4"),
    ("UP2UR", "p2r", 0x083, "4"),
    ("SHFL", "shfl", 0x189, "1247"),
    ("LDC", "ldc", 0x182, "5"),
    ("UIMAD", "imad", 0x0A4, "124"),
    ("UIMAD", "imad", 0x0A5, "124"),
    ("UIMAD", "imad", 0x0A7, "124"),
    ("UIADD3", "iadd3", 0x090, "124"),
    ("ULEA", "lea", 0x091, "124"),
    ("ULOP3", "lop3", 0x092, "124"),
    ("UISETP", "isetp", 0x08C, "14"),
    ("USHF", "shf", 0x099, "124"),
    ("USEL", "select", 0x087, "14"),
    ("UPRMT", "prmt", 0x096, "14"),
    ("UMOV", "mov", 0x082, "46"),
    ("LDG", "global", 0x181, "4"),
    ("LD", "global", 0x180, "4"),
    ("STG", "global", 0x186, "4"),
    ("ST", "global", 0x185, "4"),
    ("LDS", "shared", 0x184, "4"),
    ("STS", "shared", 0x188, "14"),
    ("LDL", "local", 0x183, "4"),
    ("STL", "local", 0x187, "14"),
    ("BRA", "bra", 0x147, "4"),
    ("BSSY", "bssy", 0x145, "4"),
    ("BSYNC", "bsync", 0x141, "4"),
    ("BREAK", "bsync", 0x142, "4"),
    ("CALL", "call", 0x144, "4"),
    ("RET", "ret", 0x150, "4"),
    ("EXIT", "exit", 0x14D, "4"),
    ("NOP", "plain", 0x118, "4"),
    ("BAR", "bar", 0x11D, "1245"),
    ("YIELD", "exit", 0x146, "4"),
    ("LDSM", "matrix", 0x03B, "4"),
    ("ATOM", "compare_and_swap", 0x18B, "1"),
    ("ATOMG", "compare_and_swap", 0x1A9, "1"),
    ("ATOMS", "shared_atomic", 0x18C, "1"),
    ("ATOMS", "shared_atomic", 0x18D, "1"),
)


_LAYOUTS: Final[tuple[tuple[range, tuple[tuple[str, str, int, str], ...]], ...]] = (
    (
        range(75, 90),
        (
            ("IMNMX", "imnmx", 0x017, "1456"),
            ("RED", "atomic", 0x18E, "4"),
            ("LDG", "global", 0x181, "1"),
            ("STG", "global", 0x186, "1"),
        ),
    ),
    (
        range(75, 80),
        (
            ("LD", "global", 0x180, "1"),
            ("ST", "global", 0x185, "1"),
            ("ATOMG", "atomic", 0x1A8, "14"),
            ("ATOM", "atomic", 0x18A, "14"),
            ("R2UR", "r2ur", 0x1C2, "1"),
        ),
    ),
    (
        range(75, 100),
        (
            ("ULDC", "ldc", 0x0B9, "5"),
            ("ULDC", "ldc", 0x0BB, "5"),
        ),
    ),
    (range(80, 90), (("ATOMG", "atomic", 0x1A8, "14"), ("ATOM", "atomic", 0x18A, "14"), ("R2UR", "r2ur", 0x1C2, "1"))),
    (
        range(90, 122),
        (
            ("VIADD", "viadd", 0x036, "146"),
            ("VIMNMX", "vimnmx", 0x048, "146"),
            ("VIADDMNMX", "viaddmnmx", 0x046, "12467"),
            ("UIADD3", "iadd3", 0x097, "14"),
            ("R2UR", "r2ur", 0x0CA, "1"),
            ("ATOMG", "atomic", 0x1A8, "4"),
            ("ATOM", "atomic", 0x18A, "4"),
            ("REDG", "atomic", 0x18E, "4"),
            ("I2FP", "i2fp", 0x045, "16"),
            ("STSM", "matrix", 0x044, "4"),
            ("ATOM", "float_atomic", 0x1A2, "4"),
            ("ATOMG", "float_atomic", 0x1A3, "4"),
            ("UPOPC", "one_source", 0x0BF, "1"),
            ("UFLO", "flo", 0x0BD, "1"),
            ("WARPSYNC", "warpsync", 0x148, "4"),
            ("ELECT", "elect", 0x02F, "4"),
            ("BRA", "bra", 0x147, "2"),
            ("SYNCS", "phase_check", 0x1A7, "2"),
        ),
    ),
    (range(75, 100), (("HFMA2", "hfma2", 0x035, "2"),)),
    (
        range(100, 122),
        (
            ("IADD", "iadd", 0x035, "146"),
            ("LDCU", "ldc", 0x1AC, "3"),
            ("BRX", "brx", 0x149, "4"),
            ("BRXU", "brx", 0x158, "4"),
            ("LDG", "octet", 0x17E, "4"),
            ("STG", "octet", 0x17F, "4"),
        ),
    ),
    (
        range(120, 122),
        (
            ("UIMAD", "imad", 0x0A6, "14"),
            ("UVIMNMX", "vimnmx", 0x04A, "14"),
            ("UI2F", "i2f", 0x05A, "14"),
            ("UF2I", "f2i", 0x05C, "1"),
            ("UI2FP", "i2fp", 0x05E, "1"),
            ("SEL", "select", 0x007, "23"),
            ("USEL", "select", 0x087, "26"),
            ("MOV", "mov64", 0x002, "2"),
            ("UMOV", "mov64", 0x082, "2"),
            ("IMNMX", "imnmx64", 0x017, "146"),
            ("UIMNMX", "imnmx64", 0x085, "14"),
            ("CS2UR", "cs2r", 0x0CB, "4"),
        ),
    ),
    (range(75, 100), (("BRX", "brx", 0x149, "4"),)),
    (range(90, 104), (("VIMNMX3", "vimnmx3", 0x00F, "146"),)),
    (range(80, 122), (("LDGSTS", "copy", 0x1AE, "7"),)),
)


def whole(sm: int) -> dict[int, tuple[str, str]]:
    """Return opcode and method by bits 0 to 11."""
    rows = [*_EVERYWHERE, *(row for span, rows in _LAYOUTS if sm in span for row in rows)]
    return {key: (opcode, family) for opcode, family, low, forms in rows for key in _forms(low, forms)}


# Bits that must be 0, and bits that must be 1, where the decoder reads an opcode whole: other values mean what it does
# not model, or nothing. By bits 0 to 8 of the opcode and the architectures.
_FIXED: Final[tuple[tuple[str, range, str, str], ...]] = (
    ("010 024 025 0a4 0a5", range(75, 122), "76", ""),
    ("019 099", range(75, 122), "77", ""),
    ("035", range(100, 120), "74", "81-83"),
    ("00f", range(90, 104), "73-76", ""),
    ("036", range(100, 122), "72 74-75 80", ""),
    ("048", range(120, 122), "74", "81-83"),
    ("048", range(90, 91), "", "81-86"),
    ("04a", range(120, 122), "74", ""),
    ("046", range(75, 122), "73 76", ""),
    ("036", range(75, 122), "73", ""),
    ("0bd 100", range(75, 122), "", "81-83"),
    ("105 111 05c", range(75, 122), "86", ""),
    ("02f", range(90, 122), "85", ""),
    ("108", range(75, 122), "72-73", ""),
    ("031", range(75, 122), "74-84 86", ""),
    ("035", range(75, 100), "76-80 83-84", ""),
    ("003 083", range(75, 122), "76-77", ""),
    ("182", range(75, 122), "78-79", ""),
    ("1ac", range(75, 122), "80-81", ""),
    ("180 181", range(75, 80), "76 87", ""),
    ("181", range(75, 122), "", "81-83"),
    ("185 186 18a 1a8 18e", range(75, 80), "76", ""),
    ("183 187", range(75, 122), "76", ""),
    ("184", range(75, 122), "87", ""),
    ("144 150", range(75, 122), "32-33 82-85 91-104", "86"),
    ("144", range(75, 122), "24-31", ""),
    ("145", range(75, 122), "20-33 64-71 74-86 91-104", ""),
    ("145", range(75, 100), "72-73", ""),
    ("147", range(75, 122), "83 85-86 92-104", ""),
    ("149", range(75, 122), "85-86", ""),
    ("14d", range(75, 122), "84-86", ""),
    ("148", range(75, 122), "85-86", ""),
)
# forms whose operand at bits 32 to 63 is a uniform register, and what else has bit 91 set
_UNIFORM_FORMS: Final = (6, 7)
_FREE: Final = frozenset(
    {
        0x147,
        0x180,
        0x181,
        0x183,
        0x184,
        0x185,
        0x186,
        0x187,
        0x188,
        0x18A,
        0x18E,
        0x1A8,
        0x189,
        0x158,
        0x17E,
        0x17F,
        0x1A2,
        0x1A3,
        0x1AE,
        0x18B,
        0x1A9,
        0x18C,
        0x18D,
        0x1A7,
    }
)
_CLEAR: Final = frozenset({0x882, 0x886, 0x89C, 0x8CB, 0x2CA})


def _bits(text: str) -> int:
    made = 0
    for span in text.split():
        first, _, last = span.partition("-")
        for bit in range(int(first), int(last or first) + 1):
            made |= 1 << bit
    return made


def fixed(sm: int, key: int) -> tuple[int, int]:
    """Return which bits of a word must have which value, as a mask and the value."""
    mask = value = 0
    for keys, span, zeros, ones in _FIXED:
        if sm in span and key & 0x1FF in [int(one, 16) for one in keys.split()]:
            mask |= _bits(zeros) | _bits(ones)
            value |= _bits(ones)
    if key & 0x1FF not in _FREE:
        mask |= 1 << 91
        if (
            (key >> 9 in _UNIFORM_FORMS or is_uniform(key) or key == 0x7AC or key == 0xABB)
            and key not in _CLEAR
            and key != 0xAB9
        ):
            value |= 1 << 91
    return mask, value


Width = int | Callable[[int, int], int | None]
_LOW_ARCHS: Final = range(75, 90)
_HOPPER: Final = range(90, 91)
_DATACENTER: Final = range(100, 104)
_CONSUMER: Final = range(120, 122)
_ALL: Final = range(75, 122)


def _of(mask_at: int, mask: int, counts: dict[int, int]) -> Callable[[int, int], int | None]:
    """Return a reader of the width: the bits of the upper half at `mask_at`, looked up in what was seen."""
    return lambda low, high: counts.get(high >> mask_at & mask)


def _columns(low: int, high: int) -> int | None:
    """Return the width of a warp group's product with 32-bit sums: half the columns."""
    columns = (low >> 53 | high << 11) & 0x3F
    return columns * 4 + 4 if high >> 8 & 0x1FF in (0x8, 0x18) and columns < 32 else None


def _columns_of_integers(low: int, high: int) -> int | None:
    """Return it for a product of bytes: it has 32 columns or more, 16 apart."""
    third, rest = divmod((low >> 53 | high << 11) & 0x3F, 3)
    return 8 * third - 8 if high >> 8 & 0x1FF == 0x10 and not rest and 3 <= third <= 17 else None


_FLOATS: Final = _of(9, 15, {0: 1, 3: 1, 9: 1, 12: 1, 15: 2})  # F16x2, BF16x2, F32 with FTZ, F32, F64
_PLAIN: Final = _of(17, 1, {0: 1})  # not FHADD and FHFMA
_COUNTS: Final = {0x0: 2, 0x10: 4, 0x18: 4, 0x418: 4, 0x810: 4, 0x4054: 4, 0x405C: 4, 0x445C: 4, 0x2C: 4}
_MATRIX: Final = _of(8, 0x7FFF, _COUNTS)
_HALVES: Final = _of(8, 0x7FFF, {**_COUNTS, 0x8: 2})
_INTEGERS: Final = _of(8, 0x7FFF, {**_COUNTS, 0x54: 2})
_NO_PREDICATE: Final = _of(17, 7, {7: 1})
_NO_PREDICATES: Final = _of(17, 63, {63: 1})
_TEXELS: Final = _of(17, 7, {7: 2})
_SURFACE: Final = _of(9, 0x707, {**{0x700 | n: 1 for n in range(5)}, 0x705: 2, 0x706: 4})


def _arrived(low: int, high: int) -> int | None:
    """Return the width of the state that an arrival at an mbarrier gives, or of a count that POPC.INC gives."""
    return {2: 2}.get(high >> 9 & 3) if high >> 23 & 7 == 1 else 1


# opcode, destinations (d and c: general register at bits 16 and 64; u: uniform at 16; p, q: predicates at 81, 84),
# their width in registers, bits 0 to 11, architectures; v and w are p and q as uniform predicates
_OPAQUE: Final[tuple[tuple[str, str, Width, str, range], ...]] = (
    ("FADD", "d", _PLAIN, "221 421 621 821 a21 c21 e21", _ALL),
    ("FMUL", "d", 1, "220 820 a20 c20", _ALL),
    ("FFMA", "d", _PLAIN, "223 423 623 823 a23 c23 e23", _ALL),
    ("FMNMX", "d", 1, "209 809 a09 c09", _ALL),
    ("FSEL", "d", 1, "208 808 a08 c08", _ALL),
    ("FSETP", "pq", 1, "20b 80b a0b c0b", _ALL),
    ("FCHK", "p", 1, "302 902 b02 d02", _ALL),
    ("FRND", "d", 1, "307", _ALL),
    ("MUFU", "d", 1, "308 908 b08 d08", _ALL),
    ("F2I", "d", 1, "305 b05 d05", _ALL),
    ("I2F", "d", 1, "306 906 b06 d06", _ALL),
    ("F2F", "d", 1, "304 d10", _ALL),
    ("F2F", "d", _of(11, 3, {1: 1, 2: 1, 3: 2}), "310 b10", _ALL),
    ("F2I", "d", _of(11, 3, {2: 1, 3: 2}), "311", _ALL),
    ("I2F", "d", _of(11, 7, {1: 1, 2: 1, 3: 2}), "312 b12 d12", _ALL),
    ("FRND", "d", 2, "313", _ALL),
    ("DADD", "d", 2, "229 429 629 e29", _ALL),
    ("DMUL", "d", 2, "228 828 a28 c28", _ALL),
    ("DFMA", "d", 2, "22b 42b 62b 82b a2b c2b e2b", _ALL),
    ("DMMA", "d", _of(8, 0x7FFF, {0: 4}), "23f", range(80, 122)),
    ("DSETP", "pq", 1, "22a 42a e2a", _ALL),
    ("HADD2", "d", 1, "230 430 630 e30", _ALL),
    ("HMUL2", "d", 1, "232 832", _ALL),
    ("HFMA2", "d", 1, "231 431 831", _ALL),
    ("HFMA2", "d", 1, "235 435 835", range(75, 100)),
    ("HMNMX2", "d", 1, "240 840", _ALL),
    ("HSET2", "d", 1, "233 433", _ALL),
    ("HSETP2", "pq", 1, "234 434", _ALL),
    ("F2FP", "d", 1, "23e c3e", _ALL),
    ("I2FP", "d", 1, "245 845 c45 a45", _ALL),
    ("I2I", "d", 1, "238", _ALL),
    ("FSET", "d", 1, "20a 80a", _ALL),
    ("FMNMX3", "d", 1, "276 876 c76", _DATACENTER),
    ("FADD2", "d", 2, "24b", _DATACENTER),
    ("FFMA2", "d", 2, "249 c49", _DATACENTER),
    ("FMUL2", "d", 2, "24a", _DATACENTER),
    ("VHMNMX", "d", 1, "247", _DATACENTER),
    ("VIMNMX", "dpq", 1, "248 848 c48", _DATACENTER),
    ("VIMNMX", "d", _NO_PREDICATES, "248 848 c48", _HOPPER),
    ("VIMNMX", "dpq", _of(17, 63, {n: 1 for n in range(63) if n >> 3 != 7 and n & 7 != 7}), "248", _HOPPER),
    ("VIMNMX", "d", _NO_PREDICATES, "248 848 c48", _CONSUMER),
    ("VIMNMX3", "d", 1, "20f 80f c0f", range(90, 104)),
    ("VIADDMNMX", "d", 1, "246 846 a46 c46", range(90, 122)),
    ("IDP", "d", 1, "226 a26 c26", _ALL),
    ("BMSK", "d", 1, "21b a1b", _ALL),
    ("BREV", "d", 1, "301", _ALL),
    ("SGXT", "d", 1, "21a 81a a1a", _ALL),
    ("B2R", "d", 1, "31c", _ALL),
    ("BMOV", "d", 1, "355", _ALL),
    ("BMOV", "", 1, "356 956 f55", _ALL),
    ("LEPC", "d", 2, "34e 94e", _ALL),
    ("MATCH", "d", _of(15, 1, {1: 1}), "3a1", _ALL),
    ("MATCH", "pd", _of(15, 1, {0: 1}), "3a1", _ALL),
    ("RPCMOV", "d", 1, "353", range(100, 122)),
    ("MOV", "d", 2, "402", _CONSUMER),
    ("SEL", "d", 2, "407 e07", _CONSUMER),
    ("UMOV", "u", 2, "482", _CONSUMER),
    ("USEL", "u", 2, "487", _CONSUMER),
    ("UFFMA", "u", 1, "255 455 855", _CONSUMER),
    ("UFADD", "u", 1, "254", _CONSUMER),
    ("UFMUL", "u", 1, "256 856", _CONSUMER),
    ("UFSEL", "u", 1, "851", _CONSUMER),
    ("UFSETP", "vw", 1, "253 853", _CONSUMER),
    ("UI2F", "u", 1, "25a 85a", _CONSUMER),
    ("UBMSK", "u", 1, "29b 89b", range(90, 122)),
    ("UBREV", "u", 1, "2be", _DATACENTER),
    ("UFLO", "u", 1, "2bd", _ALL),
    ("UPOPC", "u", 1, "2bf", _ALL),
    ("UP2UR", "u", 1, "883", _ALL),
    ("REDUX", "u", 1, "3c4", _ALL),
    ("CREDUX", "u", 1, "2cc", _DATACENTER),
    ("ELECT", "pu", 1, "82f", _ALL),
    ("QSPC", "pd", 1, "3aa 9aa", _ALL),
    ("SULD", "d", _SURFACE, "b99 f99", _ALL),
    ("SUST", "", 1, "b9d f9d", _ALL),
    ("TEX", "cd", _TEXELS, "b60 f60", _ALL),
    ("TLD", "cd", _TEXELS, "b66 f66", _ALL),
    ("ATOM", "pd", _FLOATS, "9a2", range(90, 122)),
    ("ATOMG", "pd", _FLOATS, "9a3", range(90, 122)),
    ("REDG", "", 1, "9a6", range(90, 122)),
    ("VABSDIFF", "d", _NO_PREDICATE, "214 414 a14", _ALL),
    ("VABSDIFF4", "d", _NO_PREDICATE, "215", _ALL),
    ("VIADD", "d", 1, "236 836", range(90, 122)),
    ("IMNMX", "pqd", _of(10, 1, {0: 1, 1: 2}), "217 c17", _CONSUMER),
    ("MOVM", "d", 1, "23a", _ALL),
    ("ATOMS", "p", 1, "58d", range(100, 122)),
    ("ATOMS", "d", _arrived, "f8c", _ALL),
    ("LDG", "cd", _of(17, 3, {1: 4, 2: 4}), "97e", range(100, 122)),
    ("LDSM", "d", _of(8, 0x1FF, {0x0: 1, 0x1: 2, 0x2: 4, 0x40: 1, 0x41: 2, 0x42: 4}), "83b", _ALL),
    ("LDTM", "d", _of(19, 7, {1: 2, 4: 16, 5: 32, 6: 64}), "9ee", _DATACENTER),
    ("HMMA", "d", _HALVES, "23c", _ALL),
    ("IMMA", "d", _of(8, 0x7FFF, {0x54: 2, 0x454: 2}), "237", range(75, 80)),
    ("IMMA", "d", _INTEGERS, "237", range(80, 122)),
    ("QMMA", "d", _MATRIX, "27a", _ALL),
    ("OMMA", "d", 4, "47f", _CONSUMER),
    ("HGMMA", "d", _columns, "9f0 df0", _HOPPER),
    ("IGMMA", "d", _columns_of_integers, "9f1 df1", _HOPPER),
    ("QGMMA", "d", _columns, "9f3 df3", _HOPPER),
    ("USETMAXREG", "v", 1, "9c8", range(90, 122)),
    ("UTCATOMSWS", "vu", 1, "5e3", _DATACENTER),
    ("UTCATOMSWS", "u", 1, "9e3", _DATACENTER),
    ("SYNCS", "", 1, "9b1", range(90, 122)),
    ("SYNCS", "p", 1, "5a7", range(90, 122)),
    ("SYNCS", "d", 1, "9a7", range(90, 122)),
    ("SYNCS", "u", 2, "5b2", range(90, 122)),
    ("ACQBULK", "", 1, "82e", _ALL),
    ("ARRIVES", "", 1, "9b0", _ALL),
    ("BAR", "", 1, "31d 51d 91d b1d", _ALL),
    ("BPT", "", 1, "95c", _ALL),
    ("CALL", "", 1, "343 344", _ALL),
    ("CCTL", "", 1, "98f", _ALL),
    ("CCTL", "", 1, "540", range(100, 122)),
    ("CGAERRBAR", "", 1, "5ab", _ALL),
    ("DEPBAR", "", 1, "91a", _ALL),
    ("ENDCOLLECTIVE", "", 1, "91b", _ALL),
    ("ERRBAR", "", 1, "9ab", _ALL),
    ("FENCE", "", 1, "3c6", _ALL),
    ("LDGDEPBAR", "", 1, "9af", _ALL),
    ("LDGSTS", "", 1, "fae", _ALL),
    ("MEMBAR", "", 1, "992", _ALL),
    ("NANOSLEEP", "", 1, "35d 95d b5d", _ALL),
    ("PREEXIT", "", 1, "82d", _ALL),
    ("RPCMOV", "", 1, "352", range(100, 122)),
    ("STAS", "", 1, "dbd", range(90, 104)),
    ("STG", "", 1, "97f", range(100, 122)),
    ("STSM", "", 1, "844", range(90, 122)),
    ("STTM", "", 1, "9ed", _DATACENTER),
    ("UBLKCP", "", 1, "3ba", _ALL),
    ("UCGABAR_ARV", "", 1, "9c7", _ALL),
    ("UCGABAR_WAIT", "", 1, "dc7", _ALL),
    ("UTCBAR", "", 1, "3e9", _DATACENTER),
    ("UTCCP", "", 1, "9e7", _DATACENTER),
    ("UTCHMMA", "", 1, "5ea 9ea", _DATACENTER),
    ("UGETNEXTWORKID", "", 1, "3ca", range(100, 122)),
    ("UREDGR", "", 1, "378", _DATACENTER),
    ("UTMACCTL", "", 1, "9b9", _ALL),
    ("UTMACMDFLUSH", "", 1, "9b7", _ALL),
    ("UTMALDG", "", 1, "3b4 5b4", _ALL),
    ("UTMAPF", "", 1, "5b8", _ALL),
    ("UTMAREDG", "", 1, "3b6", _ALL),
    ("UTMASTG", "", 1, "3b5", _ALL),
    ("UVIRTCOUNT", "", 1, "84c", _DATACENTER),
    ("WARPGROUP", "", 1, "9c5", _HOPPER),
    ("WARPSYNC", "", 1, "348 948", _ALL),
    ("STG", "", 1, "386 986", _ALL),
    ("ST", "", 1, "385 985", _ALL),
    ("STS", "", 1, "388 988", _ALL),
    ("STL", "", 1, "387 987", _ALL),
    ("RED", "", 1, "98e", _LOW_ARCHS),
    ("REDG", "", 1, "98e", range(90, 122)),
    # destinations of the atomics that the decoder does not read whole
    ("ATOMS", "d", _of(9, 7, {0: 1, 1: 1, 2: 2}), "38d", _ALL),
    ("ATOMS", "d", _of(9, 7, {0: 1, 1: 1, 2: 2}), "38c 98c", _ALL),
    ("ATOM", "pd", _of(9, 7, {0: 1, 1: 1, 2: 2}), "38b", _ALL),
    ("ATOMG", "pd", _of(9, 7, {0: 1, 1: 1, 2: 2}), "3a8", range(90, 122)),
    ("ATOMG", "pd", _of(9, 7, {0: 1, 1: 1, 2: 2}), "3a9", _ALL),
)


Opaque = tuple[str, str, Width]
"""Opcode, destinations, and their width."""


def opaque(sm: int) -> dict[int, tuple[Opaque, ...]]:
    """Return what an opcode may be by bits 0 to 11; the first whose width is known is meant."""
    made: dict[int, tuple[Opaque, ...]] = {}
    for opcode, writes, width, keys, span in _OPAQUE:
        for key in keys.split() if sm in span else ():
            made[int(key, 16)] = (*made.get(int(key, 16), ()), (opcode, writes, width))
    return made
