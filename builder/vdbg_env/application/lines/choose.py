"""Choose what to compile: by a kernel's name, by a core dump, by an extension, or all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vdbg_env.application.lines.stock import StockCubin, StockLibrary, StockUnit
from vdbg_env.application.ports.files import CoreFiles
from vdbg_env.common.errors import BadInput, nearest
from vdbg_env.cuda.gpu_core import decoded
from vdbg_env.cuda.lines.code_map import Function
from vdbg_env.cuda.lines.place_query import identifier_in, matching
from vdbg_env.cuda.symbols.demangling import demangle, short_name
from vdbg_env.image.units.targets import cubin_for, parse_arch


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the user asked for: kernels by name, extensions, and architectures; nothing named is all of it."""

    kernels: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()


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
        read = decoded.decode_core(core.data, file=core.name, modified=core.modified)
        running = (group.location for group in read.warp_groups)
        names = dict.fromkeys(fault.kernel for fault in read.faults if fault.kernel) or dict.fromkeys(
            place.kernel.name for place in running if place and place.kernel
        )
        archs = dict.fromkeys(_arch_of(device.sm_type) for device in read.core.devices)
    if not names:
        raise BadInput(
            f"{path} names no kernel",
            cause="the dump is truncated, or was written without the code of the kernel",
            next_step=f"vdbg-env core {path}",
        )
    return Wanted(kernels=tuple(names), archs=tuple(arch for arch in archs if arch))


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
                kernels = _kernels(cubin, wanted.kernels) if cubin else ()
                if cubin and (kernels or not wanted.kernels) and cubin.functions:
                    yield Choice(library=library, unit=unit, target=target, kernels=kernels)


def _targets(unit: StockUnit, archs: Sequence[str]) -> tuple[str, ...]:
    present = tuple(cubin.target for cubin in unit.cubins)
    if not archs:
        return present
    chosen = (cubin_for(parse_arch(arch), present) for arch in archs)
    return tuple(dict.fromkeys(target for target in chosen if target))


def _kernels(cubin: StockCubin, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the kernels of a cubin that were asked for; names are read only where their bytes occur at all."""
    mentioned = [name for name in wanted if cubin.mentions(identifier_in(name))]
    return _matching(cubin.kernel_names, mentioned) if mentioned else ()


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
    if everywhere:
        cubins = [cubin for library in libraries for unit in library.units for cubin in unit.cubins]
        targets = {cubin.target for cubin in cubins if _kernels(cubin, wanted.kernels)}
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
