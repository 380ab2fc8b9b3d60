"""What `nvdisasm -json` prints, read for the interpreter: instructions by function, operands as small values.

Written apart from `gpucore.sass`, which reads the same output: the two are compared through what they conclude.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

ZERO_REGISTER: Final = 255  # RZ and URZ
TRUE_PREDICATE: Final = 7  # PT and UPT


@dataclass(frozen=True)
class Operand:
    """An operand: `kind` is R, UR, P, UP, immediate, constant, memory, special, label or other; `text` as printed.

    `number` is a register, the value of an immediate or the offset of a constant; `parts` are what an address adds up.
    """

    kind: str
    text: str
    number: int = 0
    negative: bool = False
    absolute: bool = False
    inverted: bool = False
    suffix: str = ""
    bank: int = 0
    parts: tuple[Operand, ...] = ()
    floating: float | None = None

    @property
    def is_predicate(self) -> bool:
        """Whether it is a predicate register."""
        return self.kind in ("P", "UP")


@dataclass(frozen=True)
class Line:
    """An instruction: `name` before the first dot, `flags` after it; `guard` is a predicate or None."""

    offset: int
    opcode: str
    name: str
    flags: tuple[str, ...]
    guard: Operand | None
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class Code:
    """A function's instructions; `labels` are the offsets of functions inside it, by name."""

    name: str
    lines: tuple[Line, ...]
    labels: Mapping[str, int]


_REGISTER: Final = re.compile(r"(U?)(R|P)(Z|T|\d+)((?:\.\w+)*)$")
_CONSTANT: Final = re.compile(r"c(?:x)?\[(\w+)\]\[(.*)\]$")
_NUMBER: Final = re.compile(r"[-+]?0x[0-9a-f]+$")
_MEMORY: Final = re.compile(r"(?:desc\[(\w+)\])?\[(.*)\]((?:\.\w+)*)$")


def disassemble(program: str, arch: int, sections: Mapping[str, bytes], limit: float = 600) -> dict[str, Code]:
    """Return the instructions of the sections of a cubin, by name; `program` is nvdisasm.

    It starts slowly, so that all sections are one run, as one section. Of words, unlike of a cubin, every version gives
    one list.
    """
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(b"".join(sections.values()))
        file.flush()
        ran = subprocess.run(
            [program, "-json", "-b", f"SM{arch}", file.name], capture_output=True, text=True, timeout=limit
        )
    if ran.returncode:
        raise RuntimeError(ran.stderr.strip())
    ((listing,), first, found) = json.loads(ran.stdout)[1], 0, {}
    for name, words in sections.items():
        rows = listing["sass-instructions"][first : first + len(words) // 16]
        found[name] = Code(name, tuple(_line(16 * n, row, 16 * first) for n, row in enumerate(rows)), {})
        first += len(rows)
    return found


_RELATIVE: Final = frozenset(("BRA", "CALL.REL.NOINC", "BSSY", "RET.REL.NODEC"))


def _line(offset: int, row: Mapping[str, Any], start: int) -> Line:
    """Return an instruction of the section that begins at `start`: targets count from there."""
    opcode = row["opcode"]
    name, *flags = opcode.split(".")
    given = row.get("predicate")
    guard = operand(given.lstrip("@")) if given and given != "PR" else None  # PR is an operand of P2R and R2P
    operands = [operand(one) for one in split(row.get("operands") or "")]
    if start and operands and operands[-1].kind == "immediate" and (opcode in _RELATIVE or name in _RELATIVE):
        operands[-1] = replace(operands[-1], number=operands[-1].number - start)
    return Line(offset, opcode, name, tuple(flags), guard, tuple(operands))


def split(text: str) -> list[str]:
    """Return the operands of a list, which has no comma before a memory operand in some versions."""
    found, depth, start = [], 0, 0
    text = re.sub(r"(^|,\s*)(\[[^\]]*\])(?=\[|desc\[)", r"\1\2,", text)
    text = re.sub(r"(?<=\w)(?=\[)", lambda m: "" if _is_bank(text, m.start()) else ",", text)
    text = re.sub(r"(?<=[\w])(?=desc\[)", ",", text) if re.search(r"R\w*desc", text) else text
    for n, letter in enumerate(text + ","):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            found.append(text[start:n].strip())
            start = n + 1
    return [one for one in found if one]


def _is_bank(text: str, at: int) -> bool:
    """Whether the bracket at a place belongs to the word before it: `c[`, `cx[`, `desc[`, `gdesc[`, `tmem[`."""
    word = re.search(r"[A-Za-z_]\w*$", text[:at])
    return word is not None and re.match(r"(U?R\d+|U?RZ|U?P\d|U?PT)$", word[0]) is None


def operand(text: str) -> Operand:
    """Return one operand."""
    plain = text.replace(".reuse", "")
    sign = invert = absolute = False
    while plain[:1] in "-!~|" and plain and not _NUMBER.match(plain) and not re.match(r"-?[\d.]+(e|$)", plain):
        sign, invert = sign or plain[0] == "-", invert or plain[0] in "!~"
        if plain[0] == "|":
            absolute, plain = True, plain[1:].rstrip("|") if plain.endswith("|") else plain[1:].replace("|", "")
        else:
            plain = plain[1:]
    marks: dict[str, Any] = {"negative": sign, "inverted": invert, "absolute": absolute}
    if match := _REGISTER.match(plain):
        kind = match[1] + match[2]
        number = (ZERO_REGISTER if match[2] == "R" else TRUE_PREDICATE) if match[3] in "ZT" else int(match[3])
        return Operand(kind, text, number, suffix=match[4], **marks)
    if _NUMBER.match(plain):
        return Operand("immediate", text, int(plain, 16))
    if match := _CONSTANT.match(plain.split("].")[0] + "]" if "]." in plain else plain):
        suffix = "." + plain.split("].")[1] if "]." in plain else ""
        bank = match[1]
        return Operand(
            "constant", text, bank=int(bank, 16) if bank.startswith("0x") else -1, parts=_parts(match[2]),
            suffix=suffix, **marks,
        )  # fmt: skip
    if match := _MEMORY.match(plain):
        return Operand("memory", text, parts=_parts(match[2]), suffix=match[3])
    if plain.startswith("SR"):
        return Operand("special", plain)
    value = _floating(plain)
    if value is not None:
        return Operand("immediate", text, floating=-value if sign else value)
    return Operand("label" if plain.startswith(("$", "_")) else "other", text)


def _floating(text: str) -> float | None:
    if "NAN" in text:
        return float("nan")
    if "INF" in text:
        return float("-inf") if text.startswith("-") else float("inf")
    try:
        return float(text)
    except ValueError:
        return None


def _parts(text: str) -> tuple[Operand, ...]:
    pieces = re.findall(r"[^+\s]+", text.replace("+-", "+ -"))
    return tuple(operand(piece) for piece in pieces)


def half_bits(value: float) -> int:
    """Return the 16 bits of a half; a value too large for it is infinity."""
    try:
        return int(struct.unpack("<H", struct.pack("<e", value))[0])
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00


def float_bits(value: float) -> int:
    """Return the 32 bits of a float; a value too large for it is infinity."""
    try:
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000
