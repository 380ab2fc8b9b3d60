"""The page of each failure: what it looks like, its usual causes and what to type."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vdbg_env.crash.triage import rule_book
from vdbg_env.evidence.knowledge import NameRow, shipped_knowledge
from vdbg_env.evidence.triage.rules import Rule
from vdbg_env.run.library import RunbookLibrary
from vdbg_env.runbook.machine import Plan, PlannedStep, plan
from vdbg_env.runbook.model import Data, Manual, Outcome, Run, Runbook, Step, Uses
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


# Write a runbook as a page that can be followed by hand: symptom, meaning, steps, commands, remedies, sources.


INDEX = "README.md"
_WIDTH = 120
_MOST_SIGNS = 14
_PLACE = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_NAMED = re.compile(
    r"(?:matched|results|steps|artifacts|ended|inputs|rank|workload|host)\.[\w.]+(?:\[\d+\])?|\battempts\b"
)
_CONVERTED = re.compile(r"\b(?:double|int|string)\(([^()]*)\)")
_OPEN, _CLOSE = "⟨", "⟩"  # brackets that are text, while those of a pattern or a conversion are taken out
_CHOICE = re.compile(r"\$\{\{ host\.[^?]* \? '[^']*' : '([^']*)' \}\}")
_OF_RECORD = re.compile(r": (?:tail|less) [^:]*\bended\.folder\b.*$")
_SEEN = re.compile(r"has\(matched\.(\w+)\)")
_FIRE = "dd if=/dev/zero bs=1M count=1 > PIPE        # once it is silent; the pipe is in: ls -l /proc/PID/fd"


def render_all(pages: Sequence[FailurePage]) -> Mapping[str, str]:
    """Return the text of each page, and of the index, by the file's name."""
    return {INDEX: render_index(pages)} | {f"{page.plan.runbook.name}.md": render_page(page) for page in pages}


def render_page(page: FailurePage) -> str:
    """Return the page as Markdown that ends with a newline."""
    runbook = page.plan.runbook
    parts = (
        [f"# {runbook.title}", "", f"    vdbg-env runbook {runbook.name} {_how_to_start(page)}"],
        _section("Symptom", _symptom(page)),
        _section("What it means", _meaning(page)),
        _section("What the tool does, and the same by hand", _steps(page.plan)),
        _section("What is found, and what to do", _remedies(page.plan)),
        _section("Sources", _sources(page)),
        [f"Made from `runbooks/{runbook.name}.yaml` by `vdbg-env runbooks docs`; change that file, not this one."],
    )
    return "\n\n".join(text for text in ("\n".join(part) for part in parts) if text) + "\n"


def render_index(pages: Sequence[FailurePage]) -> str:
    """Return the index of all pages: failures that triage names, then trouble with the search itself."""
    lines = ["# Failures, one page each", ""]
    lines += _paragraph(
        "`vdbg-env triage LOG` says which of these a log shows; `vdbg-env runbook NAME` runs the steps."
    )
    groups = (
        ("Failures of the workload", [page for page in pages if page.settle]),
        ("Trouble with the search itself", [page for page in pages if not page.settle]),
    )
    for title, group in groups:
        lines += ["", f"## {title}", ""]
        lines += [f"- [{p.plan.runbook.name}]({p.plan.runbook.name}.md): {p.plan.runbook.title}" for p in group]
    return "\n".join(lines) + "\n"


def _section(title: str, lines: Iterator[str]) -> list[str]:
    body = list(lines)
    return [f"## {title}", "", *body] if body else []


def _how_to_start(page: FailurePage) -> str:
    wanted = [w.name for w in page.plan.runbook.inputs.values() if w.required and w.name != "argv"]
    given = " ".join(f"-i {name}={name.upper()}" for name in wanted)
    return f"{given} -- vllm serve MODEL".strip()


def _symptom(page: FailurePage) -> Iterator[str]:
    if not page.signs:
        yield _sentence(page.plan.runbook.title)
        return
    yield from _paragraph("A line of the log holds one of these (more are in `runbooks/triage`):")
    yield ""
    for sign in page.signs[:_MOST_SIGNS]:
        yield f"- {_code(sign.text)} ({sign.origin})"


def _meaning(page: FailurePage) -> Iterator[str]:
    yield from _paragraph(page.plan.runbook.description)
    if page.settle:
        yield ""
        yield from _paragraph(f"What settles it: {page.settle}.")


def _steps(plan: Plan) -> Iterator[str]:
    yield from _paragraph(
        "Each step is against the command as given: what one changes is gone in the next. Where a process goes silent, "
        "look at it before it is ended: `py-spy dump --pid PID`, `cat /proc/PID/stack`. Words in capitals are yours to "
        "replace; `runbooks/lib/checks` needs nothing but Python, some of it PyTorch."
    )
    for number, planned in enumerate(plan.steps, 1):
        step = planned.step
        yield ""
        yield from _item(f"{number}.", f"**{_sentence(step.title)}** {step.explanation}".strip())
        if step.condition:
            yield from _item(" " * len(f"{number}."), f"Only if `{step.condition}`.")
        commands = list(_by_hand(plan.runbook, planned))
        if commands:
            yield ""
            yield from (f"       {command}" for command in commands)


