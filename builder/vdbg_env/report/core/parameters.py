"""Write the parameters and constant banks of launches for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpucore.core import DecodedCore, Launch, LaunchParameters, Parameter
from gpucore.mangling import demangle, short_name
from vdbg_env.common.printable import printable

_MOST_LAUNCHES: Final = 4
_MOST_BYTES: Final = 32


def launch_lines(reading: DecodedCore, *, everything: bool) -> Iterator[str]:
    """Yield the parameters of each launch, those that faulted first; `everything` leaves no list cut."""
    faulted = [fault.grid.grid_id for fault in reading.faults if fault.grid]
    launches = sorted(reading.launches, key=lambda launch: launch.grid.grid_id not in faulted)
    shown = len(launches) if everything else _MOST_LAUNCHES
    for launch in launches[:shown]:
        if launch.parameters:
            yield from _launch(launch, launch.parameters, everything)
    if len(launches) > shown:
        yield f"  and {len(launches) - shown} more launches (--all shows them)"


def _launch(launch: Launch, read: LaunchParameters, everything: bool) -> Iterator[str]:
    name = short_name(demangle(launch.kernel)) if launch.kernel else "an unknown kernel"
    yield printable(f"  Parameters of launch {launch.grid.grid_id}, {name}:")
    width = min(max((len(one.type or "") for one in read.parameters), default=0), 40)
    for one in read.parameters:
        yield printable(f"    [{one.index}] {one.type or '':{width}}  {_value(one, everything)}")
    if not read.parameters and read.data:
        yield f"    {_hex(read.data, everything)}"
    for bank in read.banks:
        where = "in the dump" if bank.held else "not in the dump"
        yield f"    constant bank {bank.number}: {bank.size:,} bytes at {bank.address:#x}, {where}"
    if read.problem:
        yield printable(f"    ({read.problem})")


def _value(one: Parameter, everything: bool) -> str:
    if one.data is None:
        return f"{one.size} bytes, not in the dump"
    return one.value or _hex(one.data, everything)


def _hex(data: bytes, everything: bool) -> str:
    """Return bytes in memory order, in groups of four."""
    shown = data if everything else data[:_MOST_BYTES]
    rest = f" ... {len(data):,} bytes" if len(data) > len(shown) else ""
    return shown.hex(" ", 4) + rest
