"""Say which process and which rank of a workload failed first, and how: by what was seen of it, and by its log.

A program of several processes ends with the error of one that lost its peer (vLLM's `RuntimeError: cancelled`). That
error is the same whether the peer was killed, aborted or exited, so it names no cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpucore.dwarf import Chain, SourceFrame
from vdbg_env.evidence.finding import Death, EndedBy, Finding, HowKnown, Level, NextStep, Observation, RootCause
from vdbg_env.evidence.log_line import LogLine, depth_of, rank_of_process, role_of, unwrap
from vdbg_env.evidence.python_text import FatalError, Traceback

DEATH_NEEDLES = (b"died unexpectedly", b"ore exited unexpectedly", b"Segfault encountered", b"Fatal Python error: ")
"""What the lines have in them that say how a process died."""

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
    own = first.crashed
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


def _next_step(how: str) -> NextStep:
    if not how.startswith("SIG"):
        return NextStep(
            "the last lines of that worker; os._exit, and exit() in an extension or plug-in, print no traceback"
        )
    if how == "SIGKILL":
        return NextStep(
            "the kernel log of the host; a higher memory limit, fewer ranks per node, a lower --cpu-offload-gb or "
            "--kv-offloading-size"
        )
    return NextStep("find where it died, down to its native stack", "vdbg-env runbook host-crash -- COMMAND")


def _how(code: int | None) -> str | None:
    if code is None:
        return None
    if code >= 0:
        return f"exit status {code}"
    return _NAMES.get(-code, f"signal {-code}")


# What a log says around the line that decided: its process and time, what was served and scheduled, the stacks.
#
# vLLM writes what its scheduler had planned when the engine dies; the sizes of that are read, prompts are not in it.


_SERVED = re.compile(rb'"POST /\S{1,200} HTTP/[\d.]{1,3}" (\d{3})\b')
_VLLM = re.compile(rb"LLM engine \(v([^)\s]{1,60})\)")
_NEW, _PROMPT = re.compile(rb"NewRequestData\("), re.compile(rb"prompt_token_ids_len=(\d+)")
_CACHED = re.compile(rb"CachedRequestData\(req_ids=\[([^\]]*)\]")
_TOTAL = re.compile(rb"total_num_scheduled_tokens=(\d+)")
_STATS = re.compile(rb"num_running_reqs=(\d+), num_waiting_reqs=(\d+)")
_CACHE = re.compile(rb"kv_cache_usage=([\d.]+)")
_NATIVE = re.compile(r"!{3,} ?Segfault encountered|\*{3} .{0,40}SIG[A-Z]+ .{0,200}\*{3}")
_NATIVE_FRAME = re.compile(r'\s*(?:File "|frame #\d+: |#\d+ |@ +0x|\d+: )')
_MOST_FRAMES = 40
LOAD_NEEDLES = (b"POST /", b"LLM engine (v", b"Dumping scheduler")
STACK_NEEDLES = (b"Segfault encountered", b"*** ")


@dataclass(frozen=True, kw_only=True)
class Load:
    """What was served until the end, and what the engine had planned for its last step."""

    answered: int = 0
    failed: int = 0
    vllm: str | None = None
    scheduled: str | None = None


def read_load(lines: Iterable[bytes]) -> Load:
    """Read the lines that hold one of LOAD_NEEDLES."""
    answered = failed = 0
    vllm = step = stats = None
    for line in lines:
        if served := _SERVED.search(line):
            answered += served[1] < b"400"
            failed += served[1] >= b"400"
        elif b"Dumping scheduler output" in line:
            step = _step(line)
        elif b"Dumping scheduler stats" in line:
            stats = _stats(line)
        if found := _VLLM.search(line):
            vllm = found[1].decode("ascii", "replace")
    return Load(
        answered=answered, failed=failed, vllm=vllm, scheduled=", ".join(filter(None, (step, stats))) or None
    )  # fmt: skip


def _step(line: bytes) -> str:
    prompts = [int(size) for size in _PROMPT.findall(line)]
    going = _CACHED.search(line)
    count = len([one for one in going[1].split(b",") if one.strip()]) if going else 0
    said = [_counted(len(_NEW.findall(line)), "new request")]
    said += [f"prompts of {', '.join(map(str, prompts[:8]))}{' ...' * (len(prompts) > 8)} tokens"] if prompts else []
    said += [_counted(count, "request") + " under way"]
    total = _TOTAL.search(line)
    return ", ".join([*said, *([f"{int(total[1])} tokens in this step"] if total else [])])


def _stats(line: bytes) -> str:
    said = []
    if found := _STATS.search(line):
        said.append(f"{int(found[1])} running and {int(found[2])} waiting")
    if (used := _CACHE.search(line)) and used[1].count(b".") < 2:
        said.append(f"KV cache {100 * float(used[1]):.1f} % full")
    return ", ".join(said)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def native_stack(lines: Iterable[str]) -> list[str]:
    """Return the first stack of native frames in lines, its head first; empty where none was printed."""
    found: list[str] = []
    for line in lines:
        text = unwrap(line).text
        if not found:
            found = [text.strip()] if _NATIVE.search(text) else []
        elif _NATIVE_FRAME.match(text) and len(found) <= _MOST_FRAMES:
            found.append(text.strip())
        elif len(found) > 1:
            return found
        else:
            found = []
    return found if len(found) > 1 else []


def traceback_of(decided: LogLine, found: Iterable[Traceback]) -> Traceback | None:
    """Return the traceback that ends with a line; None for a line that ends none."""
    for one in found:
        said = f"{one.error}: {one.message}" if one.message else one.error
        if said in decided.text or decided.text in said:
            return one
    return None


def seconds_between(first: LogLine, last: LogLine) -> float | None:
    """Return the seconds between two lines by their stamps, which have no year; None where one has none."""
    began, ended = (_time(line) for line in (first, last))
    if began is None or ended is None or not timedelta() <= ended - began:
        return None
    return (ended - began).total_seconds()


def _time(line: LogLine) -> datetime | None:
    try:
        return datetime.strptime(f"2000-{(line.stamp or '')[:14]}", "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None


# Read torchrun's own word on which of its processes failed first: the block `Root Cause (first observed failure)`.
#
# Its shape: `torch/distributed/elastic/multiprocessing/errors/__init__.py` of pytorch/pytorch, seen with PyTorch 2.13.
# With the decorator `@record` the block has the traceback of that process.


_BLOCK = re.compile(r"^Root Cause \(first observed failure\):\n\[\d+\]:\n(?P<fields>.*?)^=+$", re.MULTILINE | re.DOTALL)
_HOST = re.compile(r"^  host +: (\S+)$", re.MULTILINE)
_RANK = re.compile(r"^  rank +: (\d+) \(local_rank: (\d+)\)$", re.MULTILINE)
_END = re.compile(r"^  exitcode +: (-?\d+) \(pid: (\d+)\)(?: +\((\w+)\))?", re.MULTILINE)
_TRACEBACK = re.compile(r"^  traceback : Traceback .*?\n(?P<lines>.*)", re.MULTILINE | re.DOTALL)


def root_cause(text: str) -> RootCause | None:
    """Return what the last such block of a log says; None where there is none."""
    found = None
    for block in _BLOCK.finditer(text):
        fields = block["fields"]
        rank, end = _RANK.search(fields), _END.search(fields)
        if rank and end:
            host = _HOST.search(fields)
            found = RootCause(
                rank=int(rank[1]),
                local_rank=int(rank[2]),
                host=host[1] if host else "",
                pid=int(end[2]),
                code=int(end[1]),
                signal=end[3] or "",
                error=_error(fields),
            )
    return found


def _error(fields: str) -> str:
    """Return the last line of the traceback, which names the exception; empty without one."""
    traceback = _TRACEBACK.search(fields)
    lines = [line.strip() for line in traceback["lines"].splitlines() if line.strip()] if traceback else []
    return lines[-1] if lines else ""


# Which rank of an attempt failed first, and which were only its victims.
#
# A launcher's highest status is not the cause, and the rank that reports a timeout is often the victim of one that is
# silent. So what a rank says counts first, then when it ended on a common clock, and how it ended last. Where every
# rank that failed is a victim, none is called the first failure: what is known of the others is said in its place.


# The names of two patterns that are looked for in the output of every rank where an attempt has several.
CAUSE, VICTIM = "rank_cause", "rank_victim"

CAUSE_PATTERN = (
    r"CUDA error|CUDA_EXCEPTION|illegal memory access|device-side assert|unspecified launch failure|"
    # Of an abort Python's fault handler says the same, and NCCL's watchdog aborts every rank.
    r"OutOfMemoryError|out of memory|Segmentation fault|Segfault encountered|Fatal Python error: (?:[^A]|A[^b])|"
    r"std::bad_alloc|MemoryError"
)
# `Worker proc ... died unexpectedly` is said by the rank whose worker died: alone it makes no victim.
VICTIM_PATTERN = (
    r"[Ww]atchdog caught collective operation timeout|[Cc]onnection (?:was )?(?:closed|reset) by (?:remote )?peer|"
    r"EngineDeadError|Engine core proc \S+ died unexpectedly|ncclRemoteError|ncclSystemError|unhandled system error|"
    r"remote process exited or there was a network error|remote process exiting prematurely|"
    r"NCCL communicator was aborted|to avoid data inconsistency, we are taking the entire process down|"
    r"SignalException: Process \d+ got signal: 15|Broken pipe|failed to recv, got 0 bytes|recvValue failed|"
    r"pair closure|Timed out waiting \d+ ?ms for (?:recv|send) operation|DistStoreError"
)

_BY_OTHERS = {9, 15}  # SIGKILL and SIGTERM, which a launcher sends to the ranks it tears down
_UNSEEN = {EndedBy.NODE_LOST, EndedBy.ENGINE_LOST}
# We ended it for want of progress, time or space, or after its requests: what kept it from its work may be elsewhere.
_BY_US = {EndedBy.WATCH, EndedBy.TIMEOUT, EndedBy.DISK, EndedBy.STOPPED}
_BY_ITSELF = {EndedBy.EXIT, EndedBy.SIGNAL, EndedBy.DIED}  # vLLM's server returns 0 after a crash
FIRST = "first failure"
_OWN, _LOSS, _ENDED_BY_US, _VICTIM, _PEER = range(5)  # kinds of ends, the likeliest cause first
_NO_CAUSE = "no rank showed a cause of its own"
_NEXT = {
    "stopped": "find out who stopped it: a debugger, SIGSTOP, or a suspended container; kill -CONT PID continues it",
    "running": "look at what it does: its stacks are in hang.txt of its folder",
    "left early": "find out why it ended before the others: a caught exception, or fewer batches than the others have",
}
_OWN_INSTRUCTION = {4, 5, 7, 8, 11}  # SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV: raised by its own instruction


@dataclass(frozen=True, kw_only=True)
class RankSummary:
    """The ranks of one attempt; `failed` and `lost` have their numbers, `first` is the first failure."""

    count: int = 0
    failed: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    first: Observation | None = None


def summary(ranks: Sequence[Observation]) -> RankSummary:
    """Return what the ranks of one attempt add up to; those that we ended are no failures."""
    failed = [seen for seen in ranks if not seen.went_well and seen.ended.by is not EndedBy.PEER]
    return RankSummary(
        count=len(ranks),
        failed=tuple(sorted(seen.rank for seen in failed)),
        lost=tuple(sorted(seen.rank for seen in failed if seen.ended.by in _UNSEEN)),
        hosts=tuple(dict.fromkeys(seen.host for seen in sorted(ranks, key=lambda x: x.rank))),
        first=first_failure(ranks),
    )


@dataclass(frozen=True, kw_only=True)
class Blame:
    """Where the ranks of an attempt point: each of `ranks` has the `part`, and `words` say why.

    `ranks` is empty where no rank showed a cause, nor ended or behaved in another way than the rest. `sure` is the
    confidence that it is these ranks.
    """

    ranks: tuple[Observation, ...]
    part: str
    words: str
    sure: float = 0.0


def blame(ranks: Sequence[Observation]) -> Blame | None:
    """Return where the failure of an attempt's ranks began, as far as they show it; None where none failed."""
    first = first_failure(ranks)
    if first is None:
        return None
    kind, at = _kind(first), f"rank {first.rank} on {first.host}"
    count = sum(not seen.went_well for seen in ranks)
    of = f", of {count} that did not end well among {len(ranks)}"
    if kind == _OWN:
        return Blame(ranks=(first,), part=FIRST, words=f"{at} failed first{of}")
    if kind == _LOSS:
        return Blame(ranks=(first,), part=FIRST, words=f"{at} was lost before the others ended{of}", sure=0.9)
    reported = f"{at} reported the hang" if first.ended.by is EndedBy.WATCH else ""
    for part, named, sure in (("stopped", "stopped", 0.9), ("running", "running", 0.75)):
        found = tuple(seen for seen in ranks if getattr(seen, named))
        if found and len(found) < len(ranks):
            said = (f"rank {one.rank} on {one.host} was {part}: {_few(getattr(one, named))}" for one in found[:3])
            who = "; ".join(said)
            others = f"; {reported}, and waited" if reported and first not in found else "; the others waited"
            return Blame(ranks=found, part=part, words=f"{who}{_more(found)}{others}", sure=sure)
    if left := _left_before(ranks):
        who = "; ".join(f"rank {one.rank} ended with status 0 before" for one in left[:3])
        return Blame(ranks=left, part="left early", words=f"{who}{_more(left)}", sure=0.7)
    says = f"; {reported}" if reported else "; each says that it lost another, or was ended" if kind == _VICTIM else ""
    return Blame(ranks=(), part="", words=f"{_NO_CAUSE}{says}")


