"""Decide what a run does next: a pure state machine from inputs and step results to decisions.

`start` gives the first decision; `advance` takes the result of one decision and gives the next. Nothing here starts a
process, reads a clock or a file: a run is resumed by replaying its recorded results. `plan` shows the same decisions
with nothing started.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from vdbg_env.common.console import nearest
from vdbg_env.common.errors import BadInput
from vdbg_env.evidence import deaths
from vdbg_env.evidence.finding import EndedBy, Observation
from vdbg_env.runbook import expressions, judge, workload
from vdbg_env.runbook.expressions import ExpressionFailed, FalsePart, Names, Value, compile_condition, why_false
from vdbg_env.runbook.judge import conclude, filled_engine_args
from vdbg_env.runbook.model import (
    ArgvOverlay,
    Builtin,
    Command,
    Data,
    End,
    Input,
    Manual,
    Matcher,
    Next,
    Ready,
    Requires,
    Run,
    Runbook,
    ServerDriver,
    Step,
    ToRunbook,
    ToStep,
    Uses,
    size_text,
)
from vdbg_env.runbook.state import (
    AskPerson,
    BranchTo,
    Decision,
    Facts,
    Finish,
    Invocation,
    RunState,
    RunStep,
    StepRecord,
    StepResult,
    UseBuiltin,
    Verdict,
    names_in,
    values_before,
    values_of_attempts,
)
from vdbg_env.runbook.workload import Inputs, overlaid_argv, overlaid_env, recognise


def final_inputs(
    runbook: Runbook, given: Mapping[str, str], argv: Sequence[str], environment: Mapping[str, str]
) -> Inputs:
    """Return every input of the runbook: what was given, else its variable of `environment`, else its default.

    `argv` is the workload's command line and becomes the input of that name. Raises BadInput for a name the runbook
    does not have, a value that is not of its type, and a required input that nothing gives.
    """
    for name in given:
        if name not in runbook.inputs:
            close = nearest(name, runbook.inputs)
            hint = f" (did you mean {close!r}?)" if close else ""
            raise BadInput(
                f"runbook {runbook.name!r} has no input {name!r}{hint}",
                next_step=f"vdbg-env runbooks show {runbook.name}",
            )
    return Inputs({name: _value(runbook, wanted, given, argv, environment) for name, wanted in runbook.inputs.items()})


def _value(
    runbook: Runbook, wanted: Input, given: Mapping[str, str], argv: Sequence[str], environment: Mapping[str, str]
) -> Data:
    if wanted.name in given:
        return typed(wanted, given[wanted.name])
    if wanted.name == "argv" and wanted.type == "array" and argv:
        return list(argv)
    if wanted.from_env and wanted.from_env in environment:
        return typed(wanted, environment[wanted.from_env])
    if wanted.required and wanted.name == "argv":
        raise BadInput(
            f"runbook {runbook.name!r} needs a command to run",
            cause="none follows --, ./vdbg.yaml names none, and only illegal-memory-access has a bundled sample",
            next_step=f"vdbg-env runbook {runbook.name} -- COMMAND ...",
        )
    if wanted.required:
        raise BadInput(
            f"runbook {runbook.name!r} needs the input {wanted.name!r}",
            cause=wanted.description or None,
            next_step=f"vdbg-env runbook {runbook.name} -i {wanted.name}=VALUE",
        )
    default: Data = wanted.default
    return default


def typed(wanted: Input, text: str) -> Data:
    """Return the text as the input's type; raises BadInput."""
    match wanted.type:
        case "string" | "path":
            if wanted.choices and text not in wanted.choices:
                raise BadInput(f"input {wanted.name!r} is one of {', '.join(wanted.choices)}, not {text!r}")
            return text
        case "bool":
            if text.lower() in {"true", "yes", "1"}:
                return True
            if text.lower() in {"false", "no", "0"}:
                return False
            raise BadInput(f"input {wanted.name!r} is true or false, not {text!r}")
        case "int":
            return int(_number(wanted, text, int))
        case "float":
            return _number(wanted, text, float)
        case "array":
            return list(text.split(","))
        case _:
            assert_never(wanted.type)


