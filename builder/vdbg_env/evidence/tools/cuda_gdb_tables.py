"""Read the tables of cuda-gdb's `info cuda` commands: kernels, devices, warps and lanes.

Column widths follow the content, so a row is recognised by the kinds of its fields, not by its columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

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
    """One row of `info cuda lanes`; `exception` is None if it prints None."""

    device: int
    sm: int
    warp: int
    lane: int
    state: str
    pc: int
    thread: Axes
    exception: str | None


_KERNEL = re.compile(rf"\*?\s*(\d+)\s+\S+\s+(\d+)\s+(\d+)\s+(\w+)\s+0x[0-9a-fA-F]+\s+{AXES}\s+{AXES}\s+(\S.*?)\s*$")
_DEVICE = re.compile(r"\*?\s*(\d+)\s+[0-9a-fA-F:.]+\s+(\S.*?)\s+(\S+)\s+(sm_\w+)\s+(\d+)\s+\d+\s")
_WARP = re.compile(
    rf"\*?\s*(\d+)\s+(0x[0-9a-fA-F]+)\s+(0x[0-9a-fA-F]+)\s+(0x[0-9a-fA-F]+)\s+(\d+)\s+{AXES}\s+{AXES}\s*$"
)
_LANE = re.compile(rf"\*?\s*(\d+)\s+(\w+)\s+(0x[0-9a-fA-F]+)\s+{AXES}\s+(\S.*?)\s*$")
_UNDER = re.compile(r"Device (\d+)(?: SM (\d+))?(?: Warp (\d+))?\s*$")


@dataclass
class CudaTables:
    """The rows of all tables of one transcript; `under` is the device, SM and warp that the next rows belong to."""

    kernels: list[KernelRow] = field(default_factory=list)
    devices: list[DeviceRow] = field(default_factory=list)
    warps: list[WarpRow] = field(default_factory=list)
    lanes: list[LaneRow] = field(default_factory=list)
    under: tuple[int, int, int] = (0, 0, 0)

    def read(self, line: str) -> None:
        """Take one line; a line that is not a row of a table changes nothing."""
        if match := _UNDER.match(line):
            self.under = (int(match[1]), int(match[2] or 0), int(match[3] or 0))
        elif match := _KERNEL.match(line):
            n = match.groups()
            self.kernels.append(
                KernelRow(
                    kernel=int(n[0]), device=int(n[1]), grid=int(n[2]), status=n[3],
                    grid_dim=axes(n[4:7]), block_dim=axes(n[7:10]), invocation=n[10],
                )
            )  # fmt: skip
        elif match := _WARP.match(line):
            n = match.groups()
            device, sm, _ = self.under
            self.warps.append(
                WarpRow(
                    device=device, sm=sm, warp=int(n[0]), active=int(n[1], 16), divergent=int(n[2], 16),
                    pc=int(n[3], 16), kernel=int(n[4]), block=axes(n[5:8]), thread=axes(n[8:11]),
                )
            )  # fmt: skip
        elif match := _LANE.match(line):
            n = match.groups()
            device, sm, warp = self.under
            self.lanes.append(
                LaneRow(
                    device=device, sm=sm, warp=warp, lane=int(n[0]), state=n[1], pc=int(n[2], 16),
                    thread=axes(n[3:6]), exception=None if n[6] == "None" else n[6],
                )
            )  # fmt: skip
        elif match := _DEVICE.match(line):
            self.devices.append(
                DeviceRow(device=int(match[1]), name=match[2], architecture=match[4], sms=int(match[5]))
            )


def axes(numbers: Sequence[str]) -> Axes:
    """Return three numbers as a position or a size."""
    return int(numbers[0]), int(numbers[1]), int(numbers[2])
