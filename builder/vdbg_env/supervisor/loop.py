"""The supervisor's loop: start the workload, read its output, watch it, end its tree, write how it ended."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress

from vdbg_env.common.files import open_file
from vdbg_env.record.redactor import Pseudonyms, Redactor
from vdbg_env.supervisor import control_files
from vdbg_env.supervisor.carry_on import carry_on
from vdbg_env.supervisor.control_files import HEARD_S, Ending, give_back, heard, sound
from vdbg_env.supervisor.helpers import MARK, HangActions, Helpers
from vdbg_env.supervisor.job import FAILED, LEFT, UNWATCHED, EndReason, Job, Phase, from_json, settled
from vdbg_env.supervisor.launch import NotStarted, launch
from vdbg_env.supervisor.proc import Process, become_subreaper, descendants, is_resource_tracker, process, send
from vdbg_env.supervisor.process_tree import AttemptTree, PoliteEnd
from vdbg_env.supervisor.streams import Streams
from vdbg_env.supervisor.watch import (
    FORWARDED,
    GONE,
    AwakeClock,
    Deaths,
    DrivenServer,
    GrowingFiles,
    Guard,
    HangWatch,
    MemoryKills,
    WorkerCensus,
)

TICK_S = 0.05  # how often an ending tree is looked at
AFTER_MATCH_S = 1.0  # without further output: the traceback that follows the line that ends the step is kept
MATCH_LIMIT_S = 10.0  # for that output, all in all
AFTER_STOP_S = 2.0  # where a stop from outside has ended the first process, the others are told of it after so long
AFTER_HANG_S = 2.0  # a fired dump needs a moment before its file appears
TRACKER_S = 1.0  # Python's resource tracker ends by itself once the others are gone, and removes their shared memory
KILL_LIMIT_S = 10.0  # a process that outlives SIGKILL for so long waits in the kernel (a dead driver, a lost disk)
CENSUS_S = (0.0, 0.05, 0.25, 1.0, 2.0)  # when the workers' environments are read, then after a tenth of their time
CENSUS_MOST_S = 15.0  # each takes some ms: all of /proc, and what is mapped into each worker
WAITS = "waits.txt"  # in the folder of the step: what is waited for, for the display of the run
WAITS_FOR = {
    Phase.HANGING: "the stacks of its hang",
    Phase.SETTLING: "dumps that are being written",  # where there are any
    Phase.LINGERING: "what its first process left behind",
    Phase.TERMINATING: "its processes to end",
    Phase.KILLING: "its killed processes to be gone",
}
SIGHT_S = 0.25  # how often the cgroup is asked for new processes: a worker may rename itself soon after its start


class Supervisor:
    """One step from its start to its end."""

    def __init__(self, job: Job, lock: int) -> None:
        key = bytes.fromhex(job.pseudonym_key)
        self._redactor = Redactor(
            tuple(os.fsencode(literal) for literal in job.literals),
            Pseudonyms(key, tuple(job.pseudonym_hosts)) if key else None,
        )
        self._job = job
        self._lock = lock
        self._memory_kills = MemoryKills()
        self._ending = Ending(job.directory, self._redactor)
        self._clock = AwakeClock()
        now = self._clock.now
        self._helpers = Helpers(job, now)
        self._hang = HangActions(job, self._helpers, self._redactor)
        self._watch = HangWatch(job, now)
        self._growing = GrowingFiles(job.dumps or job.directory, job.growing)
        self._guard = Guard(job)
        self._streams = Streams(job, self._redactor, self._watch.output, self._must_end)
        self._server = DrivenServer(job, self._helpers, self._watch.progress, now)
        self._phase = Phase.RUNNING
        self._phase_until = 0.0
        self._timeout_at = float("inf")
        self._verdict: EndReason | None = None
        self._root = 0
        self._status: int | None = None
        self._childless = False
        self._cancels = 0
        self._matched_at: float | None = None
        self._decided_at: float | None = None
        self._polite = PoliteEnd(job.kill_signal)
        self._survivors: list[Process] = []
        self._heard_by = 0.0
        self._notes: list[str] = []
        self._waits_for = ""
        self._next_look = 0.0
        self._next_sight = 0.0
        self._next_beat = 0.0
        self._tree = AttemptTree(job.env.get(MARK, ""), job.directory, job.cgroups)

    def run(self) -> None:
        """Start the workload and stay until nothing of it is left."""
        if whose := self._server.taken():
            self.refuse(whose)
            return
        self._streams.take_signals(self._received, self._guard.numbers)
        control_files.say(self._lock, {"state": "armed", **self._tree.described()}, durably=True)
        job = self._job
        try:
            started = launch(job.argv, job.env, job.cwd, cgroup=self._tree.cgroup, stdin=job.stdin, starts=job.starts)
        except NotStarted as problem:
            self.refuse(str(problem))
            return
        self._root = started.pid
        self._streams.pipes = {"stdout": started.stdout, "stderr": started.stderr}
        if not started.in_cgroup:
            self._tree.not_entered()
        child = process(started.pid)
        control_files.say(self._lock, {"state": "running", "child": started.pid, "start": child.start if child else 0})
        self._streams.open()
        self._census = WorkerCensus(self._job.overlay, started.pid)
        self._began = self._clock.now()
        self._deaths = Deaths(started.pid, lambda: self._clock.now() - self._began, self._streams.watch)
        self._census_at = [self._began + s for s in CENSUS_S]
        self._timeout_at = self._clock.now() + (self._job.timeout_s or float("inf"))
        self._start_helpers()
        while not self._over():
            self._wait()
            self._reap()
            self._look()
            self._advance(self._clock.now())
        self._streams.drain()
        own = self._server.own_end(self._status)
        self.finish(self._verdict or self._guard.end_of(own, self._status, unread=self._streams.unread))

    @property
    def guards(self) -> bool:
        """Whether a guarded command was started, which no fault of this program is to end."""
        return bool(self._guard) and self._root > 0

    def go_on(self, why: str) -> None:
        """Carry the guarded command to its end after a fault, whose reason the record gets if there is to be one."""
        outputs = self._streams.rest()
        with suppress(Exception):  # whatever is wrong now, there is a command to look after
            self._helpers.end_all()
        self._status = carry_on(self._root, self._status, self._guard, outputs.values(), self._job.grace_s / 2)
        with suppress(Exception):
            _kill_everything()
        count = sum(one.passed for one in outputs.values())
        self._notes.append(f"{UNWATCHED}: {why}; it ran on, and its last {count} bytes of output are not recorded")
        with suppress(Exception):  # the guard gets the exit status all the same
            own = self._server.own_end(self._status)
            self.finish(self._guard.end_of(own, self._status, unread=self._streams.unread))

    def refuse(self, why: str) -> None:
        """Write that the workload was not started."""
        self._streams.open()
        self.finish(EndReason("not_started", why))

    # -- input -------------------------------------------------------------------------------------------------------

    def _received(self, number: int) -> None:
        if self._guard:
            self._guard.received(number)
        else:
            self._cancels += 1

    def _must_end(self) -> bool:
        """Return whether the step is to end now, and output is not worth a long search."""
        return self._cancels > 0 or self._clock.now() >= self._timeout_at

    def _start_helpers(self) -> None:
        job = self._job
        if job.gpu_probe and (job.gpu_idle_s is not None or job.gpu_pinned_s is not None):
            problem = self._helpers.start(job.gpu_probe, self._watch.gpu, lambda _: None, float("inf"))
            if problem:
                self._notes.append(f"the GPU is not watched: {problem}")
        self._server.start()

    def _wait(self) -> None:
        """Wait for output, a signal, or the next thing that is due."""
        now = self._clock.now()
        due = [now + (SIGHT_S if self._tree.cgroup else 1.0), *self._census_at[:1]]
        if self._phase is Phase.RUNNING:
            # No deadline counts once the end has begun: it is past, and would be waited for without a pause.
            due += [self._timeout_at, self._watch.next_deadline(), self._stop_at()]
            if self._helpers.running:
                due.append(now + 0.25)
        else:
            due.append(now + TICK_S)
        planned = max(0.0, min(due) - now)
        self._streams.wait(planned)
        self._clock.waited(now, planned)
        if self._streams.held:
            self._watch.progress()  # the reader of its output keeps it waiting
        if self._streams.stop_wanted and self._matched_at is None:
            self._matched_at = self._clock.now()
        if self._streams.decided_by and self._decided_at is None:
            self._decided_at = self._clock.now()
        self._helpers.read()

    def _stop_at(self) -> float:
        """Return when a step ends whose match is in: when its output has ended too, and that within a limit."""
        if self._matched_at is None:
            return float("inf")
        last = max(self._matched_at, self._watch.last_progress)
        return min(last + AFTER_MATCH_S, self._matched_at + MATCH_LIMIT_S)

    def _reap(self) -> None:
        """Take the status of every child that has ended; orphans of the tree are our children too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                return
            if pid == self._root:
                self._status = status
            elif not self._helpers.reaped(pid, status):
                self._deaths.reaped(pid, status)

    def _look(self) -> None:
        """Do what is due by the clock: the workers' environments, the free space, helpers that take too long."""
        now = self._clock.now()
        if self._census_at and now >= self._census_at[0]:
            self._census_at.pop(0)
            if not self._census_at:
                pause = max(CENSUS_S[-1], min(CENSUS_MOST_S, (now - self._began) / 10))
                self._census_at.append(now + pause)
            found = self._tree.note(self._processes())
            self._deaths.look(found)
            if self._status is None:
                self._census.look(found)
        if now >= self._next_sight:
            self._next_sight = now + SIGHT_S
            new = self._tree.new_members()
            self._deaths.look(new)
            self._census.look(new)
        if now >= self._next_look:
            self._next_look = now + 1.0
            if now >= self._next_beat:
                self._next_beat = now + control_files.BEAT_S
                self._cancels = max(self._cancels, control_files.beat(self._lock, self._job.stop))
                self._listen(now)
            self._helpers.end_overdue(now)
            self._say_what_is_waited_for()
            if self._job.hang_stacks and self._phase is Phase.RUNNING:
                self._watch.processor_time.look(now, self._watch.last_progress, self._processes)
            if self._job.dumps:
                self._growing.show(self._job.directory)
            free = min(map(_free, {self._job.directory, self._job.dumps or self._job.directory}))
            floor = self._job.disk_floor
            if self._guard:
                self._streams.record(free >= floor)
            elif self._verdict is None and free < floor:
                self._end(EndReason("disk", f"{free >> 20} MiB left on the disk, the floor is {floor >> 20} MiB"), now)

    def _say_what_is_waited_for(self) -> None:
        """Write it down when it has changed; that the workload itself is to end goes without saying."""
        text = WAITS_FOR.get(self._phase, self._server.waits_for)
        if self._phase is Phase.SETTLING and not self._growing.is_growing:
            text = ""
        if self._guard or text == self._waits_for:
            return
        self._waits_for = text
        with suppress(OSError), os.fdopen(open_file(WAITS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
            file.write(text)

    # -- what follows -----------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        if self._cancels and (self._verdict is None or self._verdict.by != "cancel") and self._status is None:
            self._end(EndReason("cancel", "its end was requested"), now)
        if self._cancels > 1 and self._phase is not Phase.KILLING:
            self._kill(now)
        if (
            self._guard
            and self._guard.pass_on(self._root if self._status is None else None)
            and self._phase is Phase.LINGERING
        ):
            self._terminate(now, self._job.grace_s)
        if self._guard.is_gone() and self._verdict is None:
            self._end(GONE, now)
        match self._phase:
            case Phase.RUNNING:
                self._judge(now)
            case Phase.HANGING:
                if self._hang.step() or self._status is not None:
                    pause = AFTER_HANG_S if self._job.hang_commands else 0.0
                    pause = max(pause, self._heard_by - now)
                    self._enter(Phase.SETTLING, now + self._job.dump_wait_s, at_least=pause)
            case Phase.SETTLING:
                if now >= self._at_least and (now >= self._phase_until or not self._growing.growing(now)):
                    self._terminate(now, self._job.grace_s)
            case Phase.LINGERING:
                # Of the time for a polite end, the first half passes without a signal: vLLM's front dies while its
                # engine still writes the core dump.
                patient = now < self._phase_until and self._growing.growing(now)
                if not patient and now >= self._at_least:
                    if left := [f"{p.name} ({p.pid})" for p in self._processes() if not is_resource_tracker(p.pid)]:
                        self._notes.append(f"{LEFT}: {', '.join(left[:4])}")
                    self._terminate(now, self._job.grace_s / 2)
            case Phase.TERMINATING:
                if now >= self._phase_until:
                    self._kill(now)
                else:
                    self._polite.step(self._processes(), now)
            case Phase.KILLING:
                self._survivors = descendants(os.getpid())
                if now < self._at_least:
                    send((one for one in self._survivors if not is_resource_tracker(one.pid)), signal.SIGKILL)
                else:
                    self._tree.kill()
                    send(self._survivors, signal.SIGKILL)

    def _judge(self, now: float) -> None:
        """Decide whether a running step has ended, or must be."""
        failure = None if self._guard else self._streams.failure
        hang, server = self._watch.verdict(now), self._server.verdict(now)
        if self._status is not None:
            self._helpers.end_all()
            left = self._job.grace_s / 2
            left = min(left, AFTER_STOP_S) if self._guard.stopped_by else left
            self._enter(Phase.LINGERING, now + self._job.dump_wait_s, at_least=left)
        elif failure:
            self._end(EndReason("disk", f"the output cannot be written: {failure.strerror}"), now)
        elif now >= self._timeout_at:
            self._end(EndReason("timeout", f"still running after {self._job.timeout_s:g} s"), now)
        elif now >= self._stop_at():
            self._end(EndReason("match", "a matcher said that all is known"), now)
        elif self._decided_at is not None and now >= self._decided_at + self._job.grace_s:
            self._end(EndReason("match", f"{self._streams.decided_by} had shown, and the server lived on"), now)
        elif server and server.by != "watch":
            self._end(server, now)
        elif stuck := server or (EndReason("watch", hang) if hang else None):
            if self._job.alarm:
                sound(self._job.alarm)
            self._hangs(stuck, now)

    def _listen(self, now: float) -> None:
        """Take the stacks here too when another rank hangs."""
        if self._job.alarm and self._phase is Phase.RUNNING and self._status is None and heard(self._job.alarm):
            self._hangs(EndReason("peer", "another rank hung"), now)

    def _hangs(self, why: EndReason, now: float) -> None:
        self._verdict = why
        self._heard_by = now + HEARD_S if self._job.alarm else now
        time = self._watch.processor_time
        self._hang.begin(why.message or "", self._root, self._processes(), lambda one: time.used(now, one))
        self._enter(Phase.HANGING, now)

    def _end(self, verdict: EndReason, now: float) -> None:
        """End the step for our own reason; unless the reason forbids it, wait for a growing dump."""
        self._verdict = verdict
        if verdict.by in {"cancel", "disk"}:
            self._terminate(now, self._job.grace_s)
        else:
            self._enter(Phase.SETTLING, now + self._job.dump_wait_s)

    def _terminate(self, now: float, grace: float) -> None:
        self._helpers.end_all()
        self._deaths.stop()
        self._polite.begin(self._root, now, grace)
        self._polite.step(self._processes(), now)
        self._enter(Phase.TERMINATING, now + grace)

    def _kill(self, now: float) -> None:
        tracked = any(is_resource_tracker(one.pid) for one in self._processes())
        self._enter(Phase.KILLING, now + KILL_LIMIT_S, at_least=TRACKER_S if tracked else 0.0)

    def _enter(self, phase: Phase, until: float, *, at_least: float = 0.0) -> None:
        self._phase = phase
        self._phase_until = until
        self._at_least = self._clock.now() + at_least

    def _processes(self) -> list[Process]:
        return descendants(os.getpid(), without=self._helpers.running)

    def _over(self) -> bool:
        stuck = self._phase is Phase.KILLING and self._clock.now() >= self._phase_until
        return self._childless or stuck

    # -- the end ----------------------------------------------------------------------------------------------------

    @property
    def exit_status(self) -> int:
        """The status to exit with: that of a guarded workload, whose guard passes it on whatever becomes of the record.

        For any other step 0, as its end is in its record.
        """
        if not self._guard:
            return 0
        code = 127 if self._status is None else os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def finish(self, verdict: EndReason) -> None:
        """Close the streams and write the end; a disk that fails only now is reported too."""
        self._streams.close()
        failure = self._streams.failure
        if failure and self._guard:
            self._notes.append(f"the output could not be written to its end: {failure.strerror}")
        elif failure and verdict.by not in {"disk", "cancel"}:
            verdict = EndReason("disk", f"the output cannot be written: {failure.strerror}")
        self._tree.close()
        if self._waits_for:
            with suppress(OSError):
                os.unlink(WAITS)  # noqa: PTH108
        give_back(self._job.directory)
        status = self._status
        census = getattr(self, "_census", None)
        document = {
            "by": verdict.by,
            "message": verdict.message,
            "code": os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
            "core": bool(status is not None and os.WIFSIGNALED(status) and os.WCOREDUMP(status)),
            **self._streams.summary(),
            "workers": census.described(self._redactor) if census else [],
            "deaths": self._deaths.seen if census else [],
            "requests": self._server.requests,
            "hang": self._hang.ran,
            "memory_kills": self._memory_kills.since(self._tree.pids),
            "held_by": self._tree.held_by,
            "survivors": [
                {"pid": p.pid, "name": p.name, "state": p.state} for p in self._survivors if not self._childless
            ],
            "notes": [*self._streams.notes, *self._clock.notes(), *self._server.notes(), *self._notes],
        }
        try:
            self._ending.write(document)
        except OSError:
            if not self._guard:  # whose record a workload may have removed: it gets the status all the same
                raise


def _free(directory: str) -> int:
    """Return the free bytes of a disk; where it does not say so, writes to it fail or do not, which says more."""
    try:
        space = os.statvfs(directory)
    except OSError:  # the workload removed the folder, or its server has another one now
        return sys.maxsize
    return space.f_bavail * space.f_frsize


# -- The process: from its start to its exit status --------------------------------------------------------------------

# How long a job may take to arrive. Less than an engine waits to know whether a step was started (`was_started`). Where
# dockerd is killed after it took the job and before it passed it on, a container's standard input never ends.
JOB_LIMIT_S = 20.0


def main() -> int:
    """Take the lock of the step's directory, then the job, and run it; returns the exit status.

    Standard input holds two lines of JSON: the directory, and the job. The workload is started only after the job
    arrived whole, and `ready` is said only after the lock is held: so an engine that finds no lock knows that nothing
    runs, and one that died while it sent the job has started nothing.
    """
    named, rest = read_line(0)
    if not named.endswith(b"\n"):
        return 1  # the engine went before it had a step for us
    os.chdir(json.loads(named))
    lock = control_files.take_lock(".")
    # A signal that arrives before its handler is set must wait: it would end us, or pass a container's first process.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    os.write(1, b"ready\n")
    job = from_json(read_line(0, rest, limit_s=JOB_LIMIT_S)[0])
    if job is None:
        return 1
    # The folder is this process's own from here on, wherever its name may lead when the workload has moved it.
    job = job._replace(directory=".")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    for descriptor in (*job.live, job.stdin, job.starts):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)
    return supervise(job, lock)


def read_line(descriptor: int, begun: bytes = b"", *, limit_s: float | None = None) -> tuple[bytes, bytes]:
    """Return the next line, and what was read past its end; without its end where the input ends or the time is up."""
    until = None if limit_s is None else time.monotonic() + limit_s
    while b"\n" not in begun:
        left = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([descriptor], [], [], left)[0]:
            return begun, b""
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return begun, b""
        begun += piece
    line, end, rest = begun.partition(b"\n")
    return line + end, rest


def supervise(job: Job, lock: int, *, refused: str = "") -> int:
    """Run a job in the current folder, whose lock is held, to its end; returns the exit status of a supervisor.

    Where it is `refused`, nothing is started, and the record says why.
    """
    become_subreaper()
    supervisor = Supervisor(settled(job, os.environ), lock)
    try:
        if refused:
            supervisor.refuse(refused)
        else:
            supervisor.run()
    except Exception as error:
        what = f"{type(error).__name__}: {error} ({_place(error)})"
        if supervisor.guards:
            supervisor.go_on(what)
            return supervisor.exit_status
        _kill_everything()
        supervisor.finish(EndReason("engine_lost", f"{FAILED}: {what}"))
        return 1
    return supervisor.exit_status


def _place(error: Exception) -> str:
    """Return where an error was raised; there may be no room now to import the module `traceback`."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}" if trace else ""


def _kill_everything() -> None:
    """Kill the whole tree until no child is left, for ten seconds at most."""
    until = time.monotonic() + KILL_LIMIT_S
    while time.monotonic() < until:
        send(descendants(os.getpid()), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)
