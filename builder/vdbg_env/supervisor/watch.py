"""Watch a workload: for hangs, deaths, dumps that grow, memory kills, and what its server and workers do."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from vdbg_env.common.files import open_file
from vdbg_env.record.redactor import Redactor
from vdbg_env.supervisor.helpers import Helpers
from vdbg_env.supervisor.job import EndReason, Job
from vdbg_env.supervisor.proc import (
    Process,
    environment,
    executable,
    exit_status,
    is_resource_tracker,
    processor_s,
    send_to,
    send_to_group,
    terminal_of,
    title,
    uses_cuda,
)
from vdbg_env.supervisor.sockets import taken
from vdbg_env.supervisor.streams import CANCELS

# -- Hangs -------------------------------------------------------------------------------------------------------------
# A server that hangs is not silent: vLLM prints again and again that no shared memory block was found, and its
# throughput of zero. So output counts as long as it shows progress.

_LINE_SHOWN = 200  # bytes
_REMEMBERED = 64  # different lines that said that something waits
_QUIET_S = 5.0  # without progress, before processor time is counted; less where the limit is short
_MOST_LOOKED_AT = 4096  # bytes; who prints more at once makes progress
# Nothing was computed, whatever else the line counts; and a client that asks whether the server lives.
_IDLE = re.compile(
    rb"(?:throughput:? 0\.0+ tokens/s\D*){2}|throughput \(token/s\): 0\.0+|\"GET /(?:health|metrics|ping)\b"
)
_WAITS = re.compile(
    rb"(?i)\bwait|no available|\bstill\b|time[ds]? ?out|stuck|not respond|heartbeat|retry|retries|\bstall"
)
# What a workload in production says when work waits in vain; silence, or a heartbeat, may be a night without requests.
_IN_VAIN = re.compile(
    rb"(?i)no available shared memory broadcast block|not respond|\bstuck\b|no progress|watchdog.*time[ds]? ?out"
    rb"|throughput:? 0\.0+ tokens/s.*throughput:? 0\.0+ tokens/s.*Running: [1-9]"
)
_CLOCK = re.compile(rb"(?:\d{2,4}[-/]\d\d(?:[-/]\d\d)?[ T])?\d\d:\d\d:\d\d(?:[.,]\d+)?Z?|\x1b\[[0-9;]*m")


class Progress:
    """Tells output that shows progress from lines that only say, again, that something waits."""

    def __init__(self) -> None:
        self._seen: deque[bytes] = deque(maxlen=_REMEMBERED)

    def shown_by(self, data: bytes) -> bool:
        """Return whether one of the lines is new, or says anything but that it waits."""
        if len(data) > _MOST_LOOKED_AT:
            return True
        lines = [line for line in data.replace(b"\r", b"\n").splitlines() if line.strip()]
        new = [self._is_new(line) for line in lines]  # every line is remembered
        return any(new)

    def _is_new(self, line: bytes) -> bool:
        if _IDLE.search(line):
            return False
        if not _WAITS.search(line):
            return True
        line = _CLOCK.sub(b"", line)
        if line in self._seen:
            return False
        self._seen.append(line)
        return True


class ProcessorTime:
    """How much processor time each process has used since the last progress.

    One that spins and one that waits are alike otherwise. A first reading is taken when it has been quiet for a while,
    as each takes some ms.
    """

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._at = float("-inf")
        self._before: dict[tuple[int, int], float] = {}

    def look(self, now: float, last_progress: float, processes: Callable[[], Iterable[Process]]) -> None:
        """Take the first reading once there has been no progress for the quiet time."""
        if self._at < last_progress and now >= last_progress + self._quiet_s:
            self._at = now
            self._before = {(one.pid, one.start): processor_s(one.pid) for one in processes()}

    def used(self, now: float, one: Process) -> tuple[float, float] | None:
        """Return the seconds a process has used since the first reading, and how long ago that was."""
        before, span = self._before.get((one.pid, one.start)), now - self._at
        return None if before is None or span < 1 else (processor_s(one.pid) - before, span)


class HangWatch:
    """Says when the workload hangs: no progress, idle GPUs, or GPUs that stay at full load without progress."""

    def __init__(self, job: Job, now: Callable[[], float]) -> None:
        self._job = job
        self._now = now
        began = now()
        self.last_progress = began
        self._progress = Progress()
        self._waiting = b""  # the last line that only says that it waits
        self._in_vain = False  # one of them said that work waits
        self._gpu_busy = began
        self._gpu_free = began
        self._seen_gpu = False
        self._rest = b""
        limit = min((s for s in (job.output_idle_s, job.gpu_idle_s, job.gpu_pinned_s) if s is not None), default=0.0)
        self.processor_time = ProcessorTime(min(_QUIET_S, limit / 4))

    def output(self, data: bytes) -> None:
        """Take what was printed."""
        if self._progress.shown_by(data):
            self.progress()
        else:
            self._waiting = data.strip().rpartition(b"\n")[2]
            self._in_vain = self._in_vain or bool(_IN_VAIN.search(data))

    def progress(self) -> None:
        """Take note of progress that is known otherwise than by output."""
        self.last_progress, self._waiting, self._in_vain = self._now(), b"", False

    def gpu(self, data: bytes) -> None:
        """Take what the probe printed: one line per GPU, its last number the load in percent."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        loads = [float(x) for x in (line.split(b",")[-1].strip() for line in lines) if x.replace(b".", b"").isdigit()]
        if not loads:
            return
        now, self._seen_gpu = self._now(), True
        if max(loads) > 0:
            self._gpu_busy = now
        if max(loads) < 99:
            self._gpu_free = now

    def verdict(self, now: float) -> str | None:
        """Return one sentence when the workload hangs by now."""
        # Sums, as in `next_deadline`: a difference of times is rounded otherwise, and may be less than the limit then.
        idle, gpu_idle, pinned = self._job.output_idle_s, self._job.gpu_idle_s, self._job.gpu_pinned_s
        if idle is not None and not self._may_be_silent and now >= self.last_progress + idle:
            return f"no {self._missing} for {idle:g} s{self._last_line}"
        if self._seen_gpu and gpu_idle is not None and now >= self._gpu_busy + gpu_idle:
            return f"every GPU idle for {gpu_idle:g} s"
        # A GPU at full load is what inference looks like; only without any progress is it a spinning kernel.
        stuck_since = max(self._gpu_free, self.last_progress)
        if self._seen_gpu and pinned is not None and now >= stuck_since + pinned:
            return f"a GPU at 100 % and no {self._missing} for {pinned:g} s{self._last_line}"
        return None

    @property
    def _may_be_silent(self) -> bool:
        """Whether silence says nothing: a guarded server has no requests at night."""
        return bool(self._job.guard) and not self._in_vain

    @property
    def _missing(self) -> str:
        return "progress" if self._waiting else "output"

    @property
    def _last_line(self) -> str:
        return f"; it prints: {self._waiting[:_LINE_SHOWN].decode('utf-8', 'replace')}" if self._waiting else ""

    def next_deadline(self) -> float:
        """Return the time at which `verdict` should be asked again; from then on it has an answer."""
        job, limits = self._job, []
        if job.output_idle_s is not None and not self._may_be_silent:
            limits.append(self.last_progress + job.output_idle_s)
        if self._seen_gpu and job.gpu_idle_s is not None:
            limits.append(self._gpu_busy + job.gpu_idle_s)
        if self._seen_gpu and job.gpu_pinned_s is not None:
            limits.append(max(self._gpu_free, self.last_progress) + job.gpu_pinned_s)
        return min(limits, default=float("inf"))


