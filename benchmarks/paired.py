"""Times two commands in turn, A B A B ..., so that a comparison holds when the machine's speed drifts."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One command's runs: wall time in seconds (minimum, median, maximum) and peak memory in MiB."""

    name: str
    least_s: float
    median_s: float
    most_s: float
    peak_mib: float

    def __str__(self) -> str:
        times = f"{self.least_s:8.3f} {self.median_s:8.3f} {self.most_s:8.3f} s"
        return f"{self.name:<34} {times}   {self.peak_mib:8.1f} MiB"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two commands and the median of their ratios, pair by pair."""

    ours: Figure
    peer: Figure
    ratio: float

    def __str__(self) -> str:
        header = f"{'command':<34} {'least':>8} {'median':>8} {'most':>8}     {'peak memory':>12}"
        return f"{header}\n{self.ours}\n{self.peer}\nours / peer, median of pairs: {self.ratio:.3f}"


def compare(
    ours: tuple[str, Sequence[str]], peer: tuple[str, Sequence[str]], *, runs: int = 7, warm_up: int = 1
) -> Comparison:
    """Run both commands in turn and compare; a command that exits with an error is told by `CalledProcessError`."""
    for _ in range(warm_up):
        run_once(ours[1])
        run_once(peer[1])
    pairs = [(run_once(ours[1]), run_once(peer[1])) for _ in range(runs)]
    return Comparison(
        ours=_figure(ours[0], [a for a, _ in pairs]),
        peer=_figure(peer[0], [b for _, b in pairs]),
        ratio=statistics.median(a[0] / b[0] for a, b in pairs),
    )


# The peak that the kernel tells of a child starts at its parent's, across exec; so a small process stands between, and
# no figure is below its 8 MiB.
_BETWEEN = """
import os, subprocess, sys, time
start = time.perf_counter()
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, usage = os.wait4(child.pid, 0)
wall = time.perf_counter() - start
print(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status))
"""


@dataclass(frozen=True, kw_only=True, order=True)
class Run:
    """One run of a command: wall and processor time in seconds, peak memory in MiB."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def run_once(argv: Sequence[str], *, allowed: Sequence[int] = (0, 3, 4)) -> tuple[float, float]:
    """Run a command to its end; returns its wall time in seconds and its peak memory in MiB."""
    ran = measure(argv, allowed=allowed)
    return ran.wall_s, ran.peak_mib


def measure(argv: Sequence[str], *, allowed: Sequence[int] = (0, 3, 4)) -> Run:
    """Run a command to its end; processor time is what compares commands on a busy machine."""
    between = [sys.executable, "-I", "-S", "-c", _BETWEEN, *map(str, argv)]
    # An installed program has its bytecode at hand; compiling it anew each time would be measured instead.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ran = subprocess.run(between, capture_output=True, text=True, check=True, env=env)
    wall, cpu, peak, status = ran.stdout.split()
    if int(status) not in allowed:
        raise subprocess.CalledProcessError(int(status), list(argv))
    return Run(wall_s=float(wall), cpu_s=float(cpu), peak_mib=float(peak))


def _figure(name: str, runs: Sequence[tuple[float, float]]) -> Figure:
    walls = [wall for wall, _ in runs]
    return Figure(
        name=name,
        least_s=min(walls),
        median_s=statistics.median(walls),
        most_s=max(walls),
        peak_mib=max(memory for _, memory in runs),
    )
