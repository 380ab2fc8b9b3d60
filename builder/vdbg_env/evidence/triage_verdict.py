"""Find the root among all that the logs of one run showed.

The earliest sighting is the first suspect. A class that may be an *effect* of another (NCCL's failure of an illegal
access on some rank) gives way to that other one, whichever line was first, because ranks write at different speeds.
Then the most precise line of that class is shown: the driver's or the kernel's own report before an exception, an
exception before one that only passes it on. Where no class is seen, the exception that ended the run is the root.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

from vdbg_env.common.console import counted
from vdbg_env.common.errors import quoted
from vdbg_env.evidence.finding import NO_FAILURE, UNKNOWN, HowKnown
from vdbg_env.evidence.log_line import LogLine, decode, depth_of, unwrap
from vdbg_env.evidence.triage_rules import OF_A_PEER, FailureClass, Remedy, RuleBook, rate
from vdbg_env.evidence.triage_scan import (
    CODE,
    MAX_CORES,
    MAX_TEXT,
    REQUEST,
    TELLING,
    TRACEBACK,
    Candidate,
    LogEvidence,
    Sighting,
    is_weak,
)

if TYPE_CHECKING:
    from gpucore.dwarf import LinesByName

_CALM = 40  # lines in order after an exception, from which on the program may have survived it
_WENT_ON = 0.4
_SAME_MOMENT = 100  # lines around one with a time that are of about that time
_NAMED = 8  # ranks or places in one note
_NO_EXCEPTION = 2  # precision of a line of level ERROR
_QUOTES = "Worker failed with error"  # what the process that waits for a worker prints of the worker's own exception
# What is the machine's or the network's own trouble, where it does not speak of a peer.
_TROUBLE, _PRECISE = frozenset({"peer-access", "nvshmem"}), 60
_GONE = re.compile(
    r"remote process exited|RemoteError|[Cc]onnection (?:reset|closed|refused)|[Tt]imed? ?out|[Bb]roken pipe|abort|"
    r"(?:by|from|remote) peer|status[= ](?:5|12)\b"
)
# vLLM raises KeyboardInterrupt("terminated") where it gets SIGTERM.
_SIGNAL = re.compile(r"\b(?:(SIGTERM|KeyboardInterrupt: terminated)|SIGINT|KeyboardInterrupt)\b")
_SKEW = 5  # seconds by which an effect may seem to come before its cause: clocks differ, and lines are written late
_BEGUN = "gpu-coredump-begun"
_NAMES_A_PROCESS = re.compile(r"\bpid[=: ]'?\d").search
_LATER = 60  # seconds after which an exception no longer explains that peers complain
_STAMP = re.compile(
    r"(?:(?:(\d{4})[-/])?(\d\d)[-/](\d\d)|([A-Z][a-z]{2}) ([ \d]\d))[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r"(Z|[+-]\d\d:?\d\d)?"
)
_YEAR = re.compile(r"^\d{4}[-/]")
_DAY, _HALF_A_YEAR = 86_400, 180 * 86_400  # hosts' clocks may be of different zones
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

SECOND_STAGE = "looks-like-an-error"  # the rule of a line that no rule knows
GENERIC = "generic error line"  # whose wording such a line is
SHOWN = 0.5  # less is a guess

_SEVERAL = 0.1  # less sure of the verdict where several processes each show a failure
Times = Mapping[tuple[str, int], float]  # by the file and number of a line
Places = frozenset[tuple[str, int]]  # lines whose time is only that of a line before

# Fitted on published logs, see docs/lab/triage-score.md: how often such an answer was right.
_WELL = 0.96
_WELL_BUT = 0.8
_UNKNOWN = 0.3


@dataclass(frozen=True, kw_only=True)
class Record:
    """How many of a rule's answers for published logs were right."""

    right: int
    answers: int