# -- The time in which a step could run --------------------------------------------------------------------------------

_LATE_S: Final = 5.0  # a wait that took so much longer was no busy machine: we did not run


class AwakeClock:
    """A monotonic clock, in seconds, that stands still while this process is stopped.

    Slurm suspends a job by SIGSTOP to all of its tasks (scontrol suspend, gang scheduling, preemption); without this,
    each would be over its time limit, or silent for too long, as soon as it continues.
    """

    def __init__(self) -> None:
        self._lost_s = 0.0

    def now(self) -> float:
        """Return the time."""
        return time.monotonic() - self._lost_s

    def waited(self, since: float, planned_s: float) -> None:
        """Take note that a wait begun at `since` was to last `planned_s` at most, and is over."""
        late = self.now() - since - planned_s
        if late >= _LATE_S:
            self._lost_s += late

    def notes(self) -> list[str]:
        """Say for how long the step did not run, if it was noticed at all."""
        if not self._lost_s:
            return []
        return [f"it was stopped for {self._lost_s:.0f} s (by its scheduler, or SIGSTOP), which no time limit counts"]


# -- Which processes of the workload ended badly, in that order, and how -----------------------------------------------
# The parent of a process takes its exit status, and a program of several processes rarely prints it: vLLM often looks
# before it is there, and logs `exit code: None`. A pidfd is readable when its process has ended; the status is then in
# /proc until the parent has taken it, and from the kernel (6.15 and later) afterwards.

