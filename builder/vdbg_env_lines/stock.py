"""Read a stock wheel's device code, and choose what of it to compile again: by kernel, core dump or extension."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePosixPath

from gpucore import fatbin
from gpucore.code_identity import CodeIdentity, code_hash, code_of, compiler_notes, identify, identity_at, stable_name
from gpucore.code_map import CodeMap, Function, identifier_in, matching
from gpucore.core import Fault, WarpGroup, decode_core
from gpucore.elf import Buffer, Elf, looks_like_elf
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import Entry, EntryKind
from gpucore.mangling import demangle, short_name
from vdbg_env.common.console import nearest
from vdbg_env.common.errors import BadInput, quoted
from vdbg_env.crash.files import BinaryFile, CoreFiles
from vdbg_env.evidence.kernel_makers import kernel_makers
from vdbg_env_lines.units import cubin_for, parse_arch

_SECTION = ".nv_fatbin"
_PTX_VERSION = re.compile(rb"^\.version (\d+\.\d+)", re.MULTILINE)
_PTX_HEAD = 4096
# The release of CUDA whose compiler writes a version of PTX (PTX ISA, "Release Notes").
_CUDA_OF_PTX = {
    "7.8": "11.8", "8.0": "12.0", "8.1": "12.1", "8.2": "12.2", "8.3": "12.3", "8.4": "12.4", "8.5": "12.5 or 12.6",
    "8.6": "12.7", "8.7": "12.8", "8.8": "12.9",
}  # fmt: skip


@dataclass(frozen=True)
class StockCubin:
    """One cubin of a stock library, as it is stored there; it is expanded each time that it is looked into."""

    entry: Entry

    @property
    def target(self) -> str:
        """The architecture that it was compiled for, such as sm_90a."""
        return self.entry.target

    def mentions(self, text: str) -> bool:
        """Return whether these bytes occur in it at all: a quick look before its names are read."""
        return text.encode() in bytes(self.entry.payload())

    @cached_property
    def functions(self) -> tuple[CodeIdentity, ...]:
        """Every outermost function, with the hash of its instructions."""
        return tuple(identify(CodeMap(self.entry.payload())))

    @cached_property
    def kernel_names(self) -> tuple[str, ...]:
        """The mangled names of what the host can launch."""
        return tuple(kernel.name for kernel in CodeMap(self.entry.payload()).kernels)


@dataclass(frozen=True, kw_only=True)
class StockUnit:
    """One container of a library's fat binary, which is one translation unit, by its number in link order."""

    number: int
    targets: tuple[str, ...]
    cubins: tuple[StockCubin, ...]
    ptx: tuple[Entry, ...] = ()

    def cubin(self, target: str) -> StockCubin | None:
        """Return the cubin of a target, or None where the unit has none."""
        return next((cubin for cubin in self.cubins if cubin.target == target), None)


@dataclass(frozen=True, kw_only=True)
class StockLibrary:
    """A library with device code; `extension` is its name without the suffixes, which is CMake's target."""

    name: str
    extension: str
    units: tuple[StockUnit, ...]

    @property
    def targets(self) -> frozenset[str]:
        """Every cubin target that the library has."""
        return frozenset(cubin.target for unit in self.units for cubin in unit.cubins)

    @property
    def compilers(self) -> frozenset[str]:
        """The releases of ptxas that its cubins name, one cubin of each unit asked."""
        found = (compiler_release(unit.cubins[0].entry.payload()) for unit in self.units if unit.cubins)
        return frozenset(release for release in found if release)

    @property
    def ptx_version(self) -> str | None:
        """The version of the first PTX that it has, such as 8.8: each release of CUDA writes the newest it knows."""
        for entry in (entry for unit in self.units for entry in unit.ptx):
            found = _PTX_VERSION.search(bytes(entry.payload())[:_PTX_HEAD])
            if found:
                return found[1].decode()
        return None


def read_stock(files: Iterable[BinaryFile]) -> Iterator[StockLibrary]:
    """Yield every library with device code; a library keeps its file mapped for as long as it is held.

    Raises UnreadableBinary for a damaged one.
    """
    for file in files:
        if file.problem:
            raise UnreadableBinary(f"{file.name}: {file.problem}")
        if looks_like_elf(file.data):
            try:
                library = _library(file)
            except UnreadableBinary as error:
                raise UnreadableBinary(f"{file.name}: {error.what}", cause=error.cause) from error
            if library.units:
                yield library