@dataclass(frozen=True, kw_only=True)
class RootCause:
    """The line that names the failure: its log, 1-based number and text, its rule and the source of that rule.

    A `record` without any answers means that the rule is unproven; the second stage has none.
    """

    file: str
    line: int
    text: str
    rule: str
    origin: str
    how_known: str
    record: Record | None = None


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Another class that was seen or is possible; `effect`: the root explains it."""

    failure: str
    confidence: float
    effect: bool = False
    file: str | None = None
    line: int | None = None
    text: str | None = None


@dataclass(frozen=True, kw_only=True)
class Triage:
    """The verdict on one run's logs; `confidence` is from 0 to 1, `rank` and `kernel` are None if no line has them.

    `process` is the one that failed. `title` says what happened where the class is too wide to, and `fix` what to type
    or to change, where the line leaves no doubt.

    `clue_form` is that of the line that the second stage chose, None where a rule knows the line. `stopped`: the line
    shown is that of an orderly end.
    `kernel_text` is the line that names the kernel; `lines` are those of the place that it gives, by line packs.
    """

    failure: FailureClass
    confidence: float
    root_cause: RootCause | None = None
    title: str | None = None
    fix: str | None = None
    rank: int | None = None
    process: str | None = None
    kernel: str | None = None
    kernel_text: str | None = None
    lines: tuple[LinesByName, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    notes: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    evidence: tuple[Sighting, ...] = ()
    logs: tuple[LogEvidence, ...] = ()
    clue_form: str | None = None
    stopped: bool = False

    @property
    def said(self) -> str:
        """What happened, in words; the class of a run without a failure of the GPU has two, of which one is meant."""
        well = "the run went well"
        title = self.title or self.failure.title
        if self.failure.name != NO_FAILURE or not title.startswith(f"{well}, or "):
            return title
        return title.removeprefix(f"{well}, or ") if self.root_cause else well

    @property
    def failed(self) -> bool | None:
        """Whether a line shows a failure, of the GPU or not; False where one shows that the run did its work.

        None where neither is shown: nothing is known, the line is only a guess, or it was ended before it worked.
        """
        if self.stopped:
            return None
        if self.root_cause and self.failure.name != UNKNOWN and self.confidence >= SHOWN:
            return True
        well = self.root_cause is None and self.failure.name == NO_FAILURE and any(log.worked for log in self.logs)
        return False if well else None


def judge(logs: Sequence[LogEvidence], book: RuleBook) -> Triage:
    """Weigh the evidence of all logs of one run; never raises, whatever the logs contain."""
    logs, past = _without_past(logs)
    found = _with_cores(_of_this_run(_judged(logs, book), book))
    return replace(found, notes=(*past, *found.notes))


def _without_past(logs: Sequence[LogEvidence]) -> tuple[Sequence[LogEvidence], tuple[str, ...]]:
    """Leave out lines of the kernel's log of days before the run's first time, and return a note on the last of them.

    That log goes back to the start of the machine. Years are not compared, as many programs write none.
    """
    times = [known[1] for log in logs if (known := _time_of(_YEAR.sub("", log.began or "")))]
    if not times:
        return logs, ()
    first = min(times)

    def is_past(one: Sighting) -> bool:
        known = _time_of(_YEAR.sub("", one.stamp or "")) if one.rule.how_known is HowKnown.KERNEL_LOG else None
        return known is not None and _DAY < first - known[1] < _HALF_A_YEAR

    past = [s for log in logs for s in (*log.sightings, *log.cascades) if is_past(s)]
    if not past:
        return logs, ()
    note = f"{past[-1].file}:{past[-1].line} is over a day older than the first time in the logs, and is left out"
    return [
        replace(
            log,
            sightings=tuple(s for s in log.sightings if s not in past),
            cascades=tuple(s for s in log.cascades if s not in past),
        )
        for log in logs
    ], (note,)


def _of_this_run(found: Triage, book: RuleBook) -> Triage:
    """Doubt a line of the kernel's log that names no process, where nothing else says that this run failed.

    That log is the whole machine's. A fault of the GPU itself concerns all its programs, and a log of the kernel alone
    was asked about.
    """
    root = found.root_cause
    if root is None or root.how_known != HowKnown.KERNEL_LOG.value or _NAMES_A_PROCESS(root.text):
        return found
    if any(one.id == root.rule and one.hardware for one in book.rules):
        return found
    others = any(
        s.rule.how_known is not HowKnown.KERNEL_LOG and not s.weak for log in found.logs for s in log.sightings
    )
    if others or _deaths(found.logs) or all(log.of_the_kernel for log in found.logs):
        return found
    doubt = "the line names no process, and nothing else says that this run failed: it may be another program's"
    return replace(found, confidence=min(found.confidence, _WENT_ON), notes=(doubt, *found.notes))


def _with_cores(found: Triage) -> Triage:
    """Name the command that reads the GPU cores which the logs say were written."""
    cores = list(dict.fromkeys(core for log in found.logs for core in log.cores))[:MAX_CORES]
    if not cores:
        return found
    read = f"vdbg-env core {' '.join(map(quoted, cores))}"
    return replace(found, fix=f"{read}; then {found.fix}" if found.fix else read)


def _judged(logs: Sequence[LogEvidence], book: RuleBook) -> Triage:
    """Weigh the evidence by its own lines alone."""
    classes = book.classes
    seen, times, placed = _in_order(logs)
    late = [s for s in seen if s.exiting and _is_late(s, classes)]
    seen = [s for s in seen if s not in late]
    thrown = [s for s in seen if s.rule.role == "exception" and not s.weak]
    if _deaths(logs):  # a request that failed is an effect
        thrown = [s for s in thrown if s.rule.precision != REQUEST] or thrown
    suspects = [s for s in seen if s.rule.role != "exception"]
    suspects = [s for s in suspects if not s.weak] or ([] if thrown else suspects)
    if _ended_in_order(suspects, thrown, logs):
        ended = None if late or thrown or suspects else _with_an_error_at_its_end(logs, book)
        return ended or _went_well(logs, [*late, *thrown, *suspects], classes)
    if suspects and all(s.weak for s in suspects) and not _deaths(logs):
        return _only_warned(suspects, logs, classes)
    suspects = [s for s in suspects if not _announced(s, suspects)]
    first = _deepest(suspects, classes) if suspects else None
    if first and first.failure == OF_A_PEER and (own := _own_exceptions(thrown, suspects, logs)):
        if cause := next((s for s in own if not _is_after(s, first, times, placed)), None):
            return _by_own_exception(cause, own, suspects, seen, logs, book)
    else:
        own = []
    if first is None or _explained(first, suspects, thrown, logs, classes):
        if any(s.rule.precision >= TELLING for s in thrown) or (thrown and not _died_of(logs)):
            return _by_exception(thrown, suspects, logs, book)
        return _without_suspect(logs, late, book)
    same = [s for s in suspects if s.failure == first.failure and s.rule.hardware == first.rule.hardware]
    ranks = list(dict.fromkeys(s.rank for s in same if s.rank is not None))
    timed = times is not None and not any((s.file, s.line) in placed for s in same)
    rivals = _originals(same)
    if timed and len(logs) > 1 and ranks:
        first_rank = next((s.rank for s in rivals if s.rank is not None), None)
        rivals = [s for s in rivals if s.rank in {first_rank, None}]
    root = max(rivals, key=lambda s: s.rule.precision)  # of equals, the first in order
    early: list[str] = []
    others = _others(suspects, classes[root.failure], classes)
    if times:
        others, early = _possible(others, root, suspects, times, placed)
    others = (*others, *(_exception_aside(s) for s in own[:1]))
    found = _verdict(root, same, others, seen, logs, book)
    own_fault = sorted({s.rank for s in same if s.rank is not None and s.rule.role == "root" and not s.weak})
    unclear = () if timed or len(ranks) < 2 else (_no_first(ranks),)
    confidence = found.confidence
    if timed and len(logs) > 1 and len(own_fault) > 1 and root.failure != OF_A_PEER:
        unclear = (_several(own_fault, root),)
        confidence = round(max(0.2, confidence - _SEVERAL), 2)
    aside = [
        f"{s.file}:{s.line} is an exception that ended its process, but clearly later by its time" for s in own[:1]
    ]
    return replace(found, confidence=confidence, notes=(*_silent(root, logs), *unclear, *early, *aside, *found.notes))


def _own_exceptions(
    thrown: Sequence[Sighting], suspects: Sequence[Sighting], logs: Sequence[LogEvidence]
) -> list[Sighting]:
    """Return the exceptions, one a log, that ended a process which had not complained of a peer before."""
    if len(logs) == 1 or any(_is_trouble(s) for s in suspects if s.failure == OF_A_PEER):
        return []
    found: list[Sighting] = []
    for log in logs:
        complaints = [s.line for s in suspects if s.file == log.file and s.failure == OF_A_PEER]
        own = [s for s in thrown if s.file == log.file and s.rule.precision >= TELLING and not s.exiting]
        own = [s for s in own if _is_fatal(s, log) and s.line < min(complaints, default=s.line + 1)]
        if own:
            deaths = [s for s in log.cascades if not s.exiting]
            found.append(_ending(own, deaths, log.writers))
    order = {id(s): place for place, s in enumerate(thrown)}
    return sorted(found, key=lambda s: order[id(s)])


def _is_trouble(sighting: Sighting) -> bool:
    """Return whether a line of a failed communication says more than that a peer is gone or did not answer."""
    telling = sighting.rule.precision >= _PRECISE or sighting.rule.id in _TROUBLE
    return telling and not _GONE.search(sighting.text)


def _is_fatal(thrown: Sighting, log: LogEvidence) -> bool:
    """Return whether a log ends with an exception, or says soon after it that the process died."""
    deaths = [s for s in log.cascades if not s.exiting]
    return log.lines - thrown.line < _CALM or any(_is_near(thrown, death, log.writers) for death in deaths)


def _by_own_exception(
    cause: Sighting,
    own: Sequence[Sighting],
    suspects: Sequence[Sighting],
    seen: Sequence[Sighting],
    logs: Sequence[LogEvidence],
    book: RuleBook,
) -> Triage:
    """Judge a run in which processes complain of a peer, and another one was ended by its own exception."""
    classes = book.classes
    found = _verdict(cause, [cause], _others(suspects, classes[cause.failure], classes), seen, logs, book)
    notes = ["the lines of other logs only say that a peer is gone or did not answer"]
    confidence = found.confidence
    if others := [f"{s.file}:{s.line}" for s in own if s is not cause]:
        notes.append(f"other processes ended by an exception of their own too: {_some(others)}")
        confidence = round(max(0.2, confidence - _SEVERAL), 2)
    return replace(found, confidence=confidence, notes=(*notes, *found.notes))


def _exception_aside(sighting: Sighting) -> Alternative:
    """Return an exception that ended a process, where the times speak against it."""
    return Alternative(
        failure=sighting.failure, confidence=0.3, file=sighting.file, line=sighting.line, text=sighting.text
    )


def _originals(same: Sequence[Sighting]) -> Sequence[Sighting]:
    """Return these lines without those that quote the exception of another process, where its own log has it."""
    original = [s for s in same if _QUOTES not in s.text]
    return original if any(s.rule.role == "root" for s in original) else same


def _several(ranks: Sequence[int], root: Sighting) -> str:
    """Return that several ranks each show a failure, of which one is named."""
    first = f"rank {root.rank}'s" if root.rank is not None else "the one named"
    named = _some(ranks)
    return f"ranks {named} each show this failure; by its time {first} is the first, but the clocks of hosts may differ"


def _possible(
    others: Sequence[Alternative], root: Sighting, suspects: Sequence[Sighting], times: Times, placed: Places
) -> tuple[tuple[Alternative, ...], list[str]]:
    """Return the other classes, none an effect earlier than its cause, and a note on each that would be one."""
    notes: list[str] = []
    left: list[Alternative] = []
    for other in others:
        line = next((s for s in suspects if (s.file, s.line) == (other.file, other.line)), None)
        if other.effect and line and line.file != root.file:
            seconds = times[root.file, root.line] - times[line.file, line.line]
            if seconds > _SKEW:
                named = f"{line.file}:{line.line} ({other.failure})"
                notes.append(
                    f"{named} has no time, and the line before it that has one is {seconds:.0f} s earlier than the "
                    "line above: it may be no effect of that"
                    if (line.file, line.line) in placed
                    else f"{named} is {seconds:.0f} s earlier by its time: unless the clocks of the hosts differ, it "
                    "is no effect of the line above"
                )
                other = replace(other, effect=False)
        left.append(other)
    return tuple(left), notes


def _is_after(one: Sighting, other: Sighting, times: Times | None, placed: Places) -> bool:
    """Return whether times that compare show that one line is too late to explain another."""
    if times is None or (other.file, other.line) in placed:
        return False
    at, before = times.get((one.file, one.line)), times.get((other.file, other.line))
    return at is not None and before is not None and at - before > _LATER


def _silent(root: Sighting, logs: Sequence[LogEvidence]) -> Iterator[str]:
    """Yield the few logs that say nothing while all others complain of a peer: who waits is not who failed."""
    read = [log for log in logs if log.lines]
    quiet = [log.file for log in read if not (log.sightings or log.cascades or log.shut_down)]
    if root.failure == OF_A_PEER and 0 < len(quiet) <= len(read) // 4:
        others = counted(len(read) - len(quiet), "other log complains", "other logs complain")
        yield f"{', '.join(quiet[:_NAMED])} shows no failure, and {others} of a peer: look there first"


def _no_first(ranks: Sequence[int]) -> str:
    """Return that which of several ranks failed first is not known."""
    named = _some(sorted(ranks))
    return f"ranks {named} show this failure, and their lines have no times that compare: any may have been the first"


def _some(named: Sequence[object]) -> str:
    """Return the first of these in one text, and that there are others."""
    return ", ".join(map(str, named[:_NAMED])) + (" and others" if len(named) > _NAMED else "")


def _verdict(
    root: Sighting,
    same: Sequence[Sighting],
    others: tuple[Alternative, ...],
    seen: Sequence[Sighting],
    logs: Sequence[LogEvidence],
    book: RuleBook,
) -> Triage:
    """Return the verdict that this line names the failure; `same` are all lines that name it, `seen` what was seen."""
    failure = book.classes[root.failure]
    named = next((s for s in (root, *same) if s.kernel), None)
    shown = _root_cause(root)
    if root.rule.role in {"exception", "cascade"} and (clue := _inner_cause(root, logs, book)):
        shown = clue.root_cause
    return Triage(
        failure=failure,
        confidence=_confidence(root, same, others, logs),
        root_cause=shown,
        rank=next((s.rank for s in (root, *same) if s.rank is not None), None),
        title=root.rule.title,
        fix=root.fix,
        process=_process(root, logs),
        kernel=named.kernel if named else None,
        kernel_text=named.kernel_text if named else None,
        alternatives=others + _asked(same, others, failure),
        notes=_notes(root, same, failure, logs),
        remedies=_remedies(failure, (root, *same), logs),
        evidence=tuple(seen[:50]),
        logs=tuple(logs),
    )


def _is_late(sighting: Sighting, classes: Mapping[str, FailureClass]) -> bool:
    said = sighting.rule.at_exit
    return classes[sighting.failure].at_exit if said is None else said


def _ended_in_order(suspects: Sequence[Sighting], thrown: Sequence[Sighting], logs: Sequence[LogEvidence]) -> bool:
    """Return whether a run that had done its work shows nothing but warnings, requests that failed, and exceptions
    during its shutdown.
    """
    worked = any(log.worked for log in logs)
    return (
        worked
        and not _deaths(logs)
        and all(s.weak for s in suspects)
        and all(s.exiting or s.rule.precision == REQUEST for s in thrown)
    )


def _only_warned(
    suspects: Sequence[Sighting], logs: Sequence[LogEvidence], classes: Mapping[str, FailureClass]
) -> Triage:
    """Judge a log of which all that is known is a warning, after which nothing says that the run failed."""
    first = suspects[0]
    return Triage(
        failure=classes[UNKNOWN],
        confidence=_UNKNOWN,
        root_cause=_root_cause(first),
        rank=first.rank,
        process=_process(first, logs),
        alternatives=(Alternative(failure=first.failure, confidence=_UNKNOWN, file=first.file, line=first.line),),
        notes=("the line is only a warning, and nothing after it says that the run failed",),
        evidence=tuple(suspects[:50]),
        logs=tuple(logs),
    )


def _explained(
    first: Sighting,
    suspects: Sequence[Sighting],
    thrown: Sequence[Sighting],
    logs: Sequence[LogEvidence],
    classes: Mapping[str, FailureClass],
) -> bool:
    """Return whether an ordinary exception explains the suspect: it was raised before, or it ended the stall."""
    telling = [s for s in thrown if s.rule.precision >= TELLING and not s.exiting]
    if NO_FAILURE not in classes[first.failure].follows or not telling:
        return False
    if all(s.rule.role == "stall" for s in suspects):
        return True
    earliest = next(s for s in suspects if s.rule.role != "stall")
    raised = _ending(telling, _deaths(logs), _writers(logs))
    return raised.file == earliest.file and raised.line < earliest.line


def _writers(logs: Sequence[LogEvidence]) -> int:
    """Return how many processes wrote at once: so many times as far apart are lines that belong together."""
    return max((log.writers for log in logs), default=1)


def _deaths(logs: Sequence[LogEvidence]) -> list[Sighting]:
    return [s for log in logs for s in log.cascades if not s.exiting]


def _ending(thrown: Sequence[Sighting], deaths: Sequence[Sighting], writers: int) -> Sighting:
    """Return the first exception of those around the first line that says that a process dies, else the first of all.

    Its traceback may be printed before that line or after it; an exception long before was handled. One of the process
    itself, or of one that it waits for, is before those of its peers.
    """
    for death in deaths[:1]:
        near = [s for s in thrown if s.file == death.file and _is_near(s, death, writers)]
        deeper = depth_of(death.process)
        own = (s for s in near if s.writer == death.writer or depth_of(s.process) > deeper)
        if near:
            return near[0] if death.writer is None else next(own, near[0])
    return thrown[0]


def _is_near(one: Sighting, death: Sighting, writers: int) -> bool:
    """Return whether a line may say why a process died: by its own lines, of another one by all lines."""
    if one.writer and one.writer == death.writer and death.since is not None:
        return one.line >= death.since
    return death.line - one.line <= TRACEBACK * writers


def _by_exception(
    thrown: Sequence[Sighting],
    suspects: Sequence[Sighting],
    logs: Sequence[LogEvidence],
    book: RuleBook,
) -> Triage:
    """Judge a run that ended for another reason than the GPU: the first of the most precise exceptions."""
    classes = book.classes
    most = max((not s.exiting, s.rule.precision) for s in thrown)
    best = [s for s in thrown if (not s.exiting, s.rule.precision) == most]
    if _went_on(thrown, logs):
        return replace(
            _verdict(thrown[-1], [thrown[-1]], (), thrown, logs, book),
            confidence=_WENT_ON,
            notes=("the log continues in order for long after the line, so the program may have survived it",),
        )
    root = thrown[-1] if most[1] <= _NO_EXCEPTION else _ending(best, _deaths(logs), _writers(logs))
    return _verdict(root, [root], _others(suspects, classes[root.failure], classes), thrown, logs, book)


def _went_on(thrown: Sequence[Sighting], logs: Sequence[LogEvidence]) -> bool:
    """Return whether a program continues in order long after each exception, and nothing says that a process died."""
    last = {log.file: log.lines for log in logs if log.calm == log.last}
    return not any(log.cascades for log in logs) and all(
        s.rule.role == "exception" and last.get(s.file, 0) - s.line >= _CALM for s in thrown
    )


def _in_order(logs: Sequence[LogEvidence]) -> tuple[list[Sighting], Times | None, Places]:
    """Return all sightings by time, and the times of their lines; log by log and None where their times do not compare.

    Stamps compare that are of one form, whether or not they have a fraction of a second, those with an offset from UTC
    as UTC. A line without any is of the moment of the nearest one in its log that has one. Where none is near, it is
    placed at the time of the last line before it that has one: it may be later.
    """
    seen = [s for log in logs for s in log.sightings]
    if len(logs) == 1:
        return seen, {}, frozenset()
    stamps = [stamp for log in logs for stamp in _stamps(log.sightings)]
    known = [time for stamp, one in zip(stamps, seen, strict=True) if (time := _time_of(stamp or one.not_before or ""))]
    if len(known) < len(stamps) or len({form for form, _ in known}) != 1:
        return seen, None, frozenset()
    times = {(s.file, s.line): seconds for s, (_, seconds) in zip(seen, known, strict=True)}
    placed = frozenset((s.file, s.line) for stamp, s in zip(stamps, seen, strict=True) if not stamp)
    return sorted(seen, key=lambda s: times[s.file, s.line]), times, placed


def _time_of(stamp: str) -> tuple[tuple[bool, bool], float] | None:
    """Return the time of a stamp in seconds, and of which form it is: whether it names its year, and its offset."""
    if not (found := _STAMP.match(stamp)):
        return None
    year, month, day, name, day_of_name, hour, minute, second, fraction, offset = found.groups()
    if name:
        month, day = str(_MONTHS.index(name) + 1 if name in _MONTHS else 0), day_of_name
    zone: timezone = UTC
    if offset and offset != "Z":
        shift = timedelta(hours=int(offset[1:3]), minutes=int(offset[-2:]))
        zone = timezone(-shift if offset[0] == "-" else shift) if shift < timedelta(days=1) else zone
    try:  # 2000 is a leap year: no year is written
        when = datetime(int(year or 2000), int(month), int(day), int(hour), int(minute), int(second), tzinfo=zone)
        return (bool(year), bool(offset)), when.timestamp() + float(f"0.{fraction or 0}")
    except (ValueError, OverflowError):
        return None


def _stamps(sightings: Sequence[Sighting]) -> Iterator[str]:
    """Yield the stamp of each line of a log, or that of the nearest line that has one; empty where none is near."""
    stamped = [s for s in sightings if s.stamp]
    for one in sightings:
        nearest = min(stamped, key=lambda s: abs(s.line - one.line), default=None)
        yield (nearest.stamp or "") if nearest and abs(nearest.line - one.line) <= _SAME_MOMENT else ""


def _announced(one: Sighting, suspects: Sequence[Sighting]) -> bool:
    """Whether a line says only that the driver begins to report an exception, and it has named another one since."""
    return one.rule.id == _BEGUN and any(
        s.failure == one.rule.alternative and s.rule.how_known is HowKnown.DRIVER and s.file == one.file
        for s in suspects
    )


def _deepest(suspects: Sequence[Sighting], classes: Mapping[str, FailureClass]) -> Sighting:
    """Return the hardware's own fault, else start at the earliest suspect and follow what it may be an effect of."""
    broken = next((s for s in suspects if s.rule.hardware), None)
    if broken:
        return broken
    current = suspects[0]
    passed = {current.failure}
    while True:
        follows = classes[current.failure].follows
        deeper = next((s for s in suspects if s.failure in follows and s.failure not in passed), None)
        if deeper is None:
            return current
        current = deeper
        passed.add(current.failure)


