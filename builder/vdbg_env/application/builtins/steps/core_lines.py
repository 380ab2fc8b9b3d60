"""`builtin/core-lines@v1`: why a core has no source lines: which file the faulting kernel came from, and its proof."""

from __future__ import annotations

from gpucore.core import Fault, WarpGroup, decode_core
from gpucore.mangling import demangle, short_name
from vdbg_env.application.builtins.code_on_disk import Holder, faulting_code, holders, places_to_look
from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.common.errors import BAD_INPUT
from vdbg_env.evidence.kernel_makers import maker_of
from vdbg_env.runbook.catalogue import BuiltinContract
from vdbg_env.runbook.state import ResultValue

_CACHES = ("ccache", "sccache")
_KEPT_OUT = {"ccache": "CCACHE_DISABLE", "sccache": "VLLM_DISABLE_SCCACHE"}

CONTRACT = BuiltinContract(
    name="core-lines",
    version=1,
    role="step",
    does="Finds the file a core's faulting kernel came from, and proves whether that file has line info.",
    parameters={"core": "string", "binaries": "list"},
    by_hand=(
        "cuda-gdb -batch -ex 'target cudacore CORE' -ex bt        # the kernel, and its line if it has one",
        "cuobjdump -elf LIBRARY | grep -E 'Fatbin elf|identifier|[.]text[.]|PROGBITS.* [.]debug_line'",
    ),
    results={
        "kernel": "string",
        "has_lines": "bool",
        "source": "string",
        "maker": "string",
        "remedy": "string",
        "file": "string",
        "same": "bool",
        "file_has_lines": "bool",
        "located": "string",
        "verdict": "string",
        "missing": "int",
        "caches": "list",
    },
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Read the parameter `core`; where its faulting kernel has no lines, look for the file that holds that kernel.

    The last file found is judged only when none has the same code, so that no unused build is blamed.
    """
    path = str(context.parameters.get("core") or "")
    caches: dict[str, ResultValue] = {"caches": _caches(context)}
    if not path:
        return BuiltinResult(results=caches, notes=("no core was given: -i core=FILE",))
    notes: list[str] = []
    try:
        with context.cores.open(path) as core:
            read = decode_core(core.data, lines=context.packed_lines)
            places: tuple[Fault | WarpGroup, ...] = (*read.faults, *read.warp_groups)
            fault = next((place for place in places if place.location), None)
            wanted = faulting_code(fault) if fault else None
    except BAD_INPUT as error:
        return BuiltinResult(results=caches, notes=(f"{path}: {error.what}",))
    if fault is None or wanted is None:
        return BuiltinResult(results=caches, notes=(*read.notes, "nothing of the core lies inside a known kernel"))
    results = caches | _of_core(fault, wanted.kernel)
    if not results["has_lines"]:
        targets = places_to_look(context)
        found = list(holders(context, wanted, targets, notes, proof=True))
        notes.append(f"looked through {', '.join(targets) or 'no binary'}: {len(found)} file(s) hold the kernel")
        results |= _of_holder(next((h for h in found if h.same), found[-1])) if found else {}
    return BuiltinResult(results=results, notes=(*read.notes, *notes))


def _of_core(fault: Fault | WarpGroup, kernel: str) -> dict[str, ResultValue]:
    chain = fault.location.chain if fault.location else ()
    maker = maker_of(demangle(kernel))
    results: dict[str, ResultValue] = {"kernel": short_name(demangle(kernel)), "has_lines": bool(chain)}
    results |= {"source": str(chain[0])} if chain else {}
    return results | ({"maker": maker.name, "remedy": maker.remedy} if maker else {})


def _of_holder(holder: Holder) -> dict[str, ResultValue]:
    results: dict[str, ResultValue] = {
        "file": holder.file,
        "same": holder.same,
        "file_has_lines": bool(holder.location.chain),
    }
    results |= {"located": str(holder.location.chain[0])} if holder.same and holder.location.chain else {}
    if holder.report:
        results |= {"verdict": holder.report.verdict.value, "missing": len(holder.report.missing)}
    return results


def _caches(context: BuiltinContext) -> list[str]:
    """Return the compiler caches a rebuild would meet here; one that is switched off is none."""
    there = (name for name in _CACHES if context.programs.which(name))
    return [name for name in there if context.environment.get(_KEPT_OUT[name]) != "1"]
