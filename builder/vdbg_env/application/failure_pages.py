"""Collect what the page of each runbook is written from: its plan, its telling log lines, the names in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from vdbg_env.application.analysis.triage import rule_book
from vdbg_env.application.knowledge.load import shipped_knowledge
from vdbg_env.application.run.library import RunbookLibrary
from vdbg_env.evidence.knowledge.names import NameRow
from vdbg_env.evidence.triage.rules import Rule
from vdbg_env.runbook.machine.plan import Plan, plan
from vdbg_env.runbook.model import Data, Manual, Run, Runbook
from vdbg_env.runbook.state import Facts

_WORKLOAD = ("vllm", "serve", "MODEL")
_NAME = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b|(?<![\w-])--[a-z][a-z-]+[a-z]")
_TELLING = ("root", "stall")
_PRODUCTION = "production"  # the label of a runbook that looks into no failure, and waits for one
_SAYS_ENOUGH = 20  # characters of a rule's words that are telling even where a pattern narrows them down


@dataclass(frozen=True, kw_only=True)
class Sign:
    """Words by which triage knows a failure, and the program, file and version they are from."""

    text: str
    origin: str


@dataclass(frozen=True, kw_only=True)
class FailurePage:
    """All that a page is written from; `settle` says what would settle it, None where no class of triage leads here.

    `plan` was made with placeholders for the workload, `names` are what is known of the flags and variables in it.
    """

    plan: Plan
    signs: tuple[Sign, ...] = ()
    settle: str | None = None
    names: tuple[NameRow, ...] = ()


def failure_pages(library: RunbookLibrary) -> tuple[FailurePage, ...]:
    """Return a page for each runbook of a failure; raises BadDocument where a runbook is wrong."""
    runbooks = (library.load_entry(entry) for entry in library.entries)
    return tuple(_page(runbook) for runbook in runbooks if _PRODUCTION not in runbook.labels)


def _page(runbook: Runbook) -> FailurePage:
    book = rule_book()
    failure = next((one for one in book.classes.values() if one.runbook == runbook.name), None)
    rules = [rule for rule in book.rules if failure and rule.failure == failure.name and rule.role in _TELLING]
    planned = plan(runbook, _placeholders(runbook), Facts(on="plan", data_dir="runbooks"))
    return FailurePage(
        plan=planned,
        signs=tuple(_signs(rules)),
        settle=failure.settle if failure else None,
        names=tuple(_names(planned)),
    )


def _placeholders(runbook: Runbook) -> dict[str, Data]:
    """Return inputs that stand for a user's own, in capitals where they are to be replaced."""
    given: dict[str, Data] = {name: wanted.default for name, wanted in runbook.inputs.items()}
    given |= {name: name.upper() for name, wanted in runbook.inputs.items() if wanted.required}
    return given | ({"argv": list(_WORKLOAD)} if "argv" in runbook.inputs else {})


def _signs(rules: list[Rule]) -> Iterator[Sign]:
    """Yield words of each rule that are telling by themselves, each once, as the rules are ordered."""
    told: set[str] = set()
    for rule in rules:
        for text in rule.literals[:2]:
            if text not in told and (rule.regex is None or len(text) >= _SAYS_ENOUGH):
                told.add(text)
                yield Sign(text=text, origin=rule.origin)


def _names(planned: Plan) -> Iterator[NameRow]:
    """Yield what the tables know of each flag and variable that a step sets or a remedy names."""
    rows = shipped_knowledge().rows
    named: dict[str, None] = {}
    for one in planned.steps:
        if isinstance(one.step, Run):
            named |= dict.fromkeys(one.step.env)
        outcomes = () if isinstance(one.step, Manual) else one.step.outcomes
        texts = (one.step.explanation, *(o.next_step or "" for o in outcomes))
        named |= dict.fromkeys(name for text in texts for name in _NAME.findall(text))
    yield from (rows[name] for name in sorted(named) if name in rows)
