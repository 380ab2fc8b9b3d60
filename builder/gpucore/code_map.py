"""Where the code of one cubin is: kernels, functions, and the source chain of every instruction.

A cubin as compiled has every code section at address 0 and relocations in its line table; the *relocated* image inside
a GPU core has real addresses everywhere. Both are read here, so callers speak of a kernel and an offset, or of a PC.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, Protocol

from gpucore.dwarf import BorrowedLines, Chain, LineTable, Place
from gpucore.elf import SHF_EXECINSTR, STT_FUNC, Buffer, Elf, Section, Symbol
from gpucore.errors import BadArgument, UnreadableBinary
from gpucore.mangling import demangle, short_name

SHT_REL: Final = 9
STO_CUDA_ENTRY: Final = 0x10
_RELA: Final = struct.Struct("<QQq")
_REL: Final = struct.Struct("<QQ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """A function of the symbol table: where it starts in its section, its size in bytes, whether it is a kernel."""

    name: str
    section: int
    start: int
    size: int
    kernel: bool

    @property
    def demangled(self) -> str:
        """The name as the source has it; for a callee inside its kernel's section, the callee's own."""
        return demangle(self.name)


@dataclass(frozen=True, kw_only=True)
class Location:
    """What is at one instruction; offsets are in bytes, `chain` is leaf first and empty without line info.

    `kernel` is None for a device function in its own section (separate compilation), `function` the innermost
    function by symbol. `offset` counts from the kernel's start, from the function's where there is no kernel.
    `ptx_line` is the 1-based line of the PTX text inside the cubin. `siblings` are chains of the same function that
    end in the same leaf line: with any, the leaf is certain and its callers are the likeliest of several. `borrowed`
    says where `chain` and `siblings` are from when the cubin has no lines itself.
    """

    kernel: Function | None
    function: Function | None
    offset: int
    function_offset: int
    chain: Chain
    ptx_line: int | None = None
    siblings: tuple[Chain, ...] = ()
    borrowed: BorrowedLines | None = None


class LineSource(Protocol):
    """Knows lines of code that was built without them."""

    def lines_at(self, code: CodeMap, place: Place) -> BorrowedLines | None:
        """Return the lines of an instruction; None where they are not known."""
        ...


class CodeMap:
    """The code of one cubin; the bytes stay the caller's and are read on demand.

    `source` is asked for the lines of instructions that have none here.

    Raises UnreadableBinary from the constructor when the ELF header is not sound; a damaged line or symbol table is
    told in `notes` and leaves the rest readable.
    """

    def __init__(self, data: Buffer, source: LineSource | None = None) -> None:
        self.elf: Final = Elf(data)
        self._source: Final = source
        if not self.elf.is_cuda:
            raise UnreadableBinary("an ELF file, but not of a CUDA device", offset=18)
        self._notes: Final[list[str]] = []

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be read so far, in words; tables that were not asked for yet are not opened for this."""
        opened = [self.__dict__.get(name) for name in ("lines", "ptx_lines")]
        tables = [table for table in opened if isinstance(table, LineTable)]
        return (*self._notes, *dict.fromkeys(note for table in tables for note in table.notes))

    @cached_property
    def code_sections(self) -> tuple[Section, ...]:
        """Every section of instructions, in file order."""
        return tuple(s for s in self.elf.sections if s.flags & SHF_EXECINSTR and s.size)

    @cached_property
    def relocated(self) -> bool:
        """Whether addresses are final, as in the image a GPU core holds."""
        return any(s.address for s in self.code_sections)

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """Every function with code, by section and start; where two share a range the larger is first."""
        try:
            symbols = self.elf.symbols
        except UnreadableBinary as error:
            self._notes.append(f"symbol table: {error}")
            return ()
        found = [function for function in map(self._function, symbols) if function]
        return tuple(sorted(found, key=lambda f: (f.section, f.start, -f.size)))

    @property
    def kernels(self) -> tuple[Function, ...]:
        """Every function that the host can launch."""
        return tuple(function for function in self.functions if function.kernel)

    @cached_property
    def lines(self) -> LineTable | None:
        """The table from instructions to source; None when the cubin was built without line info."""
        return self.read_lines()

    @cached_property
    def ptx_lines(self) -> LineTable | None:
        """The table from instructions to lines of the PTX text in `.nv_debug_ptx_txt`."""
        return self._line_table(".nv_debug_line_sass")

    def read_lines(self) -> LineTable | None:
        """Return `lines` without keeping it here: a table that is kept holds the cubin in memory in a circle."""
        return self._line_table(".debug_line")

    @cached_property
    def device_debug(self) -> bool:
        """Whether the code was built with `-G`: then it carries DWARF types, and nothing is inlined."""
        try:
            return self.elf.section(".debug_info") is not None
        except UnreadableBinary:
            return False

    def place(self, pc: int) -> Place | None:
        """Return where an absolute address is in a relocated image; None when it is no code of this cubin."""
        at = bisect_right(self._by_address, pc, key=lambda s: s.address) - 1
        if at < 0:
            return None
        section = self._by_address[at]
        offset = pc - section.address
        return Place(section=section.number, offset=offset) if offset < section.size else None

    def address(self, place: Place) -> int:
        """Return the absolute address of a place; in a cubin that is not relocated, its offset."""
        return self.elf.sections[place.section].address + place.offset

    def locate(self, place: Place) -> Location:
        """Return kernel, function, offsets and chain of an instruction."""
        kernel, inner = self.functions_at(place)
        outer = kernel or inner
        name = inner.demangled if inner else None
        chain = self.lines.chain(place, name) if self.lines else ()
        ptx = self.ptx_lines.chain(place) if self.ptx_lines else ()
        borrowed = self._source.lines_at(self, place) if self._source and not chain else None
        return Location(
            kernel=kernel,
            function=inner,
            offset=place.offset - (outer.start if outer else 0),
            function_offset=place.offset - (inner.start if inner else 0),
            chain=borrowed.chain if borrowed else chain,
            ptx_line=ptx[0].line if ptx else None,
            siblings=borrowed.siblings if borrowed else self.lines.siblings(place, name) if self.lines else (),
            borrowed=borrowed,
        )

    def functions_at(self, place: Place) -> tuple[Function | None, Function | None]:
        """Return the kernel and the innermost function around an instruction."""
        enclosing = tuple(self._enclosing(place))
        return next((f for f in enclosing if f.kernel), None), enclosing[-1] if enclosing else None

    @cached_property
    def _by_address(self) -> tuple[Section, ...]:
        return tuple(sorted((s for s in self.code_sections if s.address), key=lambda s: s.address))

    @cached_property
    def _by_section(self) -> dict[int, list[Function]]:
        grouped: dict[int, list[Function]] = {}
        for function in self.functions:
            grouped.setdefault(function.section, []).append(function)
        return grouped

    def functions_in(self, section: int) -> list[Function]:
        """Return the functions of a section, by start; where two share a range the larger is first."""
        return self._by_section.get(section, [])

    def _enclosing(self, place: Place) -> Iterator[Function]:
        """Yield the functions around an instruction, largest first; a size of 0 reaches to the section's end."""
        around = [f for f in self._by_section.get(place.section, ()) if f.start <= place.offset < f.start + f.size]
        yield from sorted(around, key=lambda f: -f.size)

    def _function(self, symbol: Symbol) -> Function | None:
        if symbol.type != STT_FUNC or not 0 < symbol.section < self.elf.section_count:
            return None
        section = self.elf.sections[symbol.section]
        start = symbol.value - section.address if self.relocated else symbol.value
        if not section.flags & SHF_EXECINSTR or not 0 <= start < section.size:
            return None
        size = symbol.size or section.size - start
        return Function(
            name=self.elf.symbol_name(symbol), section=section.number, start=start, size=size,
            kernel=bool(symbol.other & STO_CUDA_ENTRY),
        )  # fmt: skip

    def _line_table(self, name: str) -> LineTable | None:
        try:
            section = self.elf.section(name)
            if section is None:
                return None
            strings = self.elf.section(".debug_str")
            return LineTable(
                self.elf.contents(section),
                self.elf.contents(strings) if strings else b"",
                _Placer(self, self._relocations(name)).place,
            )
        except UnreadableBinary as error:
            self._notes.append(f"{name}: {error}")
            return None

    def _relocations(self, name: str) -> dict[int, tuple[int, int | None]]:
        """Return, by offset in the section, the symbol number and addend of each relocation.

        sm_80 cubins have `.rel.*`, whose addend is the value in place (None here); sm_90 and later `.rela.*`.
        """
        found: dict[int, tuple[int, int | None]] = {}
        for prefix in (".rel", ".rela"):
            for section in self.elf.sections_named(prefix + name):
                rows = self.elf.contents(section)
                form = _REL if section.type == SHT_REL else _RELA
                for row in form.iter_unpack(rows[: len(rows) - len(rows) % form.size]):
                    found[row[0]] = (row[1] >> 32, row[2] if len(row) == 3 else None)
        return found