def _others(
    suspects: Sequence[Sighting], root: FailureClass, classes: Mapping[str, FailureClass]
) -> tuple[Alternative, ...]:
    others: dict[str, Alternative] = {}
    for sighting in suspects:
        if sighting.failure == root.name or sighting.failure in others:
            continue
        effect = root.name in classes[sighting.failure].follows
        others[sighting.failure] = Alternative(
            failure=sighting.failure,
            confidence=round(sighting.rule.trust * (0.2 if effect else 0.5), 2),
            effect=effect,
            file=sighting.file,
            line=sighting.line,
            text=sighting.text,
        )
    return tuple(sorted(others.values(), key=lambda a: -a.confidence))


def _asked(same: Sequence[Sighting], others: Sequence[Alternative], root: FailureClass) -> tuple[Alternative, ...]:
    """Return what the rules themselves name as another reading of their line."""
    named = {s.rule.alternative for s in same if s.rule.alternative} - {root.name} - {a.failure for a in others}
    return tuple(Alternative(failure=name, confidence=0.3) for name in sorted(named))


def _confidence(
    root: Sighting, same: Sequence[Sighting], others: Sequence[Alternative], logs: Sequence[LogEvidence]
) -> float:
    value = root.rule.trust * (0.6 if root.weak else 1.0)
    agrees = len({s.rule.id for s in same}) > 1 or any(log.cascades for log in logs)
    if agrees and root.rule.answers:  # an unproven rule says no more than the prior of its role
        value += 0.02
    value -= 0.1 * sum(not other.effect for other in others)
    return round(min(0.99, max(0.2, value)), 2)


