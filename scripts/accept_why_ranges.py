"""Compares what gpucore says that instructions write and read with the live ranges of `nvdisasm -plr`.

    python scripts/accept_why_ranges.py NVDISASM SM CUBIN...

Calls are left out: there nvdisasm counts what the callee does. So are descriptors on sm_80 to sm_89, which nvdisasm
does not print. Exit status 1 when anything else differs.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gpucore import Elf
from gpucore.sass import Instruction, decode, definitions, uses

FILES = {"GPR": "R", "PRED": "P", "UGPR": "UR", "UPRED": "UP"}
SHOWN = 62  # the last uniform register in the table of nvdisasm


def ranges(listing: str) -> Iterator[tuple[str, int, str, set[int], set[int]]]:
    """Yield section, offset, register file, and the numbers that are written and read there."""
    section = ""
    lines = listing.splitlines()
    columns: list[tuple[str, int, int]] = []
    for number, line in enumerate(lines):
        if found := re.match(r"//-+ (\.text\.\S+)", line):
            section, columns = found[1], []
        head = line.find("// |")
        if head >= 0 and "#" in line[head:] and not columns:
            at = head + 4
            for name in lines[number - 3][at:].split("|"):
                if name.strip() in FILES:
                    columns.append((FILES[name.strip()], at + line[at : at + len(name)].index("#") + 2, at + len(name)))
                at += len(name) + 1
        if (found := re.match(r"\s+/\*([0-9a-f]{4,})\*/", line)) and columns:
            for file, start, end in columns:
                marks = line[start:end]
                written = {at for at, mark in enumerate(marks) if mark in "^x"}
                yield section, int(found[1], 16), file, written, {at for at, mark in enumerate(marks) if mark in "vx"}


def left_out(one: Instruction, sm: int, file: str) -> bool:
    return one.opcode in ("CALL", "R2P", "P2R") or (80 <= sm < 90 and file == "UR" and one.memory is not None)


def main() -> int:
    nvdisasm, sm, cubins = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    compared = wrong = 0
    for name in cubins:
        command = [nvdisasm, "-c", "-plr", "-lrm", "narrow", name]
        run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        elf = Elf(Path(name).read_bytes())
        code = {elf.name(s): decode(bytes(elf.contents(s)), sm) for s in elf.sections_starting(".text.")}
        for section, offset, file, written, read in ranges(run.stdout):
            one = code[section][offset // 16]
            if left_out(one, sm, file):
                continue
            for ours, theirs in ((definitions(one), written), (uses(one), read)):
                if ours is None:
                    continue
                compared += 1
                if {r.number for r in ours if r.file == file and not (file == "UR" and r.number > SHOWN)} != theirs:
                    wrong += 1
                    print(f"{name} {section} {offset:#x} {one}: {file} {sorted(theirs)}, not {sorted(map(str, ours))}")
    print(f"sm_{sm}: {compared:,} sets of registers compared, {wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