class _Placer:
    """Resolves the operand of a DW_LNE_set_address to a place in the code."""

    def __init__(self, code: CodeMap, relocations: dict[int, tuple[int, int | None]]) -> None:
        self._code: Final = code
        self._relocations: Final = relocations

    def place(self, operand: int, value: int) -> Place | None:
        """Return the place, by address in a relocated image (its relocations are applied already), else by symbol."""
        found = self._code.place(value) if self._code.relocated else None
        if found or operand not in self._relocations:
            return found
        number, addend = self._relocations[operand]
        symbols = self._code.elf.symbols
        if number >= len(symbols):
            return None
        symbol = symbols[number]
        if not 0 < symbol.section < self._code.elf.section_count:
            return None
        base = self._code.elf.sections[symbol.section].address if self._code.relocated else 0
        return Place(section=symbol.section, offset=symbol.value - base + (value if addend is None else addend))


# What one image of device code says twice and not alike: names of functions, and the extent of its line table.
#
# An image has no checksum. A function's name is in the symbol and in its section's name, the functions inside a kernel
# follow each other to its end, a line table has to end where its code does, and an inlined function has a whole name. A
# changed digit of a line number leaves no trace: nothing else in the image has it, since the PTX text that ptxas embeds
# has no `.loc`.


_CODE: Final = ".text."