def _root_cause(root: Sighting) -> RootCause:
    return RootCause(
        file=root.file,
        line=root.line,
        text=root.text,
        rule=root.rule.id,
        origin=root.rule.origin,
        how_known=root.rule.how_known.value,
        record=Record(right=root.rule.right, answers=root.rule.answers),
    )


def _process(root: Sighting, logs: Sequence[LogEvidence]) -> str | None:
    """Return the process that failed; a line that a dying process writes may not name it, others report its death."""
    named = root.died or root.process
    if named or root.failure != "host-crash":
        return named
    return next((s.died for log in logs for s in (*log.sightings, *log.cascades) if s.died), None)


def _notes(
    root: Sighting, same: Sequence[Sighting], failure: FailureClass, logs: Sequence[LogEvidence]
) -> tuple[str, ...]:
    notes = [s.rule.note for s in (root, *same) if s.rule.note]
    if root.rule.role == "messenger" and (root.failure == OF_A_PEER or not any(s.rule.role == "root" for s in same)):
        notes.append("only a line that passes the error on was found; the log of the process that failed has more")
    if any(log.victims for log in logs):
        notes.append("processes that ended with -15 were ended by their parent: they are victims, not the cause")
    if root.weak:
        notes.append("the line is only a warning")
    if not root.fix:
        notes.append(f"what would settle it: {failure.settle}")
    return tuple(dict.fromkeys(notes))


