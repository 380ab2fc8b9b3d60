"""Read what cuobjdump prints: the list of cubins (`-all -lelf`) and the section table of one (`-elf`).

Shapes as printed by 12.x and 13.5. cuobjdump is a witness, never the judge: with `-xelf` it lets same-named cubins
overwrite each other, without `-all` it leaves out relocatable code, and it stops at the first cubin it cannot read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpucore.lineinfo import FileReport, Witness

TOOL = "cuobjdump"

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
        return Witness(tool=TOOL, listed=listed, rc=code, agrees=True)
    reason = _reason(listing, listed, counted, code)
    return Witness(tool=TOOL, listed=listed, rc=code, agrees=False, reason=reason)


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
