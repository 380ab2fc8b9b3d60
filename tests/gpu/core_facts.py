"""What a GPU core is made of, beyond what it says: identity, row sizes, later fields, what its images kept."""

from __future__ import annotations

import gzip
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

from gpucore import core_layout
from gpucore.code_map import CodeMap
from gpucore.core_layout import Layout, SectionType, barrier_scope, generation_flags, thread_state
from gpucore.core_reader import GpuCore, read_core
from gpucore.dwarf import Place
from gpucore.elf import Elf

_LOUSER = 0x80000000
_ENOUGH = 4096  # instructions of an image: PyTorch's are of millions
_TABLES: dict[SectionType, Layout[Any]] = {
    SectionType.DEVICES: core_layout.DEVICE,
    SectionType.CONTEXTS: core_layout.CONTEXT,
    SectionType.MODULES: core_layout.MODULE,
    SectionType.GRIDS: core_layout.GRID,
    SectionType.CONSTANT_BANKS: core_layout.CONSTANT_BANK,
    SectionType.SMS: core_layout.SM,
    SectionType.CTAS: core_layout.CTA,
    SectionType.WARPS: core_layout.WARP,
    SectionType.LANES: core_layout.LANE,
    SectionType.BACKTRACE: core_layout.BACKTRACE,
    SectionType.METADATA: core_layout.METADATA,
}
_OF_LINES = (".debug_line", ".rel.debug_line", ".rela.debug_line", ".debug_str", ".nv_debug_line_sass",
             ".nv_debug_ptx_txt", ".debug_info", ".debug_frame", ".note.nv.tkinfo")  # fmt: skip


def core_facts(path: Path) -> dict[str, Any]:
    """Return the facts of one core, plain or gzipped; raises UnreadableBinary for what is none."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    elf, core = Elf(data), read_core(data)
    known = {kind.value: kind.name.lower() for kind in SectionType}
    kinds = Counter(section.type for section in elf.sections if section.type >= _LOUSER)
    return {
        "bytes": len(data),
        "identity": data[7:9].hex(" "),
        "e_version": f"{elf.version:#x}",
        "e_flags": f"{elf.flags:#x}",
        "sections": {known[kind]: count for kind, count in sorted(kinds.items()) if kind in known},
        "unknown_sections": [f"{kind:#x}" for kind in sorted(kinds) if kind not in known],
        "rows": _row_sizes(elf),
        "metadata": _metadata(core),
        "devices": [f"{device.name} ({device.type}, {device.sm_type})" for device in core.devices],
        "later_fields": _later_fields(core),
        "images": [_image(module.code, module.relocated) for d in core.devices for module in d.modules if module.code],
        "notes": list(core.notes),
    }


def _row_sizes(elf: Elf) -> dict[str, dict[str, Any]]:
    """Return for each table how long its rows are, and whether that is longer than any that was known."""
    sizes: dict[str, dict[str, Any]] = {}
    for section in elf.sections:
        form = _TABLES.get(SectionType(section.type)) if section.type in set(SectionType) else None
        if form and section.entry_size:
            sizes[SectionType(section.type).name.lower()] = {
                "bytes": section.entry_size,
                "known": list(form.sizes),
                "longer_than_known": section.entry_size > form.sizes[-1],
            }
    return sizes


def _metadata(core: GpuCore) -> dict[str, Any] | None:
    if core.metadata is None:
        return None
    row = core.metadata.row
    return {
        "generator": core.metadata.generator,
        "driver": f"{row.driver_major}.{row.driver_minor}",
        "cuda": f"{row.cuda_major}.{row.cuda_minor}",
        "flags": list(generation_flags(row.flags)),
    }


def _later_fields(core: GpuCore) -> dict[str, list[str]]:
    """Return what stands in the fields of r575 and later, as far as the rows have them and they say anything."""
    warps = [warp for device in core.devices for _, _, warp in device.warps()]
    said: dict[str, list[str | None]] = {
        "exception_string (r580)": [sm.exception_string for d in core.devices for sm in d.sms if sm.exception_string],
        "barrier_scope (r590)": [barrier_scope(warp.row.barrier_scope) for warp in warps],
        "thread_state (r575)": [thread_state(lane.thread_state) for warp in warps for lane in warp.lanes],
    }
    return {name: sorted({str(value) for value in values if value is not None}) for name, values in said.items()}


def _image(code: CodeMap, relocated: bool) -> dict[str, Any]:
    places = (Place(section=s.number, offset=offset) for s in code.code_sections for offset in range(0, s.size, 16))
    looked_at = [bool(code.locate(place).chain) for place in islice(places, _ENOUGH)]
    return {
        "relocated": relocated,
        "identity": str(code.elf.identity),
        "kernels": [kernel.demangled for kernel in code.kernels][:5],
        "kept": [name for name in _OF_LINES if code.elf.section(name)],
        "instructions": len(looked_at),
        "with_lines": sum(looked_at),
    }
