"""Reads one log as it streams and keeps what its lines show, in memory that does not grow with the log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from vdbg_env.evidence.logs.log_line import LogLine, decode, unwrap
from vdbg_env.evidence.triage.rules import Rule, RuleBook, compile_pattern
from vdbg_env.evidence.triage.scanner import Candidate, LineScanner
from vdbg_env.evidence.triage.sighting import MAX_TEXT, LogEvidence, Sighting

MAX_PER_RULE = 64
MAX_SETTINGS = 32  # lines that say a flag or variable is not known
DETAIL_LINES = 15

_PROGRESS = compile_pattern(r"generation throughput: (?:[1-9]|0\.[1-9])").pattern
_EVIDENCE = {"root", "messenger", "stall"}


@dataclass
class _Stall:
    """A run of lines that say nothing moves."""

    first: Sighting
    end: int
    count: int = 1


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
    _stalls: dict[str, _Stall] = field(default_factory=dict)
    _exiting: bool = False
    _run_began: int = 0
    _settings: dict[str, None] = field(default_factory=dict)
    _release: str | None = None

    def __post_init__(self) -> None:
        import re2

        self._progress = re2.compile(_PROGRESS.encode())
        self._scanner = LineScanner(literal for rule in self.book.scanned for literal in rule.literals)

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log."""
        self._take_all(self._scanner.feed(chunk))

    def finish(self) -> LogEvidence:
        """Take the end of the log and say what was seen."""
        self._take_all(self._scanner.finish())
        stalled = [replace(s.first, count=s.count) for s in self._stalls.values() if s.count >= s.first.rule.repeats]
        return LogEvidence(
            file=self.file,
            lines=self._scanner.lines,
            sightings=tuple(sorted([*self._kept, *stalled], key=lambda s: s.line)),
            cascades=tuple(self._cascades),
            victims=tuple(self._victims),
            shut_down=self._exiting,
            settings=tuple(self._settings),
            release=self._release,
        )

    def _take_all(self, candidates: list[Candidate]) -> None:
        saturated = False
        for candidate in candidates:
            saturated |= self._take(candidate)
        self._forget_what_moved_on(None)
        if saturated:
            self._scanner.watch(
                literal
                for rule in self.book.scanned
                if self._counts[rule.id] < MAX_PER_RULE or rule.role not in {*_EVIDENCE, "cascade", "victim"}
                for literal in rule.literals
            )

    def _take(self, candidate: Candidate) -> bool:
        """Hold one line against every rule; whether a rule has now seen enough of it."""
        line = unwrap(decode(candidate.data))
        met = [
            (rule, groups)
            for rule, groups in self.book.met_by(line.body)
            if rule.any_level or line.level not in {"INFO", "DEBUG"}
        ]
        dismissals = [rule for rule, _ in met if rule.role == "dismiss"]
        if dismissals:
            self._dismiss(max(rule.reach for rule in dismissals), candidate, line)
            return False
        passed_on = {rule.failure for rule, _ in met if rule.role == "messenger"}
        saturated = False
        for rule, groups in met:
            if rule.role == "root" and rule.failure in passed_on:
                continue
            self._counts[rule.id] += 1
            if self._counts[rule.id] > MAX_PER_RULE and rule.role in {*_EVIDENCE, "cascade", "victim"}:
                continue
            saturated |= self._counts[rule.id] == MAX_PER_RULE
            self._note(rule, dict(groups), candidate, line)
        return saturated

    def _note(self, rule: Rule, groups: dict[str, str], candidate: Candidate, line: LogLine) -> None:
        self._release = groups.get("release", self._release)
        sighting = Sighting(
            rule=rule,
            file=self.file,
            line=candidate.number,
            text=line.text[:MAX_TEXT],
            process=line.process,
            rank=line.rank,
            stamp=line.container or line.stamp,
            kernel=groups.get("kernel") or groups.get("new"),
            weak=line.level == "WARNING" and not rule.any_level,
            exiting=self._exiting,
        )
        match rule.role:
            case "root" | "messenger":
                self._kept.append(sighting)
            case "stall":
                self._stall(sighting, candidate)
            case "cascade":
                self._cascades.append(sighting)
            case "victim":
                self._victims.append(sighting)
            case "shutdown":
                self._exiting = self._exiting or not (self._cascades or any(not s.weak for s in self._kept))
            case "begin":
                self._exiting = False
                self._run_began = candidate.number
            case "ready":
                self._started()
            case "detail":
                self._detail(sighting)
            case "setting" if "names" in groups and len(self._settings) < MAX_SETTINGS:
                self._settings[groups["names"]] = None
            case "setting" | "dismiss":
                pass

    def _stall(self, sighting: Sighting, candidate: Candidate) -> None:
        self._forget_what_moved_on(candidate.end)
        known = self._stalls.setdefault(sighting.rule.id, _Stall(sighting, candidate.end, 0))
        known.count, known.end = known.count + 1, candidate.end

    def _forget_what_moved_on(self, before: int | None) -> None:
        """Drop stalls, and mere warnings, after which tokens were generated again."""
        if not self._stalls and not any(s.weak for s in self._kept):
            return
        after = max((stall.end for stall in self._stalls.values()), default=0)
        if self._scanner.between(self._progress, after, before):
            self._stalls.clear()
            self._kept = [s for s in self._kept if not s.weak]

    def _started(self) -> None:
        """The server is up: what looked wrong on the way did not matter."""
        self._stalls.clear()
        self._kept = [
            s for s in self._kept if not (s.weak or self.book.classes[s.failure].cleared_by_start)
        ]  # fmt: skip

    def _dismiss(self, reach: int, candidate: Candidate, line: LogLine) -> None:
        first = candidate.number - reach
        self._kept = [s for s in self._kept if s.line < first or s.process != line.process]

    def _detail(self, sighting: Sighting) -> None:
        for index in range(len(self._kept) - 1, -1, -1):
            root = self._kept[index]
            if sighting.line - root.line > DETAIL_LINES:
                return
            if root.process == sighting.process and root.rule.how_known is not sighting.rule.how_known.LOG:
                if root.kernel is None and sighting.kernel:
                    self._kept[index] = replace(root, kernel=sighting.kernel)
                return
