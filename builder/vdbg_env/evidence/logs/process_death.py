"""Say which process of a workload died first, and how: of what its supervisor saw, and of what the log says of it.

A program of several processes ends with the error of one that lost its peer (vLLM's `RuntimeError: cancelled`). That
error is the same whether the peer was killed, aborted or exited, so it names no cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpucore.dwarf import Chain, SourceFrame
from vdbg_env.evidence.finding import Death, Finding, HowKnown, Level
from vdbg_env.evidence.logs.fatal_error import FatalError
from vdbg_env.evidence.logs.log_line import LogLine, rank_of_process
from vdbg_env.evidence.logs.python_traceback import Traceback

NEEDLES = (b"died unexpectedly", b"ore exited unexpectedly", b"Segfault encountered", b"Fatal Python error: ")
"""What the lines have in them that say how a process died."""

_OWN_SIGNALS = {4, 5, 6, 7, 8, 11, 31}  # ILL, TRAP, ABRT, BUS, FPE, SEGV, SYS: raised by what the process itself did
_DIED = re.compile(r"(?P<process>[\w:.-]+) died unexpectedly(?: \(exit code: (?P<code>-?\d+|None)\))?")
_ENGINE = re.compile(r"engine core exited unexpectedly|Engine core proc", re.IGNORECASE)
_FATAL = re.compile(r"Fatal Python error: (?P<error>[\w -]+)")
_SIGNALS = {  # as Python's fault handler words them (Modules/faulthandler.c)
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating-point exception": "SIGFPE",
    "Floating point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
_IN_WORDS = {
    "SIGSEGV": "a segmentation fault",
    "SIGABRT": "it aborted",
    "SIGKILL": "by the out-of-memory killer, a person or a system",
    "SIGBUS": "mostly /dev/shm that is too small, or a mapped file that was cut",
    "SIGILL": "an instruction this CPU does not have",
}
_NAMES = {  # signal(7), as on x86 and Arm
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    31: "SIGSYS",
}
_DEPTHS = {"Worker": 2, "EngineCore": 1}
_NUMBERED = re.compile(r"[-_ ]?(?:(?:DP|PP|TP|EP|CP)?\d+[-_]?)+$|_(?:DP|PP|TP|EP|CP)\d+.*$")


@dataclass(frozen=True, kw_only=True)
class ProcessDeath:
    """The process that died first: `how` is a signal's name or `exit status N`, None where nothing says it.

    `rank` is the worker's own, as its name has it; `stack` is that of its thread, the innermost frame first.
    """

    process: str
    pid: int | None = None
    rank: int | None = None
    how: str | None = None
    stack: Chain = ()

    @property
    def role(self) -> str:
        """What the process is, without its number: all workers are one program."""
        return role_of(self.process)

    @property
    def by_itself(self) -> bool:
        """Whether the program ended itself, by `exit` or `abort`: an error that it printed before says more."""
        return self.how == "SIGABRT" or (self.how or "").startswith("exit status")

    def __str__(self) -> str:
        which = f" (rank {self.rank})" if self.rank is not None else ""
        if self.how is None:
            return f"{self.process}{which} died first, and nothing says how"
        if not self.how.startswith("SIG"):
            return f"{self.process}{which} ended itself with {self.how}"
        words = f": {_IN_WORDS[self.how]}" if self.how in _IN_WORDS else ""
        return f"{self.process}{which} was ended by {self.how}{words}"


@dataclass(frozen=True, kw_only=True)
class SaidOfDeaths:
    """What the log says: the process that another one missed, its exit status, the signal that a handler met."""

    process: str = ""
    code: int | None = None
    signal: str | None = None
    line: int = 0


def read_deaths(lines: Iterable[LogLine]) -> SaidOfDeaths:
    """Return what the first such lines of a log say."""
    said = SaidOfDeaths()
    for number, line in enumerate(lines, 1):
        if found := _DIED.search(line.text):
            if not said.process:
                code = found["code"]
                known = int(code) if code and code != "None" else said.code
                said = replace(said, process=found["process"], code=known, line=number)
        elif _ENGINE.search(line.text) and not said.process:
            said = replace(said, process="EngineCore", line=number)
        elif "Segfault encountered" in line.text:
            said = replace(said, signal=said.signal or "SIGSEGV")
        elif (fatal := _FATAL.search(line.text)) and fatal["error"].strip() in _SIGNALS:
            said = replace(said, signal=said.signal or _SIGNALS[fatal["error"].strip()])
    return said


def process_death(
    first: Death | None,
    said: SaidOfDeaths,
    raised: Sequence[Traceback],
    *,
    label: LogLine | None = None,
    fatal: FatalError | None = None,
) -> ProcessDeath | None:
    """Return the death that all else followed from; None where an exception did, or nothing died.

    `first` is the first that the supervisor saw, `label` a line of that process's own, `raised` the exceptions that are
    no effect of another.
    """
    stack = tuple(fatal.frames) if fatal else ()
    if first is None:
        rank = rank_of_process(said.process)
        if not said.process or any(depth_of(one.process) > depth_of(said.process) for one in raised):
            return None
        if any(depth_of(one.process) == depth_of(said.process) and one.rank in {None, rank} for one in raised):
            return None
        how = _how(said.code) or said.signal
        return None if how == "SIGTERM" else ProcessDeath(process=said.process, rank=rank, how=how, stack=stack)
    name = (label.process if label else None) or first.name.removeprefix("VLLM::")
    if any(one.pid == first.pid or depth_of(one.process) > depth_of(name) for one in raised):
        return None
    own = first.signal in _OWN_SIGNALS
    if not own and raised and not said.process:
        return None  # it ended itself, or was ended, because of what was raised
    return ProcessDeath(
        process=name,
        pid=first.pid,
        rank=rank_of_process(name),
        how=_how(-first.signal if first.signal is not None else first.code),
        stack=stack if own else (),
    )


def death_findings(death: ProcessDeath, place: SourceFrame | None) -> tuple[Finding, ...]:
    """Return the finding of a death, at the frame of the project's own code where that is known.

    None where nothing says how it died: other readers have the words that say that it did.
    """
    if death.how is None:
        return ()
    found = Finding(
        rule="process-death",
        level=Level.ERROR,
        message=str(death),
        how_known=HowKnown.LOG,
        confidence=0.84,
        location=place,
        next_step=_next_step(death.how),
        process=death.process,
        rank=death.rank,
    )
    return (found,)


def _next_step(how: str) -> str:
    if not how.startswith("SIG"):
        return "the last lines of that worker; os._exit, and exit() in an extension or plug-in, print no traceback"
    if how == "SIGKILL":
        return (
            "the kernel log of the host; a higher memory limit, fewer ranks per node, a lower --cpu-offload-gb or "
            "--kv-offloading-size"
        )
    return "find where it died, down to its native stack: vdbg-env runbook host-crash -- COMMAND"


def role_of(process: str) -> str:
    """Return what a process is: `Worker` of `VLLM::Worker_TP1` and `VllmWorker-0`, `EngineCore` of `EngineCore_DP0`."""
    name = process.removeprefix("VLLM::")
    if "Worker" in name:
        return "Worker"
    return "EngineCore" if name.startswith("EngineCor") else _NUMBERED.sub("", name) or name


def depth_of(process: str | None) -> int:
    """Return how many processes of vLLM wait for this one: what one of them raises is an effect."""
    return _DEPTHS.get(role_of(process), 0) if process else 0


def _how(code: int | None) -> str | None:
    if code is None:
        return None
    if code >= 0:
        return f"exit status {code}"
    return _NAMES.get(-code, f"signal {-code}")