def _by_hand(runbook: Runbook, planned: PlannedStep) -> Iterator[str]:
    """Yield the lines to type for a step; none for a question and for the report."""
    match planned.step:
        case Uses() as step:
            contract = runbook.catalogue.find(step.name, step.version)
            yield from contract.by_hand if contract else ()
        case Run() as step if planned.invocation:
            env = planned.changes.get("env")
            changed = env if isinstance(env, dict) else {}
            unset = [f"-u {name}" for name, value in changed.items() if value is None]
            words = [f"env {' '.join(unset)}"] if unset else []
            words += [f"{name}={_quoted(str(value))}" for name, value in changed.items() if value is not None]
            words += [_quoted(word) for word in planned.invocation.argv if word]
            yield from _broken(words)
            yield from [_FIRE] if "gpu-coredump" in step.watch.on_hang else []
        case _:
            return


def _broken(words: Sequence[str]) -> Iterator[str]:
    """Break a long command line as a shell takes it."""
    line = ""
    for word in words:
        if line and len(line) + len(word) > _WIDTH - 12:
            yield line + " \\"
            line = "    " + word
        else:
            line = f"{line} {word}" if line else word
    yield line


def _remedies(plan: Plan) -> Iterator[str]:
    told: dict[str, None] = {}
    for planned in plan.steps:
        for outcome in () if isinstance(planned.step, Manual) else planned.step.outcomes:
            if outcome.rule:
                told.setdefault("\n".join(_remedy(plan, planned.step, outcome)))
    yield from told


def _remedy(plan: Plan, step: Step, outcome: Outcome) -> Iterator[str]:
    sign = _sign(plan, step, outcome)
    seen = f"{_code(sign)}: " if sign else ""
    yield from _item("-", f"{seen}{_sentence(_readable(outcome.message or step.title))}")
    if outcome.next_step:
        yield from _item(" ", f"→ {_readable(_without_record(outcome.next_step))}")


def _sign(plan: Plan, step: Step, outcome: Outcome) -> str | None:
    """Return the beginning of the first pattern an outcome asks for, as text a person can look for."""
    found = _SEEN.search(outcome.when or "")
    if found is None or found[1] == "failure":
        return None
    own = step.matchers if isinstance(step, Run) else {}
    matcher = own.get(found[1]) or plan.runbook.matchers.get(found[1])
    return _plain(matcher.pattern) if matcher else None


def _plain(pattern: str) -> str:
    """Return the first choice of a pattern with what varies as `…`; what may be left out is."""
    text = pattern.replace(r"\(", _OPEN).replace(r"\)", _CLOSE)
    text = re.sub(r"(?:\[[^\]]*\]|\\[dSws]|\.(?=[{*+]))(?:\{[\d,]*\}|[*+?])*", "…", text)
    text = re.sub(r"\(\?:([^|()]*)[^()]*\)\??", r"\1", text)
    while (simpler := re.sub(r"\(\?P<\w+>([^|()]*)[^()]*\)", r"\1", text)) != text:
        text = simpler
    text = re.sub(r"(?:\\.|[^\\…])\?", "", text.split("|", 1)[0])
    text = re.sub(r"…[…\s]*…", "…", re.sub(r"\\(.)", r"\1", text)).lstrip("^").rstrip("$")
    return text.replace(_OPEN, "(").replace(_CLOSE, ")")


def _without_record(remedy: str) -> str:
    """Return a remedy without the command that reads a run's record; where the host decides, what a GPU host does."""
    return _OF_RECORD.sub("", _CHOICE.sub(r"\1", remedy))


def _readable(text: str) -> str:
    """Return a text with its expressions as `<name>`, arithmetic unchanged."""
    return _PLACE.sub(lambda found: f"`{_readable_expression(found[1])}`", text)


def _readable_expression(expression: str) -> str:
    """Return an expression for readers: `has(x) ? x : y` becomes `x`, without conversions of texts and numbers."""
    chosen = re.sub(r"^has\([\w.]+\) \? (.*) : .*$", r"\1", expression)
    chosen = re.sub(r"^string\((.*)\)$", r"\1", chosen)
    named = _NAMED.sub(lambda found: f"<{_name_of(found[0])}>", chosen)
    while (simpler := _CONVERTED.sub(_without_conversion, named)) != named:
        named = simpler
    return named.replace(_OPEN, "(").replace(_CLOSE, ")")


def _without_conversion(found: re.Match[str]) -> str:
    return f"{_OPEN}{found[1]}{_CLOSE}" if " " in found[1] else found[1]


def _name_of(path: str) -> str:
    words = path.split(".")
    return (
        "the line" if words[-1] == "text" and words[0] == "matched" else words[-1].partition("[")[0].replace("_", " ")
    )


def _sources(page: FailurePage) -> Iterator[str]:
    for source in page.plan.runbook.sources:
        yield from _item("-", source)
    for row in page.names:
        yield from _item("-", f"`{row.name}`: {row.what} ({row.source})")


def _code(text: str) -> str:
    """Return a code span; a text that holds a backtick gets two around it."""
    return f"`` {text} ``" if "`" in text else f"`{text.strip()}`"


def _quoted(word: str) -> str:
    return shlex.quote(word.replace("${{ rank.dir }}", "/dumps"))


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else text + "."


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), _WIDTH, break_long_words=False, break_on_hyphens=False)


def _item(mark: str, text: str) -> list[str]:
    indent = " " * (len(mark) + 1)
    return textwrap.wrap(
        " ".join(text.split()), _WIDTH, initial_indent=f"{mark} ", subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
