"""A finding: what is wrong, where, how that is known and how sure we are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpucore.dwarf import Chain, SourceFrame


class Level(StrEnum):
    """SARIF's result levels (SARIF 2.1.0, section 3.27.10)."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class HowKnown(StrEnum):
    """The source a finding stands on, strongest first."""

    GPU_CORE = "gpu-core"  # the faulting PC of a GPU core dump, looked up in its own line table
    SANITIZER = "sanitizer"  # compute-sanitizer's report
    DRIVER = "driver"  # the driver's core-dump progress lines
    KERNEL_LOG = "kernel-log"  # Xid lines
    STEP_CHANGE = "step-change"  # the behaviour changed when one thing was changed
    LOG = "log"  # text of the workload's own log
    HOST_CHECK = "host-check"  # a check of this machine


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding; `confidence` runs from 0 to 1, `chain` is leaf first, `step` and `artifact` say where to look.

    `process` is the one it is of, `rank` its own rank in the workload: 1 of vLLM's Worker_TP1, whichever rank of the
    step started it.
    """

    rule: str
    level: Level
    message: str
    how_known: HowKnown
    confidence: float
    location: SourceFrame | None = None
    chain: Chain = ()
    kernel: str | None = None
    step: str | None = None
    artifact: str | None = None
    next_step: str | None = None
    process: str | None = None
    rank: int | None = None
