"""Compares gpucore's decoder with nvdisasm over the cubins of the stock vLLM wheel, one architecture after another.

    python scripts/accept_why_decoder.py --wheel WHEEL --nvdisasm PROGRAM --out FOLDER [--at-least N] [ARCH...]

Each distinct word is compared once, whatever its scheduling bits. What was compared is noted in FOLDER/decoder.jsonl,
so that a later call continues; FOLDER/decoder.json has the sums. Exit status 1 when anything differs.
"""

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from gpucore import Elf, EntryKind, find_device_code
from gpucore.sass import Constant, Instruction, RegisterOperand, decode, read_listings

# what is proven: the architectures whose cubins are taken, and the name that nvdisasm has for it
CODE = {
    75: (("sm_75",), "SM75"),
    80: (("sm_80",), "SM80"),
    86: (("sm_86",), "SM86"),
    89: (("sm_89",), "SM89"),
    90: (("sm_90", "sm_90a"), "SM90a"),
    100: (("sm_100", "sm_100f"), "SM100a"),
    103: (("sm_100", "sm_100f"), "SM103a"),
    120: (("sm_120", "sm_120f"), "SM120a"),
    121: (("sm_120", "sm_120f"), "SM121a"),
}
BATCH = 60_000
WORDS = struct.Struct("<QQ")
MEANING = (1 << 41) - 1  # bits 64 to 104; behind them is scheduling


def cubins(wheel: Path, targets: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield a name and the code of every cubin for the targets, small libraries first."""
    with zipfile.ZipFile(wheel) as archive:
        members = [m for m in archive.infolist() if m.filename.endswith(".so")]
        for member in sorted(members, key=lambda m: m.file_size):
            for number, code in enumerate(find_device_code(archive.read(member))):
                if code.entry.kind == EntryKind.ELF and code.entry.target in targets:
                    elf = Elf(code.entry.payload())
                    text = b"".join(bytes(elf.contents(s)) for s in elf.sections_starting(".text."))
                    yield f"{member.filename}#{number}", text


def _place(operand: object) -> object:
    """Return where an operand is, without its signs and its number."""
    if isinstance(operand, RegisterOperand):
        return operand.register
    return (operand.bank, operand.offset) if isinstance(operand, Constant) else "a number"


def reduced(instruction: Instruction, known: str) -> tuple[object, ...]:
    """Return what has to be equal where the decoder knows only so much."""
    if known == "writes":
        read = map(_place, instruction.sources) if instruction.opcode in {"FADD", "FMUL", "FFMA"} else ()
        return instruction.opcode, instruction.guard, instruction.destinations, *read
    return (instruction,)


def compare(words: list[tuple[int, int]], sm: int, name: str, nvdisasm: str) -> tuple[Counter[str], list[str]]:
    """Return how many words the decoder knows how well, and each difference."""
    code = b"".join(WORDS.pack(*word) for word in words)
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(code)
        file.flush()
        run = subprocess.run([nvdisasm, "-b", name, "-json", file.name], capture_output=True, check=True, timeout=600)
    expected = [i for listing in read_listings(run.stdout) for i in listing.instructions]
    decoded = decode(code, sm)
    if len(expected) != len(decoded):
        raise SystemExit(f"nvdisasm has {len(expected)} instructions of {len(decoded)}")
    found: Counter[str] = Counter()
    differences = []
    for ours, theirs in zip(decoded, expected, strict=True):
        found[ours.known] += 1
        if ours.known == "nothing":
            found[f"unknown {theirs.opcode}"] += 1
        elif reduced(ours, ours.known) != reduced(theirs, ours.known):
            differences.append(f"sm_{sm} {code[ours.offset : ours.offset + 16].hex()}: {theirs} != {ours}")
    return found, differences


def prove(sm: int, options: argparse.Namespace, notes: Path) -> tuple[int, int]:
    """Compare until enough instructions were seen; return how many were, and how many differed."""
    done = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    done = [row for row in done if row["sm"] == sm]
    seen, differ = sum(row["instructions"] for row in done), sum(len(row["differences"]) for row in done)
    finished = {name for row in done for name in row["cubins"]}
    targets, name = CODE[sm]
    distinct: dict[tuple[int, int], tuple[int, int]] = {}
    known: set[tuple[int, int]] = set()
    names: list[str] = []
    count = 0

    def flush() -> None:
        nonlocal count, differ, seen
        found, differences = compare(list(distinct.values()), sm, name, options.nvdisasm)
        row = {"sm": sm, "cubins": names, "instructions": count, "distinct": len(distinct), "differences": differences}
        with notes.open("a") as file:
            file.write(json.dumps({**row, "known": found}) + "\n")
        seen, differ = seen + count, differ + len(differences)
        for line in differences[:20]:
            print(line)
        print(f"sm_{sm}: {seen:,} instructions, {differ} differ", flush=True)
        known.update(distinct)
        distinct.clear()
        names.clear()
        count = 0

    for cubin, text in cubins(options.wheel, targets):
        if seen + count >= options.at_least:
            break
        if cubin in finished:
            continue
        names.append(cubin)
        count += len(text) // 16
        for low, high in WORDS.iter_unpack(text):
            key = (low, high & MEANING)
            if key not in known and key not in distinct:
                distinct[key] = (low, high)
        if len(distinct) >= BATCH:
            flush()
    if distinct:
        flush()
    return seen, differ


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--nvdisasm", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--at-least", type=int, default=3_000_000)
    parser.add_argument("archs", nargs="*", type=int)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    notes = options.out / "decoder.jsonl"
    wrong = 0
    for sm in options.archs or CODE:
        wrong += prove(sm, options, notes)[1]
    rows = [json.loads(line) for line in notes.read_text().splitlines()]
    sums = {}
    for sm in CODE:
        of = [row for row in rows if row["sm"] == sm]
        levels: Counter[str] = Counter()
        for row in of:
            levels.update(row["known"])
        counts = {key: sum(row[key] for row in of) for key in ("instructions", "distinct")}
        sums[f"sm_{sm}"] = {**counts, "differences": sum(len(row["differences"]) for row in of), **levels}
    (options.out / "decoder.json").write_text(json.dumps(sums, indent=1) + "\n")
    for arch, row in sums.items():
        print(
            arch,
            {key: row.get(key, 0) for key in ("instructions", "distinct", "all", "writes", "nothing", "differences")},
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