_WATCHED = 256  # descriptors
_KEPT = 16  # deaths: the first ones tell
_ORDERED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE})  # by another process's wish
_INFO = struct.Struct("=QQ11Ii")  # struct pidfd_info (linux/pidfd.h)
_INFO_EXIT = 1 << 3
_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11  # PIDFD_GET_INFO


class _Watched(NamedTuple):
    pid: int
    name: str
    parent: int


class Deaths:
    """Waits for the end of each process that it was shown; `wait_for` calls back when a descriptor is readable."""

    def __init__(
        self, root: int, now: Callable[[], float], wait_for: Callable[[int, Callable[[int], None] | None], None]
    ) -> None:
        self._root = root
        self._now = now
        self._wait_for = wait_for
        self._watched: dict[int, _Watched] = {}  # by descriptor
        self._descriptors: dict[tuple[int, int], int] = {}
        self._program = executable(root)
        self._over = False
        self.seen: list[dict[str, Any]] = []

    def look(self, processes: Iterable[Process]) -> None:
        """Wait for the end of each of these too, and take note of new names."""
        self._program = executable(self._root) or self._program  # a shell's script execs later
        for one in processes:
            if one.pid == self._root or self._over:
                continue
            name = title(one)
            descriptor = self._descriptors.get((one.pid, one.start))
            if descriptor is not None:
                self._watched[descriptor] = _Watched(one.pid, name, one.parent)
            elif len(self._watched) < _WATCHED and self._counts(one.pid):
                self._watch(one, name)

    def reaped(self, pid: int, status: int) -> None:
        """Take the end of a process that was our own child."""
        for descriptor, one in list(self._watched.items()):
            if one.pid == pid:
                self._take(descriptor, status)

    def stop(self) -> None:
        """Watch no longer: what ends from now on is ended by us."""
        self._over = True
        for descriptor in list(self._watched):
            self._forget(descriptor)

    def _counts(self, pid: int) -> bool:
        """Leave out a compiler, a shell, and what multiprocessing starts for itself."""
        return not is_resource_tracker(pid) and (executable(pid) == self._program or uses_cuda(pid))

    def _watch(self, one: Process, name: str) -> None:
        try:
            descriptor = os.pidfd_open(one.pid)
        except OSError:  # gone, or a kernel without it
            return
        self._watched[descriptor] = _Watched(one.pid, name, one.parent)
        self._descriptors[one.pid, one.start] = descriptor
        self._wait_for(descriptor, self._ended)

    def _ended(self, descriptor: int) -> None:
        one = self._watched.get(descriptor)
        if one:
            status = exit_status(one.pid)
            self._take(descriptor, _status_kept(descriptor) if status is None else status)

    def _take(self, descriptor: int, status: int | None) -> None:
        one = self._watched[descriptor]
        self._forget(descriptor)
        if not status or len(self.seen) >= _KEPT:
            return
        code = os.waitstatus_to_exitcode(status)
        if code < 0 and -code in _ORDERED:
            return
        self.seen.append(
            {
                "pid": one.pid,
                "name": one.name,
                "parent": one.parent,
                "code": code if code >= 0 else None,
                "signal": -code if code < 0 else None,
                "at_s": round(self._now(), 3),
            }
        )

    def _forget(self, descriptor: int) -> None:
        del self._watched[descriptor]
        self._descriptors = {key: kept for key, kept in self._descriptors.items() if kept != descriptor}
        self._wait_for(descriptor, None)
        os.close(descriptor)