def find_contradictions(code: CodeMap, place: Place, location: Location) -> tuple[str, ...]:
    """Return what contradicts the names and the chain found at a place, in words; empty where all agrees."""
    return (*contradictions_of_names(code, location), *_of_callees(code, place), *_of_lines(code, place))


def contradictions_of_names(code: CodeMap, location: Location) -> tuple[str, ...]:
    """Return which names of a location are not those of their sections."""
    doubts = []
    for function in {f.name: f for f in (location.kernel, location.function) if f}.values():
        section = _section_name(code, function)
        # A callee is called `$KERNEL$CALLEE` in its kernel's section, and by its own name in its own.
        outer = section.removeprefix(_CODE)
        own = function.name == outer or outer in function.name.split("$")
        if section.startswith(_CODE) and not own:
            doubts.append(f"the image's symbol is {function.name}, its section {section}: one name is damaged")
    return tuple(doubts)


def _of_callees(code: CodeMap, place: Place) -> tuple[str, ...]:
    """Return what contradicts the functions inside a kernel's section: ptxas puts them at its end, without gaps."""
    functions = code.functions_in(place.section)
    callees = sorted((f for f in functions if f.name.startswith("$")), key=lambda f: f.start)
    doubts = []
    size = code.elf.sections[place.section].size
    whole = all(f.start == 0 and f.size == size for f in functions if f.kernel)
    gaps = [f.start + f.size != following.start for f, following in pairwise(callees)]
    # Nothing follows the last but in 2 of 1,240 kernels measured, by 1,264 bytes: one flipped bit makes a power of two.
    left = size - callees[-1].start - callees[-1].size if callees else 0
    if callees and (not whole or any(gaps) or left < 0 or left.bit_count() == 1):
        doubts.append("the functions inside the kernel do not follow each other to its end: a symbol is damaged")
    known = {f.name for f in functions}
    for kernel in (f for f in functions if f.kernel):
        lost = set(code.elf.symbol_names_starting(f"${kernel.name}$")) - known
        doubts += [f"the image names {name}, and no symbol does: one is damaged" for name in sorted(lost)]
    return tuple(doubts)


def _section_name(code: CodeMap, function: Function) -> str:
    try:
        return code.elf.name(code.elf.sections[function.section])
    except UnreadableBinary:
        return ""


def _of_lines(code: CodeMap, place: Place) -> tuple[str, ...]:
    if code.lines is None:
        return ()
    section = code.elf.sections[place.section]
    return (*code.lines.notes[:1], *code.lines.contradictions(place, section.size))


# Reads a place in device code as tools print it, and finds the functions that it may mean.
#
# cuda-gdb prints `0x7fffd9001140 <void kern<float>(float*, int, float)+320>`, compute-sanitizer
# `kern(float *, int)+0x120 [in file.cu:6]` or `kern():0x160 in file.cu:6`, profilers `kern<file.cu>+0x140`.