def _remedies(failure: FailureClass, seen: Iterable[Sighting], logs: Sequence[LogEvidence]) -> tuple[Remedy, ...]:
    """Return what may be done about these lines in the release that the logs name, else about their class."""
    release = next((log.release for log in logs if log.release), None)
    seen = tuple(seen)
    of_lines = [r for one in seen for r in one.rule.remedies if r.fits(release)]
    of_class = [r for r in failure.remedies if r.fits(release)] if not any(one.fix for one in seen) else []
    return tuple(dict.fromkeys(of_lines or of_class))


def _without_suspect(logs: Sequence[LogEvidence], late: Sequence[Sighting], book: RuleBook) -> Triage:
    """Judge logs in which no line names a failure: a clean end, a death without a word, or nothing known at all."""
    classes = book.classes
    cascades = [s for log in logs for s in log.cascades]
    named = _died_of(logs)
    if named and not late:
        return _verdict(named[0], named, (), named, logs, book)
    died = [s for s in cascades if not s.exiting]
    if late or (not died and any(log.worked or log.shut_down for log in logs)):
        return _went_well(logs, late, classes)
    return _by_clue(logs, died, book)


def _by_clue(logs: Sequence[LogEvidence], died: Sequence[Sighting], book: RuleBook) -> Triage:
    """Judge logs in which no rule knows a line, by the line that most likely says what went wrong."""
    clue = best_clue(logs, book)
    if clue and any(clue.root_cause.text.strip() in one.text for one in died):
        clue = None  # the same words on another line: that an engine died, not why
    nothing = _UNKNOWN if any(log.lines for log in logs) else 0.0
    name, confidence, form = named_by(clue, book) if clue else (UNKNOWN, nothing, None)
    if died and name == UNKNOWN:
        clue = None
    notes = []
    if died:
        notes.append(f"{died[0].file}:{died[0].line} says that the engine died; no known line says why")
    elif clue is None:
        notes.append("the log shows neither a known failure nor a successful end")
    if clue:
        notes.append("no rule knows this line: it is the one that looks most like an error")
        if not died and (doubt := _doubt(clue, logs, book)):
            confidence = min(confidence, _WENT_ON)
            notes.append(doubt)
    root = _root_cause(died[0]) if died else None
    if clue:
        root = clue.root_cause
    failure = book.classes[name]
    return Triage(
        failure=failure,
        confidence=round(confidence, 2),
        root_cause=root,
        rank=_rank_of_clue(clue, logs) if clue else None,
        process=clue.said.process if clue else None,
        notes=(*notes, f"what would settle it: {failure.settle}"),
        logs=tuple(logs),
        clue_form=form,
    )


