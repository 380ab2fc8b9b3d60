"""Look for source lines at addresses after a guard has announced a crash: their servers may be slow, or not answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpucore.core import decode_core
from vdbg_env.common.errors import ANY_ERROR
from vdbg_env.common.stop import in_background
from vdbg_env.crash.files import CoreFiles
from vdbg_env.crash.line_packs import has_addresses, packed_lines
from vdbg_env.evidence.gpu_findings import gpu_core_findings
from vdbg_env.report.model import Report

LOOK_UP_S: Final = 90.0  # in all; a supervisor waits to start the command again
_MOST_CORES: Final = 4
_CORES: Final = "steps/guarded/*/*/core.cuda.*"


def late_lines(report: Report, directory: Path) -> tuple[str, ...]:
    """Return the lines that packs at addresses have for kernels of a report without lines, or why there are none."""
    if not has_addresses() or not any(found.kernel and not found.chain for found in report.findings):
        return ()
    cores = sorted(path for path in directory.glob(_CORES) if path.is_file())[:_MOST_CORES]
    if not cores:
        return ()
    done = in_background(lambda: _lines_of(cores))
    try:
        return done.result(LOOK_UP_S)
    except TimeoutError:
        return (f"the line packs of VDBG_LINES are not used: no answer within {LOOK_UP_S:g} s",)


def _lines_of(cores: Sequence[Path]) -> tuple[str, ...]:
    packs, files = packed_lines(), CoreFiles()
    notes: dict[str, None] = {}
    for path in cores:
        try:
            with files.open(str(path)) as core:
                read = decode_core(core.data, lines=packs)
        except ANY_ERROR as error:
            notes[f"{path.name}: {error.what}"] = None
            continue
        for found in gpu_core_findings(read.faults, read.warp_groups, path.name):
            if found.kernel and found.chain:
                frames = ", inlined at ".join(str(frame) for frame in found.chain)
                notes[f"{path.name}: {found.kernel} was at {frames} (from a line pack)"] = None
    return (*notes, *packs.notes)
