"""Triage's rules, with the remedies of what they see and how often each was right. RE2 runs their patterns.

`runbooks/triage/*.yaml` validate against the classes named ...Document.
"""

from __future__ import annotations

import pathlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Annotated, Any, Literal, Self, cast

import re2
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from vdbg_env.common.console import nearest
from vdbg_env.common.errors import BadInput, quoted
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.common.yaml_source import BadDocument, Complaint, Path, YamlSource, read, read_tables, validate
from vdbg_env.evidence.finding import HowKnown

OF_A_PEER = "nccl-failure"  # ranks whose peer has died say so, each of them


Role = Literal[
    "root", "messenger", "stall", "exception", "cascade", "victim", "shutdown", "ready", "begin", "progress", "well",
    "dismiss", "ignored", "detail", "setting", "core",
]  # fmt: skip

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 8 << 20

MAX_LITERALS = 4096  # seven times those of the shipped rules; the automaton then takes about 20 MB
_PRIOR_WEIGHT = 4  # answers that the prior of a rule counts for
_PRECISION = {"root": 50, "messenger": 30, "stall": 20, "exception": 15, "cascade": 10}


def compile_pattern(pattern: str) -> Any:
    """Compile a pattern for UTF-8 with RE2; raises re2.error for what it refuses (back references, look-around)."""
    return re2.compile(pattern.encode(), _OPTIONS)


def which_of(*patterns: str) -> Callable[[bytes], list[int] | None]:
    """Return what says which of some patterns a text has, by their places, None for none of them.

    A search by each takes two to four times as long: re2 makes a generator and a match for it.
    """
    found = re2.Set.SearchSet(_OPTIONS)
    try:
        for pattern in patterns:
            found.Add(pattern)
        found.Compile()
    except re2.error:  # a set has less memory for a pattern than one alone
        alone = [compile_pattern(pattern) for pattern in patterns]
        return lambda text: [place for place, one in enumerate(alone) if one.search(text)] or None
    return cast("Callable[[bytes], list[int] | None]", found.Match)


def _compiled(pattern: object) -> Any:
    if pattern is not None and not isinstance(pattern, str):
        raise ValueError("a pattern is a text")
    try:
        return pattern and compile_pattern(pattern)
    except re2.error as error:
        raise ValueError(f"this pattern is refused by RE2: {str(error.args[0], 'utf-8', 'replace')}") from None


def _counted(counts: tuple[int, int]) -> tuple[int, int]:
    if not 0 <= counts[0] <= counts[1]:
        raise ValueError("write [right, answers], with right not above answers")
    return counts