def _number(wanted: Input, text: str, kind: type[int] | type[float]) -> float:
    try:
        number = kind(text)
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError(text)  # no record could hold it: JSON has no such number
        return number
    except ValueError:
        raise BadInput(f"input {wanted.name!r} is a number ({wanted.type}), not {text!r}") from None


# List what a runbook requires and the host does not have, before anything starts.


def unmet(requires: Requires, facts: Facts, *, free_disk: int | None) -> tuple[str, ...]:
    """Return one sentence for each thing that is missing; `free_disk` in bytes, None where it was not looked up.

    What was not looked up does not count against the host: a step that needs it reports that when it is reached.
    """
    return tuple(_unmet(requires, facts, free_disk))


def _unmet(requires: Requires, facts: Facts, free_disk: int | None) -> Iterator[str]:
    if facts.tools is not None:
        yield from (f"{tool} was not found" for tool in requires.tools if tool not in facts.tools)
    if requires.gpu and facts.gpus == 0:
        yield "no GPU is visible"
    if requires.lineinfo and facts.lineinfo is False:
        yield "the libraries carry no line info"
    if requires.free_disk is not None and free_disk is not None and free_disk < requires.free_disk:
        yield f"{size_text(free_disk)} are free for the record, {size_text(requires.free_disk)} are needed"


# What a command needs on several ranks: vLLM's own words, and the lines that tell cause from victim.


NUMBER = "${{ rank.number }}"
LOCAL = "${{ rank.local }}"  # on its node
_PORTS = range(20000, 30000)  # below those that systems give to clients
ALARM = "../hang"  # in the attempt's folder
MATCHERS = (
    Matcher(name=deaths.CAUSE, pattern=deaths.CAUSE_PATTERN),
    Matcher(name=deaths.VICTIM, pattern=deaths.VICTIM_PATTERN),
)
# A command that has one of these spreads itself: its words are left as they are.
_SPREAD = ("--nnodes", "--node-rank", "--headless", "--data-parallel-start-rank", "--data-parallel-rank")


@dataclass(frozen=True, kw_only=True)
class RankedInvocation:
    """What the first rank runs, and what each of the others does; `${{ rank.* }}` is still in both."""

    first: Invocation
    others: Invocation


def ranked(invocation: Invocation, *, ranks: int, nodes: int, master: str, port: int) -> RankedInvocation:
    """Return an invocation for several ranks: requests are sent at the first, vLLM gets its words for `nodes`.

    Every other command gets the variables by which torch.distributed finds its ranks (`env://`). `master` is where the
    first rank runs, and `port` what it may listen at. Raises BadInput for words that contradict the placement.
    """
    marked = replace(invocation, matchers=(*invocation.matchers, *MATCHERS), alarm=ALARM)
    others = replace(marked, driver=None, listens="")
    if invocation.driver is not None:
        # Only the first rank says what it serves: silence of the others is no hang, and the alarm is heard by all.
        others = replace(
            others, watch=invocation.watch.model_copy(update={"output_idle_s": None, "gpu_pinned_s": None})
        )
    first = marked
    words = _words(invocation.argv)
    if recognise(invocation.base_argv).kind != "vllm" or not recognise(invocation.base_argv).serves:
        found = {
            **invocation.hooks,
            "RANK": NUMBER,
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": LOCAL,
            "MASTER_ADDR": master,
            "MASTER_PORT": str(port),
        }
        return RankedInvocation(first=replace(first, hooks=found), others=replace(others, hooks=found))
    given = words.get("--nnodes")
    if given is not None and given != str(ranks):
        raise BadInput(
            f"the command has --nnodes {given}, and the placement {ranks} ranks on {nodes} nodes",
            cause="vLLM runs one rank of its --nnodes on each task",
            next_step=f"leave out --nnodes, or start {given} ranks",
        )
    if any(name in words for name in _SPREAD):
        return RankedInvocation(first=first, others=others)
    spread = ("--nnodes", str(ranks), "--node-rank", NUMBER, "--master-addr", master)
    return RankedInvocation(
        first=replace(first, argv=(*first.argv, *spread)),
        others=replace(others, argv=(*others.argv, *spread, "--headless")),
    )


