"""Find the source line and the inline chain of an address, or of a kernel and an offset, and show them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gpucore
from gpucore.code_map import (
    CodeMap,
    Function,
    Location,
    PlaceQuery,
    find_contradictions,
    identifier_in,
    mangled_stem,
    matching,
    may_mean,
)
from gpucore.cubin import CubinNames, read_names
from gpucore.dwarf import Place
from gpucore.elf import EM_CUDA, ET_CORE, Buffer, looks_like_elf
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import Entry, EntryKind, find_device_code
from gpucore.mangling import demangle, short_name
from vdbg_env.common.console import counted, json_text, nearest, printable, shortened
from vdbg_env.common.errors import BAD_INPUT, BadInput, quoted
from vdbg_env.crash.files import BinaryFile, BinaryFiles, BinarySource, CoreFiles, SourceFiles, Tell, done
from vdbg_env.crash.places import (
    AddressWhy,
    Explainer,
    PacksWhenAsked,
    SourceLines,
    borrowed_lines,
    chain_doubt,
    chain_lines,
    find_lines,
    kernel_json,
    location_json,
    why_lines,
)
from vdbg_env.evidence.kernel_makers import find_library, kernel_makers

if TYPE_CHECKING:
    from vdbg_env.crash.line_packs import PackedLines
    from vdbg_env.crash.memory_files import Owners
    from vdbg_env.crash.memory_map import MemoryMap

_MOST_NAMES: Final = 200_000
_MOST_ALIKE: Final = 64
_CACHES: Final = ("~/.triton", "~/.cache")  # Triton's, then FlashInfer's, vLLM's, CuPy's and others'
_ALIKE: Final = 0.1  # of two names, to show one for the other
_MOST_OVERLOADS: Final = 10
_MOST_SHOWN: Final = 10
_PACKAGES: Final = ("site-packages", "dist-packages")


@dataclass(frozen=True, kw_only=True)
class Located:
    """A place that was found: in which file and cubin (as far as it has a name), and what is there.

    `address` says what the address is made of that the instruction accesses, where it accesses memory.
    """

    file: str
    cubin: str
    arch: str
    pc: int | None
    location: Location
    address: AddressWhy | None = field(default=None, compare=False)

    @property
    def function(self) -> str | None:
        """The mangled name of the innermost function; None where no symbol covers the place."""
        return self.location.function.name if self.location.function else None


class InNoCode(BadInput):
    """An absolute address is in no code of what was given."""


@dataclass(frozen=True, kw_only=True)
class LocateReport:
    """Every place that a query means, at least one; `sources` are the lines found of them."""

    query: PlaceQuery
    candidates: tuple[Located, ...]
    sources: SourceLines
    notes: tuple[str, ...] = ()
    owner: Owners | None = None

    @property
    def distinct(self) -> tuple[Located, ...]:
        """The candidates that say something different: copies of one kernel in several cubins say the same."""
        seen = {(c.arch, c.function, c.location.offset, c.location.chain): c for c in reversed(self.candidates)}
        return tuple(reversed(seen.values()))

    @property
    def ambiguous(self) -> bool:
        """Whether the answer depends on which of the candidates was meant."""
        return len(self.distinct) > 1


def locate(
    query: PlaceQuery,
    files: Sequence[str],
    binaries: BinarySource,
    source_text: SourceFiles,
    packs: Callable[[], PackedLines] | None = None,
    *,
    maps: Sequence[MemoryMap] = (),
    arch: str | None = None,
    tell: Tell = lambda *_: None,
) -> LocateReport:
    """Find every place that the query means; `packs` opens the lines of code that was built without.

    `maps` say whose memory an absolute address is.
    `arch` keeps to one architecture, such as `sm_90`. `tell` hears of each file and how much is done.

    Raises BadInput when there is none: with the nearest names for an unknown name, and with the function's size
    for an offset outside it.
    """
    search = _Search(query, arch, PacksWhenAsked(packs) if packs else None, source_text, files)
    for number, file in enumerate(files):
        told = partial(_told, tell, number, len(files))
        for cubin in _cubins(file, binaries, search.notes, told):
            search.look_into(cubin)
    found = search.answer()
    sources = find_lines((place.location.chain for place in found), source_text)
    owner = None
    if maps and query.name is None:
        from vdbg_env.crash.memory_files import ask  # loaded where the user asks for it

        owner = ask(maps, query.value)
    return LocateReport(query=query, candidates=found, sources=sources, notes=tuple(search.notes), owner=owner)


@dataclass(frozen=True, kw_only=True)
class _Cubin:
    """A cubin in a file, or the relocated image of one in a core.

    `names` reads its names alone where that is cheap; `stored` are the bytes that `data` expands. `in_core` says that
    the file is a dump, whose path says nothing about the library.
    """

    file: str
    name: str
    target: str
    data: Callable[[], Buffer]
    names: Callable[[], CubinNames | None] = lambda: None
    stored: Buffer = b""
    in_core: bool = False

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """What copies of a cubin share: what one of them says, the others say too.

        Hashes are keyed by chance in each process: no file can be written whose cubins are taken for copies.
        """
        return self.file, self.name, self.target, len(self.stored), hash(bytes(self.stored))


class _Search:
    """Collects the places that fit, and what is needed to explain why none does."""

    def __init__(
        self, query: PlaceQuery, arch: str | None, lines: PacksWhenAsked | None, sources: SourceFiles,
        files: Sequence[str],
    ) -> None:  # fmt: skip
        self._files = files
        self._sources = sources
        self._explained: dict[tuple[str, str | None, int], AddressWhy | None] = {}
        self._lines = lines
        self._query = query
        self._arch = arch
        self._needle = identifier_in(query.name).encode() if query.name else b""
        self._found: list[Located] = []
        self._names: set[str] = set()  # what an answer may suggest
        self._meant: dict[str, bool] = {}
        self._passed_over: set[int] = set()
        self._seen: set[tuple[str, str, str, int, int]] = set()
        self._outside: list[Function] = []
        self._seen_code = False
        self.notes: list[str] = []

    def look_into(self, cubin: _Cubin) -> None:
        """Add the places of one cubin."""
        if self._arch and cubin.target and cubin.target != self._arch:
            return
        self._seen_code = True
        names = cubin.names() if self._needle else None
        if names and not self._may_be_in(names):
            return
        if cubin.stored and cubin.key in self._seen:  # of the 5,666 cubins of libcublasLt 1,261 differ
            return
        self._seen.add(cubin.key)
        data = cubin.data()
        code = CodeMap(data, self._lines)
        if self._query.name is None:
            place = code.place(self._query.value)
            if place:
                self._add(cubin, code, place)
            return
        if not re.search(re.escape(self._needle), data):
            self._remember(function.name for function in code.functions)
            return
        functions = matching(code.functions, self._query.name)
        for function in functions:
            if self._query.value < function.size:
                place = Place(section=function.section, offset=function.start + self._query.value)
                self._add(cubin, code, place)
            else:
                self._outside.append(function)
        if not functions:
            self._remember(function.name for function in code.functions)

    def _may_be_in(self, names: CubinNames) -> bool:
        """Return whether the function may be in a cubin of these names; those passed over are kept, copies once."""
        if names.key in self._passed_over:
            return False
        if any(map(self._is_meant, names.holding(self._needle))):
            return True
        self._passed_over.add(names.key)
        self._remember(names.functions())
        return False

    def _is_meant(self, name: str) -> bool:
        meant = self._meant.get(name)
        if meant is None:
            meant = self._meant[name] = may_mean(name, self._query.name or "")
        return meant

    def answer(self) -> tuple[Located, ...]:
        """Return the places found, each once; raises BadInput with the reason when there is none."""
        found = tuple(dict.fromkeys(self._by_file()))
        if found:
            return found
        if self._outside:
            function = self._outside[0]
            raise BadInput(
                f"offset {self._query.value:#x} lies outside {function.demangled}, which has {function.size:#x} bytes",
                cause="another build of the library, or another architecture, than the one that ran",
                next_step="give the very file that was loaded; a core dump holds it: vdbg-env locate PC CORE",
            )
        if not self._seen_code:
            arch = f" for {self._arch}" if self._arch else ""
            raise BadInput(
                f"no device code{arch} in what was given", next_step="vdbg-env verify FILE lists what it has"
            )
        if self._query.name is None:
            raise InNoCode(
                f"address {self._query.value:#x} is in no code of the given files",
                cause="absolute addresses hold in the dump of the same run only; a library has offsets",
                next_step="vdbg-env locate OFFSET --kernel NAME FILE",
            )
        raise self._unknown_name(self._query.name)

    def _by_file(self) -> list[Located]:
        """Keep to the places whose chain names the file of the query, where any does."""
        hint = self._query.file
        fitting = [p for p in self._found if hint and any(f.file.endswith(hint) for f in p.location.chain)]
        return fitting or self._found

    def _unknown_name(self, name: str) -> BadInput:
        # One name of each stem is demangled, and the others of the nearest: a library has a hundred thousand names.
        stems = self._by_stem()
        shorts = {short_name(demangle(min(alike))): alike for alike in stems.values()}
        bare = {short.partition("<")[0]: alike for short, alike in shorts.items()}
        closest = nearest(short_name(name).partition("<")[0], bare)
        instances = [short_name(demangle(one)) for one in sorted(bare[closest])] if closest else []
        close = (nearest(short_name(name), instances) if "<" in name else None) or closest
        close = close or nearest(name, [min(alike) for alike in stems.values()])
        alike = {
            short: likeness
            for short in shorts
            if (likeness := _alike(short_name(name), short.partition("<")[0])) >= _ALIKE
        }
        some = sorted(alike or shorts, key=lambda short: (-alike.get(short, 0), short))[:10]
        return BadInput(
            f"no function is called {name!r}" + (f"; did you mean {close!r}?" if close else ""),
            cause="a kernel compiled at run time (Triton, NVRTC), or one of another library",
            next_step=_elsewhere(name, self._files),
            details=(
                *(("known here: " + ", ".join(some) + (" ..." if len(shorts) > len(some) else ""),) if some else ()),
                *(
                    demangle(one)
                    for one in (sorted(bare[closest])[:_MOST_OVERLOADS] if closest and "(" in name else ())
                ),
            ),
        )

    def _add(self, cubin: _Cubin, code: CodeMap, place: Place) -> None:
        location = code.locate(place)
        pc = code.address(place) if code.relocated else None
        found = Located(file=cubin.file, cubin=cubin.name, arch=cubin.target, pc=pc, location=location)
        self._found.append(replace(found, address=self._why(found, code, place)))
        doubts = (f"names and lines may be wrong: {doubt}" for doubt in find_contradictions(code, place, location))
        self.notes += [note for note in (*code.notes, *doubts) if note not in self.notes]
        if not location.chain and location.function:
            note = f"{location.function.demangled} has no line info in {cubin.file}{_to_lines(location, cubin, code)}"
            self.notes += [n for n in (note, *(self._lines.notes if self._lines else ())) if n not in self.notes]

    def _why(self, found: Located, code: CodeMap, place: Place) -> AddressWhy | None:
        """Explain the access at a place; copies of a kernel in other cubins, and more than are shown, are not again."""
        key = found.arch, found.function, found.location.offset
        if key not in self._explained and len(self._explained) < _MOST_SHOWN:
            explainer = Explainer(self._sources.text)
            self._explained[key] = explainer.place(code, place)
            self.notes += [note for note in explainer.notes if note not in self.notes]
        return self._explained.get(key)

    def _remember(self, names: Iterable[str]) -> None:
        if not self._found and len(self._names) < _MOST_NAMES:
            self._names.update(names)

    def _by_stem(self) -> dict[str, list[str]]:
        """Return the names by their stems: of each some of those that differ in template arguments alone."""
        stems: dict[str, list[str]] = {}
        for name in sorted(self._names):
            alike = stems.setdefault(mangled_stem(name), [])
            if len(alike) < _MOST_ALIKE:
                alike.append(name)
        return stems


def _elsewhere(name: str, files: Sequence[str]) -> str:
    """Return where else a kernel may be: in the caches of what compiles at run time, if those were not looked into."""
    looked = {Path(file).expanduser() for file in files}
    caches = [cache for cache in _CACHES if Path(cache).expanduser().is_dir()]
    if caches and not looked & {Path(cache).expanduser() for cache in caches}:
        return f"what compiles at run time keeps its cubins there: {find_library(name, *caches)}"
    return "run the program with CUDA_LAUNCH_BLOCKING=1: its Python stack then has the call that launched the kernel"


def _to_lines(location: Location, cubin: _Cubin, code: CodeMap) -> str:
    """Say whose code has no lines, and what gives them: by the library where it is in one, else by the names."""
    kernel = next((place.name for place in (location.kernel, location.function) if place), "")
    makers = kernel_makers()
    origin = makers.by_name(kernel)
    origin = origin if cubin.in_core else makers.by_library(cubin.file, origin)
    origin = makers.by_neighbours(origin, [k.name for k in code.kernels])
    maker = origin.maker
    pack = "a line pack of the same code has it (--lines PACK)"
    if origin.closed:
        return f", and there is none: its code is closed ({', '.join(m.name for m in origin.makers)})"
    if maker is None:
        return f": {pack}; of a build with -lineinfo, vdbg-env lines pack BUILD -o NAME.lines makes one"
    whose = f": it is {'likely ' if origin.likely else ''}{maker.name}'s, by {origin.decided}; "
    if maker.lines == "wheel":
        version = release_of(cubin.file, maker.project or "") or "VERSION"
        return f"{whose}vdbg-env lines build {maker.project}=={version} --kernel {quoted(kernel)} makes its lines"
    if maker.lines == "sources":
        return f"{whose}{maker.remedy} has them, and vdbg-env lines pack BUILD -o NAME.lines takes them from it"
    return f"{whose}for lines: {maker.remedy}"


def release_of(library: str, project: str) -> str | None:
    """Return the release of a project that a library is of: by its wheel, or by the metadata next to it."""
    wheel = re.search(rf"(?:^|/){re.escape(project)}-([0-9][\w.+!]*)-[^/]*\.whl(?::|$)", library)
    if wheel:
        return wheel[1]
    for folder in Path(library).parents:
        if folder.name in _PACKAGES:
            beside = next(iter(sorted(folder.glob(f"{project}-*.dist-info"))), None)
            return beside.stem.rpartition("-")[2] if beside else None
    return None


def _told(tell: Tell, number: int, count: int, file: BinaryFile, within: float) -> None:
    tell(file.name, done(file, within, number, count))


def _cubins(
    file: str, binaries: BinarySource, notes: list[str], told: Callable[[BinaryFile, float], None]
) -> Iterator[_Cubin]:
    """Yield every cubin of a file, whether a dump, a library, an object file, a wheel, a cubin, or a folder of them.

    What a folder or a wheel has that cannot be read is noted; a file that was named itself raises UnreadableBinary.
    """
    if _is_packed(file):
        with CoreFiles().open(file) as core:
            yield from _of_core(file, core.data)
        return
    with binaries.open(file) as found:
        for binary in found:
            try:
                if binary.problem:
                    raise UnreadableBinary(binary.problem)
                told(binary, 0.0)
                yield from _of_binary(binary, partial(told, binary))
            except UnreadableBinary as error:
                if binary.asked_for:
                    raise UnreadableBinary(
                        f"{binary.name}: {error.what}", cause=error.cause, next_step=error.next_step
                    ) from error
                notes.append(f"{binary.name}: not read: {error.what}")


def _is_packed(file: str) -> bool:
    try:
        return CoreFiles().is_packed(file)
    except BAD_INPUT:
        return False  # the name of an image, or something that the other reader explains better


def complete_kernel(files: Sequence[str], begun: str) -> list[str]:
    """Return the short names of kernels in binaries that begin so, for the completion of a shell; 100 at most."""
    found: set[str] = set()
    for file in files:
        with suppress(*BAD_INPUT), BinaryFiles().open(file) as binaries:
            for binary in binaries:
                cubins = (cubin.names() for cubin in _of_binary(binary, lambda _: None))
                found |= {short_name(demangle(name)) for names in cubins if names for name in names.behind(".text.")}
    return sorted(name for name in found if name.startswith(begun))[:100]


def _of_binary(binary: BinaryFile, told: Callable[[float], None]) -> Iterator[_Cubin]:
    head = bytes(binary.data[:20])
    kind, machine = (int.from_bytes(head[at : at + 2], "little") for at in (16, 18))
    if looks_like_elf(head) and (kind, machine) == (ET_CORE, EM_CUDA):
        yield from _of_core(binary.name, binary.data)
        return
    for code in find_device_code(binary.data):
        if code.entry.kind == EntryKind.ELF:
            entry, name = code.entry, code.entry.identifier or code.member
            told(entry.offset / len(binary.data))
            names = partial(_names_of, entry)
            yield _Cubin(
                file=binary.name, name=name, target=entry.target, data=entry.payload, names=names, stored=entry.stored
            )


def _names_of(entry: Entry) -> CubinNames | None:
    return read_names(entry.payload_in_pieces())


def _of_core(file: str, data: Buffer) -> Iterator[_Cubin]:
    core = gpucore.read_core(data)  # loaded here, on first use: most questions are about a library
    modules = [(device.sm_type, module) for device in core.devices for module in device.modules]
    for target, module in [*modules, *(("", module) for module in core.stray_modules)]:
        if module.code:
            image = partial(getattr, module.code.elf, "data")
            yield _Cubin(file=file, name="", target=target, data=image, in_core=True)


def locate_text(report: LocateReport) -> str:
    """Return the report as text."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: LocateReport) -> Iterator[str]:
    distinct = report.distinct
    if report.ambiguous:
        asked = printable(report.query.name or hex(report.query.value))
        yield f"{asked} means {len(distinct)} different places; --arch or the whole mangled name selects one:"
        yield ""
    for number, candidate in enumerate(distinct[:_MOST_SHOWN]):
        if number:
            yield ""
        yield from _place(candidate, report.sources)
    if len(distinct) > _MOST_SHOWN:
        yield f"\nand {len(distinct) - _MOST_SHOWN} more (--json lists all of them)"
    same = len(report.candidates) - len(distinct)
    if same:
        yield f"({counted(same, 'more cubin')} with the same code and the same lines)"
    if report.owner and report.owner.best.where != "far":  # code is in no map of data
        yield from (f"memory: {printable(line)}" for line in report.owner.lines)
    yield from (f"note: {printable(note)}" for note in report.notes)