def compiler_release(cubin: Buffer) -> str | None:
    """Return the release of the ptxas that made a cubin, such as 13.0.88; None when it notes none."""
    notes = compiler_notes(Elf(cubin))
    return next((note.release for note in notes if note.tool == "ptxas"), None)


def extension_of(file: str) -> str:
    """Return the extension of a library's file name: `_moe_C` of `vllm/_moe_C.abi3.so`."""
    return PurePosixPath(file.rpartition(":")[2]).name.partition(".")[0]


def one_compiler(libraries: Sequence[StockLibrary]) -> str:
    """Return the one release that made all these libraries; raises BadInput when none is noted, or several are."""
    named = {library.name: library.compilers for library in libraries}
    releases = frozenset().union(*named.values()) if named else frozenset[str]()
    if len(releases) == 1:
        return next(iter(releases))
    if not releases:
        version, cuda = _cuda(libraries)
        known = f"; their PTX is of version {version}, that of CUDA {cuda}" if cuda else ""
        raise BadInput(
            f"the cubins do not name the compiler that made them{known}",
            cause="they are older than CUDA 13, whose ptxas is the first to note its release",
            next_step=_next_toolkit(cuda),
        )
    raise BadInput(
        f"the libraries were made by {len(releases)} compilers: {', '.join(sorted(releases))}",
        next_step="name one library with --extension",
    )


def require_compiler(libraries: Sequence[StockLibrary], asked: str, origin: str) -> None:
    """Refuse a compiler of another release than the cubins name, or than the version of their PTX means."""
    named = sorted(frozenset().union(*(library.compilers for library in libraries)))
    _, cuda = _cuda(libraries)
    if named:
        made_by, next_step = f"nvcc {', '.join(named)}", "name no compiler: the one that the cubins name is fetched"
        fits = asked in named
    else:
        made_by, next_step = f"CUDA {cuda}, by the version of its PTX", _next_toolkit(cuda)
        fits = cuda is None or asked.rpartition(".")[0] in cuda.split(" or ")
    if not fits:
        raise BadInput(
            f"{origin} was compiled by {made_by}, not by {asked}",
            cause="another compiler makes other instructions, and its lines would be another build's",
            next_step=next_step,
        )


def _cuda(libraries: Sequence[StockLibrary]) -> tuple[str | None, str | None]:
    """Return the version of the first PTX, and the release of CUDA that wrote it where that is known."""
    version = next((library.ptx_version for library in libraries if library.ptx_version), None)
    return version, _CUDA_OF_PTX.get(version or "")


def _next_toolkit(cuda: str | None) -> str:
    return f"--compiler /usr/local/cuda-{(cuda or '12.9').partition(' ')[0]}, an installed toolkit"


def _library(file: BinaryFile) -> StockLibrary:
    elf = Elf(file.data)
    units: list[StockUnit] = []
    for section in elf.sections_named(_SECTION):
        for container in fatbin.containers(elf.contents(section)):
            cubins = tuple(StockCubin(entry) for entry in container.entries if entry.kind == EntryKind.ELF)
            targets = tuple(entry.target for entry in container.entries)
            ptx = tuple(entry for entry in container.entries if entry.kind == EntryKind.PTX)
            units.append(StockUnit(number=len(units), targets=targets, cubins=cubins, ptx=ptx))
    return StockLibrary(name=file.name, extension=extension_of(file.name), units=tuple(units))


# Choose what to compile: by a kernel's name, by a core dump, by an extension, or all.


@dataclass(frozen=True, kw_only=True)
class CoreCode:
    """The instructions of a kernel as a core has them; `hash` leaves out what its own relocations name."""

    code: bytes
    hash: bytes

    def same(self, stock: CodeIdentity) -> bool:
        """Return whether a stock function has these instructions, but for the fields that a loader fills in."""
        if stock.hash == self.hash:
            return True
        return stock.function.size == len(self.code) and code_hash(self.code, stock.fields) == stock.hash


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the user asked for: kernels by name, extensions, and architectures; nothing named is all of it.

    `codes` are the instructions of those kernels that a core names, by mangled name.
    """

    kernels: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    codes: Mapping[str, CoreCode] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One cubin to compile: the unit of a stock library and its target; `kernels` are those that were asked for."""

    library: StockLibrary
    unit: StockUnit
    target: str
    kernels: tuple[str, ...]


