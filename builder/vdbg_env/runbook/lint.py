"""Read a runbook and prove, before anything starts, that it can run: names, paths, expressions, patterns, tools."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from vdbg_env.common import patterns
from vdbg_env.common.console import nearest
from vdbg_env.common.yaml_source import BadDocument, Complaint, Path, YamlSource
from vdbg_env.runbook import expressions, workload
from vdbg_env.runbook.expressions import BadExpression, Names, compile_condition, is_template
from vdbg_env.runbook.model import (
    TOOLS,
    ArtifactRule,
    Builtin,
    Catalogue,
    Command,
    Data,
    End,
    Input,
    Manual,
    Matcher,
    Next,
    Outcome,
    Role,
    Run,
    Runbook,
    ServerDriver,
    Step,
    ToRunbook,
    ToStep,
    Uses,
)
from vdbg_env.runbook.parse import Library, Places, resolve
from vdbg_env.runbook.state import command_names, names_in

_Edges = Sequence[Sequence[tuple[Path, Next]]]  # of each step, every `next` with the path at which it was written


def path_complaints(runbook: Runbook, places: Places, runbooks: Sequence[str] | None) -> Iterator[Complaint]:
    """Yield every complaint about where steps lead; `runbooks` are the names that may be branched to, None for any."""
    yield from _names(runbook, places)
    ids = {step.id for step in runbook.steps}
    edges: _Edges = [tuple(_edges(index, step, places)) for index, step in enumerate(runbook.steps)]
    broken = False
    for leads in edges:
        for path, target in leads:
            match target:
                case ToStep(step=name) if name not in ids:
                    broken = True
                    what = f"no step {name!r}; there are: {', '.join([*sorted(ids), 'end'])}"
                    yield places.complaint(path, what, suggestion=nearest(name, [*ids, "end"]))
                case ToRunbook(runbook=name) if is_template(name):
                    if "outcomes" not in path:
                        what = "only an outcome may name a runbook by an expression: elsewhere nothing has been seen"
                        yield places.complaint(path, what)
                case ToRunbook(runbook=name) if runbooks is not None and name not in runbooks:
                    what = f"no runbook {name!r}; there are: {', '.join(sorted(runbooks))}"
                    yield places.complaint(path, what, suggestion=nearest(name, runbooks))
                case _:
                    pass
    if not broken:
        yield from _unreached(runbook, edges, places)
        yield from _circles(runbook, edges, places)


def _names(runbook: Runbook, places: Places) -> Iterator[Complaint]:
    for name, count in Counter(step.id for step in runbook.steps).items():
        if count > 1:
            index = [i for i, step in enumerate(runbook.steps) if step.id == name][1]
            yield places.complaint(("spec", "steps", index, "id"), f"there are {count} steps called {name!r}")
    for index, step in enumerate(runbook.steps):
        if step.id == "end":
            yield places.complaint(("spec", "steps", index, "id"), "'end' is where a runbook stops, not a step")


def _unreached(runbook: Runbook, edges: _Edges, places: Places) -> Iterator[Complaint]:
    by_id = {step.id: index for index, step in enumerate(runbook.steps)}
    reached: set[str] = set()
    ahead = [runbook.steps[0].id] if runbook.steps else []
    while ahead:
        name = ahead.pop()
        if name in reached:
            continue
        reached.add(name)
        ahead += [x.step for _, x in edges[by_id[name]] if isinstance(x, ToStep)]
    for index, step in enumerate(runbook.steps):
        if step.id not in reached:
            yield places.complaint(("spec", "steps", index, "id"), f"no path leads to step {step.id!r}")


def _circles(runbook: Runbook, edges: _Edges, places: Places) -> Iterator[Complaint]:
    """Complain about each way back that no person has to choose: without one, every path is shorter than the runbook.

    Steps are visited depth first with an explicit stack; an edge to a step that is still open closes a circle.
    """
    forced = {step.id: _forced(step, leads) for step, leads in zip(runbook.steps, edges, strict=True)}
    state: dict[str, str] = {}
    for start in forced:
        stack: list[tuple[str, Iterator[tuple[Path, str]]]] = []
        if start not in state:
            state[start] = "open"
            stack.append((start, iter(forced[start])))
        while stack:
            name, ahead = stack[-1]
            path, target = next(ahead, ((), ""))
            if not target:
                state[name] = "closed"
                stack.pop()
            elif state.get(target) == "open":
                yield places.complaint(
                    path,
                    f"leads back to {target!r}, and the runbook may never end: only a choice of a person that is "
                    "not the default may lead back (to run a step several times, use 'repeat')",
                )
            elif target not in state:
                state[target] = "open"
                stack.append((target, iter(forced[target])))


def _forced(step: Step, leads: Sequence[tuple[Path, Next]]) -> list[tuple[Path, str]]:
    """Return the edges that are taken without a person's choice."""

    def chosen(path: Path) -> bool:
        return isinstance(step, Manual) and path[-2:-1] == ("choices",) and path[-1] != step.question.default

    return [(path, target.step) for path, target in leads if isinstance(target, ToStep) and not chosen(path)]


