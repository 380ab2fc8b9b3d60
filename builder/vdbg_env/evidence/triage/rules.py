"""Triage's rules, with the remedies of what they see. RE2 runs their patterns, each in linear time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ahocorasick_rs import AhoCorasick, Implementation

from vdbg_env.common.errors import BadDocument, Complaint, nearest
from vdbg_env.common.yaml_source import Path, YamlSource, read, validate
from vdbg_env.evidence.finding import HowKnown
from vdbg_env.evidence.triage.document import ClassDocument, ClassesDocument, RuleDocument, RulesDocument
from vdbg_env.evidence.triage.remedy import Remedy, read_remedies

NO_FAILURE = "not-a-gpu-failure"  # the run went well, or ended for a reason that is not the GPU's
UNKNOWN = "unknown"  # no line of a known form says what happened


class FailureClass(ClassDocument):
    """A class of failure, and what to do about it."""

    remedies: tuple[Remedy, ...] = ()


class Rule(RuleDocument):
    """One rule, and what to do about what it sees."""

    remedies: tuple[Remedy, ...] = ()

    @property
    def how_known(self) -> HowKnown:
        """What kind of source the line is of."""
        return HowKnown(self.how)

    @property
    def any_level(self) -> bool:
        """Whether lines that report no failure count too."""
        return self.levels == "any"

    @property
    def origin(self) -> str:
        """The program, file and version its wording is from."""
        return f"{self.source.program} {self.source.version}, {self.source.file}"

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
    def _literals(self) -> tuple[AhoCorasick, list[tuple[int, ...]]]:
        """All literals as one automaton, and for each the places in `rules` of those that ask for it."""
        literals = sorted({literal for rule in self.rules for literal in rule.literals})
        holders = [tuple(place for place, rule in enumerate(self.rules) if word in rule.literals) for word in literals]
        return AhoCorasick(literals, implementation=Implementation.ContiguousNFA), holders

    def met_by(self, body: str, text: str) -> list[tuple[Rule, Mapping[str, str]]]:
        """Return the rules a line meets, in their order, each with the named groups of its pattern.

        `body` is the line with its level, `text` without.
        """
        automaton, holders = self._literals
        found = automaton.find_matches_as_indexes(body, overlapping=True)
        places = {place for literal, _, _ in found for place in holders[literal]}
        rules = (self.rules[place] for place in sorted(places))
        pairs = ((rule, rule.confirm(text if rule.bare else body)) for rule in rules)
        return [(rule, groups) for rule, groups in pairs if groups is not None]


def read_rule_book(files: Iterable[tuple[str, bytes]]) -> RuleBook:
    """Read the files of a triage folder, (name, bytes) each; raises BadDocument with every complaint of all of them."""
    classes: dict[str, ClassDocument] = {}
    rules: list[RuleDocument] = []
    complaints: list[Complaint] = []
    sources = sorted((read(data, name) for name, data in files), key=lambda s: s.name)
    cures = [source for source in sources if _kind(source) == "TriageRemedies"]
    for source in sorted((s for s in sources if s not in cures), key=lambda s: _kind(s) != "TriageClasses"):
        try:
            if _kind(source) == "TriageClasses":
                classes |= {entry.name: entry for entry in validate(ClassesDocument, source).classes}
            else:
                document = validate(RulesDocument, source)
                rules += document.rules
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
        classes={
            name: FailureClass.model_construct(**dict(one), remedies=remedies.of_class.get(name, ()))
            for name, one in classes.items()
        },
        rules=tuple(
            Rule.model_construct(**dict(rule), remedies=remedies.of_signature.get(rule.id, ())) for rule in rules
        ),
    )


def _kind(source: YamlSource) -> object:
    return source.value.get("kind") if isinstance(source.value, dict) else None


def _unknown_classes(
    document: RulesDocument, source: YamlSource, classes: Mapping[str, ClassDocument]
) -> list[Complaint]:
    found = []
    known = {entry.id for entry in document.rules if entry.role == "cascade"}
    for index, entry in enumerate(document.rules):
        for key, name in (("class", entry.failure), ("alternative", entry.alternative)):
            if name is not None and name not in classes:
                path: Path = ("rules", index, key)
                found.append(source.complaint(path, f"no class {name!r}", suggestion=nearest(name, classes)))
        if entry.needs is not None and (entry.role != "cascade" or entry.needs not in known):
            why = f"no rule {entry.needs!r}" if entry.role == "cascade" else "only a rule of role cascade has `needs`"
            found.append(source.complaint(("rules", index, "needs"), why, suggestion=nearest(entry.needs, known)))
        if entry.failure is None and entry.role in {"root", "messenger", "stall", "exception"}:
            found.append(source.complaint(("rules", index), f"a rule of role {entry.role} names its class"))
    return found
