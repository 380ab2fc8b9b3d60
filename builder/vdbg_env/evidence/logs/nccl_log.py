"""Read NCCL's debug output (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS with COLL): warnings, transports, who is where.

Shapes: NCCL 2.18 to 2.28 as printed by `src/debug.cc`, `src/transport.cc` and `src/enqueue.cc`:
`host:pid:tid [device] NCCL LEVEL text`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from vdbg_env.evidence.finding import Finding, HowKnown, Level

_LINE = re.compile(
    r"(?P<host>[^\s:]+):(?P<pid>\d+):\d+ \[(?P<device>-?\d+)\] (?:\S+ )?NCCL (?P<level>\w+) (?P<text>.*)"
)
_VIA = re.compile(r" via (?P<transport>P2P|SHM|NET|COLLNET|NVLS|C2C)(?:/(?P<detail>\w+))?")
_RANKS = re.compile(r"\b(?:nranks|nRanks)(?:=| +)(?P<count>\d+)")
_COLLECTIVE = re.compile(r"(?P<name>[A-Z]\w+): opCount (?P<count>[0-9a-f]+) .*?comm (?P<comm>0x[0-9a-f]+)")
_MOST_WARNINGS = 20


@dataclass(frozen=True, kw_only=True)
class Collective:
    """The last collective one process has entered on one communicator; `count` is NCCL's running number."""

    process: str
    name: str
    count: int


@dataclass(frozen=True, kw_only=True)
class NcclLog:
    """NCCL's output of all processes: warnings once each, transports with how many channels use them."""

    warnings: tuple[str, ...] = ()
    transports: tuple[tuple[str, int], ...] = ()
    ranks: int = 0
    last: tuple[Collective, ...] = ()


def parse_nccl_log(lines: Iterable[str]) -> NcclLog:
    """Return the content of NCCL's lines; other lines are passed over."""
    warnings: dict[str, None] = {}
    transports: Counter[str] = Counter()
    last: dict[tuple[str, str], Collective] = {}
    ranks = 0
    for line in lines:
        match = _LINE.search(line)
        if not match:
            continue
        text, process = match["text"].strip(), f"{match['host']}:{match['pid']} [{match['device']}]"
        if match["level"] == "WARN" and len(warnings) < _MOST_WARNINGS:
            warnings[text] = None
        if via := _VIA.search(text):
            transports["/".join(part for part in via.groups() if part)] += 1
        if count := _RANKS.search(text):
            ranks = max(ranks, int(count["count"]))
        if entered := _COLLECTIVE.search(text):
            number = int(entered["count"], 16)
            last[process, entered["comm"]] = Collective(process=process, name=entered["name"], count=number)
    newest: dict[str, Collective] = {}
    for one in last.values():
        if one.process not in newest or newest[one.process].count < one.count:
            newest[one.process] = one
    return NcclLog(
        warnings=tuple(warnings), transports=tuple(transports.most_common()), ranks=ranks, last=tuple(newest.values())
    )


def nccl_findings(log: NcclLog) -> tuple[Finding, ...]:
    """Return the processes whose last collective is older than the others', or a different one."""
    if len(log.last) < 2:
        return ()
    front = max(one.count for one in log.last)
    names = Counter(one.name for one in log.last if one.count == front)
    behind = [one for one in log.last if one.count < front]
    if behind:
        places = ", ".join(f"{one.process} is at {one.name} number {one.count}" for one in behind[:4])
        message = f"not all ranks are at collective number {front} ({names.most_common(1)[0][0]}): {places}"
    elif len(names) > 1:
        message = f"ranks entered different collectives at number {front}: {', '.join(sorted(names))}"
    else:
        return ()
    return (
        Finding(
            rule="nccl-ranks-apart",
            level=Level.WARNING,
            message=message,
            how_known=HowKnown.LOG,
            confidence=0.7,
            next_step="look at what the ranks behind do: their stacks, and the warps of their GPU cores",
        ),
    )
