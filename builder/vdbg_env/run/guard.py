"""How a guarded command ended: the exit status to pass on, and what is announced of a failure."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vdbg_env.common.errors import NotGuarded, VdbgError, quoted
from vdbg_env.common.stop import ToldToStop, stoppable
from vdbg_env.evidence.finding import Ended, EndedBy, Finding
from vdbg_env.record.run_directory import GUARD
from vdbg_env.report.assemble import flags_after_guard, typed_outside
from vdbg_env.report.model import Report
from vdbg_env.report.pages import write_report
from vdbg_env.run.begin import RunbookRequest
from vdbg_env.run.crash_groups import of_same_cause, recorded_crashes
from vdbg_env.run.guarded import Announcer, Guarded, Room, fitting, listed
from vdbg_env.run.late_lines import late_lines
from vdbg_env.run.session import FinishedRun, RunView, Session
from vdbg_env.runbook.model import Status
from vdbg_env.runbook.state import Verdict
from vdbg_env.runbook.workload import recognise
from vdbg_env.supervisor.job import LEFT, UNWATCHED

GUARDED = "guarded"  # the step of the runbook that runs the command
TERMINATION_MESSAGE_BYTES = 4096  # what Kubernetes keeps of /dev/termination-log
_ENDED_BY_US = 124  # as timeout(1): a hung command that returned 0 when it was asked to end
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_OUTPUT_LOST = 1  # as most programs end whose output cannot be written; the command itself was not told
_WELL = {Verdict.PASSED, Verdict.NOT_REPRODUCED}


def exit_status(ended: Ended) -> int:
    """Return the command's own exit status, as a shell gives it: 128 and the number for a signal."""
    if ended.by is EndedBy.NOT_STARTED:
        return _NOT_FOUND if "o such file or directory" in (ended.message or "") else _NOT_EXECUTABLE
    if ended.signal is not None:
        return 128 + ended.signal
    if ended.by is EndedBy.ENGINE_LOST:
        return 128 + 9  # its supervisor was killed, and it with it
    return ended.code or (_ENDED_BY_US if ended.by is EndedBy.WATCH else 0)


def crashed(ended: Ended, outcome: Status | None) -> bool:
    """Return whether it crashed or hung; `outcome` is what was judged, None where that was not reached.

    A command that was told to end from outside has not crashed, unless its log or a core shows that it has.
    """
    if ended.by is EndedBy.NOT_STARTED:
        return False
    if outcome is not None:
        return outcome not in {Status.PASS, Status.WARN}
    return ended.by is not EndedBy.STOPPED and not (ended.by is EndedBy.EXIT and ended.code == 0)


def outcome_of(report: Report) -> Status | None:
    """Return what the command's end was judged as; None where it was not."""
    return next((step.outcome for step in report.steps if step.id == GUARDED), None)


def ended_of(report: Report) -> Ended | None:
    """Return how the command ended; None where it never was started."""
    attempts = [attempt for step in report.steps if step.id == GUARDED for attempt in step.attempts]
    return attempts[-1].ended if attempts else None


def went_well(done: FinishedRun, status: int) -> bool:
    """Return whether there is nothing to explain; of a run that was cut short the command's `status` says so."""
    return done.report.verdict in _WELL or (done.resume is not None and status == 0)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """How often the folder of all runs has crashes of one cause, this one included, and on which hosts.

    `since` is when the first began, ISO 8601 in UTC; None where this is the first.
    """

    times: int
    hosts: tuple[str, ...] = ()
    since: str | None = None

    def __str__(self) -> str:
        times = "once" if self.times == 1 else f"{self.times} times"
        nodes = f" on {len(self.hosts)} node{'' if len(self.hosts) == 1 else 's'}" if self.hosts else ""
        return f"seen {times}{nodes}" + (f" since {self.since}" if self.since else "")


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """What is announced after a failure; `directory` is the run's folder.

    `seen` counts the crashes of this cause, None where the cause has no name.
    """

    report: Report
    directory: str
    files: tuple[str, ...]
    status: int
    ended: Ended
    seen: Seen | None = None

    @property
    def lead(self) -> Finding | None:
        """The finding that explains the failure."""
        return self.report.lead

    @property
    def report_file(self) -> str | None:
        """The path of the report to read."""
        return f"{self.directory}/report.md" if "report.md" in self.files else None

    @property
    def next_step(self) -> str | None:
        """What to do next: the fix, a runbook, or what the finding that explains the failure says; None without."""
        results = next((s.results for s in self.report.steps if s.id == GUARDED), {})
        if "fix" in results:
            return str(results["fix"])
        runbook = results.get("runbook")
        if runbook and self.report.verdict is not Verdict.HANG:
            flags = flags_after_guard(self.report.workload)
            return f"vdbg-env runbook {runbook}{flags} --from {quoted(self.directory)}"
        typed = typed_outside(self.report, self.directory)
        commands = (step.command or "" for step in typed.next_steps)
        if command := next((one for one in commands if one.startswith("vdbg-env runbook ")), None):
            return command
        return str(typed.lead.next_step) if typed.lead and typed.lead.next_step else None