_NUMBER = r"(?:0[xX][0-9a-fA-F]+|[0-9]+)"
_BARE = re.compile(rf"^\+?({_NUMBER})$")
_BARE_HEX = re.compile(r"^(?=.*[0-9])[0-9a-fA-F]{8,16}$")
_GDB = re.compile(rf"^({_NUMBER})\s*<(.*)>$")
_NAMED = re.compile(rf"^(.+?)\s*(?:\+|:)\s*({_NUMBER})>?(?:\s+(?:\[?in|at)\s.*)?$", re.DOTALL)
# A name alone is its first instruction; a word with a dot or a slash is a file that was given first.
_FUNCTION = re.compile(r"[A-Za-z_$][\w$: *&]*(?:[<(].*[>)])?", re.DOTALL)
_MANGLED = re.compile(r"_ZN?[KVr]*")
_LENGTH = re.compile(r"[1-9][0-9]{0,4}")
_FILE = re.compile(r"<([^<>]*\.(?:cu|cuh|h|hh|hpp|c|cc|cpp|cxx|py|ptx))>$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class PlaceQuery:
    """What was asked for: a function by name with an offset in bytes, or, without a name, an absolute address.

    `file` is a source file that the text named, a hint where several functions have the name.
    """

    name: str | None
    value: int
    file: str | None = None


def parse_place(text: str, kernel: str | None = None) -> PlaceQuery:
    """Read a place; with `kernel` given, a bare number is an offset in it, else it is an absolute address.

    A function's name without an offset is where the function begins. A `kernel` may say the name of the text in
    another way, as its whole mangled name does.

    Raises BadArgument when the text is no place, or is in another function than `kernel`.
    """
    text = text.strip()
    bare = _BARE.match(text)
    if bare or _BARE_HEX.match(text):
        name, file = _split_file(kernel) if kernel else (None, None)
        value = _number(bare[1]) if bare else int(text, 16)
        if value >> 64:
            raise BadArgument(
                f"{text} is no address: it needs more than 64 bits",
                cause="a digit too many, or two numbers run together",
                next_step="vdbg-env locate 0x7f2001f52800 --memory latest",
            )
        return PlaceQuery(name=name, value=value, file=file)
    gdb = _GDB.match(text)
    named = _NAMED.match(gdb[2] if gdb else text.removeprefix("<"))
    if named is None and not kernel and _FUNCTION.fullmatch(text):
        name, file = _split_file(text)
        return PlaceQuery(name=name, value=0, file=file)
    if named is None:
        raise BadArgument(
            f"{text!r} is neither an address, an offset, nor a function",
            cause="the shell took a blank or a bracket (quote the whole PLACE), or FILE and PLACE are swapped",
            next_step="vdbg-env locate 'void kern<float>(float*, int)+0x140' FILE",
        )
    name, file = _split_file(named[1])
    if kernel and not (may_mean(kernel, name) or may_mean(name, kernel)):
        raise BadArgument(
            f"the place is in {name}, and the kernel given is {kernel}",
            cause="an offset counts from one function",
            next_step=f"leave out the kernel, or write the offset alone: {named[2]}",
        )
    return PlaceQuery(name=kernel or name, value=_number(named[2]), file=file)


def matching(functions: Iterable[Function], name: str) -> tuple[Function, ...]:
    """Return the functions that a name means, by the closest way of naming that fits any of them.

    In order: the mangled name, the whole demangled one, that without return type, without parameters, and last without
    template arguments. Blanks do not count: the sanitizer prints `float *` where the demangler prints `float*`.
    """
    wanted = _plain(name)
    known = [(function, _ways(function.name)) for function in functions]
    for way in range(_WAYS):
        found = tuple(function for function, ways in known if ways[way] == wanted)
        if found:
            return found
    return ()


def may_mean(mangled: str, name: str) -> bool:
    """Return whether a name means a function in any of the ways of `matching`, by the function's mangled name."""
    return _plain(name) in _ways(mangled)


def identifier_in(name: str) -> str:
    """Return the part of a name that its mangled form must hold as it stands, for a quick first look."""
    if name.startswith(("_Z", "$")):
        return name
    bare = re.sub(r"<.*", "", short_name(name) if "(" in name or "<" in name else name)
    words = re.findall(r"[A-Za-z_][A-Za-z0-9_]*", bare.rpartition("::")[2])
    return words[-1] if words and "operator" not in bare else ""


def mangled_stem(name: str) -> str:
    """Return a mangled name up to its template arguments and parameters: the same for every instance of a template."""
    start = _MANGLED.match(name)
    if start is None:
        return name
    at = start.end()
    while number := _LENGTH.match(name, at):
        at = min(number.end() + int(number[0]), len(name))
    return name[:at]


_WAYS = 5


def _ways(mangled: str) -> tuple[str, ...]:
    demangled = demangle(mangled)
    short = short_name(demangled)
    start = demangled.find(short.partition("<...>")[0])
    without_return = demangled[start:] if start > 0 else demangled
    without_parameters = re.sub(r"\(.*$", "", without_return) if "(anonymous" not in without_return else short
    bare = re.sub(r"<.*$", "", short)
    ways = (mangled, demangled, without_return, without_parameters, bare)
    return tuple(_plain(way) for way in ways)


def _plain(name: str) -> str:
    return "".join(name.split())


def _split_file(name: str) -> tuple[str, str | None]:
    """Take a source file in angle brackets off the end of a name; template arguments stay."""
    file = _FILE.search(name)
    return (name[: file.start()].strip(), file[1]) if file else (name.strip(), None)


def _number(text: str) -> int:
    return int(text, 16) if text[:2].lower() == "0x" else int(text)