Named = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Pattern = Annotated[Any, BeforeValidator(_compiled)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ClassDocument(_Strict):
    """A class of failure; `follows` are the classes it may be an effect of.

    `runbook` is its name unless said otherwise; `none` is for no runbook, which is None.
    """

    name: Named
    title: str
    follows: frozenset[Named]
    runbook: Annotated[str | None, AfterValidator(lambda name: None if name == "none" else name)] = Field(
        default_factory=lambda given: given["name"]
    )
    cleared_by_start: bool = False
    survivable: bool = False
    at_exit: bool = False
    lasting: bool = False
    settle: str


class ClassesDocument(_Strict):
    """classes.yaml."""

    api_version: Literal["vdbg-env/v1"] = Field(alias="apiVersion")
    kind: Literal["TriageClasses"]
    classes: list[ClassDocument]


class SourceDocument(_Strict):
    """The source of a rule's wording, which was read there: `version` is a release, or a commit where none is known."""

    program: str
    file: str
    version: str


class RemedyDocument(_Strict):
    """What to do about some signatures or classes, in releases of `program` from `since` on and before `until`."""

    signatures: list[Named] = []
    classes: list[Named] = []
    do: Annotated[str, Field(min_length=10)]
    program: str = "vLLM"
    since: Annotated[str, Field(pattern=r"^\d+(\.\d+)*$")] | None = None
    until: Annotated[str, Field(pattern=r"^\d+(\.\d+)*$")] | None = None
    source: Annotated[str, Field(min_length=4)]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not (self.signatures or self.classes):
            raise ValueError("a remedy names the signatures or the classes that it is for")
        if not (self.since or self.until):
            raise ValueError("a remedy names the first release that it is for, or the first that it is not for")
        return self


class RemediesDocument(_Strict):
    """remedies-*.yaml."""

    api_version: Literal["vdbg-env/v1"] = Field(alias="apiVersion")
    kind: Literal["TriageRemedies"]
    remedies: list[RemedyDocument]


class RuleDocument(_Strict):
    """One rule. A line meets it when it holds one of the literals, then `regex` (if any), and not `unless` (if any).

    `bare`: the patterns apply to the line without its level and logger; `^` is where the message begins.
    `hardware`: the machine itself is at fault, which outranks whatever else was seen. `survivable` is that of its class
    unless a rule says otherwise. `needs`: the rule counts only in a log that meets the rule of this name too.
    `takes_back`: what this process showed by the rule of that name was no failure, however long ago it was.

    `confidence` is the prior of a rule that knows less than others of its role, until logs show how often it is right.
    `at_exit` is that of its class unless a rule says otherwise.

    `process` is the process whose death the line reports, where that is not the one that wrote it; the pattern's groups
    `process` and `rank` say the same. `title` says what happened, for a class that is too wide to say it; `fix` is what
    to type or to change, with the pattern's groups in braces.
    """

    id: Named
    failure: Named | None = Field(default=None, alias="class")
    role: Role = "root"
    literals: Annotated[tuple[Annotated[str, Field(min_length=4)], ...], Field(min_length=1, alias="text")]
    regex: Pattern = None
    unless: Pattern = None
    bare: bool = False
    hardware: bool = False
    survivable: bool | None = None
    needs: Named | None = None
    takes_back: Named | None = None
    process: str | None = None
    title: str | None = None
    fix: str | None = None
    levels: Literal["failing", "any"] = "failing"
    how: Literal["log", "driver", "sanitizer", "gpu-core", "kernel-log"] = "log"
    precision: int = Field(default_factory=lambda given: _PRECISION.get(given["role"], 0), ge=0, le=100)
    confidence: Annotated[float, Field(gt=0, le=1)] | None = None
    repeats: Annotated[int, Field(ge=1)] = 1
    reach: Annotated[int, Field(ge=0, le=50)] = 0
    at_exit: bool | None = None
    alternative: Named | None = None
    note: str | None = None
    source: SourceDocument


class RulesDocument(_Strict):
    """Every other file of the folder."""

    api_version: Literal["vdbg-env/v1"] = Field(alias="apiVersion")
    kind: Literal["TriageRules"]
    rules: list[RuleDocument]


class ClueDocument(_Strict):
    """A form of lines that speak of an error, or of lines that only look so: `weight` in calibration.yaml says which.

    The form is a pattern on the line without its level and logger, or a `level`. `class` is the failure that such a
    line names, where it names one. A line of a form in `explains` gives way to a line of this form before it. Only
    lines with one of the file's texts are looked at.
    """

    id: Named
    regex: Pattern = None
    level: Literal["failing", "warning", "telling"] | None = None
    failure: Named | None = Field(default=None, alias="class")
    explains: frozenset[Named] = frozenset()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.regex is None) == (self.level is None):
            raise ValueError("a clue has a regex or a level")
        return self


class CluesDocument(_Strict):
    """clues.yaml."""

    api_version: Literal["vdbg-env/v1"] = Field(alias="apiVersion")
    kind: Literal["TriageClues"]
    literals: Annotated[tuple[Annotated[str, Field(min_length=3)], ...], Field(min_length=1, alias="text")]
    clues: list[ClueDocument]


Counts = Annotated[tuple[int, int], AfterValidator(_counted)]


class CalibrationDocument(_Strict):
    """calibration.yaml, written by scripts/score_triage.py: what published logs show of rules and clues.

    Counts are [right, answers]. `unproven`: of rules of a role that no log of another project had met. `second_stage`:
    by the clue that named the class. `weights` are those of clues, and of a line's place in the log.
    """

    api_version: Literal["vdbg-env/v1"] = Field(alias="apiVersion")
    kind: Literal["TriageCalibration"]
    unproven: dict[Role, Counts]
    rules: dict[Named, Counts]
    second_stage: dict[Named, Counts]
    weights: dict[Named, float]


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """What to do about a signature; it holds from release `since` of `program` on, and before `until`."""

    do: str
    program: str
    since: str | None
    until: str | None
    source: str

    def fits(self, vllm: str | None) -> bool:
        """Return whether it may hold: the release of another program, and one that no log has, are not known."""
        if self.program != "vLLM" or vllm is None:
            return True
        key = _release_key(vllm)
        return (not self.since or key >= _release_key(self.since)) and (
            not self.until or key < _release_key(self.until)
        )

    @property
    def releases(self) -> str:
        """Where it was seen, in words: a setting may be older than the release in which it was read."""
        if not self.since:
            return f"{self.program} before {self.until}"
        return f"seen in {self.program} {self.since}" + (f", before {self.until}" if self.until else "")