def wanted_by_core(path: str, files: CoreFiles) -> Wanted:
    """Return the kernels that raised a GPU exception in a dump, with the architecture of their GPU.

    Without an exception, every kernel that was running counts. Raises BadInput when the dump names no kernel.
    """
    with files.open(path) as core:
        read = decode_core(core.data, file=core.name, modified=core.modified)
        running = (group.location for group in read.warp_groups)
        names = dict.fromkeys(fault.kernel for fault in read.faults if fault.kernel) or dict.fromkeys(
            place.kernel.name for place in running if place and place.kernel
        )
        archs = dict.fromkeys(_arch_of(device.sm_type) for device in read.core.devices)
        codes = dict(_codes((*read.faults, *read.warp_groups), frozenset(names)))
    if not names:
        raise BadInput(
            f"{path} names no kernel",
            cause="the dump is truncated, or was written without the code of the kernel",
            next_step=f"vdbg-env core {quoted(path)}",
        )
    return Wanted(kernels=tuple(names), archs=tuple(arch for arch in archs if arch), codes=codes)


def _codes(places: Iterable[Fault | WarpGroup], names: frozenset[str]) -> Iterator[tuple[str, CoreCode]]:
    """Yield the instructions of the kernels named; a kernel whose image is damaged is chosen by its name alone."""
    for place in places:
        modules = (m.code for m in place.device.modules if m.code and m.relocated and place.pc is not None)
        for code in modules:
            at = code.place(place.pc or 0)
            try:
                identity = identity_at(code, at.section, at.offset) if at else None
                if identity and identity.function.name in names:
                    text = code_of(code, identity.function)
                    yield identity.function.name, CoreCode(code=text, hash=identity.hash)
            except UnreadableBinary:
                continue


def choose(libraries: Sequence[StockLibrary], wanted: Wanted) -> tuple[Choice, ...]:
    """Return what to compile; raises BadInput when a kernel or an extension is not in the wheel.

    A kernel that several units hold (a template of a header) is chosen in each: which one was launched is not known.
    """
    searched = _searched(libraries, wanted.extensions)
    found = tuple(_choices(searched, wanted))
    if wanted.kernels and not found:
        raise _not_found(searched, wanted)
    if not found:
        raise _none_runs({library.extension: library.targets for library in searched}, wanted)
    return found


def require_runnable(targets: Mapping[str, frozenset[str]], wanted: Wanted) -> None:
    """Refuse an architecture that no library asked for has a cubin for, by the targets of each extension."""
    searched = {name: found for name, found in targets.items() if name in wanted.extensions or not wanted.extensions}
    every = frozenset[str]().union(*searched.values())
    if every and wanted.archs and not any(cubin_for(parse_arch(arch), every) for arch in wanted.archs):
        raise _none_runs(searched, wanted)


def _none_runs(targets: Mapping[str, frozenset[str]], wanted: Wanted) -> BadInput:
    return BadInput(
        f"no cubin of {', '.join(targets)} runs on {', '.join(wanted.archs)}",
        cause="the driver compiles its PTX there, and line info of such code is not in any cubin",
        next_step=f"one of {', '.join(sorted(frozenset[str]().union(*targets.values())))}",
    )


def _searched(libraries: Sequence[StockLibrary], extensions: Sequence[str]) -> tuple[StockLibrary, ...]:
    known = {library.extension: library for library in libraries}
    for name in extensions:
        if name not in known:
            close = nearest(name, known)
            raise BadInput(
                f"the wheel has no library {name!r} with device code{f'; did you mean {close}?' if close else ''}",
                next_step=f"one of {', '.join(known)}",
            )
    return tuple(known[name] for name in extensions) or tuple(libraries)


