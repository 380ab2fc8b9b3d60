"""Pass changes of vLLM's engine arguments to any kind of workload, one delta at a time.

A step names the arguments by their Python names (`enforce_eager: true`, `compilation_config: {cudagraph_mode: NONE}`).
vLLM's own command line gets flags. A script that builds `LLM(...)` or `AsyncLLM` itself takes none, so it gets a
plug-in: a folder put on PYTHONPATH whose entry point in the group `vllm.general_plugins` vLLM loads by itself when its
engine arguments are made (vLLM 0.33.0, vllm/engine/arg_utils.py, `EngineArgs.__post_init__`). The plug-in says on the
error stream what it changed, and a step whose words do not appear there has tried nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from vdbg_env.runbook.model import Data, Matcher
from vdbg_env.runbook.workload.overlay import without_flags

VARIABLE = "VDBG_VLLM_ENGINE_ARGS"
HOOK_FOLDER = "lib/vllm-overlay"  # below the shipped runbooks
WITNESS = Matcher(name="engine_args_applied", pattern=r"vdbg-env: engine arguments applied: ", take="first")

# A flag that takes a mapping has a short spelling too, and each may be dotted: vLLM 0.33.0, utils/argparse_utils.py.
_SHORT = {
    "attention_config": "-ac",
    "compilation_config": "-cc",
    "diffusion_config": "-dc",
    "speculative_config": "-sc",
}
# Arguments that exclude one another: giving both is an error of vLLM's (EngineArgs.create_engine_config).
_SAME = {("attention_config", "backend"): "attention_backend"}


def problems(arguments: Mapping[str, Data]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a step's engine arguments, as (name, complaint)."""
    for name, value in arguments.items():
        if "-" in name or name.startswith("_"):
            yield name, f"{name!r} is no argument of an engine: write its Python name, {name.replace('-', '_')!r}"
        if isinstance(value, dict) and not value:
            yield name, f"{name!r} changes nothing"
        if isinstance(value, list):
            yield name, f"{name!r} has a list; only text, numbers, true, false and mappings can be delivered"


def as_flags(argv: Sequence[str], arguments: Mapping[str, Data]) -> tuple[str, ...]:
    """Return vLLM's command line with the arguments changed, and nothing else changed.

    A mapping is merged into what the command line already says: vLLM makes one JSON value of all dotted flags and lets
    it replace a `--compilation-config '{...}'` as a whole, which would change more than the step says.
    """
    result = tuple(argv)
    for name, value in arguments.items():
        if isinstance(value, dict):
            result = _merged(result, name, value)
        else:
            result = _appended(without_flags(result, _spellings(name, value)), _flag(name, value))
    return result


def as_environment(arguments: Mapping[str, Data], *, data_dir: str, python_path: str) -> dict[str, str | None]:
    """Return the environment delta that brings the arguments to a Python workload through the plug-in."""
    folder = f"{data_dir}/{HOOK_FOLDER}"
    return {
        VARIABLE: json.dumps(arguments, sort_keys=True),
        "PYTHONPATH": f"{folder}:{python_path}" if python_path else folder,
    }


def _flag(name: str, value: Data) -> tuple[str, ...]:
    dashed = "--" + name.replace("_", "-")
    match value:
        case True:
            return (dashed,)
        case False:
            return ("--no-" + dashed[2:],)
        case None:
            return ()
        case _:
            return (f"{dashed}={value}",)


def _spellings(name: str, value: Data) -> tuple[str, ...]:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return (f"--{dashed}", f"--no-{dashed}")
    return (f"--{dashed} VALUE",)


def _merged(argv: tuple[str, ...], name: str, value: Mapping[str, Data]) -> tuple[str, ...]:
    long, short = "--" + name.replace("_", "-"), _SHORT.get(name)
    spellings = [long] if short is None else [long, short]
    before = _effective(argv, spellings)
    families = [f"{x} VALUE" for x in spellings] + [f"{x}. VALUE" for x in spellings]
    for inner, excluded in ((key[1], other) for key, other in _SAME.items() if key[0] == name):
        if inner in value:
            families.append(f"--{excluded.replace('_', '-')} VALUE")
    rest = without_flags(argv, families)
    spelling = short or long
    if not before:
        return _appended(rest, tuple(f"{spelling}.{'.'.join(path)}={_scalar(x)}" for path, x in leaves(value)))
    return _appended(rest, (spelling, json.dumps(_deep(before, value))))


def _effective(argv: Sequence[str], spellings: Sequence[str]) -> dict[str, Data]:
    """Return the value that vLLM would read from a mapping's flags: the dotted ones, else the last JSON value."""
    dotted: dict[str, dict[str, Data]] = {}
    whole: dict[str, Data] = {}
    for index, word in enumerate(argv):
        if word == "--":
            break
        flag, equals, inline = word.partition("=")
        text = inline if equals else (argv[index + 1] if index + 1 < len(argv) else "")
        plain = "--" + flag[2:].replace("_", "-") if flag.startswith("--") and "." not in flag else flag
        spelling, dot, path = plain.partition(".")
        if spelling.startswith("--"):
            spelling = "--" + spelling[2:].replace("_", "-")
        if spelling not in spellings:
            continue
        if dot:
            dotted[spelling] = _deep(dotted.get(spelling, {}), _nested(path.split("."), _read(text)))
        else:
            given = _read(text)
            whole = given if isinstance(given, dict) else {}
    return list(dotted.values())[-1] if dotted else whole


def _read(text: str) -> Data:
    try:
        value: Data = json.loads(text)
    except ValueError:
        return text
    return value


def _nested(path: Sequence[str], value: Data) -> dict[str, Data]:
    for key in reversed(path):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def _deep(base: Mapping[str, Data], change: Mapping[str, Data]) -> dict[str, Data]:
    result = dict(base)
    for key, value in change.items():
        old = result.get(key)
        result[key] = _deep(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def leaves(value: Mapping[str, Data], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Data]]:
    """Yield each value that is not a mapping, by the keys that lead to it."""
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from leaves(inner, (*above, key))
        else:
            yield (*above, key), inner


def _scalar(value: Data) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _appended(argv: Sequence[str], words: Sequence[str]) -> tuple[str, ...]:
    end = list(argv).index("--") if "--" in argv else len(argv)
    return (*argv[:end], *words, *argv[end:])
