"""The sections of a GPU core by what they are and the row that they hang on, with what is damaged put right or named.

A section's `sh_link` is the number of its parent's section and `sh_info` the parent's row there. The names repeat both
as row numbers (`.cudbg.wptbl.dev0.sm3.cta1`), so a table whose link or type is damaged is found by its name. Whatever
stays unread is accounted for: a core whose rows were lost must not read as one without an exception.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.binary.elf import Elf, Section
from vdbg_env.cuda.gpu_core.layout import LEAVES, PARENTS, SectionType

SHT_STRTAB: Final = 3
_NAMES: Final = {
    "devtbl": SectionType.DEVICES, "ctxtbl": SectionType.CONTEXTS, "smtbl": SectionType.SMS,
    "gridtbl": SectionType.GRIDS, "ctatbl": SectionType.CTAS, "wptbl": SectionType.WARPS, "lntbl": SectionType.LANES,
    "modtbl": SectionType.MODULES, "relfimg": SectionType.RELOCATED_IMAGE, "elfimg": SectionType.IMAGE,
    "meta": SectionType.METADATA,
}  # fmt: skip
_PREFIXES: Final = {kind: name for name, kind in _NAMES.items()}
_SOUGHT: Final = (SectionType.DEVICES, SectionType.SMS, SectionType.CONTEXTS, SectionType.GRIDS, SectionType.MODULES)
_NAME: Final = re.compile(r"\.cudbg\.([a-z]+)((?:\.[a-z]+\d+)*)$")
_NOT_READ: Final = "memory, which this reader does not look at"
_TABLES: Final = frozenset({*PARENTS, SectionType.DEVICES, SectionType.METADATA})
_MOST_NAMED: Final = 4096  # sections looked up by name; more than that are not linked by accident


@dataclass(frozen=True, kw_only=True)
class UnusedSections:
    """Sections of one kind that were not read, and why; `kind` is the name of the type, or its number."""

    kind: str
    count: int
    bytes: int
    reason: str


class SectionLinks:
    """The tables and images of a core by type and parent; `damage` says what was not as it should be."""

    def __init__(self, elf: Elf) -> None:
        self._elf: Final = elf
        self.damage: Final[list[str]] = []
        self.used: Final[set[int]] = set()
        tables = list(elf.sections_of(_TABLES | {SHT_STRTAB}))
        have = {section.type for section in tables}
        for kind in _SOUGHT:
            tables += self._of_wrong_type(kind) if kind not in have else []
        self.by_type: Final[dict[int, list[Section]]] = defaultdict(list)
        for section in tables:
            self.by_type[section.type].append(section)
        self._rows: Final = {s.number: s.size // s.entry_size if s.entry_size else 0 for s in tables}
        self._tables: Final = {s.number: s for s in tables}
        self._children: Final[dict[tuple[int, int, int], list[Section]]] = defaultdict(list)
        lost = [section for section in tables if not self._link(section)]
        self._adopt(lost)

    def below(self, kind: SectionType, parent: Section, row: int) -> list[Section]:
        """Return the sections of a kind that belong to a row of a table."""
        found = self._children.get((kind, parent.number, row), [])
        self.used.update(section.number for section in found)
        return found

    def name(self, section: Section) -> str:
        """Return a section's number, with its name where that can be read."""
        try:
            return f"section {section.number} ({self._elf.name(section)})"
        except UnreadableBinary:
            return f"section {section.number}"

    def account(self, lanes: Mapping[int, int], warps: Mapping[int, int]) -> tuple[UnusedSections, ...]:
        """Name what was left unread; `lanes` and `warps` are how many rows of each table were read, by its number."""
        for kind in (SectionType.DEVICES, *PARENTS):
            for section in self.by_type.get(kind, ()):
                if section.number not in self.used and kind is not SectionType.IMAGE and section.size:
                    self.damage.append(f"{self.name(section)} belongs to no row of the table above it; it was left out")
        owners = {True: _links_to(lanes), False: _links_to(warps)}
        kinds: Counter[int] = Counter(self._elf.section_types)
        for kind, of_lane in LEAVES.items():
            links = self._elf.section_links(kind) if kinds.get(kind) else []
            unknown = set(links) - owners[of_lane]
            if unknown:
                stray = sum(map(unknown.__contains__, links))
                whose = "thread" if of_lane else "warp"
                self.damage.append(
                    f"{stray} of {len(links)} sections of {kind.words} belong to no {whose} that was read"
                )
        return tuple(self._unused(kinds))

    def misplaced_tables(self) -> list[str]:
        """Return, in words, which tables of devices and SMs overlap other sections or end before their rows do."""
        found = []
        starts, ends = self._elf.extents()
        for kind in (SectionType.DEVICES, SectionType.SMS):
            for section in self.by_type.get(kind, ()):
                start, end = section.offset, section.offset + section.size
                before = bisect_left(starts, end)
                if before - bisect_right(ends, start) > 1:
                    found.append(f"{self.name(section)} overlaps another section")
                follows = starts[before] if before < len(starts) else end
                if section.entry_size and any(self._elf.data[end : min(follows, end + section.entry_size)]):
                    found.append(f"{self.name(section)}: more rows follow its end; they were not read")
        return found

    def _unused(self, kinds: Counter[int]) -> Iterable[UnusedSections]:
        known = {*_TABLES, *LEAVES}
        for kind in sorted(kinds):
            if kind in known or kind < SectionType.MANAGED_MEMORY:
                continue
            sections = self._elf.sections_of(frozenset({kind}))
            try:
                words, reason = SectionType(kind).words, _NOT_READ
            except ValueError:
                words, reason = f"type {kind:#x}", "a kind that this reader does not know"
                self.damage.append(f"{len(sections)} sections of {words}, {reason}, were left out")
            if kind in (SectionType.PARAMETERS, SectionType.CONSTANT_BANKS):
                continue  # read when asked for
            yield UnusedSections(kind=words, count=len(sections), bytes=sum(s.size for s in sections), reason=reason)

    def _link(self, section: Section) -> bool:
        parent = PARENTS.get(SectionType(section.type)) if section.type != SHT_STRTAB else None
        if parent is None:
            return True
        table = self._tables.get(section.link)
        if table is None or table.type != parent or not section.info < self._rows[table.number]:
            return False
        self._children[section.type, section.link, section.info].append(section)
        return True

    def _adopt(self, lost: list[Section]) -> None:
        """Give tables whose link leads nowhere the parent that their name says."""
        parents: dict[tuple[int, tuple[int, ...]], Section] = {}
        wanted = {PARENTS[SectionType(section.type)] for section in lost}
        for kind in wanted:
            for section in self.by_type.get(kind, [])[:_MOST_NAMED]:
                named = self._named(section)
                if named:
                    parents.setdefault((kind, named[1]), section)
        for section in lost[:_MOST_NAMED]:
            named = self._named(section)
            kind = SectionType(section.type)
            if kind in (SectionType.IMAGE, SectionType.RELOCATED_IMAGE):
                continue  # a module's row is not in its name; these serve for any address in them
            parent = parents.get((PARENTS[kind], named[1][:-1])) if named and named[0] == kind else None
            if parent and named and named[1][-1] < self._rows[parent.number]:
                self._children[kind, parent.number, named[1][-1]].append(section)
                self.damage.append(
                    f"{self.name(section)} is linked to no table above it; its place is taken by its name"
                )

    def _named(self, section: Section) -> tuple[SectionType, tuple[int, ...]] | None:
        try:
            match = _NAME.match(self._elf.name(section))
        except UnreadableBinary:
            return None
        if match is None or match[1] not in _NAMES:
            return None
        return _NAMES[match[1]], tuple(int(number) for number in re.findall(r"\d+", match[2]))

    def _of_wrong_type(self, kind: SectionType) -> list[Section]:
        """Return the sections whose name says a kind and whose type does not."""
        try:
            found = list(self._elf.sections_starting(f".cudbg.{_PREFIXES[kind]}"))
        except UnreadableBinary:
            return []
        for section in found:
            self.damage.append(f"{self.name(section)} is of type {section.type:#x}; read as what its name says")
        return [section._replace(type=kind) for section in found]


def _links_to(tables: Mapping[int, int]) -> set[int]:
    """Return every link that names one of the first rows of a table, as `Elf.section_links` gives them."""
    found: set[int] = set()
    for table, rows in tables.items():
        found.update(range(table, table + (rows << 32), 1 << 32))
    return found