def rank_findings(observations: Sequence[Observation]) -> tuple[Finding, ...]:
    """Return the ranks that the last attempt points to, where none of them says what failed in it."""
    ranks = last_attempt(observations) if observations else []
    found = blame(ranks) if len(ranks) > 1 else None
    if found is None or not found.sure:
        return ()
    one = found.ranks[0]
    lost = one.ended.by in _UNSEEN
    return (
        Finding(
            rule="rank-lost" if lost else f"rank-{found.part.replace(' ', '-')}",
            level=Level.ERROR,
            message=found.words + (f": {one.ended.message}" if lost and one.ended.message else ""),
            how_known=HowKnown.HOST_CHECK,
            confidence=found.sure,
            next_step=NextStep(_NEXT.get(found.part) or f"find out what became of {one.host}, then run it again"),
        ),
    )


def torchrun_findings(observations: Sequence[Observation]) -> tuple[Finding, ...]:
    """Return which of torchrun's processes failed first: on the rank that did, where there are several."""
    first = first_failure(last_attempt(observations)) if observations else None
    cause = first.root_cause if first else None
    if cause is None or cause.by_others:
        return ()
    how = cause.signal or f"exit status {cause.code}"
    error = f": {cause.error}" if cause.error else ""
    return (
        Finding(
            rule="torchrun-root-cause",
            level=Level.ERROR,
            message=f"torchrun's rank {cause.rank} failed first (local rank {cause.local_rank} on {cause.host}, "
            f"process {cause.pid}) with {how}{error}",
            how_known=HowKnown.LOG,
            confidence=0.7,
            next_step=NextStep("for a file of each rank's output: torchrun --log-dir DIR --redirects 3 --tee 3"),
        ),
    )