def _with_an_error_at_its_end(logs: Sequence[LogEvidence], book: RuleBook) -> Triage | None:
    """Judge a run that did its work by the last line of its log, where that is an error that no rule knows."""
    clue = None if any(log.shut_down for log in logs) else best_clue(logs, book)
    last = clue and any(log.file == clue.file and log.lines == clue.line for log in logs)
    if not clue or not last or clue.said.level not in _LEVELS["failing"] or named_by(clue, book)[0] == UNKNOWN:
        return None
    found = _by_clue(logs, (), book)
    notes = ("the log shows work, and ends with an error", *found.notes)
    return replace(found, confidence=min(found.confidence, _WENT_ON), notes=notes)


def _doubt(clue: Clue, logs: Sequence[LogEvidence], book: RuleBook) -> str | None:
    """Return why a program may have survived a line that speaks of an error, None where nothing says so."""
    log = next(log for log in logs if log.file == clue.file)
    logged = clue.said.level in _LEVELS["failing"] and clue.said.stamp  # its program could still write its log
    if log.calm - clue.line > (0 if logged else _END):
        later = (one for one in log.clues if one.number > log.calm)
        if not any(clues_of(log, later, book)):
            return "the log continues in order after it, so the program may have survived it"
    if logged and log.calm and clue.line == log.last:
        return "the log was in order until this last line, so it may have been read while the program ran"
    return None