@dataclass(frozen=True, kw_only=True)
class Remedies:
    """The remedies of a folder, by the signature (the id of a rule) and by the class that they are for, in order."""

    of_signature: dict[str, tuple[Remedy, ...]]
    of_class: dict[str, tuple[Remedy, ...]]


def read_remedies(sources: Sequence[YamlSource], signatures: Collection[str], classes: Collection[str]) -> Remedies:
    """Read remedies; raises BadDocument where one names a signature or a class that does not exist."""
    of_signature: dict[str, list[Remedy]] = defaultdict(list)
    of_class: dict[str, list[Remedy]] = defaultdict(list)
    complaints: list[Complaint] = []
    for source in sources:
        for index, entry in enumerate(validate(RemediesDocument, source).remedies):
            remedy = Remedy(**entry.model_dump(exclude={"signatures", "classes"}))
            for key, named, known, found in (
                ("signatures", entry.signatures, signatures, of_signature),
                ("classes", entry.classes, classes, of_class),
            ):
                for place, name in enumerate(named):
                    found[name].append(remedy)
                    if name not in known:
                        here = ("remedies", index, key, place)
                        said = f"no {'rule' if key == 'signatures' else 'class'} {name!r}"
                        complaints.append(source.complaint(here, said, suggestion=nearest(name, known)))
    if complaints:
        raise BadDocument(tuple(complaints))
    return Remedies(
        of_signature={name: tuple(some) for name, some in of_signature.items()},
        of_class={name: tuple(some) for name, some in of_class.items()},
    )


def _release_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


class FailureClass(ClassDocument):
    """A class of failure, and what to do about it."""

    remedies: tuple[Remedy, ...] = ()


class Rule(RuleDocument):
    """One rule, and what to do about what it sees; `right` of `answers` that it gave for published logs were right."""

    remedies: tuple[Remedy, ...] = ()
    right: int = 0
    answers: int = 0
    prior: float = 0.5

    @property
    def trust(self) -> float:
        """How often an answer by it is right: its own record, on top of that of rules that had none."""
        return (self.right + _PRIOR_WEIGHT * self.prior) / (self.answers + _PRIOR_WEIGHT)

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

    @property
    def groups(self) -> tuple[tuple[str, int], ...]:
        """The named groups of its pattern, each with its number."""
        return tuple((name.decode(), number) for name, number in self.regex.groupindex.items()) if self.regex else ()

    def place_in(self, text: str) -> int:
        """Return where in a line that meets the rule the words are that it was met by."""
        found = self.regex.search(text.encode()) if self.regex is not None else None
        begin = len(text.encode()[: found.start()].decode()) if found else 0
        return min((at for literal in self.literals if (at := text.find(literal, begin)) >= 0), default=begin)


NOT_CALIBRATED = CalibrationDocument.model_construct(unproven={}, rules={}, second_stage={}, weights={})