def _place(candidate: Located, sources: SourceLines) -> Iterator[str]:
    location = candidate.location
    inner = location.function
    name = short_name(inner.demangled) if inner else "no function"
    pc = f", PC {candidate.pc:#x}" if candidate.pc is not None else ""
    yield printable(f"{name}+{location.function_offset:#x}{pc}")
    if location.kernel:
        within = f" (+{location.offset:#x} in it)" if inner != location.kernel else ""
        yield printable(f"  kernel  {shortened(location.kernel.demangled)}{within}")
    if candidate.arch or candidate.cubin:
        cubin = f" {candidate.cubin}" if candidate.cubin else ""
        yield printable(f"  in      {candidate.file}, {candidate.arch}{cubin}")
    if location.chain:
        yield from chain_lines(location.chain, sources, indent="  ")
    else:
        yield "  no line info for this place"
    if location.ptx_line:
        yield f"  PTX line {location.ptx_line}"
    if location.siblings:
        yield f"  {chain_doubt(location)}"
    yield from borrowed_lines(location.borrowed, indent="  ")
    if candidate.address:
        yield from why_lines(candidate.address, indent="  ")


# JSON: docs/schemas/locate-v1.schema.json is the contract and says what each field means.


def locate_json(report: LocateReport) -> str:
    """Return the report as JSON: the first place on top, all of them in `candidates`."""
    candidates = [_place_json(found, report.sources) for found in report.candidates]
    return json_text(
        {
            "schema": "vdbg-env/locate/v1",
            **candidates[0],
            "ambiguous": report.ambiguous,
            "candidates": candidates,
            **({"owner": report.owner.document} if report.owner else {}),
            "notes": report.notes,
        }
    )


def _place_json(found: Located, sources: SourceLines) -> dict[str, Any]:
    location = found.location
    return {
        "file": found.file,
        "cubin": found.cubin or None,
        "arch": found.arch or None,
        "pc": None if found.pc is None else hex(found.pc),
        "kernel": location.kernel and kernel_json(location.kernel.name),
        "function": location.function and location.function.demangled,
        "offset": hex(location.offset),
        "function_offset": hex(location.function_offset),
        **location_json(location, sources),
        "address": found.address and found.address.document,
        "why": found.address.lines if found.address else (),
    }


def _alike(one: str, other: str) -> float:
    """Return how much of two names is the same, by their groups of three letters."""
    first, second = (
        {name[at : at + 3] for at in range(max(1, len(name) - 2))} for name in (one.lower(), other.lower())
    )
    return len(first & second) / (len(first) + len(second))
