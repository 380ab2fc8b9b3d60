"""`builtin/core-sizes@v1`: what makes a GPU core dump large, by the kinds of memory in it."""

from __future__ import annotations

from collections import Counter

from gpucore.core_layout import SectionType
from gpucore.core_reader import read_core
from gpucore.elf import Buffer, Elf
from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.common.errors import BAD_INPUT
from vdbg_env.common.size import size_text
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

# The flag of CUDA_COREDUMP_GENERATION_FLAGS that leaves a kind out; registers, lanes and the relocated code have none.
_FLAGS = {
    SectionType.GLOBAL_MEMORY: "skip_global_memory",
    SectionType.MANAGED_MEMORY: "skip_global_memory",
    SectionType.SHARED_MEMORY: "skip_shared_memory",
    SectionType.LOCAL_MEMORY: "skip_local_memory",
    SectionType.CONSTANT_BANKS: "skip_constbank_memory",
    SectionType.IMAGE: "skip_nonrelocated_elf_images",
}

CONTRACT = BuiltinContract(
    name="core-sizes",
    version=1,
    role="step",
    does="Sums up what a GPU core dump holds by kind of memory, and names the flags that leave the most of it out.",
    parameters={"core": "string"},
    by_hand=("readelf -SW CORE        # LOUSER+2 is global memory, +3 local, +4 shared, +15 constant banks",),
    results={
        "size": "int",
        "text": "string",
        "largest": "string",
        "share": "float",
        "flags": "list",
        "saved": "string",
        "savings": "float",
        "whole": "bool",
    },
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Sum up the sections of the parameter `core` by kind; a file that is no GPU core has no sizes to tell."""
    path = str(context.parameters.get("core") or "")
    if not path:
        return BuiltinResult(notes=("no core was given: -i core=FILE",))
    try:
        with context.cores.open(path) as core:
            size = len(core.data)
            truncated = read_core(core.data).truncated
            sizes = Counter() if truncated else _sizes(core.data)
    except BAD_INPUT as error:
        return BuiltinResult(notes=(f"{path}: {error.what}",))
    if truncated:
        return BuiltinResult(results={"size": size, "text": size_text(size), "whole": False})
    return BuiltinResult(results=_results(sizes, size), notes=tuple(_told(sizes)))


def _sizes(data: Buffer) -> Counter[SectionType]:
    """Return the bytes of each kind, as the section headers say."""
    sizes: Counter[SectionType] = Counter()
    elf = Elf(data)
    for kind in SectionType:
        sizes[kind] += sum(section.size for section in elf.sections_of(frozenset({kind})))
    elf.data.release()
    return sizes


def _results(sizes: Counter[SectionType], size: int) -> dict[str, ResultValue]:
    kind, most = max(sizes.items(), key=lambda item: item[1])
    promised = max(sum(sizes.values()), 1)
    left_out = {flag: sum(sizes[k] for k, f in _FLAGS.items() if f == flag) for flag in dict.fromkeys(_FLAGS.values())}
    return {
        "size": size,
        "text": size_text(size),
        "largest": _name(kind),
        "share": most / promised,
        "flags": [flag for flag, saved in left_out.items() if saved],
        "saved": size_text(sum(left_out.values())),
        "savings": sum(left_out.values()) / promised,
        "whole": True,
    }


def _told(sizes: Counter[SectionType]) -> list[str]:
    return [f"{_name(kind)}: {size_text(size)}" for kind, size in sizes.most_common(8) if size]


def _name(kind: SectionType) -> str:
    return kind.name.lower().replace("_", " ")
