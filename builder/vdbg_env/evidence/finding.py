"""What was seen when a program ran, and what is wrong by it: observations and findings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpucore.dwarf import Chain, SourceFrame

# The classes of triage that name no cause: two runs of them have nothing in common.
NO_FAILURE = "not-a-gpu-failure"  # it went well, or failed for another reason
UNKNOWN = "unknown"  # the log shows no known failure


class Level(StrEnum):
    """SARIF's result levels (SARIF 2.1.0, section 3.27.10)."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class HowKnown(StrEnum):
    """What a finding is known from, the strongest source first."""

    GPU_CORE = "gpu-core"  # the faulting PC of a GPU core dump, looked up in its own line table
    SANITIZER = "sanitizer"  # compute-sanitizer's report
    DRIVER = "driver"  # the driver's core-dump progress lines
    KERNEL_LOG = "kernel-log"  # Xid lines
    STEP_CHANGE = "step-change"  # the behaviour changed when one thing was changed
    LOG = "log"  # text of the workload's own log
    HOST_CHECK = "host-check"  # a check of this machine


@dataclass(frozen=True)
class NextStep:
    """One thing to try next, and the command that does it when there is one.

    A step of a finding may be a command alone: it is for what the finding says.
    """

    text: str
    command: str | None = None

    @classmethod
    def read(cls, written: str) -> NextStep:
        """Read what runbooks and records write: `what it is for: vdbg-env ...`, a text alone or a command alone."""
        if written.startswith("vdbg-env "):
            return cls("", written)
        begins = [found.end() for found in _COMMAND_BEGINS.finditer(written)]
        if not begins or ": " in written[begins[-1] :]:
            return cls(written)
        first = begins[0]  # the name of a file in the command may have another
        return cls(written[: first - len(": ")], written[first:])

    def __str__(self) -> str:
        return ": ".join(part for part in (self.text, self.command) if part)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> Any:
        """Keep it in records as the text that it was before it had two parts."""
        from pydantic_core import core_schema  # only who reads or writes records

        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls.read(value),
            serialization=core_schema.to_string_ser_schema(),
        )


_COMMAND_BEGINS = re.compile(": (?=vdbg-env |VLLM_|CUDA_|unset |tail |less )")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding; `confidence` runs from 0 to 1, `chain` is leaf first, `step` and `artifact` say where to look.

    `process` is the one it is of, `rank` its own rank in the workload: 1 of vLLM's Worker_TP1, whichever rank of the
    step started it. `why` says in lines why the address of an access was bad, `address` the same for programs: as
    `faults[].address` of the schema vdbg-env/core/v1. `owner` is whose memory an address is of which nothing else is
    known: the schema vdbg-env/owner/v1 without its name. `around` are the blocks next to the first that faulted, as
    `faults[].around` of the former, and `waits` what the loop waits for that warps of a hang run in, as its
    `warps[].waits`; `why` then says that in lines.
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
    next_step: NextStep | None = None
    process: str | None = None
    rank: int | None = None
    why: tuple[str, ...] = ()
    address: Mapping[str, Any] | None = field(default=None, hash=False)
    owner: Mapping[str, Any] | None = field(default=None, hash=False)
    around: Mapping[str, Any] | None = field(default=None, hash=False)
    waits: Mapping[str, Any] | None = field(default=None, hash=False)


def around_lines(around: Mapping[str, Any]) -> Iterator[str]:
    """Yield the blocks around a fault in lines for people: a legend, then the rows."""
    (x, y), rows, grid = around["from"], around["rows"], around["grid"]
    last = x + len(rows[0]) - 1
    layer = f", z {around['first'][2]} of 0-{grid[2] - 1}" if grid[2] > 1 else ""
    whole = f" of 0-{grid[0] - 1}" if last - x + 1 < grid[0] else ""
    yield f"x {x}-{last}{whole}{layer}: X faulted, o resident, . not on the GPU"
    names = [f"y {number}  " if grid[1] > 1 else "" for number in range(y, y + len(rows))]
    width = max(map(len, names))
    yield from (f"{name:{width}}{row}" for name, row in zip(names, rows, strict=True))


# What was seen when a program ran: how it ended, what matched in its output, what it left behind.
#
# How a process *ended* and whether the bug *showed* are two axes that are never mixed: this module holds the first, the
# runbook's outcomes the second.


class EndedBy(StrEnum):
    """Who or what ended a process."""

    EXIT = "exit"  # it returned by itself
    SIGNAL = "signal"  # a signal that was not ours
    TIMEOUT = "timeout"  # our limit on its time
    WATCH = "watch"  # our watch on its output or GPU: a hang
    MATCH = "match"  # a matcher said that all is known
    STOPPED = "stopped"  # a server, by us after its requests; a guarded command, by another
    DIED = "died"  # a server that returned with status 0 before anyone stopped it
    CANCEL = "cancel"  # the user
    PEER = "peer"  # us, because another rank had failed
    DISK = "disk"  # the floor of free disk space
    NODE_LOST = "node_lost"  # its rank left no record
    ENGINE_LOST = "engine_lost"  # the engine died and its end was not seen
    NOT_STARTED = "not_started"  # the program could not be started at all


