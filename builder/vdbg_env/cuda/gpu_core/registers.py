"""The registers of one thread of a GPU core, and of the warp it is in."""

from __future__ import annotations

from dataclasses import dataclass

from vdbg_env.cuda.gpu_core.faults import FaultingThread
from vdbg_env.cuda.gpu_core.layout import BACKTRACE, BacktraceRow, SectionType
from vdbg_env.cuda.gpu_core.reader import CoreSections


@dataclass(frozen=True, kw_only=True)
class Registers:
    """Register files by number, 32 bits each; predicates are 0 or 1. A file that the core lacks is empty."""

    general: tuple[int, ...]
    predicates: tuple[int, ...]
    uniform: tuple[int, ...]
    uniform_predicates: tuple[int, ...]
    barriers: tuple[int, ...]
    backtrace: tuple[BacktraceRow, ...]


def backtrace(sections: CoreSections, thread: FaultingThread) -> tuple[BacktraceRow, ...]:
    """Return the calls a thread is in, the nearest first; empty where the dump holds none."""
    table = thread.warp.lane_table
    rows = None if table is None else sections.bytes_of(SectionType.BACKTRACE, table, thread.row_index)
    return tuple(sorted(BACKTRACE.rows(rows, BACKTRACE.smallest), key=lambda row: row.level)) if rows else ()


def read_registers(sections: CoreSections, thread: FaultingThread) -> Registers:
    """Return the registers of a thread and of its warp."""

    def of_lane(kind: SectionType) -> memoryview | None:
        table = thread.warp.lane_table
        return None if table is None else sections.bytes_of(kind, table, thread.row_index)

    def of_warp(kind: SectionType) -> memoryview | None:
        return sections.bytes_of(kind, thread.warp.table, thread.warp.index)

    return Registers(
        general=_words(of_lane(SectionType.REGISTERS)),
        predicates=_words(of_lane(SectionType.PREDICATES)),
        uniform=_words(of_warp(SectionType.UNIFORM_REGISTERS)),
        uniform_predicates=_words(of_warp(SectionType.UNIFORM_PREDICATES)),
        barriers=_words(of_warp(SectionType.CONVERGENCE_BARRIERS)),
        backtrace=backtrace(sections, thread),
    )


def _words(data: memoryview | None) -> tuple[int, ...]:
    return tuple(int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data) // 4 * 4, 4)) if data else ()