def _edges(index: int, step: Step, places: Places) -> Iterator[tuple[Path, Next]]:
    """Yield every `next` of a step with the path at which it was written."""
    path: Path = ("spec", "steps", index)
    match step:
        case Manual():
            yield from (((*path, "manual", "choices", name), x) for name, x in step.question.choices.items())
        case Run() | Uses():
            for number, outcome in enumerate(step.outcomes):
                yield _written(path, number, outcome.status.value, places), outcome.next
    if step.skipped and not isinstance(step.skipped.next, End):
        yield (*path, "skipped", "next"), step.skipped.next


def _written(path: Path, number: int, status: str, places: Places) -> Path:
    """Return where an outcome's `next` was written: at the outcome itself, else in the step's own `next`."""
    options = [(*path, "outcomes", number, status, "next"), (*path, "next", status), (*path, "next", "otherwise")]
    return next((option for option in options if places.written(option)), (*path, "next"))


# What cannot work on several ranks, or would not be what it seems.


_RANK = re.compile(r"\$\{\{\s*rank\.")
# Variables whose value is a file that each process of each rank writes.
_FILES = re.compile(
    r"CUDA_COREDUMP_(?:FILE|PIPE)|NCCL_DEBUG_FILE|TORCH_FR_DUMP_TEMP_FILE|TORCH_NCCL_DEBUG_INFO_(?:TEMP_FILE|PIPE_FILE)"
    r"|CU(?:BLAS|DNN)_LOGDEST_DBG|CUBLASLT_LOG_FILE|LOG_FILE"
)
# Options of the programs that a command is wrapped in: compute-sanitizer, nsys and ncu, valgrind, strace, gdb.
_OPTION = re.compile(r"(?P<name>--(?:log-file|save|output|export|xml-file)|-o)(?:=(?P<value>.+))?")


def rank_complaints(runbook: Runbook, places: Places) -> Iterator[Complaint]:
    """Yield what is wrong with commands and steps that the runbook itself puts on several ranks."""
    for name, command in runbook.commands.items():
        path: Path = ("spec", "commands", name)
        if command.driver:
            yield from _driver(command.driver, (*path, "driver"), places)
        if command.placement.ranks > 1:
            yield from _environment(command.env, path, places)
    for index, step in enumerate(runbook.steps):
        if isinstance(step, Run) and _ranks(step, runbook.commands.get(step.command)) > 1:
            yield from _environment(step.env, ("spec", "steps", index), places)
            yield from _wrap(step.argv.wrap, ("spec", "steps", index), places)


def _ranks(step: Run, command: Command | None) -> int:
    own = step.placement.ranks if step.placement else 1
    return max(own, command.placement.ranks if command else 1)


def _driver(driver: ServerDriver, path: Path, places: Places) -> Iterator[Complaint]:
    for inner, text in ((("replay",), driver.replay), (("ready", "http"), driver.ready.http)):
        if _RANK.search(text):
            what = "requests are sent at the first rank only, so `rank.*` has no value here"
            yield places.complaint((*path, *inner), what)


def _environment(env: object, path: Path, places: Places) -> Iterator[Complaint]:
    for name, text in dict(env).items():  # type: ignore[call-overload]
        if _FILES.fullmatch(name) and isinstance(text, str) and _is_shared(text):
            yield places.complaint((*path, "env", name), f"all ranks would write {text!r}: use ${{{{ rank.dir }}}}")


