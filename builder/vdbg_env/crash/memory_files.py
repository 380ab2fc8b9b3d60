"""Find the memory maps of a run or in a file, and ask all of them whose memory an address is."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpucore.core_reader import CoreSections
from gpucore.elf import looks_like_elf
from gpucore.errors import GpucoreError
from vdbg_env.common.console import json_text, printable
from vdbg_env.common.errors import BadInput, unreadable
from vdbg_env.common.files import read_whole
from vdbg_env.crash.files import CoreFiles
from vdbg_env.crash.memory_map import (
    MemoryMap,
    Owner,
    Region,
    disjoint,
    names_of,
    owner_json,
    owner_of,
    read_memory_map,
)
from vdbg_env.crash.memory_snapshot import LARGEST_SNAPSHOT, PICKLE, read_snapshot

if TYPE_CHECKING:
    from vdbg_env.crash.places import AddressWhy
    from vdbg_env.evidence.system import Xid

_NAMES: Final = "memory-map*.json"
_MOST_MAPS: Final = 1024
_OF_PROCESS: Final = re.compile(r"core\..*\.(\d{1,10})\.\d{1,20}(?:\.nvcudmp)?(?:\.(?:gz|zst|xz|bz2))?")  # ...%h.%p.%t
_UNMAPPED: Final = frozenset({"FAULT_PDE", "FAULT_PTE"})  # a page without an entry in the GPU's tables
_TELLING: Final = ("inside", "freed", "past-the-end", "before-the-start", "between", "one-bit", "far")


@dataclass(frozen=True, kw_only=True)
class Owners:
    """Whose memory an address is: by the map that says most, and by the maps of other ranks that say otherwise."""

    best: Owner
    others: tuple[Owner, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The answer in lines for people: one, where all maps say the same or one of them is meant."""
        ranked = (self.best, *self.others) if self.others else ()
        if not ranked:
            return (self.best.sentence,)
        return tuple(f"{_of_rank(owner)}: {owner.sentence}" for owner in ranked)

    @property
    def document(self) -> dict[str, Any]:
        """The answer for programs; docs/schemas/owner-v1.schema.json says what each field means."""
        return {**owner_json(self.best), "others": [owner_json(owner) for owner in self.others]}


def _of_rank(owner: Owner) -> str:
    known = owner.map
    if known.rank is not None:
        return f"rank {known.rank}"
    return f"process {known.pid}" if known.pid is not None else Path(known.file).name or "the map"


def memory_maps(target: str, environment: Mapping[str, str]) -> tuple[MemoryMap, ...]:
    """Return the maps of a run, by its name or its folder, or those of a file; raises BadInput for none."""
    from vdbg_env.record.runs import find_run  # `core` with maps next to it loads no record

    return open_maps(target if Path(target).exists() else str(find_run(target, environment).path))


def open_maps(target: str) -> tuple[MemoryMap, ...]:
    """Return the maps of a run's folder, or the one in a file: a memory map, a pickled snapshot, a full GPU core.

    Raises BadInput where there is none, or it is damaged; of several in a folder the damaged ones are left out.
    """
    path = Path(target)
    if not path.is_dir():
        return (_opened(path),)
    maps, problems = [], []
    for found in _below(path):
        try:
            maps.append(_opened(found))
        except BadInput as error:
            problems.append(error)
    if not maps:
        raise (
            problems[0]
            if problems
            else BadInput(
                f"{target} has no memory map",
                cause="the workload was started without one, or ended before its device was ready",
                next_step="vdbg-env guard -- COMMAND writes one for each process with a device",
            )
        )
    return tuple(maps)


def _below(folder: Path) -> list[Path]:
    """Return the files of a folder that are named as maps; a pipe of such a name would be waited for."""
    return [found for found in sorted(folder.rglob(_NAMES))[:_MOST_MAPS] if found.is_file()]


def maps_beside(core: Path) -> list[Path]:
    """Return the files that `maps_of` reads for a core: where its folder has a map, those in folders below it, too."""
    return _below(core.parent) if any(core.parent.glob(_NAMES)) else []


def maps_of(core: str, sections: CoreSections) -> tuple[MemoryMap, ...]:
    """Return the maps in the folder of a core, else the memory that it holds itself; none where neither can be read."""
    try:
        if core and maps_beside(Path(core)):
            return of_process(open_maps(str(Path(core).parent)), core)
        return (core_map(sections, core),) if sections.global_memory() else ()
    except (BadInput, OSError):
        return ()


