"""Whether a pack has lines for the code at a place: decided by the instructions, never by the name alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vdbg_env.cuda.line_pack.identity import CodeIdentity, code_hash, code_of
from vdbg_env.cuda.line_pack.reader import LinePack
from vdbg_env.cuda.line_pack.record import LineRecord
from vdbg_env.cuda.lines.code_map import CodeMap


@dataclass(frozen=True, kw_only=True)
class Match:
    """What a pack has for a function: `same` has its very instructions, `other` its name only."""

    identity: CodeIdentity
    same: tuple[LineRecord, ...] = ()
    other: tuple[LineRecord, ...] = ()


def match(pack: LinePack, code: CodeMap, identity: CodeIdentity) -> Match:
    """Return what a pack has for a function; raises UnreadableBinary when the code or the pack is damaged.

    An image in a core has addresses in the fields that the linker left open, and may lack the relocations that name
    them: then the fields that the pack notes are left out of both.
    """
    name = identity.function.name
    same = pack.find(identity.hash, name)
    if same:
        return Match(identity=identity, same=same)
    named = pack.named(name)
    alike = tuple(record for record in named if _same_but_for_fields(record, code, identity))
    return Match(identity=identity, same=alike, other=() if alike else named)


def _same_but_for_fields(record: LineRecord, code: CodeMap, identity: CodeIdentity) -> bool:
    if not record.fields or record.size != identity.function.size:
        return False
    return code_hash(code_of(code, identity.function), record.fields) == record.hash


def distinct(records: Iterable[LineRecord], offset: int) -> tuple[LineRecord, ...]:
    """Return one record for each chain that builds give an instruction, those of the same chain in another folder once.

    Records without a line for it are left out.
    """
    found: dict[tuple[tuple[str | None, str, int], ...], LineRecord] = {}
    for record in records:
        chain = record.chain(offset)
        if chain:
            found.setdefault(tuple((f.function, f.file.rpartition("/")[2], f.line) for f in chain), record)
    return tuple(found.values())
