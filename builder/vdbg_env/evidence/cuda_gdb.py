"""Read the tables of cuda-gdb's `info cuda` commands: kernels, devices, warps and lanes.

Column widths follow the content, so a row is recognised by the kinds of its fields, not by its columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpucore.dwarf import SourceFrame

Axes = tuple[int, int, int]
AXES = r"\((\d+), ?(\d+), ?(\d+)\)"


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


_KERNEL = re.compile(rf"\*?\s*(\d+)\s+\S+\s+(\d+)\s+(\d+)\s+(\w+)\s+0x[0-9a-fA-F]+\s+{AXES}\s+{AXES}\s+(\S.*?)\s*$")
_DEVICE = re.compile(r"\*?\s*(\d+)\s+[0-9a-fA-F:.]+\s+(\S.*?)\s+\S+\s+sm_\w+\s+\d+\s+\d+\s")
_WARP = re.compile(rf"\*?\s*\d+\s+0x[0-9a-fA-F]+\s+0x[0-9a-fA-F]+\s+(0x[0-9a-fA-F]+)\s+\d+\s+{AXES}\s+{AXES}\s*$")
_LANE = re.compile(r"\*?\s*\d+\s+\w+\s+0x[0-9a-fA-F]+\s+\(\d+, ?\d+, ?\d+\)\s+(\S.*?)\s*$")


@dataclass
class CudaTables:
    """The content of all tables of one transcript: devices by number, the PC of each warp, each lane's exception."""

    kernels: list[KernelRow] = field(default_factory=list)
    devices: dict[int, str] = field(default_factory=dict)
    warps: list[int] = field(default_factory=list)
    lanes: list[str | None] = field(default_factory=list)

    def read(self, line: str) -> None:
        """Take one line; a line that is not a row of a table changes nothing."""
        if match := _KERNEL.match(line):
            n = match.groups()
            self.kernels.append(
                KernelRow(
                    kernel=int(n[0]), device=int(n[1]), grid=int(n[2]), status=n[3],
                    grid_dim=axes(n[4:7]), block_dim=axes(n[7:10]), invocation=n[10],
                )
            )  # fmt: skip
        elif match := _WARP.match(line):
            self.warps.append(int(match[1], 16))
        elif match := _LANE.match(line):
            self.lanes.append(None if match[1] == "None" else match[1])
        elif match := _DEVICE.match(line):
            self.devices[int(match[1])] = match[2]


def axes(numbers: Sequence[str]) -> Axes:
    """Return three numbers as a position or a size."""
    return int(numbers[0]), int(numbers[1]), int(numbers[2])


# Read a cuda-gdb transcript: the exception, the focus, frames, and the `info cuda` tables.
#
# Shapes: cuda-gdb 12.4 run on synthetic cores, and transcripts of 12.9 and 13.x as posted by others: the focus may be
# printed before `CUDA Exception:`, a live session names the frame without a number, and a terminal wraps long frames.