def of_process(maps: Sequence[MemoryMap], core: str) -> tuple[MemoryMap, ...]:
    """Return the maps of the process that wrote a core, by the number in its file's name; all where none is its."""
    named = _OF_PROCESS.fullmatch(Path(core).name)
    own = tuple(one for one in maps if named and one.pid == int(named[1]))
    return own or tuple(maps)


def ask(
    maps: Sequence[MemoryMap], address: int, *, base: int | None = None, width: int = 1, at: float | None = None,
    unmapped: bool = False, one_of_many: bool = False,
) -> Owners | None:  # fmt: skip
    """Return whose memory an address is; None without any map. The arguments are those of `owner_of`."""
    answers = [
        owner_of(memory, address, base=base, width=width, at=at, unmapped=unmapped, one_of_many=one_of_many)
        for memory in maps
    ]
    if not answers:
        return None
    answers.sort(key=lambda owner: (owner.how_known != "base-argument", _rank(owner)))
    best, seen = answers[0], {answers[0].sentence}
    others = []
    for owner in answers[1:]:
        if _rank(owner) == _rank(best) and owner.sentence not in seen:
            seen.add(owner.sentence)
            others.append(owner)
    return Owners(best=best, others=tuple(others))


def _rank(owner: Owner) -> float:
    """Return how telling an answer is, the least first; one that the failure contradicts is little better than none."""
    return _TELLING.index("far") - 0.5 if owner.is_gone else _TELLING.index(owner.where)


def maps_of_run(folder: Path) -> tuple[MemoryMap, ...]:
    """Return the maps of a run's newest attempt that wrote any; none where none can be read."""
    try:
        maps = open_maps(str(folder))
    except (BadInput, OSError):
        return ()
    newest = max(maps, key=lambda one: one.written or 0.0)
    attempt = Path(newest.file).parent.parent
    return tuple(one for one in maps if Path(one.file).parent.parent == attempt)


def owner_of_fault(xid: Xid, maps: Sequence[MemoryMap]) -> tuple[tuple[str, ...], dict[str, Any] | None]:
    """Return whose memory the page of an Xid 31 line is, in lines and for programs; nothing without address or map.

    The map of the process that the line names counts alone, where there is one: in a container its number is another.
    """
    if xid.address is None:
        return (), None
    own = [one for one in maps if one.pid == xid.pid] or maps
    owners = ask(own, xid.address, unmapped=xid.fault in _UNMAPPED)
    if owners is None:
        return (), None
    verb = f"{xid.access.lower()} at " if xid.access else ""
    return tuple(f"Xid {xid.code}, {verb}page {xid.address:#x}: {line}" for line in owners.lines), owners.document


def with_owner(
    why: AddressWhy, maps: Sequence[MemoryMap], *, at: float | None = None, unmapped: bool = False
) -> AddressWhy:
    """Return why an address was bad, with whose memory it is and what each pointer points to.

    `at` is when the access failed, in seconds since 1970; `unmapped` says that the GPU found no memory there.
    """
    document = why.document
    value, base = document["value"], _pointer(document["base"])
    maps = [one for one in maps if one.source != "core" or _has_one_of(one, value, base)]
    if not maps or document["space"] not in {"global", "generic"}:
        return why
    owners = None
    if value is not None:
        owners = ask(
            maps, value, base=base, width=document["width"], at=at, unmapped=unmapped, one_of_many=why.one_of_many
        )
    gone = owners.best.region if owners and owners.best.is_gone else None
    best = owners.best.map if owners else maps[0]
    bases = [document["base"], *(load["base"] for load in document["loads"])]
    names = names_of(best, [pointer for found in bases if (pointer := _pointer(found)) is not None])
    lines = list(why.lines)
    if owners:
        lines[1:1] = [f"that is {line}" if number == 0 else line for number, line in enumerate(owners.lines)]
    told = dict.fromkeys(
        f"{_called(found)} {'pointed' if gone and gone.holds(p) else 'points'} to {names[p]}"
        for found in bases
        if (p := _pointer(found)) in names
    )
    return replace(
        why,
        lines=(*lines, *told),
        document={
            **document,
            "base": _pointing(document["base"], names),
            "loads": [{**load, "base": _pointing(load["base"], names)} for load in document["loads"]],
            "owner": owners.document if owners else None,
        },
    )