def _wrap(words: tuple[str, ...], path: Path, places: Places) -> Iterator[Complaint]:
    for number, word in enumerate(words):
        found = _OPTION.fullmatch(word)
        if not found:
            continue
        value = found["value"] or (words[number + 1] if number + 1 < len(words) else "")
        if value and _is_shared(value):
            what = f"each rank is wrapped by itself, and all would write {value!r}: use ${{{{ rank.dir }}}}"
            yield places.complaint((*path, "argv", "wrap", number), what)


def _is_shared(text: str) -> bool:
    return not _RANK.search(text) and not text.startswith("/dev/") and text not in {"stdout", "stderr", "-"}


# Each complaint of one runbook, at its place.


_INPUT = re.compile(r"""\binputs(?:\.|\[\\*['"])(\w+)""")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "path": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "array": (list,),
}


def complaints(runbook: Runbook, places: Places, *, runbooks: Sequence[str] | None = None) -> tuple[Complaint, ...]:
    """Return everything that is wrong with a parsed runbook; `runbooks` are the names it may branch to."""
    steps = enumerate(runbook.steps)
    return (
        *_inputs(runbook, places),
        *_tools(runbook.requires.tools, ("spec", "requires", "tools"), places),
        *_matchers(runbook.matchers.values(), ("spec", "matchers"), places),
        *_commands(runbook, places),
        *(complaint for index, step in steps for complaint in _Step(runbook, places, index, step).complaints()),
        *path_complaints(runbook, places, runbooks),
        *rank_complaints(runbook, places),
    )


def _used_inputs(runbook: Runbook) -> set[str]:
    """Return the inputs that a text of the runbook names, and those that the tool reads: the workload, its port."""
    of_server = {"port"} if any(command.driver for command in runbook.commands.values()) else set()
    return {"argv", *of_server, *_INPUT.findall(repr((runbook.commands, runbook.steps)))}


def _inputs(runbook: Runbook, places: Places) -> Iterator[Complaint]:
    used = _used_inputs(runbook)
    for name, given in runbook.inputs.items():
        path: Path = ("spec", "inputs", name)
        if not name.replace("_", "a").isalnum():
            yield places.complaint(path, f"input {name!r}: a name used in expressions has no '-'", key=True)
        if given.default is not None and not _fits(given, given.default):
            yield places.complaint((*path, "default"), f"{given.default!r} is not of type {given.type}")
        if given.choices and given.type != "string":
            yield places.complaint((*path, "choices"), f"only a string has choices, not {given.type}", key=True)
        elif given.choices and given.default is not None and given.default not in given.choices:
            what = f"the default {given.default!r} is none of the choices: {', '.join(given.choices)}"
            yield places.complaint((*path, "default"), what, suggestion=nearest(str(given.default), given.choices))
        if given.required and given.default is not None:
            yield places.complaint((*path, "default"), "a required input needs no default", key=True)
        if name not in used:
            yield places.complaint(path, f"input {name!r} is not used: no expression names it", key=True)


def _fits(given: Input, value: Data) -> bool:
    if isinstance(value, bool) and given.type != "bool":
        return False
    return isinstance(value, _TYPES[given.type])


def _commands(runbook: Runbook, places: Places) -> Iterator[Complaint]:
    names = command_names(runbook)
    for name, command in runbook.commands.items():
        path: Path = ("spec", "commands", name)
        yield from _texts(_command_texts(command), path, names, places)
        if isinstance(command.argv, str) and not command.argv.strip().startswith("${{"):
            what = "argv is a list of words, or one '${{ }}' that gives a list; nothing here is split by a shell"
            yield places.complaint((*path, "argv"), what)
        if not any(isinstance(step, Run) and step.command == name for step in runbook.steps):
            yield places.complaint(path, f"command {name!r} is run by no step", key=True)


def _command_texts(command: Command) -> Iterator[tuple[Path, str]]:
    if isinstance(command.argv, str):
        yield ("argv",), command.argv
    else:
        yield from ((("argv", i), word) for i, word in enumerate(command.argv))
    yield from ((("env", name), text) for name, text in command.env.items() if text is not None)
    if command.driver:
        yield ("driver", "replay"), command.driver.replay
        yield ("driver", "ready", "http"), command.driver.ready.http
        if isinstance(command.driver.concurrency, str):
            yield ("driver", "concurrency"), command.driver.concurrency


def _texts(texts: Iterable[tuple[Path, str]], path: Path, names: Names, places: Places) -> Iterator[Complaint]:
    for inner, text in texts:
        yield from _compiled(expressions.check, text, (*path, *inner), names, places)