def master_port(attempt: str) -> int:
    """Return a port for the ranks of an attempt to meet at: the same one for an engine that takes the attempt over."""
    return _PORTS[int(hashlib.sha256(attempt.encode("utf-8", "surrogateescape")).hexdigest()[:8], 16) % len(_PORTS)]


def _words(argv: Sequence[str]) -> dict[str, str | None]:
    """Return the flags of a command line with what follows each of them."""
    found: dict[str, str | None] = {}
    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            found[name.replace("_", "-")] = value if equals else next(iter(argv[index + 1 : index + 2]), None)
    return found


# Turn a step into the decision to do it: substitution, the final command line, the environment delta.


_HAS_MATCHED = re.compile(r"has\(matched\.(\w+)\)")


def why_skipped(state: RunState, step: Step) -> str | None:
    """Return the reason a step is not run, or None when it is: a missing tool, or an `if` that does not hold."""
    if isinstance(step, Run) and step.engine_args and state.inputs.workload.kind == "program":
        return "the workload is no Python program, so it has no vLLM engine to change"
    if isinstance(step, Run) and (refused := _could_not_start(state, step.command)):
        return f"its program could not be started in step {refused!r} either"
    missing = [tool for tool in step.tools if state.facts.tools is not None and tool not in state.facts.tools]
    if missing:
        return f"{', '.join(missing)} was not found"
    if step.condition is None:
        return None
    names, values = _before(state, step)
    try:
        held = compile_condition(step.condition, names).holds(values)
    except ExpressionFailed as error:
        return f"its condition could not be decided: {error}"
    return None if held else _say_plainly(why_false(step.condition, names, values))


_STATES = {
    ("workload.eager", True): "it runs eagerly already",
    ("workload.python", False): "not a Python program",
}
_NO_CORE = re.compile(r"steps\.(\w+)\.artifacts\.cores\.count > 0")


def _say_plainly(false: FalsePart) -> str:
    """Return why a condition does not hold in a user's words, where there are some for it."""
    if false.flag:
        return f"only with {false.flag}"
    if words := _STATES.get((false.path, false.value)):
        return words
    if false.path.endswith(".results.vllm") and not false.value:
        return "not vLLM"
    if false.part == "workload.command == 'serve'":
        return "not a vLLM server"
    if found := _NO_CORE.fullmatch(false.part):
        return f"step {found[1]} left no GPU core"
    return f"its condition does not hold: {false}"


def _could_not_start(state: RunState, command: str) -> str | None:
    """Return the step in which a command could not be started as it was given, not inside a tool that was not there."""
    for record in state.trail:
        step = state.runbook.step(record.step)
        plain = isinstance(step, Run) and step.command == command and not step.argv.wrap
        if plain and record.ended is not None and record.ended.by is EndedBy.NOT_STARTED:
            return record.step
    return None


def decide(state: RunState, step: Step) -> Decision:
    """Return what is to be done for a step; raises BadInput when a text in it cannot be filled."""
    names, values = _before(state, step)
    try:
        match step:
            case Run():
                return _run(state, step, names, values)
            case Uses():
                builtin = filled_builtin(step, names, values)
                return UseBuiltin(
                    step=step.id,
                    name=builtin.name,
                    version=builtin.version,
                    parameters=builtin.parameters,
                    timeout_s=step.timeout_s,
                )
            case Manual():
                return AskPerson(
                    step=step.id,
                    prompt=expressions.fill_text(step.question.prompt, names, values),
                    choices=tuple(step.question.choices),
                    default=step.question.default,
                    timeout_s=step.question.timeout_s,
                )
            case _:
                assert_never(step)
    except ExpressionFailed as error:
        raise BadInput(f"step {step.id!r} cannot be prepared: {error}", cause="an input that is missing") from None


def filled_builtin(builtin: Builtin, names: Names, values: dict[str, Value]) -> Builtin:
    """Return the built-in with final parameters; raises ExpressionFailed."""
    filled = expressions.fill(dict(builtin.parameters), names, values)
    assert isinstance(filled, dict)
    return Builtin(uses=builtin.uses, parameters=filled)


_ARMED = "CUDA_COREDUMP_FILE"  # a step that sets it looks for the address of a crash