# Do what `vdbg-env guard` was asked for: run the command once, explain its failure, return its exit status.
#
# The command comes first. Where no record can be made it runs without one, and nothing that fails here changes its
# exit status, but that 0 is no answer where its output was lost.


_EXAMPLE = ("vllm", "serve", "MODEL")
_RANK_DIR = "${{ rank.dir }}"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Guard:
    """One guarded command, and what its failure is explained with; `say` gets the line of JSON.

    `variables` are those of this process, with the folder of runs that its record goes to.
    """

    argv: tuple[str, ...]
    variables: Mapping[str, str]
    view: RunView
    command: Guarded
    say: Callable[[str], None]
    room: Callable[[], Room]

    def environment(self) -> Iterator[str]:
        """Yield, as lines, all that the command would find in its environment, and whether its cores have room."""
        flags, given = self.command.settings, self.variables
        size, words = fitting(flags.core_size, recognise(self.argv).ranks, self.room())
        argv = self.argv or _EXAMPLE
        run = RunbookRequest(runbook=GUARD, argv=argv, inputs={"core_size": size}, batch=True, at_once=True)
        planned = self._session(run).plan().steps[0].invocation
        variables = planned.env.items() if planned else ()
        armed = {name: value.replace(_RANK_DIR, "FOLDER") for name, value in variables if value is not None}
        yield from listed(armed, given)
        hooks = self.command.hooks(planned, given) if planned else {}
        own = {**hooks, **self.command.own_variables}
        yield from listed({name: value.replace(_RANK_DIR, "FOLDER") for name, value in own.items()}, {})
        yield "# FOLDER is steps/guarded/1/HOST-0 of the run's record."
        yield "# A variable that is set already stays as it is: NAME=VALUE vdbg-env guard -- COMMAND"
        yield "# Without any of it: the command without guard, or VDBG_GUARD=off where an image's entry point starts it"
        yield f"# {words or f'GPU cores: {size}, and there is room for them'}"

    def run(self) -> int:
        """Run the command to its end and return its exit status; `command` must be entered.

        Raises NotGuarded where the command has not been started. Once it has, no fault of this program ends it.
        """
        try:
            return self._run()
        except Exception as error:  # a command in production does not go down with its guard
            _LOG.info("the run of the guarded command failed", exc_info=True)
            what = str(error) or type(error).__name__
            if not self.command.started:
                raise NotGuarded(f"no record can be made: {what} (--runs)") from error
            status = self._status(self.command.wait(), None)
            self.say(f"vdbg-env guard: the end of the command could not be explained: {what}")
            return status

    def _run(self) -> int:
        command = self.command
        flags = command.settings
        size, words = fitting(flags.core_size, recognise(self.argv).ranks, self.room())
        if words and "CUDA_COREDUMP_GENERATION_FLAGS" not in self.variables:
            self.say(f"vdbg-env guard: {words}")
        inputs = {"core_size": size}
        run = RunbookRequest(runbook=GUARD, argv=self.argv, inputs=inputs, batch=True, at_once=True)
        done = self._session(run).run(self.view)
        ended = ended_of(done.report)
        if ended is None:  # told to stop before that was recorded
            if not command.started:
                return 1
            ended = command.wait()
        status = self._status(ended, outcome_of(done.report))
        for note in _notes(done, UNWATCHED):
            self.say(f"vdbg-env guard: {note}")
        if lost := command.lost():
            self.say(f"vdbg-env guard: output of the command is lost ({lost})")
            status = status or _OUTPUT_LOST
        if not went_well(done, status):
            if left_out := command.unrecorded():
                self.say(f"vdbg-env guard: not recorded, and so not read: {left_out} (--log-limit, --disk-floor)")
            try:
                self._explain(done, ended, status)
            except Exception as error:  # nor does its exit status change for what is wrong with what explains it
                _LOG.info("the failure could not be announced", exc_info=True)
                self.say(f"vdbg-env guard: the failure could not be announced: {error}")
        elif ended.by is EndedBy.EXIT:  # without a guard a service that the command started would live on
            for note in _notes(done, LEFT):
                self.say(f"vdbg-env guard: {note}")
        return status

    def _session(self, run: RunbookRequest) -> Session:
        return Session(run, lambda _: None, environment=self.variables, guarded=self.command)

    def _status(self, ended: Ended, outcome: Status | None) -> int:
        chosen = self.command.settings.exit_status_on_crash
        return chosen if chosen is not None and crashed(ended, outcome) else exit_status(ended)

    def _explain(self, done: FinishedRun, ended: Ended, status: int) -> None:
        """Count the failure among those of its cause, and announce it; what takes long ends where we must stop."""
        seen = None
        try:
            with stoppable():
                done, seen = _counted(done, self.variables)
        except ToldToStop:
            _LOG.info("told to stop before the crashes of this cause were counted")
        except Exception:  # the records of other runs are others'
            _LOG.info("the crashes of this cause could not be counted", exc_info=True)
        self._announce(
            Announcement(
                report=done.report,
                directory=str(done.directory),
                files=done.files,
                status=status,
                ended=ended,
                seen=seen,
            )
        )
        self._look_up(done)

    def _look_up(self, done: FinishedRun) -> None:
        """Look for source lines at addresses, which may take long: all is announced by now."""
        try:
            with stoppable():
                notes = late_lines(done.report, done.directory)
        except ToldToStop:
            return
        if notes:
            for note in notes:
                self.say(f"vdbg-env guard: {note}")
            write_report(replace(done.report, notes=(*notes, *done.report.notes)), done.directory)

    def _announce(self, announcement: Announcement) -> None:
        """Say it everywhere, the surest place first; what cannot be reached is named on stderr."""
        flags, announcer = self.command.settings, Announcer()
        problems = []
        if flags.termination_log:
            message = guard_line(announcement, TERMINATION_MESSAGE_BYTES)
            problems.append(announcer.write(flags.termination_log, message))
        line = guard_line(announcement)
        self.say(line)
        try:
            with stoppable():
                if flags.hook:
                    problems.append(announcer.run(flags.hook, line))
        except ToldToStop:
            if flags.hook:
                problems.append("told to stop: the hook was not waited for")
        for problem in problems:
            if problem:
                self.say(f"vdbg-env guard: {problem}")


