"""Writes GPU cores as JSON, schema `vdbg-env/core/v1`: the form other programs may rely on.

Fields are only ever added, and every field may be absent or null: what a core can tell depends on the driver that wrote
it and on how much of the file is left. Addresses and offsets are hex strings; a chain is leaf first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from vdbg_env.application.analysis.source_lines import SourceLines
from vdbg_env.cuda.gpu_core.faults import Coordinates, Fault
from vdbg_env.cuda.gpu_core.layout import GridRow
from vdbg_env.cuda.gpu_core.model import Device, GpuCore
from vdbg_env.cuda.gpu_core.names import generation_flags, grid_origin, grid_status, kernel_type
from vdbg_env.cuda.gpu_core.reading import CoreReading, Launch
from vdbg_env.cuda.gpu_core.registers import Registers
from vdbg_env.cuda.gpu_core.standing import Standing
from vdbg_env.report.core.source_chain import Json, chain_json, function_json, kernel_json

SCHEMA = "vdbg-env/core/v1"


def render(readings: Sequence[CoreReading], sources: SourceLines) -> str:
    """Return one core as a document, several as a document that lists them, first in time first."""
    cores = [document(reading, sources) for reading in readings]
    whole: dict[str, Json] = cores[0] if len(cores) == 1 else {"schema": SCHEMA, "cores": list(cores)}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def document(reading: CoreReading, sources: SourceLines) -> dict[str, Json]:
    """Return one core as plain values."""
    core = reading.core
    registers = reading.registers or (None,) * len(reading.faults)
    return {
        "schema": SCHEMA,
        "file": reading.file,
        "truncated": core.truncated,
        "elf_identity": str(core.identity),
        "metadata": _metadata(core),
        "devices": [_device(device, reading.launches) for device in core.devices],
        "faults": [_fault(f, r, sources) for f, r in zip(reading.faults, registers, strict=True)],
        "warps": [_standing(standing, sources) for standing in reading.standing],
        "loaded_kernels": [kernel_json(name) for name in reading.loaded],
        "notes": list(reading.notes),
    }


def _metadata(core: GpuCore) -> dict[str, Json] | None:
    if core.metadata is None:
        return None
    row = core.metadata.row
    written = datetime.fromtimestamp(row.timestamp, UTC).isoformat() if row.timestamp else None
    return {
        "generator": core.metadata.generator,
        "driver": f"{row.driver_major}.{row.driver_minor}" if row.driver_major else None,
        "cuda": f"{row.cuda_major}.{row.cuda_minor}" if row.cuda_major else None,
        "flags": list(generation_flags(row.flags)),
        "timestamp": row.timestamp,
        "written": written,
    }


def _device(device: Device, launches: Sequence[Launch]) -> dict[str, Json]:
    row = device.row
    return {
        "index": device.index,
        "id": row.device_id,
        "name": device.name,
        "type": device.type,
        "sm": device.sm_type,
        "pci": f"{row.pci_bus:02x}:{row.pci_device:02x}",
        "sms": row.sms,
        "warps_per_sm": row.warps_per_sm,
        "contexts": [
            {"id": f"{c.row.context_id:#x}", "host_thread": c.row.thread_id, "modules": len(c.modules)}
            for c in device.contexts
        ],
        "grids": [_launch(launch) for launch in launches if launch.device is device],
        "resident": {
            "blocks": sum(len(sm.ctas) for sm in device.sms),
            "warps": sum(1 for _ in device.warps()),
        },
    }


def _launch(launch: Launch) -> dict[str, Json]:
    grid = launch.grid
    return {
        "id": grid.grid_id,
        "kernel": _kernel(launch.kernel, grid),
        "status": grid_status(grid.status),
        "origin": grid_origin(grid.origin),
        "kind": kernel_type(grid.kernel_type),
        "parent": grid.parent_grid_id or None,
        "registers_per_thread": grid.registers,
        "host_thread": grid.host_thread_id,
    }


def _kernel(name: str | None, grid: GridRow | None) -> dict[str, Json] | None:
    named = kernel_json(name)
    if grid is None:
        return named
    return {
        **(named or {"name": None, "demangled": None}),
        "grid": [grid.grid_x, grid.grid_y, grid.grid_z],
        "block": [grid.block_x, grid.block_y, grid.block_z],
        "cluster": None if grid.cluster_x is None else [grid.cluster_x, grid.cluster_y or 0, grid.cluster_z or 0],
    }


def _fault(fault: Fault, registers: Registers | None, sources: SourceLines) -> dict[str, Json]:
    exception, location, first = fault.exception, fault.location, fault.first
    document: dict[str, Json] = {
        "exception": {
            "code": exception.code,
            "name": exception.name,
            "identifier": exception.identifier,
            "meaning": exception.meaning,
            "driver_words": fault.exception_string,
        },
        "scope": fault.scope.value,
        "device": fault.device.index,
        "sms": list(fault.sms),
        "pc": _hex(fault.pc),
        "precise": fault.precise,
        "thread_pc": _hex(first.row.virtual_pc) if first else None,
        "kernel": _kernel(fault.kernel, fault.grid),
        "function": function_json(location.function) if location else None,
        "calls_out": fault.calls_out,
        "offset": _hex(location.offset) if location else None,
        "function_offset": _hex(location.function_offset) if location else None,
        "chain": chain_json(location.chain, sources) if location else [],
        "other_chains": [chain_json(chain, sources) for chain in location.siblings] if location else [],
        "ptx_line": location.ptx_line if location else None,
        "threads": {
            "count": fault.threads,
            "warps": fault.warps,
            "blocks": fault.blocks,
            "first": _coordinates(first.at) if first else None,
        },
        "cluster_target": list(fault.cluster_target) if fault.cluster_target else None,
    }
    return {**document, "registers": _registers(registers)} if registers else document


def _standing(standing: Standing, sources: SourceLines) -> dict[str, Json]:
    location = standing.location
    return {
        "device": standing.device.index,
        "pc": _hex(standing.pc),
        "kernel": _kernel(standing.kernel, standing.grid),
        "function": function_json(location.function) if location else None,
        "offset": _hex(location.offset) if location else None,
        "count": standing.warps,
        "threads": standing.threads,
        "blocks": standing.blocks,
        "state": standing.state,
        "barrier": standing.barrier,
        "thread_states": dict(standing.thread_states),
        "first": _coordinates(standing.first),
        "chain": chain_json(location.chain, sources) if location else [],
    }


def _coordinates(at: Coordinates) -> dict[str, Json]:
    return {"block": list(at.block), "thread": list(at.thread), "sm": at.sm, "warp": at.warp, "lane": at.lane}


def _registers(registers: Registers) -> dict[str, Json]:
    return {
        "general": {f"R{n}": _hex(value) for n, value in enumerate(registers.general)},
        "predicates": {f"P{n}": bool(value) for n, value in enumerate(registers.predicates)},
        "uniform": {f"UR{n}": _hex(value) for n, value in enumerate(registers.uniform)},
        "uniform_predicates": {f"UP{n}": bool(value) for n, value in enumerate(registers.uniform_predicates)},
        "barriers": {f"B{n}": _hex(value) for n, value in enumerate(registers.barriers)},
        "backtrace": [
            {"level": row.level, "return_pc": _hex(row.return_pc), "return_offset": _hex(row.return_offset)}
            for row in registers.backtrace
        ],
    }


def _hex(value: int | None) -> str | None:
    return None if value is None else f"{value:#x}"
