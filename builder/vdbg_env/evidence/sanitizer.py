"""Read compute-sanitizer's text: memcheck, racecheck, initcheck and synccheck, old form and new.

Shapes: the Compute Sanitizer manual (2026.4) and reports in pytorch#140777, pytorch#196209, sgl-project/sglang#2599
and caffe2-era cuda-memcheck logs. The exit status cannot be trusted (a dead target gives 0 with `--require-cuda-init
no`, 255 otherwise), so a run is judged by its SUMMARY line: without one the tool itself failed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal

from gpucore.dwarf import SourceFrame
from vdbg_env.common.console import counted
from vdbg_env.evidence.finding import Finding, HowKnown, Level, NextStep


class Tool(StrEnum):
    """The four checkers, by their `--tool` names."""

    MEMCHECK = "memcheck"
    RACECHECK = "racecheck"
    INITCHECK = "initcheck"
    SYNCCHECK = "synccheck"


Verdict = Literal["clean", "errors", "tool-failed"]


@dataclass(frozen=True, kw_only=True)
class SanitizerPlace:
    """A place in device code; `offset` is bytes into the function, `frame` needs line info and is None without."""

    function: str | None
    offset: int | None = None
    frame: SourceFrame | None = None


@dataclass(frozen=True, kw_only=True)
class SanitizerRecord:
    """One report: its headline, the device places it names (first is where), thread, block, address and details."""

    headline: str
    line: int
    level: Literal["error", "warning"] = "error"
    places: tuple[SanitizerPlace, ...] = ()
    thread: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    address: int | None = None
    hazards: int | None = None
    details: tuple[str, ...] = ()
    tool: Tool = Tool.MEMCHECK

    @property
    def api_call(self) -> str | None:
        """The CUDA API a "Program hit" report blames, or None for a report from device code."""
        match = _API_CALL.search(self.headline)
        return match[1] if match else None


@dataclass(frozen=True, kw_only=True)
class SanitizerReport:
    """One log of the sanitizer; `errors` is the sum of its SUMMARY lines (None without one)."""

    tool: Tool | None
    verdict: Verdict
    errors: int | None
    warnings: int = 0
    records: tuple[SanitizerRecord, ...] = ()
    own_failures: tuple[str, ...] = ()


_PREFIX = re.compile(r"^.*?={5,} ?(.*)$")
_TOOL = re.compile(r"--tool[= ](memcheck|racecheck|initcheck|synccheck)")
# The second line of a summary counts again what the first one has counted: `5 errors were not printed. Use ...`.
_SUMMARY = re.compile(r"\s*ERROR SUMMARY: (\d[\d,]*) errors?\b(?! were not printed)")
_RACE_SUMMARY = re.compile(
    r"\s*RACECHECK SUMMARY: (\d[\d,]*) hazards? displayed \((\d[\d,]*) errors?, (\d[\d,]*) warnings?\)"
)
_API_CALL = re.compile(r"on CUDA API call to (\w+)")

_LEVEL = re.compile(r"(?i:(?P<level>error|err|warning|warn|info) ?: ?)?(?:\([\w ]+\) )?")
_HEADLINES: tuple[tuple[re.Pattern[str], Tool], ...] = (
    (
        re.compile(r"Invalid __?\w+?__? (?:read|write|atomic)\b|Invalid (?:global|local|shared) (?:read|write)"),
        Tool.MEMCHECK,
    ),
    (re.compile(r"Program hit .+ on CUDA API call to|Fatal UVM \w+ fault"), Tool.MEMCHECK),
    (re.compile(r"Malloc/Free error encountered|Leaked \d[\d,]* bytes|Tensor Memory column"), Tool.MEMCHECK),
    (re.compile(r"(?:Illegal|Misaligned|Stack overflow|Hardware stack|Device-side stack)\b"), Tool.MEMCHECK),
    (re.compile(r"(?:Potential )?(?:\w+ )?(?:[Rr]ace reported|[Hh]azard)\b"), Tool.RACECHECK),
    (re.compile(r"Potential invalid __shared__|Deadlock detected"), Tool.RACECHECK),
    (
        re.compile(
            r"Uninitialized __\w+__ memory|Unused (?:__\w+__ )?memory|Host API (?:uninitialized|memory access error)"
        ),
        Tool.INITCHECK,
    ),
    (
        re.compile(r"Barrier error detected|Warpgroup MMA sequence error|Missing (?:wait|init)|Invalid arguments"),
        Tool.SYNCCHECK,
    ),
)
_OWN_FAILURE = re.compile(
    r"\s*(?:Error: (?:process didn't terminate successfully|Target application (?:terminated|failed)"
    r"|No attachable process|Could not|Failed|Unable|Unknown|Unsupported)|Internal Sanitizer Error"
    r"|No attachable process found|The application may have hit an error|Device not supported"
    r"|Target application returned an error)"
)

_IN_FILE = re.compile(r"in (?P<file>[^\s\]:][^\]:]*):(?P<line>\d+)$")
_FILE_PART = r"(?: (?:\[?in )(?P<file>[^\s\]:][^\]:]*)(?::(?P<line>\d+))?\]?)?"
_AT = re.compile(rf"(?P<function>.+?)(?:\+|:)0x(?P<offset>[0-9a-fA-F]+){_FILE_PART}(?P<rest> \[.*|\(.*)?$")
_AT_OLD = re.compile(r"0x(?P<offset>[0-9a-fA-F]+) in (?P<file>[^\s:]+):(?P<line>\d+):(?P<function>.+)$")
_AT_OLDEST = re.compile(r"0x(?P<offset>[0-9a-fA-F]+) in (?P<function>.+)$")
_THREAD = re.compile(r"by thread \((\d+), ?(\d+), ?(\d+)\) in block \((\d+), ?(\d+), ?(\d+)\)")
_ADDRESS = re.compile(r"(?:Address|Access to|Access at) (0x[0-9a-fA-F]+)")
_ACCESS = re.compile(r"(?:between |and |^)(?:Write|Read|Atomic)\s?(?:access|Thread \([\d, ]+\))? at (?P<place>.+)$")
_HAZARDS = re.compile(r" \[(\d[\d,]*) hazards?\]")


@dataclass
class _Open:
    """A record that is still being read."""

    headline: str
    line: int
    tool: Tool
    level: Literal["error", "warning"]
    body: list[str] = field(default_factory=list)


def parse_sanitizer(text: str) -> SanitizerReport:
    """Read one log of compute-sanitizer; which tool it was is known from the records."""
    tool: Tool | None = None
    records: list[SanitizerRecord] = []
    own: list[str] = []
    errors: int | None = None
    warnings = 0
    current: _Open | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        match = _PREFIX.match(raw)
        if match is None:
            continue
        said = match[1]
        if named := _TOOL.search(said):
            tool = tool or Tool(named[1])
        if found := _SUMMARY.match(said):
            errors = (errors or 0) + _number(found[1])
        elif found := _RACE_SUMMARY.match(said):
            tool = tool or Tool.RACECHECK
            errors, warnings = (errors or 0) + _number(found[2]), warnings + _number(found[3])
        elif _OWN_FAILURE.match(said):
            own.append(said.strip())
        elif (kind := _headline_tool(said)) is not None:
            if current:
                records.append(_record(current))
            current = _Open(said.strip(), number, kind, _level(said))
        elif current and said.startswith("  "):
            current.body.append(said.strip())
    if current:
        records.append(_record(current))
    return SanitizerReport(
        tool=tool or (records[0].tool if records else None),
        verdict="tool-failed" if errors is None else "errors" if errors or warnings else "clean",
        errors=errors,
        warnings=warnings,
        records=tuple(records),
        own_failures=tuple(dict.fromkeys(own)),
    )


def _headline_tool(said: str) -> Tool | None:
    if said.startswith("   "):
        return None
    said = said.lstrip()
    prefix = _LEVEL.match(said)
    at = prefix.end() if prefix else 0
    return next((tool for pattern, tool in _HEADLINES if pattern.match(said, at)), None)


def _level(said: str) -> Literal["error", "warning"]:
    prefix = _LEVEL.match(said.lstrip())
    named = (prefix["level"] or "").lower() if prefix else ""
    return "warning" if named.startswith(("warn", "info")) else "error"


def _record(opened: _Open) -> SanitizerRecord:
    places: list[SanitizerPlace] = []
    thread = block = None
    address: int | None = None
    hazards: int | None = None
    details: list[str] = []
    on_host = False
    for said in (opened.headline, *opened.body):
        if said.startswith("Host Frame:"):
            on_host = True
            continue
        if said.startswith("in ") and on_host:  # the library of the frame above, on a separate line
            continue
        if (found := _IN_FILE.match(said)) and places and places[-1].frame is None:
            frame = SourceFrame(function=places[-1].function, file=found["file"], line=int(found["line"]))
            places[-1] = replace(places[-1], frame=frame)
            continue
        counted = _HAZARDS.search(said)
        if counted:
            hazards = (hazards or 0) + _number(counted[1])
        accessed = _ACCESS.search(_HAZARDS.sub("", said))
        at = accessed["place"] if accessed else said[3:] if said.startswith("at ") else ""
        if place := _place(at):
            places.append(place)
        elif found := _THREAD.search(said):
            axes = [int(x) for x in found.groups()]
            thread, block = (axes[0], axes[1], axes[2]), (axes[3], axes[4], axes[5])
        elif found := _ADDRESS.match(said):
            address = int(found[1], 16)
            details.append(said)
        elif said is not opened.headline and not said.startswith("Saved host backtrace"):
            details.append(said)
    return SanitizerRecord(
        headline=opened.headline,
        line=opened.line,
        level=opened.level,
        places=tuple(places),
        thread=thread,
        block=block,
        address=address,
        hazards=hazards,
        details=tuple(details),
        tool=opened.tool,
    )


def _place(said: str) -> SanitizerPlace | None:
    match = _AT_OLD.match(said) or _AT_OLDEST.match(said) or _AT.match(said)
    if match is None:
        return None
    groups = match.groupdict()
    function = groups["function"].strip()
    frame = None
    if groups.get("file") and groups.get("line"):
        frame = SourceFrame(function=function, file=groups["file"], line=int(groups["line"]))
    return SanitizerPlace(function=function, offset=int(groups["offset"], 16), frame=frame)


def _number(said: str) -> int:
    return int(said.replace(",", ""))


# Turn compute-sanitizer's reports into findings, and say which reports may be false alarms.


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
        where = "".join(f", and {_place_text(other)}" for other in record.places[1:])
    elif place:
        where = f" at {_place_text(place, line=False)}"
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
        next_step=NextStep(alarm.source if alarm else _NEXT[record.tool]),
    )


def _place_text(place: SanitizerPlace, *, line: bool = True) -> str:
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
        next_step=NextStep(
            "see whether the workload runs without it; give --launch-timeout 0 and --target-processes all"
        ),
    )


def _unlisted(report: SanitizerReport) -> Finding:
    return Finding(
        rule=f"sanitizer-{report.tool.value if report.tool else 'memcheck'}",
        level=Level.ERROR if report.errors else Level.WARNING,
        message=f"compute-sanitizer counted {counted(report.errors or 0, 'error')} and "
        f"{counted(report.warnings or 0, 'warning')}, and listed none",
        how_known=HowKnown.SANITIZER,
        confidence=0.8,
        next_step=NextStep("run it again with --print-limit 0"),
    )


def _axes(axes: tuple[int, int, int]) -> str:
    return f"({axes[0]},{axes[1]},{axes[2]})"
