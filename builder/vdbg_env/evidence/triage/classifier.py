"""Read one log as it streams and keep what its lines show, in memory that does not grow with the log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vdbg_env.evidence.finding import HowKnown
from vdbg_env.evidence.logs.log_line import LogLine, decode, unwrap
from vdbg_env.evidence.triage.rules import Rule, RuleBook
from vdbg_env.evidence.triage.scanner import Candidate, LineScanner
from vdbg_env.evidence.triage.sighting import MAX_TEXT, LogEvidence, Sighting

MAX_PER_RULE = 64
MAX_SETTINGS = 32  # lines that say a flag or variable is not known
DETAIL_LINES = 15
IGNORED_LINES = 80  # of a traceback that Python prints of an error in a finalizer
QUOTING = range(6, 10)  # precision of an exception that quotes what another process raised

_VALIDATION = re.compile(r"\d+ validation errors? for \w+$")  # pydantic names the reason in the lines that follow

_EVIDENCE = {"root", "messenger", "stall", "exception"}
_COUNTED = {*_EVIDENCE, "cascade", "victim"}
_HEALTH = {"progress", "well"}


@dataclass
class LogClassifier:
    """Takes the bytes of one log in chunks; `finish` gives the evidence. `file` is the log's name as shown."""

    book: RuleBook
    file: str
    _scanner: LineScanner = field(init=False)
    _kept: list[Sighting] = field(default_factory=list)
    _cascades: list[Sighting] = field(default_factory=list)
    _victims: list[Sighting] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)
    _stalls: dict[str, Sighting] = field(default_factory=dict)
    _survived: int = 0
    _ignored: dict[str | None, int] = field(default_factory=dict)
    _exiting: bool = False
    _well: bool = False
    _settings: dict[str, None] = field(default_factory=dict)
    _release: str | None = None

    def __post_init__(self) -> None:
        frequent = [literal for rule in self.book.scanned if rule.role in _HEALTH for literal in rule.literals]
        self._scanner = LineScanner(self._wanted(), frequent)

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log."""
        for candidate in self._scanner.feed(chunk):
            self._read(candidate)

    def finish(self) -> LogEvidence:
        """Take the end of the log and return what was seen."""
        for candidate in self._scanner.finish():
            self._read(candidate)
        stalled = [s for s in self._stalls.values() if s.count >= s.rule.repeats]
        return LogEvidence(
            file=self.file,
            lines=self._scanner.lines,
            sightings=tuple(sorted([*self._kept, *stalled], key=lambda s: s.line)),
            cascades=tuple(self._deaths()),
            victims=tuple(self._victims),
            shut_down=self._exiting,
            worked=self._well,
            survived=self._survived,
            settings=tuple(self._settings),
            release=self._release,
        )

    def _wanted(self) -> list[str]:
        """Return the literals worth looking for: not those of rules that have been met often enough."""
        return [
            literal
            for rule in self.book.scanned
            if rule.role not in _HEALTH and (rule.role not in _COUNTED or self._counts[rule.id] < MAX_PER_RULE)
            for literal in rule.literals
        ]

    def _read(self, candidate: Candidate) -> None:
        line = unwrap(decode(candidate.data))
        met = [
            (rule, groups)
            for rule, groups in self.book.met_by(line.body, line.text)
            if rule.any_level or line.level not in {"INFO", "DEBUG"}
        ]
        dismissals = [rule for rule, _ in met if rule.role == "dismiss"]
        if dismissals:
            self._dismiss(max(rule.reach for rule in dismissals), candidate, line)
            return
        counted = [rule.id for rule, _ in met if rule.role in _COUNTED]
        self._counts.update(counted)
        for rule, groups in _strongest(met):
            if rule.role not in _COUNTED or self._counts[rule.id] <= MAX_PER_RULE:
                self._note(rule, dict(groups), candidate, line)
        if any(self._counts[rule] == MAX_PER_RULE for rule in counted):
            self._scanner.watch(self._wanted())
        self._scanner.alert = not self._well or (not self._deaths() and any(map(self._may_pass, self._pending())))

    def _note(self, rule: Rule, groups: dict[str, str], candidate: Candidate, line: LogLine) -> None:
        self._release = groups.get("release", self._release)
        kernel = groups.get("kernel") or groups.get("new")
        sighting = Sighting(
            rule=rule,
            file=self.file,
            line=candidate.number,
            text=line.text[:MAX_TEXT],
            process=line.process,
            died=groups.get("process", rule.process),
            rank=int(groups["rank"]) if "rank" in groups else line.rank,
            stamp=line.container or line.stamp,
            kernel=kernel,
            kernel_text=line.text[:MAX_TEXT] if kernel else None,
            fix=rule.fix.format_map(_Named(groups)) if rule.fix else None,
            weak=line.level == "WARNING" and not rule.any_level,
            exiting=self._exiting,
        )
        match rule.role:
            case "root" | "messenger" | "exception":
                self._keep(sighting)
            case "ignored":
                self._ignored[line.process] = candidate.number
            case "stall":
                known = self._stalls.get(rule.id)
                self._stalls[rule.id] = replace(known, count=known.count + 1) if known else sighting
            case "cascade":
                self._cascades.append(sighting)
            case "victim":
                self._victims.append(sighting)
            case "shutdown":
                failed = self._deaths() or any(not s.weak and s.rule.role != "exception" for s in self._kept)
                self._exiting = self._exiting or not failed
            case "begin":
                self._exiting = False
            case "ready":
                self._well = True
                self._forget(lambda s: s.weak or self.book.classes[s.failure].cleared_by_start)
            case "progress" | "well":
                self._well = True
                if rule.role == "progress" and not self._deaths():
                    self._forget(self._may_pass)
            case "detail":
                self._detail(sighting)
            case "setting" if "names" in groups and len(self._settings) < MAX_SETTINGS:
                self._settings[groups["names"]] = None
            case "setting" | "dismiss":
                pass

    def _keep(self, sighting: Sighting) -> None:
        """Keep a root; one that only says that the next line was raised gives way to that line."""
        ignored = self._ignored.pop(sighting.process, None) if self._ignored else None
        if sighting.rule.role == "exception" and ignored and sighting.line - ignored <= IGNORED_LINES:
            return
        last = self._kept[-1] if self._kept else None
        if last and last.process == sighting.process and last.line == sighting.line - 1 and _is_wrapper(last):
            self._kept.pop()
            if sighting.rule.role == "exception":
                sighting = replace(last, line=sighting.line, text=sighting.text)
        elif (
            last and last.process == sighting.process and sighting.line - last.line <= 2 and _is_header(last, sighting)
        ):
            self._kept.pop()
        self._kept.append(sighting)

    def _deaths(self) -> list[Sighting]:
        """Return the lines that report a death, without those that need another line which has not come."""
        met = {s.rule.id for s in self._cascades}
        return [s for s in self._cascades if s.rule.needs is None or s.rule.needs in met]

    def _pending(self) -> list[Sighting]:
        return [*self._kept, *self._stalls.values()]

    def _may_pass(self, sighting: Sighting) -> bool:
        """Return whether a run can continue after this: what it survived is not why it ended."""
        survivable = sighting.rule.survivable
        if survivable is None:
            survivable = self.book.classes[sighting.failure].survivable
        return sighting.weak or sighting.rule.role == "stall" or survivable

    def _forget(self, passed: Callable[[Sighting], bool]) -> None:
        """Drop what the run has survived, and count it anew should it happen again."""
        gone = [s for s in self._kept if passed(s)]
        self._survived += len(gone)
        self._kept = [s for s in self._kept if not passed(s)]
        self._stalls.clear()
        saturated = [s.rule.id for s in gone if self._counts[s.rule.id] >= MAX_PER_RULE]
        for sighting in gone:
            self._counts[sighting.rule.id] = 0
        if saturated:
            self._scanner.watch(self._wanted())

    def _dismiss(self, reach: int, candidate: Candidate, line: LogLine) -> None:
        first = candidate.number - reach
        self._kept = [s for s in self._kept if s.line < first or s.process != line.process]

    def _detail(self, sighting: Sighting) -> None:
        for index in range(len(self._kept) - 1, -1, -1):
            root = self._kept[index]
            if sighting.line - root.line > DETAIL_LINES:
                return
            if root.process == sighting.process and root.rule.how_known is not HowKnown.LOG:
                if root.kernel is None and sighting.kernel:
                    self._kept[index] = replace(root, kernel=sighting.kernel, kernel_text=sighting.text)
                return


class _Named(dict[str, str]):
    """The names that a line has; one that it has not is a placeholder to fill in."""

    def __missing__(self, name: str) -> str:
        return name.upper()


def _is_wrapper(sighting: Sighting) -> bool:
    return sighting.rule.role == "root" and sighting.text.endswith("raised:")


def _is_header(before: Sighting, sighting: Sighting) -> bool:
    """Return whether a line only says that the next ones have the reason."""
    precise = before.rule.precision <= sighting.rule.precision
    return before.rule.role == "exception" and precise and _VALIDATION.search(before.text) is not None


def _strongest(met: Sequence[tuple[Rule, Mapping[str, str]]]) -> Iterator[tuple[Rule, Mapping[str, str]]]:
    """Yield the rules that count for a line: it is not the root of a failure that it passes on, a known failure is not
    an ordinary exception as well.
    """
    passed_on = {rule.failure for rule, _ in met if rule.role == "messenger"}
    named = any(rule.role in {"root", "messenger", "stall", "victim"} for rule, _ in met)
    named = named or any(rule.role == "cascade" and rule.failure for rule, _ in met)
    passing_on = any(rule.role == "cascade" for rule, _ in met)
    exceptions = [rule for rule, _ in met if rule.role == "exception" and (rule.precision in QUOTING or not passing_on)]
    best = exceptions[-1] if exceptions else None
    for rule, groups in met:
        if rule.role == "root" and rule.failure in passed_on:
            continue
        if rule.role == "exception" and (named or rule is not best):
            continue
        yield rule, groups