def _compiled(
    check: Callable[[str, Names], object], text: str, path: Path, names: Names, places: Places
) -> Iterator[Complaint]:
    try:
        check(text, names)
    except BadExpression as error:
        yield places.inside(path, text, error.offset, error.what, error.suggestion)


def _tools(tools: Sequence[str], path: Path, places: Places) -> Iterator[Complaint]:
    for index, tool in enumerate(tools):
        if tool not in TOOLS:
            what = f"unknown tool {tool!r}; known: {', '.join(TOOLS)}"
            yield places.complaint((*path, index), what, suggestion=nearest(tool, TOOLS))


def _matchers(matchers: Iterable[Matcher], path: Path, places: Places) -> Iterator[Complaint]:
    for matcher in matchers:
        if "-" in matcher.name:
            what = f"matcher {matcher.name!r}: a name used in expressions has no '-'"
            yield places.complaint((*path, matcher.name), what, key=True)
        try:
            patterns.check(matcher.pattern)
        except patterns.BadPattern as error:
            yield places.inside((*path, matcher.name, "regex"), matcher.pattern, error.offset, error.what)


def _artifacts(rules: Iterable[ArtifactRule], path: Path, places: Places) -> Iterator[Complaint]:
    for rule in rules:
        where = (*path, rule.name)
        if "-" in rule.name:
            yield places.complaint(where, f"artifact {rule.name!r}: a name used in expressions has no '-'", key=True)
        if rule.glob.startswith("/") or ".." in rule.glob.split("/"):
            what = "an artifact's path is a glob under the step's own folder (${{ rank.dir }} in env and argv)"
            yield places.complaint((*where, "path"), what)