def _notes(done: FinishedRun, begin: str) -> list[str]:
    """Return what was noted of the command with this beginning."""
    attempts = (one for step in done.report.steps for one in step.attempts)
    return [note for one in attempts for note in one.notes if note.startswith(begin)]


def _counted(done: FinishedRun, variables: Mapping[str, str]) -> tuple[FinishedRun, Seen | None]:
    """Count the crashes of this cause in the folder of all runs; from the second on the report says so too."""
    known = done.report.fingerprint
    if known is None:
        return done, None
    crashes, _ = recorded_crashes(variables)
    same = of_same_cause(crashes, cause=known.id, base=known.base)
    others = [crash for crash in same if crash.run != done.report.run]
    hosts = {crash.host for crash in others if crash.host} | {done.report.environment.get("host", "")} - {""}
    seen = Seen(times=len(others) + 1, hosts=tuple(sorted(hosts)), since=others[0].started if others else None)
    if not others:
        return done, seen
    report = replace(done.report, notes=(f"{seen} (fingerprint {known.id}): runs list --group", *done.report.notes))
    try:
        write_report(report, done.directory)
    except (OSError, VdbgError) as error:
        _LOG.info("the report could not be written again: %s", error)
    return replace(done, report=report), seen


# What guard announces of a failure, as one line of JSON: docs/schemas/guard-v1.schema.json is the contract.


_HOSTS = 8  # named in the line; `history` counts all
_TEXT = 600  # characters of one text: a message is one line to read
_SHORTENED = ("address", "owner", "next", "kernel", "location", "found", "ended")


def guard_line(said: Announcement, most: int | None = None) -> str:
    """Return one line; with `most`, its longest texts are left out until it has fewer bytes than that."""
    lead, seen, ended = said.lead, said.seen, said.ended
    document: dict[str, Any] = {
        "schema": "vdbg-env/guard/v1",
        "verdict": said.report.verdict,
        "status": said.status,
        "ended": ended and {"by": ended.by, "code": ended.code, "signal": ended.signal},
        "found": _cut(lead.message if lead else said.report.why),
        "kernel": _cut(lead.kernel if lead else None),
        "location": str(lead.location) if lead and lead.location else None,
        "process": lead and lead.process,
        "rank": lead and lead.rank,
        "fingerprint": said.report.fingerprint and said.report.fingerprint.id,
        "seen": seen and seen.times,
        "seen_on": seen.hosts[:_HOSTS] if seen else (),
        "history": str(seen) if seen else None,
        "run": said.report.run,
        "report": said.report_file,
        "next": _cut(said.next_step),
        "address": lead and lead.address,
        "owner": lead and lead.owner,
    }
    for name in _SHORTENED:
        line = json.dumps(document)  # ASCII: a byte is a character
        if most is None or len(line) < most:
            return line
        document[name] = None
    return json.dumps(document)


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _TEXT else f"{text[:_TEXT]}..."
