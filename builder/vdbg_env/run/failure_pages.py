"""The page of each failure: what it looks like, what it means, what to type by hand, and what to do.

What more than three runbooks do or find is on the index. `vdbg-env runbooks explain NAME` has each step in words.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vdbg_env.evidence.triage_rules import rule_book
from vdbg_env.run.library import RunbookLibrary
from vdbg_env.runbook.machine import Plan, PlannedStep, plan
from vdbg_env.runbook.model import Data, Manual, Outcome, Run, Runbook, Step, Uses
from vdbg_env.runbook.state import Facts

_WORKLOAD = ("vllm", "serve", "MODEL")
_TELLING = ("root", "stall")
_PRODUCTION = "production"  # the label of a runbook that looks into no failure, and waits for one
_SAYS_SOMETHING = 3  # words of a finding besides what it repeats of the log
_SAYS_ENOUGH = 20  # characters of a rule's words that are telling even where a pattern narrows them down
_TORCH = "2.14.0"  # whose names a page has: what a person types is for today's release
_MOST_SIGNS = 4
_ASKED = re.compile(r"inputs\.(deep|attach)\b(?! \|\|)")  # a step that only an input asks for
_FEW = 3  # runbooks: what more of them have is on the index


@dataclass(frozen=True, kw_only=True)
class FailurePage:
    """All that a page is written from; `settle` says what would settle it, None where no class of triage leads here.

    `plan` was made with placeholders for the workload; `signs` are words by which triage knows the failure.
    """

    plan: Plan
    signs: tuple[str, ...] = ()
    settle: str | None = None


def failure_pages(library: RunbookLibrary) -> tuple[FailurePage, ...]:
    """Return a page for each runbook of a failure; raises BadDocument where a runbook is wrong."""
    runbooks = (library.load_entry(entry) for entry in library.entries)
    return tuple(_page(runbook) for runbook in runbooks if _PRODUCTION not in runbook.labels)


def _page(runbook: Runbook) -> FailurePage:
    book = rule_book()
    failure = next((one for one in book.classes.values() if one.runbook == runbook.name), None)
    rules = [rule for rule in book.rules if failure and rule.failure == failure.name and rule.role in _TELLING]
    telling = (
        text
        for rule in rules
        for text in rule.literals[:2]
        if (rule.regex is None or len(text) >= _SAYS_ENOUGH) and "`" not in text
    )
    return FailurePage(
        plan=plan(runbook, _placeholders(runbook), Facts(on="plan", torch=_TORCH, data_dir="runbooks")),
        signs=tuple(dict.fromkeys(telling))[:_MOST_SIGNS],
        settle=failure.settle if failure else None,
    )


def _placeholders(runbook: Runbook) -> dict[str, Data]:
    """Return inputs that stand for a user's own, in capitals where they are to be replaced."""
    given: dict[str, Data] = {name: wanted.default for name, wanted in runbook.inputs.items()}
    given |= {name: name.upper() for name, wanted in runbook.inputs.items() if wanted.required}
    return given | ({"argv": list(_WORKLOAD)} if "argv" in runbook.inputs else {})


INDEX = "README.md"
_WIDTH = 120
_PLACE = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_NAMED = re.compile(
    r"(?:matched|results|steps|artifacts|ended|inputs|rank|workload|host)\.[\w.]+(?:\[\d+\])?|\battempts\b"
)
_CONVERTED = re.compile(r"\b(?:double|int|string)\(([^()]*)\)")
_SPAN = re.compile(r"`[^`]*`")
# What Markdown would take for bold, the `__` of a name, is a code span with its command; spans and addresses stay.
_TYPED = re.compile(r"`[^`]*`|https?://\S+|(python3 -c '[^']*'|\b[\w.]*__\w[\w.]*)")
_OPEN, _CLOSE = "⟨", "⟩"  # brackets that are text, while those of a pattern or a conversion are taken out
_CHOICE = re.compile(r"\$\{\{ (?:host\.[^?]* \? '[^']*'|has\([\w.]+\) \? [\w.]+) : '([^']*)' \}\}")
_OF_RECORD = re.compile(r": (?:tail|less) [^:]*\bended\.folder\b.*$")
_SEEN = re.compile(r"has\(matched\.(\w+)\)")
_FIRE = "dd if=/dev/zero bs=1M count=1 > PIPE        # once it is silent; the pipe is in: ls -l /proc/PID/fd"


def render_all(pages: Sequence[FailurePage]) -> Mapping[str, str]:
    """Return the text of each page, and of the index, by the file's name."""
    common = _common(pages)
    texts = {f"{page.plan.runbook.name}.md": _render(page, common) for page in pages}
    return {INDEX: _render_index(pages, common)} | texts


def _common(pages: Sequence[FailurePage]) -> Mapping[str, None]:
    """Return the steps and remedies, as they are written, that more than a few runbooks have; in their order."""
    counted = Counter(text for page in pages for text in {*_shared_steps(page.plan), *_remedies(page.plan)})
    ordered = (text for page in pages for text in (*_shared_steps(page.plan), *_remedies(page.plan)))
    return dict.fromkeys(text for text in ordered if counted[text] > _FEW)