def with_memory(why: AddressWhy, sections: CoreSections) -> AddressWhy:
    """Return why an address was bad, with what the core's memory has where values that are not known were loaded.

    That is of the moment of the dump: something may have written there since the load, so it is no value of the load.
    """
    if not sections.global_memory():
        return why
    lines, loads = list(why.lines), [{**load, "in_memory": None} for load in why.document["loads"]]
    for number, load in enumerate(loads, 1):
        at = _address_of(load)
        data = sections.memory(at, load["width"]) if at is not None else None
        if at is None or data is None:
            continue
        load["in_memory"] = {"address": at, "value": int.from_bytes(data, "little")}
        name = load["name"] or f"loaded{number}"
        where = [n for n, line in enumerate(lines) if line.startswith(f"{name} was loaded at ")]
        text = f"memory at {at:#x} held {_as_typed(bytes(data), load['base']['type'])} when the core was written"
        lines.insert(where[0] + 1 if where else len(lines), f"{text}: that may be newer than what {name} got")
    return replace(why, lines=tuple(lines), document={**why.document, "loads": loads})


def _address_of(load: Mapping[str, Any]) -> int | None:
    """Return where a value that is not known was loaded from, where that is a fact."""
    base, index = load["base"], load["index"]
    if load["value"] is not None or load["space"] not in {"global", "generic"} or not base or not index:
        return None
    known = (base["value"], base["how_known"]), (index["value"], index["how_known"])
    if any(value is None or how == "one register" for value, how in known) or load["width"] not in {1, 2, 4, 8}:
        return None
    return int(base["value"] + index["scale"] * index["value"]) % (1 << 64)


def _as_typed(data: bytes, kind: str | None) -> str:
    """Return bytes as what a pointer's type says: a number, with its sign, or an address."""
    plain = (kind or "").replace("const", "").replace("*", "", 1).replace(" ", "")
    floats = {("float", 4): "<f", ("double", 8): "<d"}.get((plain, len(data)))
    if floats is not None:
        return f"{struct.unpack(floats, data)[0]:g}"
    if plain.endswith("*"):
        return f"{int.from_bytes(data, 'little'):#x}"
    return f"{int.from_bytes(data, 'little', signed='unsigned' not in plain)}"


def _has_one_of(memory: MemoryMap, *addresses: int | None) -> bool:
    """Say whether a core's memory has an address: where the program's is skipped, some of the driver's own is there."""
    return any(True for address in addresses if address is not None for _ in memory.memory.holding(address))


def _pointer(base: Mapping[str, Any] | None) -> int | None:
    return base["value"] if base else None


def _called(base: Mapping[str, Any] | None) -> str:
    return str(base["name"] or f"argument {base['argument']}") if base and base["argument"] else "the loaded pointer"


def _pointing(base: Mapping[str, Any] | None, names: Mapping[int, str]) -> dict[str, Any] | None:
    return None if base is None else {**base, "points_to": names.get(base["value"])}


def _opened(path: Path) -> MemoryMap:
    try:
        with path.open("rb") as file:
            head = file.read(20)
        if looks_like_elf(head):
            with CoreFiles().open(str(path)) as core:
                return core_map(CoreSections(core.data), str(path))
        data = read_whole(path, LARGEST_SNAPSHOT)
    except OSError as error:
        raise unreadable(path, error) from None
    except GpucoreError as error:
        raise BadInput(f"{path}: {error.what}", cause=error.cause, next_step=error.next_step) from None
    return read_snapshot(data, str(path)) if head.startswith(PICKLE) else read_memory_map(data, str(path))


def core_map(sections: CoreSections, file: str = "") -> MemoryMap:
    """Return the global memory that a core holds as a map: its sections are the driver's allocations.

    Raises BadInput for a core that was written without global memory.
    """
    blocks = disjoint(file, (Region(address=a, bytes=n, kind="section") for a, n in sections.global_memory() if n))
    if not blocks:
        raise BadInput(
            f"{file or 'the core'} holds no global memory",
            cause="it was written with skip_global_memory",
            next_step="give the run, or its memory-map.json",
        )
    return MemoryMap(file=file, blocks=blocks, source="core")


def owners_text(owners: Owners) -> str:
    """Return the answer to `vdbg-env locate ADDRESS --memory` as text."""
    best = owners.best
    lines = [f"{best.address:#x}", *(f"  {printable(line)}" for line in owners.lines)]
    named = f"{best.map.file}" + (f", {_of_rank(best)}" if not owners.others and best.map.rank is not None else "")
    lines.append(f"  by {printable(named)}" + (f" ({best.map.moment})" if best.map.moment else ""))
    lines += [f"  note: {printable(note)}" for note in best.map.notes]
    return "\n".join(lines) + "\n"


def owners_json(owners: Owners) -> str:
    """Return the same as JSON, schema `vdbg-env/owner/v1`."""
    return json_text({"schema": "vdbg-env/owner/v1", **owners.document})