def _status_kept(descriptor: int) -> int | None:
    """Return the wait status that the kernel keeps for a pidfd, None where it keeps none (before Linux 6.15)."""
    buffer = bytearray(_INFO.size)
    struct.pack_into("=Q", buffer, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, buffer)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(buffer)
    return int(status) if mask & _INFO_EXIT else None


# -- Dumps that are still being written --------------------------------------------------------------------------------

GROWTH = "growth"  # in a rank's folder: a byte is added whenever a dump elsewhere, on its node's own disk, has grown


class GrowingFiles:
    """Says whether a file that the step is to leave behind is still being written."""

    def __init__(self, directory: str, patterns: tuple[str, ...]) -> None:
        self._directory = directory
        self._patterns = patterns
        self._size = -1
        self._shown = 0
        self._changed = 0.0
        self.is_growing = False
        """What `growing` answered last."""

    def growing(self, now: float, *, quiet_s: float = 2.0) -> bool:
        """Whether any of them changed its size in the last `quiet_s` seconds."""
        self.is_growing = bool(self._patterns) and self._has_grown(now, quiet_s)
        return self.is_growing

    def _has_grown(self, now: float, quiet_s: float) -> bool:
        size = self._total()
        if size != self._size:
            grew = size > max(self._size, 0)
            self._size = size
            if grew:
                self._changed = now
        return size > 0 and now - self._changed < quiet_s

    def show(self, directory: str) -> None:
        """Add a byte to a file of `directory` if they have grown: another node does not see the files themselves."""
        size = self._total()
        if size > self._shown:
            with suppress(OSError):  # a full disk is no end
                file = open_file(f"{directory}/{GROWTH}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                with os.fdopen(file, "ab") as growth:
                    growth.write(b".")
        self._shown = size

    def _total(self) -> int:
        from glob import iglob  # not at start-up: most steps end without ever asking

        total = 0
        for pattern in self._patterns:
            for name in iglob(pattern, root_dir=self._directory, recursive=True):  # noqa: PTH207
                try:
                    total += os.stat(f"{self._directory}/{name}").st_size  # noqa: PTH116
                except OSError:
                    continue
        return total


# -- A workload in production: its signals reach it, and it does not outlive the one that guards it --------------------

# All that a program may be sent on purpose. SIGCHLD and SIGALRM are ours, a fault is of the process that has it, and
# SIGPIPE is what a write gives.
FORWARDED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH,
    signal.SIGCONT,
)  # fmt: skip
STOPS = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
_UNREAD = {-signal.SIGPIPE, 128 + signal.SIGPIPE, 1, 120}  # in a shell; Python's BrokenPipeError, and as it exits
_OF_TERMINALS = {signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH}  # Ctrl-C, Ctrl-\, another size
# By these many servers are told to read their settings again or to print their stacks, which is done by then.
_MAY_MEAN_OTHERWISE, _UNDERSTOOD_S = {signal.SIGHUP, signal.SIGQUIT}, 60.0


