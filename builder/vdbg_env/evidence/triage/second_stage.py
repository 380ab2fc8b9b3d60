"""For a log in which no rule knows a line: the line that most likely says what went wrong.

Every line with a word of an error is weighed by its form (the clues of runbooks/triage/clues.yaml), by its level and by
its place in the log. The weights are fitted on published logs by scripts/score_triage.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vdbg_env.evidence.logs.log_line import LogLine, decode, unwrap
from vdbg_env.evidence.triage.classifier import CODE, MAX_TEXT, LogEvidence, is_weak
from vdbg_env.evidence.triage.rules import NO_FAILURE, UNKNOWN, RuleBook, rate
from vdbg_env.evidence.triage.scanner import Candidate

# Where a line is in its log, as forms too.
AT_END, NEAR_END, FIRST, SAID_BEFORE, NEAR_DEATH, AFTER_DEATH = PLACES = (
    "at-the-end", "near-the-end", "first-of-its-form", "said-before", "near-a-death", "after-a-death",
)  # fmt: skip
_LEVELS = {"failing": {"ERROR", "CRITICAL", "FATAL"}, "warning": {"WARNING"}, "telling": {"INFO", "DEBUG"}}
_END, _NEAR = 3, 25  # lines from the end of the log
_BEFORE_DEATH, _PAST_DEATH = 60, 15  # lines around the first line that reports a death
THRESHOLD = "nothing-failed"  # what the best line is weighed against
_GUESS = 0.3
_OWN_WORDS = re.compile(r"[^A-Za-z]+")


@dataclass(frozen=True, kw_only=True)
class Clue:
    """A line of no known form that speaks of an error; `forms` are the clues it meets, with those of its place.

    `weight` is their sum, `share` how the line compares with the others of its log: 1 where it is the only one.
    """

    file: str
    line: int
    text: str
    said: LogLine
    forms: frozenset[str]
    weight: float = 0.0
    share: float = 0.0


def best_clue(logs: Sequence[LogEvidence], book: RuleBook) -> Clue | None:
    """Return the line that most likely says what went wrong, None where no line speaks of an error."""
    clues = [clue for log in logs for clue in clues_of(log, log.clues, book)]
    if not clues:
        return None
    weights = book.calibration.weights
    sums = [sum(weights.get(form, 0.0) for form in clue.forms) for clue in clues]
    most = max(sums)
    best = clues[sums.index(most)]
    share = 1 / sum(math.exp(one - most) for one in sums)
    return Clue(**{**vars(best), "weight": most, "share": share})


def clues_of(log: LogEvidence, lines: Iterable[Candidate], book: RuleBook) -> Iterator[Clue]:
    """Yield what the lines of one log speak of, each with its forms."""
    death = next((s.line for s in log.cascades), None)
    said: set[str] = set()
    forms_said: set[frozenset[str]] = set()
    for one in lines:
        line = unwrap(decode(one.data))
        forms = {clue.id for clue in book.clues if clue.regex is not None and clue.regex.search(line.text[:MAX_TEXT])}
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
        yield Clue(file=log.file, line=one.number, text=line.text[:MAX_TEXT], said=line, forms=frozenset(forms))


def named_by(clue: Clue, book: RuleBook) -> tuple[str, float, str]:
    """Return the class that a line names, how often such an answer is right, and the form that decided it.

    UNKNOWN where the line weighs less than that nothing failed, or is only a warning.
    """
    form = next((one for one in book.clues if one.failure and one.id in clue.forms), None)
    if is_weak(clue.said) or clue.weight < book.calibration.weights.get(THRESHOLD, 0.0):
        return UNKNOWN, _GUESS, "weak"
    name = form.id if form else "own-error"
    return (
        form.failure or NO_FAILURE if form else NO_FAILURE,
        rate(book.calibration.second_stage.get(name, (0, 0))),
        name,
    )
