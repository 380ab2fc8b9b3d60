"""Reads a cuda-gdb transcript of a GPU core: the exception, the focus, frames, and the `info cuda` tables.

Shapes: cuda-gdb 12.4 run on synthetic cores, and the vLLM post of August 2025, where `[Current focus ...]` comes
before `CUDA Exception:`. Column widths follow the content, so a row is read by the kinds of its fields.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from vdbg_env.cuda.lines.source_frame import Chain, SourceFrame
from vdbg_env.evidence.finding import Finding, HowKnown, Level

Axes = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Focus:
    """Where the debugger stands; `cluster` is None on cores that record none."""

    kernel: int
    grid: int
    block: Axes
    thread: Axes
    device: int
    sm: int
    warp: int
    lane: int
    cluster: Axes | None = None


@dataclass(frozen=True, kw_only=True)
class GdbFrame:
    """One stack row; `place` is None without line info, `pc` where the debugger prints none (line starts)."""

    level: int
    function: str
    pc: int | None = None
    grid_dim: Axes | None = None
    block_dim: Axes | None = None
    place: SourceFrame | None = None


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """One row of `info cuda kernels`."""

    kernel: int
    device: int
    grid: int
    status: str
    grid_dim: Axes
    block_dim: Axes
    invocation: str


@dataclass(frozen=True, kw_only=True)
class DeviceRow:
    """One row of `info cuda devices`; `architecture` is `sm_90`."""

    device: int
    name: str
    architecture: str
    sms: int


@dataclass(frozen=True, kw_only=True)
class WarpRow:
    """One row of `info cuda warps`; masks are lane masks."""

    device: int
    sm: int
    warp: int
    active: int
    divergent: int
    pc: int
    kernel: int
    block: Axes
    thread: Axes


@dataclass(frozen=True, kw_only=True)
class LaneRow:
    """One row of `info cuda lanes`; `exception` is None where the debugger says None."""

    device: int
    sm: int
    warp: int
    lane: int
    state: str
    pc: int
    thread: Axes
    exception: str | None


@dataclass(frozen=True, kw_only=True)
class GdbTranscript:
    """What one transcript says; everything absent from it is None or empty."""

    file: str | None = None
    exception: str | None = None
    error_pc: int | None = None
    error_place: SourceFrame | None = None
    inlined_at: tuple[str, int] | None = None
    error_function: str | None = None
    error_offset: int | None = None
    focus: Focus | None = None
    frames: tuple[GdbFrame, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    devices: tuple[DeviceRow, ...] = ()
    warps: tuple[WarpRow, ...] = ()
    lanes: tuple[LaneRow, ...] = ()
    no_exception: bool = False
    no_focus: bool = False
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


_AXES = r"\((\d+), ?(\d+), ?(\d+)\)"
_OPEN = re.compile(r"Opening GPU coredump: (.+)")
_EXCEPTION = re.compile(
    r"(?:CUDA Exception|CUDA_EXCEPTION_\d+)[:,] (.+?)\.?$|.*received signal CUDA_EXCEPTION_\d+, (.+?)\.?$"
)
_ERROR_PC = re.compile(r"The exception was triggered at PC (0x[0-9a-fA-F]+)(?: +(.+))?$")
_ERROR_PLACE = re.compile(r"\((\S.*?):(\d+)(?: in (.+?))?(?: inlined from (.+):(\d+))?\)$")
_FOCUS = re.compile(
    rf".*[Ff]ocus (?:set )?to CUDA kernel (\d+), grid (\d+),(?: cluster {_AXES},)? block {_AXES}, thread {_AXES}, "
    r"device (\d+), sm (\d+), warp (\d+), lane (\d+)"
)
_FRAME = re.compile(
    rf"#(\d+)\s+(?:(0x[0-9a-fA-F]+) in )?(.+?)(?:<<<{_AXES},{_AXES}>>>)?(?: ?\([^()]*\))?(?: at (\S.*):(\d+))?$"
)
_KERNEL = re.compile(rf"\*?\s*(\d+)\s+\S+\s+(\d+)\s+(\d+)\s+(\w+)\s+0x[0-9a-fA-F]+\s+{_AXES}\s+{_AXES}\s+(\S.*?)\s*$")
_DEVICE = re.compile(r"\*?\s*(\d+)\s+[0-9a-fA-F:.]+\s+(\S.*?)\s+(\w+)\s+(sm_\w+)\s+(\d+)\s+\d+\s")
_WARP = re.compile(
    rf"\*?\s*(\d+)\s+(0x[0-9a-fA-F]+)\s+(0x[0-9a-fA-F]+)\s+(0x[0-9a-fA-F]+)\s+(\d+)\s+{_AXES}\s+{_AXES}\s*$"
)
_LANE = re.compile(rf"\*?\s*(\d+)\s+(\w+)\s+(0x[0-9a-fA-F]+)\s+{_AXES}\s+(\S.*?)\s*$")
_UNDER = re.compile(r"Device (\d+)(?: SM (\d+))?(?: Warp (\d+))?\s*$")
_SYMBOL = re.compile(r"(.+?) \+ (\d+) in section (\S+)")
_PRINT_PC = re.compile(r"\$\d+ = .*?(0x[0-9a-fA-F]+) <(.+?)\+(\d+)>")
_INFO_LINE = re.compile(r"Line (\d+) of \"([^\"]+)\" starts at address")
_INFO_INLINED = re.compile(r" inlined from (\S+) at line (\d+) of (\S+?)\.?$")


@dataclass
class _Reader:
    """Collects what each line says; `under` is the device, SM and warp the following rows belong to."""

    said: dict[str, object] = field(default_factory=dict)
    frames: dict[tuple[int, str], GdbFrame] = field(default_factory=dict)
    kernels: list[KernelRow] = field(default_factory=list)
    devices: list[DeviceRow] = field(default_factory=list)
    warps: list[WarpRow] = field(default_factory=list)
    lanes: list[LaneRow] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    under: tuple[int, int, int] = (0, 0, 0)


def parse_cuda_gdb(text: str) -> GdbTranscript:
    """Read one transcript; lines of no known shape are passed over."""
    reader = _Reader()
    for line in text.splitlines():
        if not (_banner(reader, line) or _symbols(reader, line)):
            _row(reader, line)
    return GdbTranscript(
        **reader.said,  # type: ignore[arg-type]
        frames=tuple(reader.frames.values()),
        kernels=tuple(reader.kernels),
        devices=tuple(reader.devices),
        warps=tuple(reader.warps),
        lanes=tuple(reader.lanes),
        warnings=tuple(reader.warnings),
        problems=tuple(reader.problems),
    )


def cuda_gdb_findings(transcript: GdbTranscript) -> tuple[Finding, ...]:
    """Return the exception as a finding with the best place known, or nothing when the core holds none."""
    if transcript.exception is None:
        return ()
    kernel = transcript.error_function or (transcript.frames[0].function if transcript.frames else None)
    place = transcript.error_place or (transcript.frames[0].place if transcript.frames else None)
    at = f" at PC {transcript.error_pc:#x}" if transcript.error_pc is not None else ""
    chain: Chain = (place,) if place else ()
    if place and transcript.inlined_at:
        file, line = transcript.inlined_at
        chain = (place, SourceFrame(function=None, file=file, line=line))
    return (
        Finding(
            rule="cuda-gdb-exception",
            level=Level.ERROR,
            message=f"{transcript.exception}{at}" + (f" in {kernel}" if kernel else ""),
            how_known=HowKnown.GPU_CORE,
            confidence=0.95 if transcript.error_pc is not None else 0.85,
            location=place,
            chain=chain,
            kernel=kernel,
        ),
    )


def _banner(reader: _Reader, line: str) -> bool:
    said = reader.said
    if match := _OPEN.match(line):
        said["file"] = match[1].strip()
    elif match := _ERROR_PC.match(line):
        said["error_pc"] = int(match[1], 16)
        place = _ERROR_PLACE.match(match[2] or "")
        if place:
            said["error_place"] = SourceFrame(function=place[3], file=place[1], line=int(place[2]))
            if place[4]:
                said["inlined_at"] = (place[4], int(place[5]))
        elif match[2]:
            said["error_function"] = match[2].strip()
    elif match := _FOCUS.match(line):
        said["focus"] = _focus(match)
    elif match := _EXCEPTION.match(line):
        said.setdefault("exception", match[1] or match[2])
    elif line == "Assertion failed.":  # all that is said for code 12, where every other exception has a name
        said.setdefault("exception", "Warp Assert")
    elif line.startswith("warning: "):
        reader.warnings.append(line.removeprefix("warning: "))
        said["no_exception"] = said.get("no_exception", False) or "No exception was found" in line
        said["no_focus"] = said.get("no_focus", False) or "No focus could be set" in line
    elif re.match(r"(?:.*: )?(?:No such file|not a core dump|.*[Uu]nrecognized|Error (?:opening|while))|fatal:", line):
        reader.problems.append(line.strip())
    else:
        return False
    return True


def _symbols(reader: _Reader, line: str) -> bool:
    said = reader.said
    if match := _SYMBOL.match(line):
        said["error_function"], said["error_offset"] = match[1].strip(), int(match[2])
    elif match := _PRINT_PC.match(line):
        said.setdefault("error_function", match[2])
        said.setdefault("error_offset", int(match[3]))
    elif match := _INFO_LINE.match(line):
        inlined = _INFO_INLINED.search(line)
        function = inlined[1] if inlined else None
        said.setdefault("error_place", SourceFrame(function=function, file=match[2], line=int(match[1])))
        if inlined:
            said.setdefault("inlined_at", (inlined[3], int(inlined[2])))
    else:
        return False
    return True


def _row(reader: _Reader, line: str) -> None:
    if match := _FRAME.match(line):
        frame = _frame(match)
        reader.frames.setdefault((frame.level, frame.function), frame)
    elif match := _UNDER.match(line):
        reader.under = (int(match[1]), int(match[2] or 0), int(match[3] or 0))
    elif match := _KERNEL.match(line):
        n = match.groups()
        reader.kernels.append(
            KernelRow(
                kernel=int(n[0]), device=int(n[1]), grid=int(n[2]), status=n[3],
                grid_dim=_axes(n[4:7]), block_dim=_axes(n[7:10]), invocation=n[10],
            )
        )  # fmt: skip
    elif match := _WARP.match(line):
        n = match.groups()
        device, sm, _ = reader.under
        reader.warps.append(
            WarpRow(
                device=device, sm=sm, warp=int(n[0]), active=int(n[1], 16), divergent=int(n[2], 16),
                pc=int(n[3], 16), kernel=int(n[4]), block=_axes(n[5:8]), thread=_axes(n[8:11]),
            )
        )  # fmt: skip
    elif match := _LANE.match(line):
        n = match.groups()
        device, sm, warp = reader.under
        reader.lanes.append(
            LaneRow(
                device=device, sm=sm, warp=warp, lane=int(n[0]), state=n[1], pc=int(n[2], 16),
                thread=_axes(n[3:6]), exception=None if n[6] == "None" else n[6],
            )
        )  # fmt: skip
    elif match := _DEVICE.match(line):
        reader.devices.append(DeviceRow(device=int(match[1]), name=match[2], architecture=match[4], sms=int(match[5])))


def _frame(match: re.Match[str]) -> GdbFrame:
    level, pc, function = match[1], match[2], match[3].strip()
    place = SourceFrame(function=function, file=match[10], line=int(match[11])) if match[10] else None
    return GdbFrame(
        level=int(level),
        function=function,
        pc=int(pc, 16) if pc else None,
        grid_dim=_axes(match.group(4, 5, 6)) if match[4] else None,
        block_dim=_axes(match.group(7, 8, 9)) if match[7] else None,
        place=place,
    )


def _focus(match: re.Match[str]) -> Focus:
    n = match.groups()
    return Focus(
        kernel=int(n[0]),
        grid=int(n[1]),
        cluster=_axes(n[2:5]) if n[2] else None,
        block=_axes(n[5:8]),
        thread=_axes(n[8:11]),
        device=int(n[11]),
        sm=int(n[12]),
        warp=int(n[13]),
        lane=int(n[14]),
    )


def _axes(said: tuple[str, ...]) -> Axes:
    return int(said[0]), int(said[1]), int(said[2])