@dataclass(frozen=True, kw_only=True)
class RuleBook:
    """All rules in order, the classes they name, and the clues for what no rule knows."""

    classes: Mapping[str, FailureClass]
    rules: tuple[Rule, ...]
    clues: tuple[ClueDocument, ...] = ()
    clue_literals: tuple[str, ...] = ()
    calibration: CalibrationDocument = NOT_CALIBRATED

    @cached_property
    def scanned(self) -> tuple[Rule, ...]:
        """The rules whose literals a log is scanned for; a rule that dismisses only the line it meets needs no scan."""
        return tuple(rule for rule in self.rules if not _of_its_line(rule))

    @cached_property
    def dismissing(self) -> frozenset[str]:
        """What a line need only hold to be no evidence, as a logged prompt is: it need not be taken apart."""
        plain = [r for r in self.rules if _of_its_line(r) and r.any_level]
        return frozenset(text for r in plain if r.regex is None and r.unless is None for text in r.literals)

    @cached_property
    def holders(self) -> Mapping[str, tuple[int, ...]]:
        """The places in `rules` of those that ask for a literal."""
        found: dict[str, list[int]] = defaultdict(list)
        for place, rule in enumerate(self.rules):
            for literal in rule.literals:
                found[literal].append(place)
        return {literal: tuple(places) for literal, places in found.items()}

    @cached_property
    def texts(self) -> frozenset[str]:
        """Every literal of a rule or of the clues."""
        return frozenset(self.clue_literals).union(self.holders)

    def forms_of(self, text: str) -> frozenset[str]:
        """Return the clues whose pattern a line without its level meets."""
        data = text.encode()
        return frozenset(clue.id for clue in self.clues if clue.regex is not None and clue.regex.search(data))

    def met_by(self, body: str, text: str) -> list[tuple[Rule, Mapping[str, str]]]:
        """Return the rules that a line meets; `body` is the line with its level, `text` without."""
        held = {place for literal, places in self.holders.items() if literal in body for place in places}
        return self.confirmed(held, body.encode(), text)

    def confirmed(self, places: Iterable[int], body: bytes, text: str) -> list[tuple[Rule, Mapping[str, str]]]:
        """Return those of some rules that a line with a literal of each meets, in their order, with named groups."""
        bare, checks = text.encode(), self._checks
        met: list[tuple[Rule, Mapping[str, str]]] = []
        for place in sorted(places):
            if (check := checks.get(place)) is None:
                check = checks[place] = _check(self.rules[place])
            rule, patterns, wanted, named, of_text = check
            said = bare if of_text else body
            if patterns is not None and patterns(said) != wanted:
                continue
            groups: dict[str, str] = {}
            if named and (found := rule.regex.search(said)):
                groups = {name: part.decode() for name, number in named if (part := found[number])}
            met.append((rule, groups))
        return met

    @cached_property
    def _checks(self) -> dict[int, _Check]:
        return {}


# A rule, what says which of its patterns a text has, what it says of a line that meets it, its groups, and `bare`.
_Check = tuple[Rule, Callable[[bytes], list[int] | None] | None, list[int] | None, tuple[tuple[str, int], ...], bool]


def _check(rule: Rule) -> _Check:
    patterns = [one.pattern.decode() for one in (rule.regex, rule.unless) if one]
    wanted = [0] if rule.regex else None
    return rule, which_of(*patterns) if patterns else None, wanted, rule.groups, rule.bare


_DEFINES_CLASSES = re.compile(rb"^kind:\s*TriageClasses\b", re.MULTILINE)


@cache
def rule_book(folder: pathlib.Path | None = None) -> RuleBook:
    """Return the shipped rules, and those of a folder.

    A folder that holds the classes too is a whole set and replaces the shipped one. Raises BadDocument where a rule is
    wrong, and BadInput for a folder without rules.
    """
    shipped = SHIPPED_DATA / "runbooks" / "triage"
    folder = folder or shipped
    files = read_tables(folder)
    is_whole = any(_DEFINES_CLASSES.search(data) for _, data in files)
    if not files:
        what = "is a file, and --rules names a folder" if folder.is_file() else "holds no triage rules"
        what = what if folder.exists() else "does not exist"
        raise BadInput(f"{folder} {what}", next_step=f"ls {quoted(shipped)} shows how rules are written")
    try:
        return read_rule_book(files if is_whole else (*read_tables(shipped), *files))
    except BadDocument as error:
        hint = f"compare it with the shipped rules: {quoted(shipped)}"
        raise BadDocument(error.complaints, next_step=hint) from None