def _left_before(ranks: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return the ranks that ended well before any that failed had ended: those then waited for them."""
    failed = [seen for seen in ranks if not seen.went_well and seen.ended.by is not EndedBy.CANCEL]
    if any(seen.started is None for seen in ranks):
        return ()
    earliest = min(failed, key=_ended_at)
    well = (seen for seen in ranks if seen.went_well)
    return tuple(seen for seen in well if _ended_at(earliest) - _ended_at(seen) > _blur(seen, earliest))


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _more(ranks: Sequence[Observation]) -> str:
    return f" and {len(ranks) - 3} more ranks" if len(ranks) > 3 else ""


def last_attempt(observations: Iterable[Observation]) -> list[Observation]:
    """Return the ranks of the last attempt, in their order."""
    seen = sorted(observations, key=lambda x: (x.attempt, x.rank))
    return [one for one in seen if one.attempt == seen[-1].attempt]


def first_failure(ranks: Iterable[Observation]) -> Observation | None:
    """Return the rank that failed first; None where each ended well, or was cancelled.

    A rank that says its own fault is before one that ended without a word of it, a lost node is after both, then what
    we ended as it hung or its time was up, then victims, and last what we ended for the sake of others. Ends that are
    closer than the clocks are known to are not ordered by time.
    """
    failed = [seen for seen in ranks if not seen.went_well and seen.ended.by is not EndedBy.CANCEL]
    if not failed:
        return None
    best = min(map(_kind, failed))
    alike = [seen for seen in failed if _kind(seen) == best]
    if any(seen.started is None for seen in alike):  # recordings made before the start was kept
        return min(alike, key=lambda seen: (seen.duration_s, _weight(seen), seen.rank))
    earliest = min(alike, key=_ended_at)
    close = [seen for seen in alike if _ended_at(seen) - _ended_at(earliest) <= _blur(seen, earliest)]
    return min(close, key=lambda seen: (_weight(seen), _ended_at(seen), seen.rank))


def is_victim(seen: Observation) -> bool:
    """Return whether a rank that failed was torn down by another's failure: by what it says, or by the signal."""
    ended = seen.ended
    if ended.signal in _OWN_INSTRUCTION or CAUSE in seen.matched or ended.by not in _BY_ITSELF:
        return False
    if seen.root_cause and -seen.root_cause.code in _OWN_INSTRUCTION:
        return False
    if seen.memory_kills.cgroup:
        return False
    if seen.root_cause and seen.root_cause.by_others:
        return True
    by_others = ended.signal in _BY_OTHERS or ended.code in {128 + number for number in _BY_OTHERS}
    return by_others or VICTIM in seen.matched


def _kind(seen: Observation) -> int:
    if seen.ended.by is EndedBy.PEER:
        return _PEER
    if is_victim(seen):
        return _VICTIM
    if seen.ended.by in _UNSEEN:
        return _LOSS
    return _ENDED_BY_US if seen.ended.by in _BY_US else _OWN


def _weight(seen: Observation) -> int:
    """Return how much the end alone says: a signal that its own instruction raised most, a plain status least."""
    if seen.ended.signal in _OWN_INSTRUCTION or seen.ended.core:
        return 0
    return 1 if CAUSE in seen.matched or seen.ended.by is not EndedBy.EXIT else 2


def _ended_at(seen: Observation) -> float:
    return (seen.started or 0.0) + seen.duration_s - (seen.clock.ahead_s if seen.clock else 0.0)


def _blur(one: Observation, other: Observation) -> float:
    """Return how far apart two ends must be to be ordered; clocks of one host are one clock."""
    if one.host == other.host:
        return 0.0
    return sum(seen.clock.within_s if seen.clock else 0.0 for seen in (one, other))
