"""Choose what to compile: by a kernel's name, by a core dump, by an extension, or all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucore.code_identity import CodeIdentity, code_hash, code_of, identity_at, stable_name
from gpucore.code_map import Function, identifier_in, matching
from gpucore.core import Fault, WarpGroup, decode_core
from gpucore.errors import UnreadableBinary
from gpucore.mangling import demangle, short_name
from vdbg_env.application.lines.stock import StockCubin, StockLibrary, StockUnit
from vdbg_env.common.errors import BadInput, nearest
from vdbg_env.crash.files import CoreFiles
from vdbg_env.image.units import cubin_for, parse_arch


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
            next_step=f"vdbg-env core {path}",
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
        next_step="vdbg-env core FILE says which library the kernel is from",
    )


def _arch_of(sm_type: str) -> str:
    digits = "".join(c for c in sm_type if c.isdigit())
    return f"{digits[:-1]}.{digits[-1]}" if len(digits) > 1 else ""