def _render(page: FailurePage, common: Mapping[str, None]) -> str:
    """Return the page as Markdown that ends with a newline."""
    runbook = page.plan.runbook
    parts = (
        [f"# {runbook.title}", "", f"    vdbg-env runbook {runbook.name} {_how_to_start(page)}"],
        _section("Symptom", _symptom(page)),
        _section("What it means", _meaning(page)),
        _section("By hand", _trimmed(_steps(page.plan, common))),
        _section("What to do", (text for text in _remedies(page.plan) if text not in common)),
        _section("Sources", (line for source in runbook.sources for line in _item("-", source))),
        [f"`vdbg-env runbooks docs` made this page from `runbooks/{runbook.name}.yaml`."],
    )
    return "\n\n".join(text for text in ("\n".join(part) for part in parts) if text) + "\n"


def _render_index(pages: Sequence[FailurePage], common: Mapping[str, None]) -> str:
    """Return the index: failures that triage names, trouble with the search itself, and what many runbooks have."""
    lines = ["# Failures, one page each", ""]
    lines += _paragraph(
        "`vdbg-env triage LOG` says which of these a log shows. `vdbg-env runbook NAME` runs the steps, "
        "`vdbg-env runbooks explain NAME` has each of them in words."
    )
    groups = (
        ("Failures of the workload", [page for page in pages if page.settle]),
        ("Trouble with the search itself", [page for page in pages if not page.settle]),
    )
    for title, group in groups:
        lines += ["", f"## {title}", ""]
        lines += [f"- [{p.plan.runbook.name}]({p.plan.runbook.name}.md): {p.plan.runbook.title}" for p in group]
    lines += ["", "## By hand", ""]
    lines += _paragraph(
        "Each command line of a page is the whole change: take it back before the next one. Replace the words in "
        "capitals. Look at a silent process before you end it: `py-spy dump --pid PID`. First of all:"
    )
    lines += [""]
    lines += [text for text in common if not text.startswith("-")]
    lines += ["", "## What many of them find", ""]
    lines += [text for text in common if text.startswith("-")]
    return "\n".join(lines) + "\n"


def _trimmed(lines: Iterator[str]) -> Iterator[str]:
    return iter("\n".join(lines).rstrip("\n").split("\n"))


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
    yield from _paragraph("A line of the log holds one of these:")
    yield ""
    yield from (f"- {_code(sign)}" for sign in page.signs)


def _meaning(page: FailurePage) -> Iterator[str]:
    yield from _paragraph(page.plan.runbook.description)
    if page.settle:
        yield ""
        yield from _paragraph(f"What settles it: {page.settle}.")


def _steps(plan: Plan, common: Mapping[str, None]) -> Iterator[str]:
    asked: list[str] = []
    for planned in plan.steps:
        commands = list(_by_hand(plan.runbook, planned))
        if not commands or _shared_step(planned, commands) in common:
            continue
        if _ASKED.match(planned.step.condition or ""):
            asked.append(planned.step.title)
            continue
        yield from _item("-", _sentence(planned.step.title))
        yield ""
        yield from (f"      {command}" for command in commands)
        yield ""
    if asked:
        yield from _paragraph(f"Where an input asks for it, the runbook also tries: {'; '.join(asked)}.")


def _shared_steps(plan: Plan) -> Iterator[str]:
    """Yield the looks at the host, which many runbooks begin with, as the index shows them."""
    for planned in plan.steps:
        if isinstance(planned.step, Uses) and (commands := list(_by_hand(plan.runbook, planned))):
            yield _shared_step(planned, commands)


def _shared_step(planned: PlannedStep, commands: Sequence[str]) -> str:
    return "\n".join([f"**{_sentence(planned.step.title)}**", "", *(f"    {line}" for line in commands), ""])


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
    """Yield what an outcome finds and what to do about it, each once; not where it only repeats a line of the log."""
    told: dict[str, None] = {}
    for planned in plan.steps:
        for outcome in () if isinstance(planned.step, Manual) else planned.step.outcomes:
            if outcome.rule and outcome.next_step and not _PLACE.fullmatch(_without_record(outcome.next_step)):
                told.setdefault("\n".join(_remedy(plan, planned.step, outcome, outcome.next_step)))
    told.pop("", None)
    yield from told


def _remedy(plan: Plan, step: Step, outcome: Outcome, next_step: str) -> Iterator[str]:
    sign = _sign(plan, step, outcome)
    found = _readable(outcome.message or step.title)
    if sign is None and len(_SPAN.sub("", found).split()) < _SAYS_SOMETHING:
        return
    seen = f"{_code(sign)}: " if sign else ""
    yield from _item("-", f"{seen}{_sentence(found)}")
    yield from _item(" ", f"→ {_readable(_without_record(next_step))}")


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


def _code(text: str) -> str:
    return f"`{text.strip()}`"


def _quoted(word: str) -> str:
    return shlex.quote(word.replace("${{ rank.dir }}", "/dumps"))


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else text + "."


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(_marked(text), _WIDTH, break_long_words=False, break_on_hyphens=False)


def _marked(text: str) -> str:
    """Return a text on one line, with what Markdown would change in code spans."""
    return _TYPED.sub(lambda found: _code(found[1]) if found[1] else found[0], " ".join(text.split()))


def _item(mark: str, text: str) -> list[str]:
    indent = " " * (len(mark) + 1)
    return textwrap.wrap(
        _marked(text), _WIDTH, initial_indent=f"{mark} ", subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