def read_rule_book(files: Iterable[tuple[str, bytes]]) -> RuleBook:
    """Read the files of a triage folder, (name, bytes) each.

    Raises BadDocument with every complaint of all of them, BadInput for more rules than one search can look for. What
    they name of one another is looked at once each can be read, or a wrong field would cost a complaint for each name.
    """
    classes: dict[str, ClassDocument] = {}
    rules: list[RuleDocument] = []
    clues: list[ClueDocument] = []
    clue_literals: list[str] = []
    calibration = NOT_CALIBRATED
    complaints: list[Complaint] = []
    sources = sorted((read(data, name) for name, data in files), key=lambda s: s.name)
    cures = [source for source in sources if _kind(source) == "TriageRemedies"]
    named: list[tuple[YamlSource, str, Sequence[RuleDocument | ClueDocument]]] = []
    for source in (s for s in sources if s not in cures):
        try:
            match _kind(source):
                case "TriageClasses":
                    entries = validate(ClassesDocument, source).classes
                    complaints += _twice([entry.name for entry in entries], classes, ("classes", "name"), source)
                    classes |= {entry.name: entry for entry in entries}
                case "TriageClues":
                    words = validate(CluesDocument, source)
                    named.append((source, "clues", words.clues))
                    clues += words.clues
                    clue_literals += words.literals
                case "TriageCalibration":
                    calibration = validate(CalibrationDocument, source)
                case _:
                    found = validate(RulesDocument, source).rules
                    named.append((source, "rules", found))
                    complaints += _twice(
                        [rule.id for rule in found], {rule.id for rule in rules}, ("rules", "id"), source
                    )
                    complaints += _incomplete(found, source)
                    rules += found
        except BadDocument as error:
            complaints += error.complaints
    if complaints:
        raise BadDocument(tuple(complaints))
    for source, key, all_of_it in named:
        complaints += _no_class(all_of_it, key, source, classes)
    try:
        remedies = read_remedies(cures, {rule.id for rule in rules}, classes)
    except BadDocument as error:
        complaints += error.complaints
    if complaints:
        raise BadDocument(tuple(complaints))
    texts = len(clue_literals) + sum(len(rule.literals) for rule in rules)
    if texts > MAX_LITERALS:
        raise BadInput(
            f"the triage rules have {texts} texts to look for, more than fit into one search ({MAX_LITERALS})",
            next_step="leave out rules that your logs do not need, or --rules itself for the shipped ones",
        )
    book = RuleBook(
        classes={
            name: FailureClass.model_construct(**dict(one), remedies=remedies.of_class.get(name, ()))
            for name, one in classes.items()
        },
        rules=tuple(
            Rule.model_construct(**dict(rule), remedies=remedies.of_signature.get(rule.id, ())) for rule in rules
        ),
        clues=tuple(clues),
        clue_literals=tuple(clue_literals),
    )
    return calibrated(book, calibration)


def calibrated(book: RuleBook, calibration: CalibrationDocument) -> RuleBook:
    """Return the rules with the record that the calibration has of each."""
    rules = []
    for rule in book.rules:
        right, answers = calibration.rules.get(rule.id, (0, 0))
        prior = rule.confidence or rate(calibration.unproven.get(rule.role, (0, 0)))
        rules.append(rule.model_copy(update={"right": right, "answers": answers, "prior": prior}))
    return replace(book, rules=tuple(rules), calibration=calibration)


def rate(counts: tuple[int, int]) -> float:
    """Return how often an answer is right, from how often it was; without any answers, 0.8."""
    return (counts[0] + 0.8 * _PRIOR_WEIGHT) / (counts[1] + _PRIOR_WEIGHT)


def _kind(source: YamlSource) -> object:
    return source.value.get("kind") if isinstance(source.value, dict) else None


def _no_class(
    entries: Sequence[RuleDocument | ClueDocument], key: str, source: YamlSource, classes: Mapping[str, ClassDocument]
) -> Iterator[Complaint]:
    for index, entry in enumerate(entries):
        for name, said in (("class", entry.failure), ("alternative", getattr(entry, "alternative", None))):
            if said is not None and said not in classes:
                path: Path = (key, index, name)
                yield source.complaint(path, f"no class {said!r}", suggestion=nearest(said, classes))


def _twice(
    names: Sequence[str], known: Collection[str], place: tuple[str, str], source: YamlSource
) -> Iterator[Complaint]:
    """Yield a complaint about each name that is in `known` already, or was in this document before."""
    for index, name in enumerate(names):
        if name in known or name in names[:index]:
            yield source.complaint((place[0], index, place[1]), f"{name!r} is there already")


def _of_its_line(rule: RuleDocument) -> bool:
    """Whether a rule says of no line but the one that meets it that it shows no failure."""
    return rule.role == "dismiss" and rule.reach == 0 and rule.takes_back is None


def _incomplete(rules: Sequence[RuleDocument], source: YamlSource) -> Iterator[Complaint]:
    names = {entry.id for entry in rules}
    known = {entry.id for entry in rules if entry.role == "cascade"}
    for index, entry in enumerate(rules):
        if entry.needs is not None and (entry.role != "cascade" or entry.needs not in known):
            why = f"no rule {entry.needs!r}" if entry.role == "cascade" else "only a rule of role cascade has `needs`"
            yield source.complaint(("rules", index, "needs"), why, suggestion=nearest(entry.needs, known))
        if (taken := entry.takes_back) is not None and (entry.role != "dismiss" or taken not in names):
            why = f"no rule {taken!r}" if entry.role == "dismiss" else "only a rule of role dismiss has `takes_back`"
            yield source.complaint(("rules", index, "takes_back"), why, suggestion=nearest(taken, names))
        if entry.failure is None and entry.role in {"root", "messenger", "stall", "exception"}:
            yield source.complaint(("rules", index), f"a rule of role {entry.role} names its class")
