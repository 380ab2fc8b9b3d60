"""Turn a step into the decision to do it: substitution, the final command line, the environment delta."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import assert_never

from vdbg_env.common.errors import BadInput
from vdbg_env.evidence.observation import EndedBy
from vdbg_env.runbook.expressions import scope, template
from vdbg_env.runbook.expressions.cel import ExpressionFailed, Names, Value, compile_condition
from vdbg_env.runbook.expressions.why_false import why_false
from vdbg_env.runbook.invocation import Invocation
from vdbg_env.runbook.model import (
    ArgvOverlay,
    Builtin,
    Command,
    Data,
    Manual,
    Matcher,
    Ready,
    Run,
    ServerDriver,
    Step,
    Uses,
)
from vdbg_env.runbook.state import AskPerson, Decision, RunState, RunStep, UseBuiltin
from vdbg_env.runbook.workload import effective, engine_args, server, witness
from vdbg_env.runbook.workload.overlay import overlaid_argv, overlaid_env
from vdbg_env.runbook.workload.recognise import recognise

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
    return None if held else f"its condition does not hold: {why_false(step.condition, names, values)}"


def _could_not_start(state: RunState, command: str) -> str | None:
    """Return the step in which a command could not be started as it was given, not inside a tool that was not there."""
    for record in state.trail:
        step = state.runbook.step(record.step)
        plain = isinstance(step, Run) and step.command == command and not step.argv.wrap
        if plain and record.ended is not None and record.ended.by is EndedBy.NOT_STARTED:
            return record.step
    return None


def decision(state: RunState, step: Step) -> Decision:
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
                    prompt=template.fill_text(step.question.prompt, names, values),
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
    filled = template.fill(dict(builtin.parameters), names, values)
    assert isinstance(filled, dict)
    return Builtin(uses=builtin.uses, parameters=filled)


def _run(state: RunState, step: Run, names: Names, values: dict[str, Value]) -> RunStep:
    command = state.runbook.commands[step.command]
    base = _argv(command, names, values)
    overlay = ArgvOverlay(
        append=_words(step.argv.append, names, values),
        remove=step.argv.remove,
        wrap=_words(step.argv.wrap, names, values),
    )
    arguments = filled_engine_args(step, names, values)
    argv, hook = _engine_args(state, arguments, base)
    env = overlaid_env(command.env, hook, step.env)
    matchers = {**state.runbook.matchers, **step.matchers}
    driver = _driver(command, names, values)
    serves = driver is not None or recognise(base).serves
    final = _environment(env, names, values)
    hooks = _witness(state, final, arguments) if hook or (step.verify_env and recognise(base).kind == "vllm") else {}
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
            *_own_matchers(arguments, plugged=bool(hook), witnessed=bool(hooks), serves=serves),
        ),
        artifacts=tuple(step.artifacts.values()),
        driver=driver,
        server=serves,
        listens=driver.ready.http if driver else server.url(base) if serves else "",
        decisive=_decisive(step) if serves else (),
        verify_env=step.verify_env,
        placement=step.placement,
    )
    readers = tuple(filled_builtin(reader, names, values) for reader in step.readers)
    return RunStep(invocation=invocation, repeat=step.repeat, readers=readers)


def _environment(env: Mapping[str, str | None], names: Names, values: dict[str, Value]) -> dict[str, str | None]:
    """Fill each value; one that is an expression and gives null unsets its variable."""
    filled = {name: None if text is None else template.fill(text, names, values) for name, text in env.items()}
    return {name: None if value is None else template.as_text(value) for name, value in filled.items()}


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
    of_server = (server.STARTED, server.TRACEBACK) if serves else ()
    of_plug_in = ((engine_args.WITNESS,) if plugged else ()) + ((witness.MATCHER,) if witnessed else ())
    return (*effective.matchers(arguments), *of_plug_in, *of_server)


def _witness(state: RunState, env: Mapping[str, str | None], arguments: Mapping[str, Data]) -> Mapping[str, str]:
    """Return the variables that make each worker report what it has; none where the plug-in is not at its place."""
    facts = state.facts
    if not facts.data_dir:
        return {}
    return witness.hook(env, arguments, data_dir=facts.data_dir, python_path=facts.python_path)


def filled_engine_args(step: Run, names: Names, values: dict[str, Value]) -> dict[str, Data]:
    """Return the final engine arguments of a step; raises ExpressionFailed."""
    arguments = template.fill(dict(step.engine_args), names, values)
    assert isinstance(arguments, dict)
    return arguments


def _engine_args(
    state: RunState, arguments: Mapping[str, Data], argv: tuple[str, ...]
) -> tuple[tuple[str, ...], Mapping[str, str | None]]:
    """Deliver a step's engine arguments as flags where the workload takes flags, through the plug-in elsewhere."""
    if not arguments:
        return argv, {}
    if state.inputs.workload.kind == "vllm":
        return engine_args.as_flags(argv, arguments), {}
    facts = state.facts
    hook = engine_args.as_environment(arguments, data_dir=facts.data_dir, python_path=facts.python_path)
    return argv, hook


def _argv(command: Command, names: Names, values: dict[str, Value]) -> tuple[str, ...]:
    if isinstance(command.argv, tuple):
        return _words(command.argv, names, values)
    filled = template.fill(command.argv, names, values)
    if not isinstance(filled, list) or not filled:
        raise ExpressionFailed(f"{command.argv} gives {filled!r}, not the words of a command line")
    return tuple(template.as_text(word) for word in filled)


def _words(words: tuple[str, ...], names: Names, values: dict[str, Value]) -> tuple[str, ...]:
    """Fill each word; one that is an expression and gives a list stands for as many words, also for none."""
    result: list[str] = []
    for word in words:
        filled = template.fill(word, names, values)
        result.extend(map(template.as_text, filled) if isinstance(filled, list) else [template.as_text(filled)])
    return tuple(result)


def _driver(command: Command, names: Names, values: dict[str, Value]) -> ServerDriver | None:
    if command.driver is None:
        return None
    replay = template.fill_text(command.driver.replay, names, values)
    if not replay:
        return None  # nothing to send: the command is run to its own end
    ready = command.driver.ready
    url = template.fill_text(ready.http, names, values)
    at_once = _concurrency(command.driver.concurrency, names, values)
    return ServerDriver(replay=replay, ready=Ready(http=url, timeout_s=ready.timeout_s), concurrency=at_once)


def _concurrency(asked: int | str | None, names: Names, values: dict[str, Value]) -> int | None:
    """Return how many requests may be under way; None for null, and at least one."""
    filled = template.fill(asked, names, values) if isinstance(asked, str) else asked
    return max(1, int(template.as_text(filled))) if filled is not None else None


def _before(state: RunState, step: Step) -> tuple[Names, dict[str, Value]]:
    values = scope.values_before(state.runbook, state.inputs, state.facts, state.trail)
    return scope.names(state.runbook, step, "before"), values
