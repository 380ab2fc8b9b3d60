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