_OWN_SIGNALS = frozenset({4, 5, 6, 7, 8, 11, 31})  # ILL, TRAP, ABRT, BUS, FPE, SEGV, SYS
_POLITE = frozenset({2, 15})  # SIGINT, SIGTERM
_FROM_OUTSIDE = frozenset({9, 15})  # SIGKILL and SIGTERM, which a launcher sends to the ranks it tears down


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process ended; `code` is the exit status (0-255), `signal` a signal number, each None when it has none."""

    by: EndedBy
    code: int | None = None
    signal: int | None = None
    core: bool = False
    message: str | None = None

    @property
    def clean(self) -> bool:
        """Whether the process returned by itself with status 0, or ended as we asked it to when its work was done.

        A server that is stopped may well die of the polite signal (uvicorn raises it once more when it has shut down),
        or return the status that a shell gives for it; one that had to be killed was not in order.
        """
        if self.by is EndedBy.STOPPED:
            return self.code in {0, None, *(128 + number for number in _POLITE)} and self.signal in {None, *_POLITE}
        return self.by is EndedBy.EXIT and self.code in {0, None} and self.signal is None


@dataclass(frozen=True, kw_only=True)
class Match:
    """One match of a named pattern: 1-based line, byte offset in the stream, named groups, the line's text."""

    matcher: str
    stream: str
    line: int
    offset: int
    text: str
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A file a step left behind; `path` is relative to the run directory, `size` in bytes."""

    name: str
    path: str
    size: int
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerEnvironment:
    """What one process of the workload really had of the variables the step asked for.

    Where `known` is False, the process overwrote its environment before it could be read, and `seen` is empty.
    """

    pid: int
    name: str
    seen: Mapping[str, str | None]
    known: bool = True


@dataclass(frozen=True, kw_only=True)
class Death:
    """The bad end of one process of the workload: its exit status or signal, `at_s` seconds after the start.

    `parent` is the process that had started it, or had taken it over.
    """

    pid: int
    name: str
    parent: int = 0
    code: int | None = None
    signal: int | None = None
    at_s: float = 0.0

    @property
    def crashed(self) -> bool:
        """Whether a signal ended it that comes of what the process itself did."""
        return self.signal in _OWN_SIGNALS


@dataclass(frozen=True, kw_only=True)
class MemoryKills:
    """How many processes were OOM-killed during the attempt: in the step's cgroup, on its whole machine.

    `processes` are those of the workload by the kernel's log, as `NAME (PID)`; None where that could not be read.
    """

    cgroup: int = 0
    machine: int = 0
    processes: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Requests:
    """How the replay of recorded requests went: what was sent is answered, refused (4xx), failed, or had no end yet.

    `failed` got a 5xx, a stream that broke off, or no answer; `ready` says that the server had answered before.
    `skipped` lines of the recording were no requests.
    """

    recorded: int = 0
    ready: bool = False
    sent: int = 0
    answered: int = 0
    refused: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def told_something(self) -> bool:
        """Whether the server worked on any of them: one that got none, or refused all, showed nothing."""
        return self.sent > self.refused


@dataclass(frozen=True, kw_only=True)
class RankClock:
    """A rank's clock against that of the file server: so many seconds `ahead_s`, known to `within_s`."""

    ahead_s: float
    within_s: float


@dataclass(frozen=True, kw_only=True)
class RootCause:
    """The process that failed first, as torchrun says of those that it started.

    A negative `code` is a signal, whose name is `signal`.
    """

    rank: int
    local_rank: int
    host: str = ""
    pid: int
    code: int
    signal: str = ""
    error: str = ""

    @property
    def by_others(self) -> bool:
        """Whether it was ended from outside."""
        return -self.code in _FROM_OUTSIDE


@dataclass(frozen=True, kw_only=True)
class Observation:
    """All that was seen of one attempt of one step on one rank; a crash is an observation, never an exception."""

    step: str
    attempt: int
    rank: int = 0
    host: str = "localhost"
    ended: Ended
    duration_s: float
    started: float | None = None  # seconds since the epoch by the rank's own clock; unknown in records made before
    clock: RankClock | None = None  # None where all ranks have one clock
    matched: Mapping[str, tuple[Match, ...]] = field(default_factory=dict)
    artifacts: Mapping[str, tuple[Artifact, ...]] = field(default_factory=dict)
    workers: tuple[WorkerEnvironment, ...] = ()
    deaths: tuple[Death, ...] = ()  # in their order, before anything was ended by us
    output_bytes: int = 0
    memory_kills: MemoryKills = MemoryKills()
    requests: Requests | None = None  # None where none were to be sent
    node: Mapping[str, str] = field(default_factory=dict)  # what it found on its node; empty on this machine
    directory: str = ""
    stopped: tuple[str, ...] = ()  # processes that were stopped when a hang was seen, as `NAME (PID)`
    running: tuple[str, ...] = ()  # processes that ran then, and did not wait
    root_cause: RootCause | None = None  # torchrun's word on the process that failed first
    held_by: str = ""  # what held its processes in case the supervisor was killed; "" in records made before
    notes: tuple[str, ...] = ()

    @property
    def went_well(self) -> bool:
        """Whether it ended well, and answered every request that it had to answer."""
        return self.ended.clean and not (self.requests and self.requests.failed)