def _choices(libraries: Iterable[StockLibrary], wanted: Wanted) -> Iterator[Choice]:
    for library in libraries:
        for unit in library.units:
            for target in _targets(unit, wanted.archs):
                cubin = unit.cubin(target)
                kernels = _kernels(cubin, wanted) if cubin else ()
                if cubin and (kernels or not wanted.kernels) and cubin.functions:
                    yield Choice(library=library, unit=unit, target=target, kernels=kernels)


def _targets(unit: StockUnit, archs: Sequence[str]) -> tuple[str, ...]:
    present = tuple(cubin.target for cubin in unit.cubins)
    if not archs:
        return present
    chosen = (cubin_for(parse_arch(arch), present) for arch in archs)
    return tuple(dict.fromkeys(target for target in chosen if target))


def _kernels(cubin: StockCubin, wanted: Wanted) -> tuple[str, ...]:
    """Return the kernels of a cubin that were asked for; names are read only where their bytes occur at all.

    Of a kernel that a core has, the instructions must be the core's.
    """
    mentioned = [name for name in wanted.kernels if name not in wanted.codes and cubin.mentions(identifier_in(name))]
    found = _matching(cubin.kernel_names, mentioned) if mentioned else ()
    return (*found, *(kernel for name, core in wanted.codes.items() for kernel in _of_code(cubin, name, core)))


def _of_code(cubin: StockCubin, name: str, core: CoreCode) -> Iterator[str]:
    if cubin.mentions(identifier_in(short_name(demangle(name)))):
        stable = stable_name(name)
        yield from (f.function.name for f in cubin.functions if f.stable_name == stable and core.same(f))


def _matching(names: Sequence[str], wanted: Sequence[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for name in wanted:
        part = identifier_in(name)
        near = [known for known in names if part in known]
        functions = [Function(name=known, section=0, start=0, size=0, kernel=True) for known in near]
        meant = [function.name for function in matching(functions, name)]
        found |= dict.fromkeys(meant or [known for known in near if _ends_in(known, name)])
    return tuple(found)


def _ends_in(mangled: str, name: str) -> bool:
    """Return whether a kernel is called so by people, who leave out its namespaces and often its template arguments."""
    whole = short_name(demangle(mangled))
    return any(known == name or known.endswith(f"::{name}") for known in (whole, whole.partition("<")[0]))


def _not_found(libraries: Sequence[StockLibrary], wanted: Wanted) -> BadInput:
    names = {n for lib in libraries for unit in lib.units for cubin in unit.cubins for n in cubin.kernel_names}
    name = wanted.kernels[0]
    everywhere = _matching(sorted(names), wanted.kernels)
    by_name = replace(wanted, codes={})
    if wanted.codes and any(_choices(libraries, by_name)):
        return BadInput(
            f"the wheel has {short_name(demangle(name))}, but not with the instructions that the core has",
            cause="the crash was in another release or a local build, or the driver changed fields that are not known",
            next_step="name the release that crashed; --kernel NAME instead of --core builds the wheel's own lines",
        )
    if everywhere:
        cubins = [cubin for library in libraries for unit in library.units for cubin in unit.cubins]
        targets = {cubin.target for cubin in cubins if _kernels(cubin, by_name)}
        return BadInput(
            f"{name} is in the wheel, but no cubin of it runs on {', '.join(wanted.archs)}",
            cause="the driver compiles its PTX there, and line info of such code is not in any cubin",
            next_step=f"it was compiled for {', '.join(sorted(targets))}: --arch takes the GPU of one of them",
        )
    whole = {short_name(demangle(known)).partition("<")[0] for known in names}
    by_last_part = {text.rpartition("::")[2]: text for text in sorted(whole)}
    bare = name.partition("<")[0]
    close = nearest(bare, whole) or by_last_part.get(nearest(bare.rpartition("::")[2], by_last_part) or "")
    return BadInput(
        f"no library of the wheel has a kernel {name!r}{f'; did you mean {close}?' if close else ''}",
        cause="it is compiled at run time (Triton, FlashInfer, DeepGEMM), or is of another package (torch, NCCL)",
        next_step=kernel_makers().by_name(name).elsewhere(name),
    )


def _arch_of(sm_type: str) -> str:
    digits = "".join(c for c in sm_type if c.isdigit())
    return f"{digits[:-1]}.{digits[-1]}" if len(digits) > 1 else ""