@dataclass(frozen=True, kw_only=True)
class Focus:
    """The thread that the debugger shows; `cluster` is None on cores that record none."""

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
class GdbTranscript:
    """The content of one transcript; everything absent from it is None or empty.

    `devices` has names by number, `warps` the PC of each warp shown, `lanes` the exception of each lane shown.
    """

    file: str | None = None
    exception: str | None = None
    error_pc: int | None = None
    error_place: SourceFrame | None = None
    error_function: str | None = None
    focus: Focus | None = None
    frames: tuple[GdbFrame, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    devices: Mapping[int, str] = field(default_factory=dict)
    warps: tuple[int, ...] = ()
    lanes: tuple[str | None, ...] = ()

    @property
    def kernel(self) -> str | None:
        """The function of the exception, else of the innermost frame."""
        return self.error_function or (self.frames[0].function if self.frames else None)

    @property
    def thread(self) -> str | None:
        """The thread in focus as a phrase, with how many lanes of the core have an exception; None without a focus."""
        if self.focus is None:
            return None
        faulted = len(self.lanes) - self.lanes.count(None)
        device = self.devices.get(self.focus.device)
        more = [f"{faulted} lanes with an exception"] if faulted else []
        more += [f"{len(self.kernels)} kernels resident"] if len(self.kernels) > 1 else []
        more += [f"{len(self.warps)} warps shown"] if self.warps else []
        more += [f"on {device}"] if device else []
        where = "thread ({},{},{}) of block ({},{},{})".format(*self.focus.thread, *self.focus.block)
        return ", ".join([where, *more])


_OPEN = re.compile(r"Opening GPU coredump: (.+)")
_EXCEPTION = re.compile(
    r"(?:CUDA Exception|CUDA_EXCEPTION_\d+)[:,] (.+?)\.?$|.*received signal CUDA_EXCEPTION_\d+, (.+?)\.?$"
)
_ERROR_PC = re.compile(r"The exception was triggered at PC (0x[0-9a-fA-F]+)(?: +(.+))?$")
_ERROR_PLACE = re.compile(r"(?:(\S.*?)\s+)?\((\S[^()]*?):(\d+)(?: in (.+?))?(?: inlined from .+:\d+)?\)$")
_FOCUS = re.compile(
    rf".*[Ff]ocus (?:set )?to CUDA kernel (\d+), grid (\d+),(?: cluster {AXES},)? block {AXES}, thread {AXES}, "
    r"device (\d+), sm (\d+), warp (\d+), lane (\d+)"
)
_LAUNCHED = re.compile(
    rf"(?:#(?P<level>\d+)\s+)?(?:(?P<pc>0x[0-9a-fA-F]+) in )?(?P<function>\S.*?)<<<{AXES},\s?{AXES}>>>\s*\(.*?\)"
    r"(?:\s+at (?P<file>\S.*?):(?P<line>\d+)(?: in (?P<leaf>\S+))?(?: inlined from \S+?:\d+)?)?\s*$"
)
_CALLED = re.compile(
    r"#(?P<level>\d+)\s+(?:(?P<pc>0x[0-9a-fA-F]+) in )?(?P<function>.+?)(?: ?\([^()]*\))?"
    r"(?: at (?P<file>\S.*):(?P<line>\d+))?$"
)
_SYMBOL = re.compile(r"(.+?) \+ (\d+) in section (\S+)")
_PRINT_PC = re.compile(r"(?:\$\d+ = .*?|errorpc\s+)(0x[0-9a-fA-F]+)\s.*?<(.+?)\+(\d+)>")
_INFO_LINE = re.compile(r"Line (\d+) of \"([^\"]+)\" starts at address")
_INFO_INLINED = re.compile(r" inlined from (\S+) at line \d+ of \S+$")

_WRAPS = re.compile(r"#\d+\s|0x[0-9a-fA-F]+ in |The exception was triggered at PC ")
_BEGINS = re.compile(
    r"\s*$|#\d+\s|\[|\(cuda-gdb\)|CUDA |Opening |The exception |Thread |Line \d|\$\d|warning: |\*"
    r"|\s+\*?\s*\w+ +\w+ +\w+ |(?:error)?pc\s|[RP]\d+\s|\d+\t|\d+ {2,}|0x[0-9a-fA-F]+ in |--"
)
_MAX_WRAPPED = 60  # physical lines of one frame


@dataclass
class _Reader:
    """Collects the content of each line."""

    said: dict[str, object] = field(default_factory=dict)
    frames: dict[tuple[int, str], GdbFrame] = field(default_factory=dict)
    tables: CudaTables = field(default_factory=CudaTables)


def parse_cuda_gdb(text: str) -> GdbTranscript:
    """Read one transcript; lines of no known shape are passed over."""
    reader = _Reader()
    for line in _unwrapped(text.splitlines()):
        if not (_banner(reader, line) or _symbols(reader, line) or _stack(reader, line)):
            reader.tables.read(line)
    return GdbTranscript(
        **reader.said,  # type: ignore[arg-type]
        frames=tuple(reader.frames.values()),
        kernels=tuple(reader.tables.kernels),
        devices=reader.tables.devices,
        warps=tuple(reader.tables.warps),
        lanes=tuple(reader.tables.lanes),
    )


def _unwrapped(lines: list[str]) -> Iterator[str]:
    """Join what a terminal, or gdb itself, wrapped: a frame is one line again."""
    index = 0
    while index < len(lines):
        line, width = lines[index], len(lines[index])
        last = index
        if _WRAPS.match(line):
            while last + 1 < len(lines) and last - index < _MAX_WRAPPED:
                following = lines[last + 1]
                indented = following.startswith("    ") and following.strip()
                cut = line.count("(") != line.count(")") or (last > index and len(lines[last]) >= width - 1 >= 78)
                if not (indented or (cut and not _BEGINS.match(following))):
                    break
                line += f" {following.strip()}" if indented else following
                width = max(width, len(following))
                last += 1
        yield line
        index = last + 1


def _banner(reader: _Reader, line: str) -> bool:
    said = reader.said
    if match := _OPEN.match(line):
        said["file"] = match[1].strip()
    elif match := _ERROR_PC.match(line):
        said["error_pc"] = int(match[1], 16)
        _error_place(said, (match[2] or "").strip())
    elif match := _FOCUS.match(line):
        said["focus"] = _focus(match)
    elif match := _EXCEPTION.match(line):
        said.setdefault("exception", match[1] or match[2])
    elif line == "Assertion failed.":  # the only text for code 12; every other exception has a name
        said.setdefault("exception", "Warp Assert")
    else:
        return False
    return True


def _error_place(said: dict[str, object], text: str) -> None:
    """Read what follows the error PC: a function, `(file:line)`, or both; `...` replaces a name that is too long."""
    place = _ERROR_PLACE.match(text)
    function = place[1] if place else text
    if function and function != "...":
        said["error_function"] = function
    if place:
        said["error_place"] = SourceFrame(function=place[4] or place[1], file=place[2], line=int(place[3]))


def _symbols(reader: _Reader, line: str) -> bool:
    said = reader.said
    if match := _SYMBOL.match(line):
        said["error_function"] = match[1].strip()
    elif match := _PRINT_PC.match(line):
        said.setdefault("error_function", match[2])
        if line.startswith("errorpc"):
            said.setdefault("error_pc", int(match[1], 16))
    elif match := _INFO_LINE.match(line):
        inlined = _INFO_INLINED.search(line)
        function = inlined[1] if inlined else None
        said.setdefault("error_place", SourceFrame(function=function, file=match[2], line=int(match[1])))
    else:
        return False
    return True


def _stack(reader: _Reader, line: str) -> bool:
    match = _LAUNCHED.match(line) or _CALLED.match(line)
    if match is None or not line.startswith(("#", "0x")):
        return False
    frame = _frame(match)
    reader.frames.setdefault((frame.level, frame.function), frame)
    return True


def _frame(match: re.Match[str]) -> GdbFrame:
    seen = match.groupdict()
    function = seen["function"].strip()
    launched = match.re is _LAUNCHED
    place = None
    if seen["file"]:
        place = SourceFrame(function=seen.get("leaf") or function, file=seen["file"], line=int(seen["line"]))
    return GdbFrame(
        level=int(seen["level"] or 0),
        function=function,
        pc=int(seen["pc"], 16) if seen["pc"] else None,
        grid_dim=axes(match.group(4, 5, 6)) if launched else None,
        block_dim=axes(match.group(7, 8, 9)) if launched else None,
        place=place,
    )


def _focus(match: re.Match[str]) -> Focus:
    n = match.groups()
    return Focus(
        kernel=int(n[0]),
        grid=int(n[1]),
        cluster=axes(n[2:5]) if n[2] else None,
        block=axes(n[5:8]),
        thread=axes(n[8:11]),
        device=int(n[11]),
        sm=int(n[12]),
        warp=int(n[13]),
        lane=int(n[14]),
    )