def _run(state: RunState, step: Run, names: Names, values: dict[str, Value]) -> RunStep:
    command = state.runbook.commands[step.command]
    base = _argv(command, names, values)
    overlay = ArgvOverlay(
        append=_filled_words(step.argv.append, names, values),
        remove=step.argv.remove,
        wrap=_filled_words(step.argv.wrap, names, values),
    )
    arguments = filled_engine_args(step, names, values)
    argv, hook = _engine_args(state, arguments, base)
    env = overlaid_env(command.env, hook, step.env)
    matchers = {**state.runbook.matchers, **step.matchers}
    driver = _driver(command, names, values)
    serves = driver is not None or recognise(base).serves
    final = _environment(env, names, values)
    hooks = _witness(state, final, arguments) if hook or (step.verify_env and recognise(base).kind == "vllm") else {}
    if state.facts.data_dir and final.get(_ARMED) is not None:
        facts = state.facts
        hooks = workload.memory_hook(base, hooks, data_dir=facts.data_dir, python_path=facts.python_path)
    invocation = Invocation(
        step=step.id,
        attempt=1,
        argv=overlaid_argv(argv, overlay),
        base_argv=base,
        env=_nameless(final) if state.facts.nameless else final,
        hooks=hooks,
        timeout_s=step.timeout_s,
        kill=step.kill,
        watch=step.watch,
        output=step.output,
        matchers=(
            *matchers.values(),
            *_own_matchers(arguments, plugged=bool(hook), witnessed=workload.WITNESS_VARIABLE in hooks, serves=serves),
        ),
        artifacts=tuple(step.artifacts.values()),
        driver=driver,
        server=serves,
        listens=driver.ready.http if driver else workload.url(base) if serves else "",
        decisive=_decisive(step) if serves else (),
        verify_env=step.verify_env,
        placement=step.placement,
    )
    readers = tuple(filled_builtin(reader, names, values) for reader in step.readers)
    return RunStep(invocation=invocation, repeat=step.repeat, readers=readers)


def _environment(env: Mapping[str, str | None], names: Names, values: dict[str, Value]) -> dict[str, str | None]:
    """Fill each value; one that is an expression and gives null unsets its variable."""
    filled = {name: None if text is None else expressions.fill(text, names, values) for name, text in env.items()}
    return {name: None if value is None else expressions.as_text(value) for name, value in filled.items()}


def _nameless(env: Mapping[str, str | None]) -> dict[str, str | None]:
    return {name: value and value.replace("%h", "host") for name, value in env.items()}


def _decisive(step: Run) -> tuple[str, ...]:
    """Return the matchers after which a step has seen what it is repeated for; a tool around it is let to its end.

    A file that the failure leaves comes within the grace after it; the rank that did not fail would wait for an hour.
    """
    until = step.repeat.until or ""
    if step.argv.wrap or "&&" in until:
        return ()
    of_files = ("failure",) if any(rule.required for rule in step.artifacts.values()) else ()
    return (*_HAS_MATCHED.findall(until), *of_files)


def _own_matchers(
    arguments: Mapping[str, Data], *, plugged: bool, witnessed: bool, serves: bool
) -> tuple[Matcher, ...]:
    """Return what the engine looks for on its own account: what a step is not judged without."""
    of_server = (workload.STARTED, workload.TRACEBACK) if serves else ()
    of_plug_in = ((workload.WITNESS,) if plugged else ()) + ((workload.MATCHER,) if witnessed else ())
    return (*workload.matchers(arguments), *of_plug_in, *of_server)


def _witness(state: RunState, env: Mapping[str, str | None], arguments: Mapping[str, Data]) -> Mapping[str, str]:
    """Return the variables that make each worker report what it has; none where the plug-in is not at its place."""
    facts = state.facts
    if not facts.data_dir:
        return {}
    return workload.hook(env, arguments, data_dir=facts.data_dir, python_path=facts.python_path)


