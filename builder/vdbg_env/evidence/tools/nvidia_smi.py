"""Read what nvidia-smi prints: a row for each GPU, and the CUDA version in the head of its table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

TOOL: Final = "nvidia-smi"
_BASIC: Final = ("name", "driver_version", "ecc.errors.uncorrected.volatile.total", "mig.mode.current")
_NEWER: Final = ("compute_cap", "memory.used", "memory.total")  # compute_cap is unknown to drivers before r510
_CUDA: Final = re.compile(r"CUDA(?: UMD)? Version\s*:\s*([\d.]+)")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU; None where nvidia-smi does not say. Memory is in bytes, `compute_capability` is as `9.0`."""

    name: str
    driver: str
    ecc_errors: int | None
    is_mig: bool
    compute_capability: str | None = None
    memory_used: int | None = None
    memory_total: int | None = None


def query(*, basic: bool = False) -> tuple[str, ...]:
    """Return the arguments that print the rows; `basic` leaves out the columns that old drivers do not have."""
    columns = _BASIC if basic else _BASIC + _NEWER
    return (f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits")


def parse_gpus(rows: str) -> tuple[Gpu, ...]:
    """Return the GPUs of the rows; a line that is not a row, such as an error message, is left out."""
    cells = [[cell.strip() for cell in row.split(",")] for row in rows.splitlines()]
    return tuple(_gpu(row + [""] * len(_NEWER)) for row in cells if len(row) >= len(_BASIC))


def cuda_version(table: str) -> str | None:
    """Return the newest CUDA version that the driver supports, from the head of the table; None without one."""
    found = _CUDA.search(table)
    return found[1] if found else None


def _gpu(row: list[str]) -> Gpu:
    used, total = (int(cell) << 20 if cell.isdecimal() else None for cell in row[5:7])
    return Gpu(
        name=row[0],
        driver=row[1],
        ecc_errors=int(row[2]) if row[2].isdecimal() else None,
        is_mig=row[3].lower() == "enabled",
        compute_capability=row[4] if re.fullmatch(r"\d+\.\d+", row[4]) else None,
        memory_used=used,
        memory_total=total,
    )
