"""Read a stock wheel's device code: which unit of which library holds which function, and what compiled it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from gpucore import fatbin
from gpucore.code_identity import CodeIdentity, compiler_notes, identify
from gpucore.code_map import CodeMap
from gpucore.elf import Buffer, Elf, looks_like_elf
from gpucore.errors import UnreadableBinary
from gpucore.fatbin import Entry, EntryKind
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.files import BinaryFile

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
    """Refuse a compiler of another release than the cubins name, or than the version of their PTX stands for."""
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