def _engine_args(
    state: RunState, arguments: Mapping[str, Data], argv: tuple[str, ...]
) -> tuple[tuple[str, ...], Mapping[str, str | None]]:
    """Deliver a step's engine arguments as flags where the workload takes flags, through the plug-in elsewhere."""
    if not arguments:
        return argv, {}
    if state.inputs.workload.kind == "vllm":
        return workload.as_flags(argv, arguments), {}
    facts = state.facts
    hook = workload.as_environment(arguments, data_dir=facts.data_dir, python_path=facts.python_path)
    return argv, hook


def _argv(command: Command, names: Names, values: dict[str, Value]) -> tuple[str, ...]:
    if isinstance(command.argv, tuple):
        return _filled_words(command.argv, names, values)
    filled = expressions.fill(command.argv, names, values)
    if not isinstance(filled, list) or not filled:
        raise ExpressionFailed(f"{command.argv} gives {filled!r}, not the words of a command line")
    return tuple(expressions.as_text(word) for word in filled)


def _filled_words(words: tuple[str, ...], names: Names, values: dict[str, Value]) -> tuple[str, ...]:
    """Fill each word; one that is an expression and gives a list stands for as many words, also for none."""
    result: list[str] = []
    for word in words:
        filled = expressions.fill(word, names, values)
        result.extend(map(expressions.as_text, filled) if isinstance(filled, list) else [expressions.as_text(filled)])
    return tuple(result)


def _driver(command: Command, names: Names, values: dict[str, Value]) -> ServerDriver | None:
    if command.driver is None:
        return None
    replay = expressions.fill_text(command.driver.replay, names, values)
    if not replay:
        return None  # nothing to send: the command is run to its own end
    ready = command.driver.ready
    url = expressions.fill_text(ready.http, names, values)
    at_once = _concurrency(command.driver.concurrency, names, values)
    return ServerDriver(replay=replay, ready=Ready(http=url, timeout_s=ready.timeout_s), concurrency=at_once)


def _concurrency(asked: int | str | None, names: Names, values: dict[str, Value]) -> int | None:
    """Return how many requests may be under way; None for null, and at least one."""
    filled = expressions.fill(asked, names, values) if isinstance(asked, str) else asked
    return max(1, int(expressions.as_text(filled))) if filled is not None else None


def _before(state: RunState, step: Step) -> tuple[Names, dict[str, Value]]:
    values = values_before(state.runbook, state.inputs, state.facts, state.trail)
    return names_in(state.runbook, step, "before"), values


# Show what a runbook would do: each step's final command line and environment delta, with nothing started.
#
# Every step is shown as if it were reached by a run in which nothing was seen yet; what depends on what an earlier step
# sees (its `if`, a path it left behind) is shown as the expression it is.


