"""Ask cuobjdump for a second opinion: its list of a file's cubins, and of single ones where the list broke off.

Shapes as printed by 12.x and 13.5. cuobjdump is a witness, never the judge: with `-xelf` it lets same-named cubins
overwrite each other, without `-all` it leaves out relocatable code, and it stops at the first cubin it cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import Final

from gpucore.elf import Elf
from gpucore.fatbin import Entry, EntryKind, find_device_code
from gpucore.lineinfo import FileReport, Witness
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.programs import ProgramRunner
from vdbg_env.crash.files import Buffer, ScratchFiles

WITNESS_TIMEOUT_S: Final = 600.0
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


def ask_cuobjdump(
    tool: str, path: Path, data: Buffer, report: FileReport, *, programs: ProgramRunner, scratch: ScratchFiles
) -> Witness:
    """Return what cuobjdump says of a file, compared with our report.

    Where its list broke off it is asked about single cubins too, which `scratch` writes for it as files.
    """
    try:
        ran = programs.run([tool, "-all", "-lelf", str(path)], timeout_s=WITNESS_TIMEOUT_S)
        listing = parse_listing(ran.stdout, ran.stderr)
        witness = weigh(report, listing, ran.code)
        broke_off = ran.code > 0 and len(listing.names) < report.counts.cubins
        if witness.agrees or not broke_off:
            return witness
        return cross_examine(witness, data, tool, programs=programs, scratch=scratch)
    except HostNotAble as error:
        return Witness(tool=CUOBJDUMP, listed=None, rc=None, agrees=False, reason=error.what)


_ASKED: Final = 8
_LARGEST: Final = 4 << 20  # bytes: `cuobjdump -elf` prints each cubin as text of several times its size
_TIMEOUT_S: Final = 60.0


class _Answer(Enum):
    SAME = auto()
    OTHER = auto()
    UNREADABLE = auto()


def cross_examine(
    witness: Witness, data: Buffer, tool: str, *, programs: ProgramRunner, scratch: ScratchFiles
) -> Witness:
    """Return the witness with its answers for single cubins; only that can explain why its list broke off.

    The cubin that it stopped at is asked about first, then others spread over the file. The disagreement is explained
    when it cannot read that one by itself either, and shows the same section table as ours wherever it shows one.
    Raises HostNotAble when cuobjdump cannot be run.
    """
    cubins = [c.entry for c in find_device_code(data) if c.entry.kind == EntryKind.ELF and not c.section]
    stopped_at = witness.listed or 0
    asked = _sample(cubins, stopped_at)
    answers = [_ask(entry, tool, programs, scratch) for entry in asked]
    explained = bool(answers) and answers[0] is _Answer.UNREADABLE and _Answer.OTHER not in answers
    return replace(witness, explained=explained, reason=f"{witness.reason}; {_told(asked, answers)}")


def _sample(cubins: Sequence[Entry], first: int) -> list[Entry]:
    step = len(cubins) // _ASKED | 1  # odd: the architectures of a translation unit follow each other
    chosen = dict.fromkeys([first, *range(0, len(cubins), step)])
    return [cubins[i] for i in chosen if i < len(cubins) and cubins[i].size <= _LARGEST][:_ASKED]


def _ask(entry: Entry, tool: str, programs: ProgramRunner, scratch: ScratchFiles) -> _Answer:
    payload = entry.payload()
    elf = Elf(payload)
    with scratch.lend(memoryview(payload), f".{entry.target}.cubin") as path:
        ran = programs.run([tool, "-elf", str(path)], timeout_s=_TIMEOUT_S)
    theirs = parse_section_names(ran.stdout)
    if not theirs:
        return _Answer.UNREADABLE
    return _Answer.SAME if list(theirs) == [elf.name(s) for s in elf.sections[1:]] else _Answer.OTHER


def _told(asked: Sequence[Entry], answers: Sequence[_Answer]) -> str:
    unreadable = sorted({e.target for e, a in zip(asked, answers, strict=True) if a is _Answer.UNREADABLE})
    parts = [f"the same section table for {answers.count(_Answer.SAME)}"]
    if unreadable:
        parts.append(f"none for {answers.count(_Answer.UNREADABLE)} ({', '.join(unreadable)})")
    if _Answer.OTHER in answers:
        parts.append(f"another for {answers.count(_Answer.OTHER)}")
    return f"asked about {len(answers)} cubins one by one, it shows {', '.join(parts)}"
