"""Explains why code lacks line info: in the table of `verify`, and where `build` refuses to tag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpucore.lineinfo import Cause

_CACHE: Final = (
    "a compiler cache handed back objects compiled without the flag: ccache does not look at "
    "NVCC_PREPEND_FLAGS, and a build folder used before counts as fresh. CCACHE_DISABLE=1, "
    "VLLM_DISABLE_SCCACHE=1 and a clean folder, as the shipped profiles have them, prevent it"
)


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A cause in words: a heading for what it concerns, the usual reason, and what to type instead."""

    heading: str
    short: str
    reason: str
    remedy: str


EXPLAINED: Final = {
    Cause.NO_TABLE: Explained(
        heading="without line info",
        short="as after a compiler cache hit",
        reason=_CACHE,
        remedy="build again with NVCC_PREPEND_FLAGS=-lineinfo CCACHE_DISABLE=1, in an empty build folder",
    ),
    Cause.EMPTY_TABLE: Explained(
        heading="with a line table that has no rows",
        short="the line table has no rows",
        reason="only ptxas was given -lineinfo, as by -Xptxas -lineinfo, or it assembled PTX without .loc",
        remedy="give -lineinfo to nvcc itself (NVCC_PREPEND_FLAGS=-lineinfo), or to whatever compiler wrote the PTX",
    ),
    Cause.LINKED_WITHOUT: Explained(
        heading="device-linked from units with and without line info",
        short="a device link took in units without line info",
        reason="some units of a device link (-rdc=true, -dlink) were compiled without -lineinfo, or are from a cache",
        remedy="compile the units of these functions again with -lineinfo and CCACHE_DISABLE=1, then link again",
    ),
    Cause.ROWS_MISSING: Explained(
        heading="with a line table that covers only part of the code",
        short="the line table covers only part of the code",
        reason="the PTX has .loc for a part of its code, as PTX written by hand or joined from several compilers",
        remedy="give -lineinfo, or the like, to every compiler that wrote a part of the PTX",
    ),
    Cause.DAMAGED_TABLE: Explained(
        heading="with a damaged line table",
        short="the line table is damaged",
        reason="the file was cut short or overwritten, or its assembler writes line tables of an unknown form",
        remedy="build the file again; nvdisasm -g CUBIN says whether NVIDIA's own tool reads the table",
    ),
}