Whether = Literal["yes", "no", "depends"]


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """One step of the plan; `runs` says whether it would be run, and `why_not` the reason where it would not."""

    step: Step
    runs: Whether
    why_not: str | None = None
    invocation: Invocation | None = None
    changes: Mapping[str, Data]
    leads_to: tuple[tuple[str, str | None, Next], ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a runbook would do with these inputs on this host, or in containers of `image`.

    `ranks` and `nodes` are those of the command line, which a step's own give way to.
    """

    runbook: Runbook
    inputs: Mapping[str, Data]
    facts: Facts
    steps: tuple[PlannedStep, ...]
    image: str | None = None
    ranks: int | None = None
    nodes: int | None = None


def plan(runbook: Runbook, given: Mapping[str, Data], facts: Facts) -> Plan:
    """Return the plan of a linted runbook; raises BadInput when these inputs give no command line."""
    inputs, nothing = Inputs(given), Finish(verdict=Verdict.INCONCLUSIVE, why="a plan")
    state = RunState(runbook=runbook, inputs=inputs, facts=facts, decision=nothing)
    steps = tuple(_planned(state, step) for step in runbook.steps)
    return Plan(runbook=runbook, inputs=inputs, facts=facts, steps=steps)


def unattended(runbook: Runbook, given: Mapping[str, Data], facts: Facts) -> str | None:
    """Return why a run in which no one can answer is not to be begun, or None; what a step sees does not change it."""
    nothing = Finish(verdict=Verdict.INCONCLUSIVE, why="a plan")
    state = RunState(runbook=runbook, inputs=Inputs(given), facts=facts, decision=nothing)
    for step in runbook.steps:
        if isinstance(step, Manual) and step.question.unattended and _whether(state, step)[0] == "yes":
            return step.question.unattended
    return None


def _planned(state: RunState, step: Step) -> PlannedStep:
    runs, why_not = _whether(state, step)
    invocation = None
    common: Mapping[str, str | None] = {}
    if isinstance(step, Run):
        common = state.runbook.commands[step.command].env
        invocation = _invocation(state, step, runs)
    return PlannedStep(
        step=step,
        runs=runs,
        why_not=why_not,
        invocation=invocation,
        changes=_changes(step, invocation, common),
        leads_to=tuple(_leads_to(step)),
    )


def _invocation(state: RunState, step: Run, runs: Whether) -> Invocation | None:
    """Return the final command of a step; one that would not be run may lack what it needs, such as a workload."""
    try:
        decision = decide(state, step)
    except BadInput:
        if runs == "no":
            return None
        raise
    assert isinstance(decision, RunStep)
    return decision.invocation


def _whether(state: RunState, step: Step) -> tuple[Whether, str | None]:
    """Say whether a step would run: without its condition first, because that may depend on what was not seen yet."""
    reason = why_skipped(state, step.model_copy(update={"condition": None}))
    if reason:
        return "no", reason
    if step.condition is None:
        return "yes", None
    if not _depends(state, step.condition, step):
        reason = why_skipped(state, step)
        return ("no", reason) if reason else ("yes", None)
    return "depends", f"if {step.condition}"


def _depends(state: RunState, condition: str, step: Step) -> bool:
    """Say whether a condition can still change with what earlier steps see.

    It cannot when it is the same whatever `steps` holds, which is tried with every value there is left out: CEL's
    `&&` and `||` take the side that is known (`false && error` is false), so only a true dependence fails.
    """
    names = names_in(state.runbook, step, "before")
    values = values_before(state.runbook, state.inputs, state.facts, ())
    compiled = compile_condition(condition, names)
    if "steps" not in compiled.needs:
        return False
    try:
        compiled.holds({**values, "steps": {}})
    except ExpressionFailed:
        return True
    return "has(steps" in condition


def _changes(step: Step, invocation: Invocation | None, common: Mapping[str, str | None]) -> dict[str, Data]:
    """Return only what the step changes of the command as given: the words added and taken, and the variables."""
    if invocation is None or not isinstance(step, Run):
        return {}
    start = len(step.argv.wrap)
    final = invocation.argv
    changes: dict[str, Data] = {
        "wrap": list(final[:start]),
        "append": [word for word in final[start:] if word not in invocation.base_argv],
        "remove": [word for word in invocation.base_argv if word not in final],
        "env": {name: value for name, value in invocation.env.items() if name not in common},
    }
    return {key: value for key, value in changes.items() if value}


def _leads_to(step: Step) -> list[tuple[str, str | None, Next]]:
    match step:
        case Run() | Uses():
            return [(outcome.status.value, outcome.when, outcome.next) for outcome in step.outcomes]
        case Manual():
            asked = step.question
            return [(name, "the default" if name == asked.default else None, x) for name, x in asked.choices.items()]
        case _:
            assert_never(step)


# From one decision to the next.


MAX_VISITS = 25  # of one step: only a person's answers can lead back, and this many are no progress


def start(
    runbook: Runbook, inputs: Mapping[str, Data], facts: Facts, *, came_from: tuple[str, ...] = ()
) -> tuple[RunState, Decision]:
    """Begin a linted runbook and return the state with its first decision.

    `inputs` are final values (see `machine.inputs`); `came_from` names the runbooks that branched here.
    """
    state = RunState(
        runbook=runbook,
        inputs=Inputs(inputs),
        facts=facts,
        decision=Finish(verdict=Verdict.INCONCLUSIVE, why="not begun"),
        came_from=came_from,
    )
    return _go(state, ToStep(step=runbook.steps[0].id))


def advance(state: RunState, result: StepResult) -> tuple[RunState, Decision]:
    """Take in the result of the last decision and return the next; raises BadInput for a result of another step."""
    step_id = waiting_for(state)
    if result.step != step_id:
        raise BadInput(f"a result of step {result.step!r} came where one of {step_id!r} was awaited")
    record = judge.record(state, state.runbook.step(step_id), result)
    return _go(replace(state, trail=(*state.trail, record)), record.next)


def again(state: RunState, observations: Sequence[Observation]) -> bool:
    """Return whether the step that is being run needs another attempt after those observed so far."""
    decision = state.decision
    assert isinstance(decision, RunStep), "only a run step is repeated"
    done = len({x.attempt for x in observations})
    if done >= decision.repeat.count or any(_will_not_start(x) for x in observations):
        return False
    step = state.runbook.step(decision.invocation.step)
    assert isinstance(step, Run)
    if decision.repeat.until is None:
        return True
    values = {
        **values_before(state.runbook, state.inputs, state.facts, state.trail),
        **values_of_attempts(step, observations),
    }
    try:
        return not compile_condition(decision.repeat.until, names_in(state.runbook, step, "attempt")).holds(values)
    except ExpressionFailed:
        return True  # what was asked for has not been seen; judging the outcome notes the reason


def _will_not_start(seen: Observation) -> bool:
    """Say whether a second attempt has nothing to show: it cannot be started, or a server's start raised an error."""
    if seen.ended.by is EndedBy.NOT_STARTED:
        return True
    ready = workload.STARTED.name in seen.matched or (seen.requests is not None and seen.requests.ready)
    raised = seen.ended.by is EndedBy.EXIT and seen.ended.code and workload.TRACEBACK.name in seen.matched
    return bool(raised) and not ready


def cut_short(state: RunState, why: str, *, out_of_time: bool = False) -> tuple[RunState, Finish]:
    """End a run before its end: the total time is spent, or the user asked. What is known so far stays."""
    verdict = Verdict.OUT_OF_TIME if out_of_time else conclude(state.trail, state.runbook).verdict
    finish = Finish(verdict=verdict, why=why)
    return replace(state, decision=finish), finish


def waiting_for(state: RunState) -> str:
    """Return the id of the step whose result is awaited; raises BadInput when the run is over."""
    match state.decision:
        case RunStep(invocation=invocation):
            return invocation.step
        case Finish():
            raise BadInput("the run is over: no result is awaited")
        case BranchTo(runbook=name):
            raise BadInput(f"the run continues with runbook {name!r}: no result is awaited here")
        case decision:
            return decision.step


def _go(state: RunState, goal: Next) -> tuple[RunState, Decision]:
    """Follow `next` from step to step until one must really be done; steps that are skipped are put on the trail."""
    while True:
        decision: Decision
        match goal:
            case End():
                decision = conclude(state.trail, state.runbook)
            case ToRunbook(runbook=name):
                decision = _branch(state, name)
            case ToStep(step=step_id):
                step = state.runbook.step(step_id)
                visits = sum(record.step == step_id for record in state.trail)
                skipped = why_skipped(state, step)
                if visits >= MAX_VISITS:
                    decision = Finish(
                        verdict=conclude(state.trail, state.runbook).verdict,
                        why=f"step {step_id!r} came {visits} times",
                    )
                elif skipped:
                    goal = _after_skip(state, step_id)
                    record = StepRecord(step=step_id, outcome=None, next=goal, skipped_because=skipped)
                    state = replace(state, trail=(*state.trail, record))
                    continue
                else:
                    decision = decide(state, step)
        state = replace(state, decision=decision)
        return state, decision


def _after_skip(state: RunState, step_id: str) -> Next:
    """Return where a skipped step leads: where it says, else where its last outcome leads."""
    step = state.runbook.step(step_id)
    if step.skipped:
        return step.skipped.next
    if isinstance(step, Manual):
        return step.question.choices[step.question.default]
    return step.outcomes[-1].next


def _branch(state: RunState, name: str) -> Decision:
    seen = (*state.came_from, state.runbook.name)
    if name in seen:
        # Two runbooks that send a run to each other have both had their say.
        return replace(conclude(state.trail, state.runbook), why=f"runbook {name!r} was already walked")
    last = state.trail[-1].step if state.trail else ""
    return BranchTo(runbook=name, step=last, came_from=seen)