def _rank_of_clue(clue: Clue, logs: Sequence[LogEvidence]) -> int | None:
    named = next((log.rank for log in logs if log.file == clue.file), None)
    return named if clue.said.rank is None else clue.said.rank


def _died_of(logs: Sequence[LogEvidence]) -> list[Sighting]:
    """Return the lines that at least name how a process died."""
    return [s for log in logs for s in log.cascades if s.rule.failure and not s.exiting]


def _went_well(logs: Sequence[LogEvidence], late: Sequence[Sighting], classes: Mapping[str, FailureClass]) -> Triage:
    """Judge a run that did its work or shut down in order; what was reported after that is not a bug."""
    notes = [
        f"{s.file}:{s.line} reports {s.failure}, but "
        + ("only as a warning" if s.weak else "after an orderly shutdown had begun")
        if s.exiting or s.weak
        else f"{s.file}:{s.line} is of a request that failed, which a server gets over"
        for s in late[:1]
    ]
    survived = sum(log.survived for log in logs)
    if survived:
        notes.append(f"{counted(survived, 'line')} of a failure after which the run continued")
    well = Triage(
        failure=classes[NO_FAILURE],
        confidence=_WELL_BUT if late else _WELL,
        alternatives=tuple(
            Alternative(failure=s.failure, confidence=0.2, file=s.file, line=s.line, text=s.text)
            for s in late[:1]
            if s.failure != NO_FAILURE
        ),
        notes=tuple(notes),
        logs=tuple(logs),
    )
    stopped = next((log.stopped for log in logs if log.stopped), None)
    return well if stopped is None or any(log.worked for log in logs) else _stopped(stopped, well)


def _stopped(stopped: Sighting, well: Triage) -> Triage:
    """Judge a program that ended in order and had shown no work."""
    signal = _SIGNAL.search(stopped.text)
    title, notes = "it shut down in order; the log shows no work before that", well.notes
    if signal:
        title = f"{'SIGTERM' if signal[1] else 'SIGINT'} ended it; the log shows no work before that"
        notes = (
            *notes,
            "who sent the signal is not in the log: a user, a batch system, or Kubernetes (kubectl describe pod)",
        )
    return replace(
        well,
        title=title,
        confidence=_WELL_BUT,
        root_cause=_root_cause(stopped),
        process=stopped.process,
        stopped=True,
        notes=notes,
    )


# The second stage, for logs in which no rule knows a line: which one most likely says what went wrong. Every line
# with a word of an error is weighed by its form (runbooks/triage/clues.yaml), its level and its place in the log. The
# weights are fitted on published logs by scripts/score_triage.py.