class _Step:
    """The complaints about one step."""

    def __init__(self, runbook: Runbook, places: Places, index: int, step: Step) -> None:
        self.runbook = runbook
        self.places = places
        self.step = step
        self.path: Path = ("spec", "steps", index)
        self.before = names_in(runbook, step, "before")

    def complaints(self) -> Iterator[Complaint]:
        step = self.step
        if "-" in step.id:
            what = f"step {step.id!r}: a name used in expressions has no '-'; write {step.id.replace('-', '_')!r}"
            yield self.places.complaint((*self.path, "id"), what)
        if step.condition is not None:
            yield from self._condition(step.condition, (*self.path, "if"), self.before)
        yield from _tools(step.tools, (*self.path, "requires", "tools"), self.places)
        match step:
            case Run():
                yield from self._run(step)
            case Uses():
                yield from self._builtin(step, "step", (*self.path,))
                yield from self._results(step.results)
            case Manual():
                yield from _compiled(
                    expressions.check, step.question.prompt, (*self.path, "manual", "prompt"), self.before, self.places
                )
                default, choices = step.question.default, step.question.choices
                if default not in choices:
                    what = f"the default {default!r} is none of the choices: {', '.join(choices)}"
                    close = nearest(default, choices)
                    yield self.places.complaint((*self.path, "manual", "default"), what, suggestion=close)
            case _:
                assert_never(step)
        yield from self._outcomes(step.outcomes)

    def _run(self, step: Run) -> Iterator[Complaint]:
        if step.command not in self.runbook.commands:
            known = self.runbook.commands
            what = f"no command {step.command!r}; there are: {', '.join(known) or 'none'}"
            yield self.places.complaint((*self.path, "run"), what, suggestion=nearest(step.command, known))
        texts: list[tuple[Path, str]] = [(("env", key), x) for key, x in step.env.items() if x is not None]
        texts += [(("argv", "append", i), x) for i, x in enumerate(step.argv.append)]
        texts += [(("argv", "wrap", i), x) for i, x in enumerate(step.argv.wrap)]
        yield from _texts(texts, self.path, self.before, self.places)
        yield from self._removed(step)
        for name, what in workload.problems(step.engine_args):
            yield self.places.complaint((*self.path, "engine_args", name), what, key=True)
        yield from _texts(_strings(dict(step.engine_args)), (*self.path, "engine_args"), self.before, self.places)
        yield from _matchers(step.matchers.values(), (*self.path, "matchers"), self.places)
        yield from _artifacts(step.artifacts.values(), (*self.path, "artifacts"), self.places)
        if step.repeat.until is not None:
            names = names_in(self.runbook, step, "attempt")
            yield from self._condition(step.repeat.until, (*self.path, "repeat", "until"), names)
        for index, reader in enumerate(step.readers):
            yield from self._builtin(reader, "reader", (*self.path, "readers", index))
        yield from self._results(step.results)

    def _removed(self, step: Run) -> Iterator[Complaint]:
        for index, flag in enumerate(step.argv.remove):
            if not flag.startswith("-") or flag in {"-", "--"} or len(flag.split()) > 2:
                what = f"{flag!r} is no flag: write '--flag', or '--flag VALUE' for one that takes a value"
                yield self.places.complaint((*self.path, "argv", "remove", index), what)

    def _results(self, results: Mapping[str, str]) -> Iterator[Complaint]:
        names = names_in(self.runbook, self.step, "after")
        for name, text in results.items():
            if "-" in name:
                what = f"result {name!r}: a name used in expressions has no '-'"
                yield self.places.complaint((*self.path, "results", name), what, key=True)
            yield from _compiled(expressions.check, text, (*self.path, "results", name), names, self.places)

    def _builtin(self, builtin: Builtin, role: Role, path: Path) -> Iterator[Complaint]:
        contract = self.runbook.catalogue.find(builtin.name, builtin.version)
        if contract is None or contract.role != role:
            known = self.runbook.catalogue.names(role)
            what = f"{builtin.uses} is no built-in {role}; there are: {', '.join(known)}"
            yield self.places.complaint((*path, "uses"), what, suggestion=nearest(builtin.uses, known))
            return
        for name, value in builtin.parameters.items():
            where = (*path, "with", name)
            if name not in contract.parameters:
                what = (
                    f"{builtin.uses} takes no parameter {name!r}; it takes: {', '.join(contract.parameters) or 'none'}"
                )
                yield self.places.complaint(where, what, key=True, suggestion=nearest(name, contract.parameters))
            yield from _texts(_strings(value), where, self.before, self.places)

    def _outcomes(self, outcomes: Sequence[Outcome]) -> Iterator[Complaint]:
        names = names_in(self.runbook, self.step, "after")
        for index, outcome in enumerate(outcomes):
            path = (*self.path, "outcomes", index, outcome.status.value)
            last = index == len(outcomes) - 1
            if outcome.when is not None:
                yield from self._condition(outcome.when, (*path, "when"), names)
                if last:
                    what = "the last outcome has no 'when': it is for everything else"
                    yield self.places.complaint((*path, "when"), what, key=True)
            elif not last:
                what = "an outcome without 'when' always holds, so those after it are never reached"
                yield self.places.complaint(path, what, key=True)
            texts: list[tuple[Path, str | None]] = [
                (("next", "runbook"), outcome.next.runbook if isinstance(outcome.next, ToRunbook) else None),
                (("message",), outcome.message),
                (("location",), outcome.location),
                (("next_step",), outcome.next_step),
            ]
            yield from _texts(((inner, text) for inner, text in texts if text), path, names, self.places)

    def _condition(self, text: str, path: Path, names: Names) -> Iterator[Complaint]:
        yield from _compiled(compile_condition, text, path, names, self.places)


def _strings(value: Data) -> Iterator[tuple[Path, str]]:
    match value:
        case str():
            yield (), value
        case list():
            yield from (((i, *inner), text) for i, x in enumerate(value) for inner, text in _strings(x))
        case dict():
            yield from (((key, *inner), text) for key, x in value.items() for inner, text in _strings(x))
        case _:
            return


# Read a runbook, resolve it and lint it: what the rest of the program starts from.


_ADVICE = "vdbg-env runbooks schema shows every key; docs/guides/write-a-runbook.md explains them"


def load(
    source: YamlSource, library: Library, catalogue: Catalogue, *, runbooks: Sequence[str] | None = None
) -> Runbook:
    """Return one runbook, linted; raises BadDocument with every complaint, in the order of the file.

    `catalogue` has the built-ins that it may use; `runbooks` are the names a step may branch to, None accepts any.
    """
    resolved = resolve(source, library, catalogue)
    found = {*resolved.complaints, *complaints(resolved.runbook, resolved.places, runbooks=runbooks)}
    if found:
        in_order = sorted(found, key=lambda x: (x.file, x.line, x.column, x.what))
        raise BadDocument(tuple(in_order), next_step=_ADVICE)
    return resolved.runbook
