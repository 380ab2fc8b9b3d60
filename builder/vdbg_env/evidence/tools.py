"""Read what NVIDIA's command-line tools print: their version, cuobjdump, nvdisasm and nvidia-smi."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gpucore.lineinfo import FileReport, Witness

_RELEASE = re.compile(r"release (\d+\.\d+)")
_VERSION = re.compile(r"\b(?:release |[Vv]ersion |[Vv]|)(\d+\.\d+(?:\.\d+)*)")


def tool_version(said: str) -> str:
    """Return the version in what a tool prints for --version, "" if there is none."""
    found = _RELEASE.search(said) or _VERSION.search(said)
    return found[1] if found else ""


# Read what cuobjdump prints: the list of cubins (`-all -lelf`) and the section table of one (`-elf`).
#
# Shapes as printed by 12.x and 13.5. cuobjdump is a witness, never the judge: with `-xelf` it lets same-named cubins
# overwrite each other, without `-all` it leaves out relocatable code, and it stops at the first cubin it cannot read.


CUOBJDUMP = "cuobjdump"

_LISTED = re.compile(r"^ELF file +\d+: (?P<name>.+)$", re.MULTILINE)
_FATAL = re.compile(r"^cuobjdump fatal +: (?P<text>.+)$", re.MULTILINE)
_NOTHING = re.compile(r"does not contain device code|No ELF file found to extract")
_SECTION = re.compile(r"^ +[0-9a-f]+ +[0-9a-f]+ +[0-9a-f]+ +[0-9a-f]+ +[0-9a-f]+ +\S+ .* (?P<name>\S+)$")


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The output of `cuobjdump -all -lelf FILE`; `names` repeat when cubins share one, `fatal` is its error, if any."""

    names: tuple[str, ...]
    fatal: str | None
    says_none: bool


def parse_listing(stdout: str, stderr: str) -> Listing:
    """Read both streams of `cuobjdump -all -lelf FILE`."""
    fatal = _FATAL.search(stderr) or _FATAL.search(stdout)
    return Listing(
        names=tuple(match["name"] for match in _LISTED.finditer(stdout)),
        fatal=fatal["text"] if fatal else None,
        says_none=bool(_NOTHING.search(stderr) or _NOTHING.search(stdout)),
    )


def parse_section_names(stdout: str) -> tuple[str, ...]:
    """Return the section names in the first section table that `cuobjdump -elf CUBIN` prints; empty without one."""
    _, found, rest = stdout.partition("Sections:\n")
    if not found:
        return ()
    names = []
    for line in rest.splitlines()[1:]:
        match = _SECTION.match(line)
        if not match:
            break
        names.append(match["name"])
    return tuple(names)


def weigh(ours: FileReport, listing: Listing, code: int) -> Witness:
    """Compare the witness's list with our count and explain a difference."""
    listed, counted = len(listing.names), ours.counts.cubins
    if listing.fatal is None and (code == 0 or (listing.says_none and listed == 0)) and listed == counted:
        return Witness(tool=CUOBJDUMP, listed=listed, rc=code, agrees=True)
    reason = _reason(listing, listed, counted, code)
    return Witness(tool=CUOBJDUMP, listed=listed, rc=code, agrees=False, reason=reason)


def _reason(listing: Listing, listed: int, counted: int, code: int) -> str:
    if listing.fatal and listing.fatal.startswith("Invalid ELF") and listed < counted:
        return (
            f"it stopped after {listed} of {counted} cubins with 'Invalid ELF', "
            "as releases of CUDA 13 do at sm_90 cubins of CUDA 12.1"
        )
    if code < 0:
        return f"it was ended by signal {-code}; it needs memory for every cubin of the file at once"
    if listing.fatal:
        return f"it stopped with {listing.fatal!r}"
    if listing.says_none and counted:
        return "it found no device code where the reader did"
    return f"it lists {listed} cubins, the reader found {counted}: no known reason"


# Read nvdisasm's listing (`nvdisasm -ndf -c -gi`): the instruction at an address, and the chain printed above it.
#
# The instruction text is what the listing is for. Its chain can be that of another caller: a new block is printed only
# when the *leaf's* line changes (see `gpucore.dwarf`), so a chain read here is a second opinion, not an answer.


_PLACE = re.compile(r'\s*//## File "(?P<file>.*?)", line (?P<line>\d+)(?P<inlined> inlined at )?')
_INSTRUCTION = re.compile(r"\s*/\*(?P<address>[0-9a-f]{4,16})\*/\s+(?P<text>\S.*?)\s*;")
_FUNCTION_HEAD = re.compile(r"//-+ \.text\.(?P<name>\S+)\s+-+")


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction; `address` in bytes as printed, `chain` of (file, 1-based line) leaf first, empty without."""

    section: str
    address: int
    text: str
    chain: tuple[tuple[str, int], ...]


def read_listing(lines: Iterable[str]) -> Iterator[Instruction]:
    """Yield every instruction of a listing, each with the chain that applies to it."""
    section = ""
    chain: tuple[tuple[str, int], ...] = ()
    block: list[tuple[str, int]] = []
    for line in lines:
        if place := _PLACE.match(line):
            block.append((place["file"], int(place["line"])))
            if not place["inlined"]:
                chain, block = tuple(block), []
        elif found := _FUNCTION_HEAD.match(line):
            section = found["name"]
        elif instruction := _INSTRUCTION.match(line):
            yield Instruction(
                section=section, address=int(instruction["address"], 16), text=instruction["text"], chain=chain
            )


# Read what nvidia-smi prints: a row for each GPU, and the CUDA version in the head of its table.


NVIDIA_SMI: Final = "nvidia-smi"
_BASIC: Final = ("name", "driver_version", "ecc.errors.uncorrected.volatile.total", "mig.mode.current")
_NEWER: Final = ("compute_cap", "memory.used", "memory.total")  # compute_cap is unknown to drivers before r510
_CUDA: Final = re.compile(r"CUDA(?: UMD)? Version\s*:\s*([\d.]+)")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU; None where nvidia-smi does not say. Memory is in bytes, `compute_capability` is as `9.0`."""

    name: str
    driver: str
    ecc_errors: int | None
    is_mig: bool
    compute_capability: str | None = None
    memory_used: int | None = None
    memory_total: int | None = None


def query(*, basic: bool = False) -> tuple[str, ...]:
    """Return the arguments that print the rows; `basic` leaves out the columns that old drivers do not have."""
    columns = _BASIC if basic else _BASIC + _NEWER
    return (f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits")


def parse_gpus(rows: str) -> tuple[Gpu, ...]:
    """Return the GPUs of the rows; a line that is not a row, such as an error message, is left out."""
    cells = [[cell.strip() for cell in row.split(",")] for row in rows.splitlines()]
    return tuple(_gpu(row + [""] * len(_NEWER)) for row in cells if len(row) >= len(_BASIC))


def cuda_version(table: str) -> str | None:
    """Return the newest CUDA version that the driver supports, from the head of the table; None without one."""
    found = _CUDA.search(table)
    return found[1] if found else None


def _gpu(row: list[str]) -> Gpu:
    used, total = (int(cell) << 20 if cell.isdecimal() else None for cell in row[5:7])
    return Gpu(
        name=row[0],
        driver=row[1],
        ecc_errors=int(row[2]) if row[2].isdecimal() else None,
        is_mig=row[3].lower() == "enabled",
        compute_capability=row[4] if re.fullmatch(r"\d+\.\d+", row[4]) else None,
        memory_used=used,
        memory_total=total,
    )