class Guard:
    """Passes signals on and watches for the death of `vdbg-env guard`; does nothing for any other step."""

    def __init__(self, job: Job) -> None:
        self._pid = job.guard
        self._pending: list[int] = []
        self._stopped_by: int | None = None
        self._stopped_at = 0.0
        self._had_terminal = terminal_of(self._pid) is not None
        self.numbers = FORWARDED if self._pid else CANCELS

    def __bool__(self) -> bool:
        return self._pid > 0

    def received(self, number: int) -> None:
        """Take note of a signal, from within its handler."""
        self._pending.append(number)

    def pass_on(self, root: int | None) -> bool:
        """Send what was received to the workload's first process; returns whether it was asked to end now.

        What a terminal sends goes to the first process's group. `root` is None once that has ended: its number may be
        another's.
        """
        stop = False
        while self._pending:
            number = self._pending.pop(0)
            if root is not None:
                (send_to_group if self._is_of_terminal(number) else send_to)(root, number)
            if number in STOPS:
                if self.stopped_by is None:
                    self._stopped_by, self._stopped_at = number, time.monotonic()
                stop = True
        return stop

    @property
    def stopped_by(self) -> int | None:
        """The signal from outside by which the workload ends, None where it lived on after a signal or got none."""
        reloads = self._stopped_by in _MAY_MEAN_OTHERWISE and time.monotonic() - self._stopped_at > _UNDERSTOOD_S
        return None if reloads else self._stopped_by

    def _is_of_terminal(self, number: int) -> bool:
        """Whether a signal is one that a terminal sends to each process in front, of which the guard is one.

        A shell waits for its child before it heeds an interrupt. Python does not tell a handler who sent a signal, so
        `kill -INT` counts as Ctrl-C while the guard is in front.
        """
        terminal = terminal_of(self._pid)
        if number == signal.SIGHUP:  # the processes of a terminal that hung up have no terminal
            return self._had_terminal and terminal is None
        return number in _OF_TERMINALS and terminal is not None and terminal.in_front

    def is_gone(self) -> bool:
        """Return whether the guard has died: this process then has another parent."""
        return self._pid > 0 and os.getppid() != self._pid

    def end_of(self, own: EndReason, status: int | None, *, unread: bool) -> EndReason:
        """Return how the workload ended, where that was by itself: after a signal from outside it was stopped.

        So it was where it writes to an output that is `unread`, whose reader has gone, and ends as programs do then.
        """
        number = self.stopped_by
        if number is None:
            ended = None if status is None else os.waitstatus_to_exitcode(status)
            return EndReason("stopped", "the reader of its output had gone") if unread and ended in _UNREAD else own
        return EndReason("stopped", f"{signal.Signals(number).name} was sent to it from outside")


GONE = EndReason("stopped", "vdbg-env guard was killed, and the workload does not run without it")


# -- OOM kills, by the kernel's own counters ---------------------------------------------------------------------------
# They can be read without any right, but they count, and name no process. The kernel's log names each; where it can be
# read and has this process's numbers, those of the workload are picked out.

_KILLED = "ut of memory: Killed process "  # `Out of` or `Memory cgroup out of` (mm/oom_kill.c, Linux 4.19 and later)
_INITIAL_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO (include/linux/proc_ns.h): the numbers that the kernel prints
_LARGEST_RECORD = 8192  # CONSOLE_EXT_LOG_MAX: a smaller buffer gives EINVAL


class MemoryKills:
    """The counters at the time when this was made; `root` is where /proc and /sys are."""

    def __init__(self, root: str = "") -> None:
        self._cgroup_file = next((f for f in _cgroup_files(root) if _count(f) is not None), "")
        self._machine_file = f"{root}/proc/vmstat"
        self._before = self._counts()
        self._log = _end_of_log(root)

    def since(self, pids: Collection[int]) -> dict[str, Any]:
        """Return how many were ended since then: in the cgroup of this process, and on the whole machine.

        `processes` are those among `pids` that the kernel's log names, each as `NAME (PID)`; left out where it cannot
        be read.
        """
        now = self._counts()
        kills = {name: now[name] - before for name, before in self._before.items() if now.get(name, before) > before}
        if not kills or self._log is None:
            return kills
        return {**kills, "processes": [f"{name} ({pid})" for pid, name in _killed(self._log) if pid in pids]}

    def _counts(self) -> dict[str, int]:
        counts = {"cgroup": _count(self._cgroup_file), "machine": _count(self._machine_file)}
        return {name: count for name, count in counts.items() if count is not None}


