"""Triage's rules as values. RE2 compiles them, so no pattern of any file can take more than linear time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import re2

from vdbg_env.common.errors import BadDocument, Complaint, nearest
from vdbg_env.common.yaml_source import Path, YamlSource, read, validate
from vdbg_env.evidence.finding import HowKnown
from vdbg_env.evidence.triage.document import ClassDocument, ClassesDocument, Role, RuleDocument, RulesDocument
from vdbg_env.evidence.triage.remedy import Remedy, read_remedies

NO_FAILURE = "not-a-gpu-failure"  # the run went well, or ended for a reason that is not the GPU's
UNKNOWN = "unknown"  # no line of a known form says what happened

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 8 << 20

_PRECISION = {"root": 50, "messenger": 30, "stall": 20, "exception": 15, "cascade": 10}
# Fitted on published logs: how often an answer by such a line was right, see docs/10-triage-score.md.
_CONFIDENCE = {"root": 0.96, "messenger": 0.85, "stall": 0.85, "exception": 0.96, "cascade": 0.4}


@dataclass(frozen=True, kw_only=True)
class FailureClass:
    """A class of failure; `follows` are the classes it may be an effect of."""

    name: str
    title: str
    follows: frozenset[str]
    runbook: str | None
    cleared_by_start: bool
    survivable: bool
    at_exit: bool
    settle: str
    remedies: tuple[Remedy, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule, compiled. `origin` says program, file and version its wording is from."""

    id: str
    failure: str | None
    role: Role
    literals: tuple[str, ...]
    regex: Any
    unless: Any
    bare: bool
    hardware: bool
    survivable: bool | None
    any_level: bool
    how_known: HowKnown
    precision: int
    confidence: float
    repeats: int
    reach: int
    alternative: str | None
    note: str | None
    remedies: tuple[Remedy, ...]
    origin: str

    def confirm(self, text: str) -> Mapping[str, str] | None:
        """Return the named groups for a line that holds one of the literals, None when it does not meet the rest."""
        if self.unless is not None and self.unless.search(text):
            return None
        if self.regex is None:
            return {}
        found = self.regex.search(text)
        return {k: v for k, v in found.groupdict().items() if v} if found else None


@dataclass(frozen=True, kw_only=True)
class RuleBook:
    """All rules in order, and the classes they name."""

    classes: Mapping[str, FailureClass]
    rules: tuple[Rule, ...]

    @cached_property
    def scanned(self) -> tuple[Rule, ...]:
        """The rules whose literals a log is scanned for; a rule that dismisses only the line it meets needs no scan."""
        return tuple(rule for rule in self.rules if not (rule.role == "dismiss" and rule.reach == 0))

    @cached_property
    def _holders(self) -> Mapping[str, tuple[int, ...]]:
        """Map each literal to the places in `rules` of those that ask for it."""
        literals = {literal for rule in self.rules for literal in rule.literals}
        return {
            literal: tuple(place for place, rule in enumerate(self.rules) if literal in rule.literals)
            for literal in sorted(literals)
        }

    def met_by(self, body: str, text: str) -> list[tuple[Rule, Mapping[str, str]]]:
        """Return the rules a line meets, in their order, each with the named groups of its pattern.

        `body` is the line with its level, `text` without.
        """
        places = {place for literal, holders in self._holders.items() if literal in body for place in holders}
        rules = (self.rules[place] for place in sorted(places))
        pairs = ((rule, rule.confirm(text if rule.bare else body)) for rule in rules)
        return [(rule, groups) for rule, groups in pairs if groups is not None]


def read_rule_book(files: Iterable[tuple[str, bytes]]) -> RuleBook:
    """Read the files of a triage folder, (name, bytes) each; raises BadDocument with every complaint of all of them."""
    classes: dict[str, FailureClass] = {}
    rules: list[Rule] = []
    complaints: list[Complaint] = []
    sources = sorted((read(data, name) for name, data in files), key=lambda s: s.name)
    cures = [source for source in sources if _kind(source) == "TriageRemedies"]
    for source in sorted((s for s in sources if s not in cures), key=lambda s: _kind(s) != "TriageClasses"):
        try:
            if _kind(source) == "TriageClasses":
                for entry in validate(ClassesDocument, source).classes:
                    classes[entry.name] = _class(entry)
            else:
                document = validate(RulesDocument, source)
                rules += [_rule(entry, source, index, complaints) for index, entry in enumerate(document.rules)]
                complaints += _unknown_classes(document, source, classes)
        except BadDocument as error:
            complaints += error.complaints
    try:
        remedies = read_remedies(cures, {rule.id for rule in rules}, classes)
    except BadDocument as error:
        complaints += error.complaints
    if complaints:
        raise BadDocument(tuple(complaints))
    return RuleBook(
        classes={name: replace(one, remedies=remedies.of_class.get(name, ())) for name, one in classes.items()},
        rules=tuple(replace(rule, remedies=remedies.of_signature.get(rule.id, ())) for rule in rules),
    )


def compile_pattern(pattern: str) -> Any:
    """Compile one pattern with RE2; raises re2.error for what it refuses (back references, look-around)."""
    return re2.compile(pattern, _OPTIONS)


def _kind(source: YamlSource) -> object:
    return source.value.get("kind") if isinstance(source.value, dict) else None


def _class(entry: ClassDocument) -> FailureClass:
    return FailureClass(
        name=entry.name,
        title=entry.title,
        follows=frozenset(entry.follows),
        runbook=None if entry.runbook == "none" else entry.runbook or entry.name,
        cleared_by_start=entry.cleared_by_start,
        survivable=entry.survivable,
        at_exit=entry.at_exit,
        settle=entry.settle,
    )


def _rule(entry: RuleDocument, source: YamlSource, index: int, complaints: list[Complaint]) -> Rule:
    here: Path = ("rules", index)

    def compiled(key: str, pattern: str | None) -> Any:
        if pattern is None:
            return None
        try:
            return compile_pattern(pattern)
        except re2.error as error:
            said = error.args[0] if error.args else error
            what = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
            complaints.append(source.complaint((*here, key), f"RE2 refuses this pattern: {what}"))
            return None

    return Rule(
        id=entry.id,
        failure=entry.failure,
        role=entry.role,
        literals=tuple(entry.text),
        regex=compiled("regex", entry.regex),
        unless=compiled("unless", entry.unless),
        bare=entry.bare,
        hardware=entry.hardware,
        survivable=entry.survivable,
        any_level=entry.levels == "any",
        how_known=HowKnown(entry.how),
        precision=entry.precision if entry.precision is not None else _PRECISION.get(entry.role, 0),
        confidence=entry.confidence or _CONFIDENCE.get(entry.role, 0.5),
        repeats=entry.repeats,
        reach=entry.reach,
        alternative=entry.alternative,
        note=entry.note,
        remedies=(),
        origin=f"{entry.source.program} {entry.source.version}, {entry.source.file}",
    )


def _unknown_classes(
    document: RulesDocument, source: YamlSource, classes: Mapping[str, FailureClass]
) -> list[Complaint]:
    found = []
    for index, entry in enumerate(document.rules):
        for key, name in (("class", entry.failure), ("alternative", entry.alternative)):
            if name is not None and name not in classes:
                path: Path = ("rules", index, key)
                found.append(source.complaint(path, f"no class {name!r}", suggestion=nearest(name, classes)))
        if entry.failure is None and entry.role in {"root", "messenger", "stall", "exception"}:
            found.append(source.complaint(("rules", index), f"a rule of role {entry.role} names its class"))
    return found
