"""Turn compute-sanitizer's reports into findings, and say which reports may be false alarms."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.tools.sanitizer import SanitizerPlace, SanitizerRecord, SanitizerReport, Tool

MAX_FINDINGS = 20


@dataclass(frozen=True, kw_only=True)
class FalseAlarm:
    """A report that may not be a bug: where that is known from, and what would settle it.

    `certain`: programs cause such a report on purpose, so it is only a note. Any other keeps its level.
    """

    pattern: re.Pattern[str]
    reason: str
    source: str
    certain: bool = False


FALSE_ALARMS: tuple[FalseAlarm, ...] = (
    FalseAlarm(
        pattern=re.compile(r"cuGetProcAddress(?:_v2)?\b"),
        reason="a probe for an entry point this driver lacks; programs expect it to fail",
        source="compute-sanitizer --report-api-errors explicit leaves it out",
        certain=True,
    ),
    FalseAlarm(
        # A misaligned access is inside an allocation too, and is always a bug.
        pattern=re.compile(
            r"Invalid __global__ (?:read|write).*is out of bounds.*is inside the nearest allocation", re.DOTALL
        ),
        reason="the address is inside an allocation: PyTorch's expandable segments map memory the tool does not see",
        source="pytorch#196209; run again with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
    ),
    FalseAlarm(
        pattern=re.compile(r"Barrier error detected\. Divergent thread"),
        reason="warp-specialised kernels meet at named barriers by subsets of their warps, which synccheck reports",
        source="compute-sanitizer manual, synccheck; suppressions do not cover it",
    ),
    FalseAlarm(
        pattern=re.compile(r"cudaErrorPeerAccessAlreadyEnabled|peer access is already enabled"),
        reason="PyTorch and NCCL both ask for peer access, and the second request finds that it is on already",
        source="pytorch: c10/cuda/PeerToPeerAccess.cpp clears this error",
        certain=True,
    ),
)


_SIZE = re.compile(r" of size (\d[\d,]*)(?: bytes)?")
_NEAREST = re.compile(r"is inside the nearest allocation at (0x[0-9a-fA-F]+) of size (\d[\d,]*)")


def false_alarm(record: SanitizerRecord) -> FalseAlarm | None:
    """Return why `record` may not be a bug, or None; an access that leaves the allocation that it begins in is one."""
    said = "\n".join((record.headline, *record.details))
    if _passes_the_end(record, said):
        return None
    return next((alarm for alarm in FALSE_ALARMS if alarm.pattern.search(said)), None)


def _passes_the_end(record: SanitizerRecord, said: str) -> bool:
    """Return whether the bytes that were accessed go beyond the allocation that holds the first of them."""
    size, nearest = _SIZE.search(record.headline), _NEAREST.search(said)
    if record.address is None or size is None or nearest is None:
        return False
    end = int(nearest[1], 16) + int(nearest[2].replace(",", ""))
    return record.address + int(size[1].replace(",", "")) > end


def sanitizer_findings(report: SanitizerReport) -> tuple[Finding, ...]:
    """Return a finding per distinct report, the surest first; none when clean, one when the tool itself failed."""
    if report.verdict == "tool-failed":
        return (_tool_failed(report),)
    distinct: dict[tuple[str, str | None], SanitizerRecord] = {}
    for record in report.records:
        function = record.places[0].function if record.places else record.api_call
        distinct.setdefault((re.sub(r"0x[0-9a-fA-F]+|\d+", "N", record.headline), function), record)
    findings = [_finding(record) for record in distinct.values()]
    findings.sort(key=lambda f: (f.level is not Level.ERROR, -f.confidence))
    if not findings and report.verdict == "errors":
        findings = [_unlisted(report)]
    return tuple(findings[:MAX_FINDINGS])


def _finding(record: SanitizerRecord) -> Finding:
    place = record.places[0] if record.places else None
    alarm = false_alarm(record)
    where = ""
    if place and place.function and place.function in record.headline:  # a race's headline holds its first access
        where = "".join(f", and {_place(other)}" for other in record.places[1:])
    elif place:
        where = f" at {_place(place, line=False)}"
    if record.thread and record.block:
        where += f" by thread {_axes(record.thread)} in block {_axes(record.block)}"
    level = Level.NOTE if alarm and alarm.certain else Level.WARNING if record.level == "warning" else Level.ERROR
    if record.headline.startswith(("Unused ", "Leaked ")):
        level = Level.NOTE
    return Finding(
        rule=f"sanitizer-{record.tool.value}",
        level=level,
        message=f"{record.headline}{where}"
        + (f" ({'' if alarm.certain else 'may be '}a false alarm: {alarm.reason})" if alarm else ""),
        how_known=HowKnown.SANITIZER,
        confidence=(0.4 if alarm.certain else 0.6) if alarm else 0.95 if place else 0.8,
        location=place.frame if place else None,
        chain=(place.frame,) if place and place.frame else (),
        kernel=place.function if place else None,
        next_step=alarm.source if alarm else _NEXT[record.tool],
    )


def _place(place: SanitizerPlace, *, line: bool = True) -> str:
    offset = f"+{place.offset:#x}" if place.offset is not None else ""
    frame = f" in {place.frame.file}:{place.frame.line}" if line and place.frame else ""
    return f"{place.function}{offset}{frame}"


SANITIZER_FAILED: Final = "sanitizer-failed"
_NEXT = {
    Tool.MEMCHECK: "look at the line named, and at the sizes its launch was given",
    Tool.RACECHECK: "order the two accesses named with a barrier between them",
    Tool.INITCHECK: "write the buffer before it is read, or shorten the read",
    Tool.SYNCCHECK: "let every thread of the block (or of the barrier's set) reach the barrier",
}


def _tool_failed(report: SanitizerReport) -> Finding:
    said = report.own_failures[0] if report.own_failures else "it printed no SUMMARY line"
    return Finding(
        rule=SANITIZER_FAILED,
        level=Level.WARNING,
        message=f"compute-sanitizer itself did not finish: {said}",
        how_known=HowKnown.SANITIZER,
        confidence=0.9,
        next_step="see whether the workload runs without it; give --launch-timeout 0 and --target-processes all",
    )


def _unlisted(report: SanitizerReport) -> Finding:
    return Finding(
        rule=f"sanitizer-{report.tool.value if report.tool else 'memcheck'}",
        level=Level.ERROR if report.errors else Level.WARNING,
        message=f"compute-sanitizer counted {report.errors} error(s) and {report.warnings} warning(s), and listed none",
        how_known=HowKnown.SANITIZER,
        confidence=0.8,
        next_step="run it again with --print-limit 0",
    )


def _axes(axes: tuple[int, int, int]) -> str:
    return f"({axes[0]},{axes[1]},{axes[2]})"