def _cgroup_files(root: str) -> Iterator[str]:
    """Yield where this process's cgroup may count (cgroups(7)): version 2, version 1, version 1 seen in a container."""
    for line in _content(f"{root}/proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            yield f"{root}/sys/fs/cgroup{path.rstrip('/')}/memory.events"
        elif "memory" in controllers.split(","):
            yield f"{root}/sys/fs/cgroup/memory{path.rstrip('/')}/memory.oom_control"
            yield f"{root}/sys/fs/cgroup/memory/memory.oom_control"


def _count(path: str) -> int | None:
    """Return the number after `oom_kill`, None where there is no such file or line (the kernel is older than 4.13)."""
    fields = (line.split() for line in _content(path).splitlines())
    return next((int(words[1]) for words in fields if len(words) == 2 and words[0] == "oom_kill"), None)


def _end_of_log(root: str) -> int | None:
    """Return the kernel's log, opened at its end; None where it cannot be read or counts processes otherwise."""
    try:
        if os.readlink(f"{root}/proc/self/ns/pid") != _INITIAL_PIDS:  # noqa: PTH115
            return None
        log = os.open(f"{root}/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(log, 0, os.SEEK_END)
    except OSError:
        return None
    return log


def _killed(log: int) -> Iterator[tuple[int, str]]:
    """Yield number and name of each process that the kernel says it killed, from where the log was opened."""
    while True:
        try:
            record = os.read(log, _LARGEST_RECORD)
        except OSError as error:
            if error.errno == errno.EPIPE:  # older records were overwritten: the next read gives the oldest left
                continue
            return
        if not record:
            return
        for line in record.decode("utf-8", "replace").splitlines():
            pid, _, rest = line.partition(_KILLED)[2].partition(" (")  # `4711 (VLLM::Worker) total-vm:...`
            if pid.isdecimal():
                yield int(pid), rest.partition(")")[0]


def _content(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123 - pathlib would cost the start
            return file.read()
    except OSError:
        return ""


# -- The driver of a server: how its requests went, did the server end by itself, when is it to be stopped -------------

# Exit statuses of request_driver, which is a separate program.
ALL_SENT, NEVER_READY, UNANSWERED, NOT_THE_STEPS = 0, 3, 4, 6


class DrivenServer:
    """The server of a step and the helper that sends it requests; `progress` is called for each that is answered.

    A server whose engine has died answers with errors, shuts itself down and may end with status 0 (vLLM 0.32.0). So
    after a request that failed it gets its grace to end by itself: its own end says more than ours.
    """

    def __init__(self, job: Job, helpers: Helpers, progress: Callable[[], None], now: Callable[[], float]) -> None:
        self._job = job
        self._helpers = helpers
        self._progress = progress
        self._now = now
        self._rest = b""
        self._complaint = b""
        self._counts: dict[str, Any] = {}
        self._verdict: EndReason | None = None
        self._due = 0.0

    def taken(self) -> str | None:
        """Return who listens already where this server is to listen; None for one in production, which may share."""
        return taken(self._job.listens) if self._job.listens and not self._job.guard else None

    def start(self) -> None:
        """Start the driver where there is one."""
        if self._job.driver:
            problem = self._helpers.start(self._job.driver, self._take, self._ended, float("inf"))
            if problem:
                self._verdict = EndReason("not_started", f"no request could be sent: {problem}")

    def verdict(self, now: float) -> EndReason | None:
        """Return why the step is to be ended by now."""
        return self._verdict if now >= self._due else None

    def own_end(self, status: int | None) -> EndReason:
        """Return how a workload ended that was not asked to: no end of a server by itself is a good one."""
        if status is None or not os.WIFEXITED(status):
            return EndReason("signal")
        # `vllm serve` returns 0 after every crash once it was ready.
        return EndReason("died", "before it was stopped") if self._job.server and status == 0 else EndReason("exit")

    @property
    def requests(self) -> dict[str, Any] | None:
        """How the requests went so far, None where none are to be sent."""
        left_out = {"message", "skipped_lines"}
        return {n: x for n, x in self._counts.items() if n not in left_out} if self._job.driver else None

    def notes(self) -> list[str]:
        """Return which lines of the recording could not be sent."""
        lines, count = self._counts.get("skipped_lines", ()), self._counts.get("skipped", 0)
        more = f" and {count - len(lines)} more" if count > len(lines) else ""
        return [f"{count} lines of the recording are skipped: {'; '.join(lines)}{more}"] if count else []

    @property
    def waits_for(self) -> str:
        """What the driver waits for, in words; empty where there is none."""
        if not self._job.driver:
            return ""
        counts = self._counts
        if not counts.get("ready"):
            return "the server to be ready"
        return f"answers: {counts['sent']} of {counts['recorded']} requests sent, {counts['answered']} answered"

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                counts = json.loads(line)
            except ValueError:
                self._complaint = line  # the last line of a traceback is the one that says what went wrong
                continue
            if counts["answered"] > self._counts.get("answered", 0):
                self._progress()
            self._counts = counts

    def _ended(self, code: int) -> None:
        said = self._counts.get("message") or self._complaint.decode("utf-8", "replace")
        if code == ALL_SENT:
            self._verdict = EndReason("stopped", said)
        elif code == NEVER_READY:
            self._verdict = EndReason("timeout", said)
        elif code == NOT_THE_STEPS and self._counts.get("sent"):
            self._verdict = EndReason("stopped", said)
        elif code == UNANSWERED:
            self._verdict = EndReason("watch", f"the server stopped answering: {said}")
        else:
            self._verdict = EndReason("not_started", f"no request could be sent: {said}")
        if self._counts.get("failed"):
            self._due = self._now() + self._job.grace_s


# -- What the worker processes really have in their environment --------------------------------------------------------

_WORKERS_KEPT = 512


class Worker(NamedTuple):
    """A process as it was last seen; `seen` is None when its environment was overwritten before it could be read."""

    name: str
    seen: dict[str, str | None] | None
    cuda: bool
    counts: bool
    image: tuple[int, ...]


class WorkerCensus:
    """Reads what each process of the tree really has of the variables the step changes.

    Launchers drop variables (Ray: whatever was exported after `ray start`), so asking is not enough. Workers are the
    processes that have the CUDA driver mapped; where none has, those that run the same program as the first.

    The last good reading since a process's exec is what counts: one that renames itself overwrites its environment. A
    fork that has not called exec was given what its parent was started with.
    """

    def __init__(self, overlay: dict[str, str | None], root: int) -> None:
        self._overlay = overlay
        self._root = root
        self._program = executable(root)
        self._seen: dict[tuple[int, int], Worker] = {}
        self._readings: dict[tuple[int, ...], dict[str, str | None]] = {}

    def look(self, processes: Iterable[Process]) -> None:
        """Read the environment of each process."""
        if not self._overlay:
            return
        self._program = (
            executable(self._root) or self._program
        )  # a script of the shell's that execs is Python only later
        for one in processes:
            key = (one.pid, one.start)
            before = self._seen.get(key)
            if before is None and not self._has_room():
                continue
            reading = environment(one.pid)
            if reading is None:
                continue
            if reading.variables is not None:
                had = {n: _decoded(reading.variables.get(os.fsencode(n))) for n in self._overlay}
                self._readings[reading.image] = had
            cuda = (before is not None and before.cuda) or uses_cuda(one.pid)
            counts = cuda or one.pid == self._root or executable(one.pid) == self._program
            seen = self._readings.get(reading.image)
            self._seen[key] = Worker(one.name, seen, cuda, counts, reading.image)

    def _has_room(self) -> bool:
        """Forget what is no worker when there is much of it (a compiler's processes); living ones are read again."""
        if len(self._seen) >= _WORKERS_KEPT:
            self._seen = {key: seen for key, seen in self._seen.items() if seen.counts}
            kept = {seen.image for seen in self._seen.values()}
            self._readings = {image: had for image, had in self._readings.items() if image in kept}
        return len(self._seen) < _WORKERS_KEPT

    def described(self, redactor: Redactor) -> list[dict[str, Any]]:
        """Return what is kept of each: a secret it has as asked is left out, since redacted it would look wrong."""
        return [
            {"pid": pid, "name": one.name, "seen": self._kept(one, redactor), "known": one.seen is not None}
            for pid, one in self.workers()
        ]

    def _kept(self, worker: Worker, redactor: Redactor) -> dict[str, str | None]:
        return {
            variable: value
            for variable, value in (worker.seen or {}).items()
            if value != self._overlay[variable] or redactor.env({variable: value})[variable] == value
        }

    def workers(self) -> list[tuple[int, Worker]]:
        """Return pid and worker, in the order they were first seen."""
        cuda = [(key[0], seen) for key, seen in self._seen.items() if seen.cuda]
        return cuda or [(key[0], seen) for key, seen in self._seen.items() if seen.counts]


def _decoded(value: bytes | None) -> str | None:
    return None if value is None else os.fsdecode(value)