# Where a line is in its log, as forms too.
AT_END, NEAR_END, FIRST, SAID_BEFORE, NEAR_DEATH, AFTER_DEATH = PLACES = (
    "at-the-end", "near-the-end", "first-of-its-form", "said-before", "near-a-death", "after-a-death",
)  # fmt: skip
_LEVELS = {"failing": {"ERROR", "CRITICAL", "FATAL"}, "warning": {"WARNING"}, "telling": {"INFO", "DEBUG"}}
_END, _NEAR = 3, 25  # lines from the end of the log
_BEFORE_DEATH, _PAST_DEATH = 60, 15  # lines around the first line that reports a death
THRESHOLD = "nothing-failed"  # what the best line is weighed against
_GUESS = 0.3
_ANNOUNCES, _ANNOUNCED = "announces", 60  # a line that the output of a failed command follows, and for how many lines
_DONE_WITHOUT = re.compile(r"\b(?:will not be available|(?:is|are|was|were|has been|will be) disabled)\b")
_OWN_WORDS = re.compile(r"[^A-Za-z]+")


@dataclass(frozen=True, kw_only=True)
class Clue:
    """A line of no known form that speaks of an error; `forms` are the clues it meets, with those of its place.

    `weight` is their sum.
    """

    file: str
    line: int
    text: str
    said: LogLine
    forms: frozenset[str]
    weight: float = 0.0

    @property
    def root_cause(self) -> RootCause:
        """The line as the one that names the failure."""
        return RootCause(
            file=self.file,
            line=self.line,
            text=self.text,
            rule=SECOND_STAGE,
            origin=GENERIC,
            how_known=HowKnown.LOG.value,
        )


def best_clue(logs: Sequence[LogEvidence], book: RuleBook) -> Clue | None:
    """Return the line that most likely says what went wrong, None where no line speaks of an error."""
    clues = [clue for log in logs for clue in clues_of(log, log.clues, book)]
    if not clues:
        return None
    best = max(clues, key=lambda clue: clue.weight)  # of equals, the first
    return _first_cause(best, clues, book) or best


def _first_cause(effect: Clue, clues: Sequence[Clue], book: RuleBook) -> Clue | None:
    """Return the line before that speaks of what this one passes on, as make passes on a compiler's error."""
    causes = {form.id for form in book.clues if form.explains & effect.forms} - effect.forms
    last = effect.line + _ANNOUNCED * (_ANNOUNCES in effect.forms)  # what such a line speaks of is printed after it
    before = [c for c in clues if c.file == effect.file and c.line < last and causes & c.forms]
    if not before:
        return None
    cause = max(before, key=lambda clue: clue.weight)
    return _first_cause(cause, before, book) or cause


def _inner_cause(root: Sighting, logs: Sequence[LogEvidence], book: RuleBook) -> Clue | None:
    """Return the line that says why the one that a rule knows was written, where that one only passes it on."""
    log = next(log for log in logs if log.file == root.file)
    own = Clue(file=root.file, line=root.line, text=root.text, said=unwrap(root.text), forms=book.forms_of(root.text))
    return _first_cause(own, list(clues_of(log, log.clues, book)), book)


def clues_of(log: LogEvidence, lines: Iterable[Candidate], book: RuleBook) -> Iterator[Clue]:
    """Yield what the lines of one log speak of, each with its forms."""
    weights = book.calibration.weights
    death = next((s.line for s in log.cascades), None)
    said: set[str] = set()
    forms_said: set[frozenset[str]] = set()
    for one in lines:
        line = unwrap(decode(one.data))
        forms = set(book.forms_of(line.text[:MAX_TEXT]))
        forms |= {clue.id for clue in book.clues if clue.level and line.level in _LEVELS[clue.level]}
        if not forms or CODE.match(line.text):
            continue
        own = frozenset(forms)
        words = _OWN_WORDS.sub(" ", line.text[:200])
        if log.lines - one.number <= _END:
            forms.add(AT_END)
        if log.lines - one.number <= _NEAR:
            forms.add(NEAR_END)
        if own not in forms_said:
            forms.add(FIRST)
        if words in said:
            forms.add(SAID_BEFORE)
        if death is not None and -_BEFORE_DEATH <= one.number - death <= _PAST_DEATH:
            forms.add(NEAR_DEATH)
        if death is not None and one.number > death + _PAST_DEATH:
            forms.add(AFTER_DEATH)
        said.add(words)
        forms_said.add(own)
        weight = round(sum(weights.get(form, 0.0) for form in forms), 2)  # the order of a set is not fixed
        text = line.text[:MAX_TEXT]
        yield Clue(file=log.file, line=one.number, text=text, said=line, forms=frozenset(forms), weight=weight)


def named_by(clue: Clue, book: RuleBook) -> tuple[str, float, str]:
    """Return the class that a line names, how often such an answer is right, and the form that decided it.

    UNKNOWN where the line weighs less than that nothing failed, or is only a warning.
    """
    form = next((one for one in book.clues if one.failure and one.id in clue.forms), None)
    optional = _DONE_WITHOUT.search(clue.text) and not clue.forms & {"exception-with-reason", "failing-level"}
    if is_weak(clue.said) or optional or clue.weight < book.calibration.weights.get(THRESHOLD, 0.0):
        return UNKNOWN, _GUESS, "weak"
    name = form.id if form else "own-error"
    return (
        form.failure or NO_FAILURE if form else NO_FAILURE,
        rate(book.calibration.second_stage.get(name, (0, 0))),
        name,
    )
