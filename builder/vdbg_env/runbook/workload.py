"""Know a workload by its command line, and change it: vLLM and its flags, its server, Ray, and engine arguments.

Pure text work: nothing here starts a process. `recognise` says what kind of command it is; an overlay is a step's
change to its words and environment; witnesses and the first log lines say what really ran.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import PurePath
from typing import Literal

from vdbg_env.evidence.finding import Finding, HowKnown, Level, NextStep, Observation
from vdbg_env.evidence.knowledge import NameJudgement, shipped_knowledge
from vdbg_env.runbook.model import ArgvOverlay, Data, Matcher, Run, Runbook, Step

Kind = Literal["vllm", "python", "program"]

# Launchers that start the rest of their command line; their own flags are skipped up to the first known program.
_LAUNCHERS = {"env", "uv", "uvx", "poetry", "pixi", "conda", "numactl", "taskset", "nice", "stdbuf", "time", "timeout",
              "setsid", "nohup", "mpirun", "mpiexec", "srun", "nsys", "sudo"}  # fmt: skip
_PYTHON = re.compile(r"(python|pypy)([23](\.\d+)?)?t?")
_PYTHON_LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "pytest", "ray"}
_CHOOSERS = {"uv", "uvx", "poetry", "pixi", "conda", "sudo"}  # whose Python is not the one on our PATH
_ENGINE_COMMANDS = {"serve", "bench", "run-batch", "launch"}
_VLLM_MODULES = ("vllm.entrypoints.",)
_SERVER_COMMANDS = {"serve", "launch"}
_SERVER_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server", "sglang.launch_server")
_HELP = {"-h", "--help"}
_BENCHES_OF_A_SERVER = {"serve"}  # `vllm bench serve` is a client: engine flags mean nothing to it


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A command line and its kind: `vllm` takes engine flags, `python` loads a plug-in, a program does neither.

    `command` is vLLM's subcommand or Python's module; `ranks` and `eager` are what vLLM's own flags ask for. `starter`
    is the word that starts Python, an interpreter or a script of one; None where a launcher chooses another Python.
    """

    kind: Kind
    argv: tuple[str, ...] = ()
    command: str | None = None
    ranks: int = 1
    eager: bool = False
    starter: str | None = None

    @property
    def python(self) -> bool:
        """Whether a Python interpreter runs it."""
        return self.kind != "program"

    @property
    def serves(self) -> bool:
        """Whether it is a server, which never ends by itself while it is well; one that prints its help is none."""
        if any(word.partition("=")[0] in _HELP for word in self.argv):
            return False
        return self.command in _SERVER_MODULES or (self.kind == "vllm" and self.command in _SERVER_COMMANDS)


def recognise(argv: tuple[str, ...]) -> Workload:
    """Return what kind of workload a command line is."""
    for index, word in enumerate(argv):
        name = PurePath(word).name
        kind, command = _kind(name, argv[index + 1 :])
        if kind != "program":
            chosen = not _CHOOSERS.isdisjoint(PurePath(w).name for w in argv[:index])
            starter = None if chosen and not PurePath(word).is_absolute() else word
            return Workload(
                kind=kind, argv=argv, command=command, ranks=_ranks(argv), eager=_eager(argv), starter=starter
            )
        if name not in _LAUNCHERS and index == 0:
            break
    return Workload(kind="program", argv=argv)


def _kind(name: str, rest: tuple[str, ...]) -> tuple[Kind, str | None]:
    """Return what a program of this name is when it is given `rest`, and vLLM's subcommand or Python's module."""
    if name == "vllm":
        command = rest[0] if rest else None
        if command == "bench" and rest[1:2] and rest[1] in _BENCHES_OF_A_SERVER:
            return "python", "bench serve"
        return ("vllm" if command in _ENGINE_COMMANDS else "python"), command
    if _PYTHON.fullmatch(name):
        module = _module(rest)
        return ("vllm" if module and module.startswith(_VLLM_MODULES) else "python"), module
    if name in _PYTHON_LAUNCHERS or name.endswith(".py"):
        return "python", None
    return "program", None


def _module(arguments: tuple[str, ...]) -> str | None:
    for index, word in enumerate(arguments):
        if word == "-m" and index + 1 < len(arguments):
            return arguments[index + 1]
        if not word.startswith("-"):
            return None
    return None


def _ranks(argv: tuple[str, ...]) -> int:
    """Return the number of ranks that vLLM's own flags ask for: tensor times pipeline parallel size."""
    total = 1
    for names in (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp")):
        for index, word in enumerate(argv):
            flag, _, value = word.partition("=")
            if flag.replace("_", "-") in names:
                value = value or (argv[index + 1] if index + 1 < len(argv) else "")
                total *= int(value) if value.isdecimal() and value != "0" else 1
    return total


def _eager(argv: tuple[str, ...]) -> bool:
    """Return whether compile and graphs are off already: `--enforce-eager`, or optimisation level 0 (`-O0`)."""
    words = [word.replace("_", "-") for word in argv]
    level = any(a in {"-O", "--optimization-level"} and b == "0" for a, b in pairwise(words))
    return "--enforce-eager" in words or level or not {"-O0", "-O=0", "--optimization-level=0"}.isdisjoint(words)


# Apply a step's delta to a command line and an environment; a command line is a list from end to end.


def overlaid_argv(base: Sequence[str], overlay: ArgvOverlay) -> tuple[str, ...]:
    """Return the command line a step really starts: wrapped, with flags removed and appended.

    What is appended goes before a lone `--` of the base, because what follows one is no flag.
    """
    kept = without_flags(base, overlay.remove)
    end = kept.index("--") if "--" in kept else len(kept)
    return (*overlay.wrap, *kept[:end], *overlay.append, *kept[end:])


def without_flags(argv: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
    """Return the command line without the named flags.

    A flag goes as `--flag=value`, as `--flag` alone, and as `--flag value` when written `--flag VALUE` in the overlay:
    only its author knows whether a flag takes a value, and guessing would eat a positional argument.
    A name that ends in a dot (`-cc.`) means the whole family of dotted flags.
    """
    with_value = {flag.split()[0] for flag in flags if len(flag.split()) > 1}
    alone = {flag.split()[0] for flag in flags}
    kept: list[str] = []
    position = 0
    while position < len(argv):
        word = argv[position]
        if word == "--":
            kept.extend(argv[position:])
            break
        name, equals, _ = word.partition("=")
        found = _spelled(name, alone)
        if found is None:
            kept.append(word)
        elif found in with_value and not equals:
            position += 1
        position += 1
    return tuple(kept)


def overlaid_env(*deltas: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return several deltas as one: the later one wins, None unsets."""
    result: dict[str, str | None] = {}
    for delta in deltas:
        result.update(delta)
    return dict(sorted(result.items()))


def _spelled(name: str, flags: set[str]) -> str | None:
    """Return the flag that `name` is a spelling of: argparse in vLLM takes `_` for `-` in long names."""
    plain = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
    for flag in flags:
        if plain == flag or (flag.endswith(".") and plain.startswith(flag)):
            return flag
    return None


# Pass changes of vLLM's engine arguments to any kind of workload, one delta at a time.
#
# A step names the arguments in Python (`enforce_eager: true`, `compilation_config: {cudagraph_mode: NONE}`).
# vLLM's own command line gets flags. A script that builds `LLM(...)` or `AsyncLLM` itself takes none, so it gets a
# plug-in: a folder put on PYTHONPATH whose entry point in the group `vllm.general_plugins` vLLM loads by itself when
# its engine arguments are made (vLLM 0.33.0, vllm/engine/arg_utils.py, `EngineArgs.__post_init__`). The plug-in says
# on the error stream what it changed, and a step whose words do not appear there has tried nothing.


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
    except (ValueError, RecursionError):
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


# What each worker of vLLM reports about itself: which variables reached it, and what became of the engine arguments.
#
# The plug-in of `lib/vllm-overlay` writes one line in each worker (vLLM's entry point group `vllm.general_plugins`) and
# does nothing else, so every step over vLLM has it. Where no line appears (VLLM_PLUGINS keeps the plug-in out, another
# layout of vLLM), /proc and vLLM's log are what is known.


WITNESS_VARIABLE = "VDBG_WITNESS"
MATCHER = Matcher(name="worker_witness", pattern=r"vdbg-env: worker (?P<seen>\{.{1,1000}.{0,800}\})$", take="all")
_OF_A_RANK = "${{ rank."


@dataclass(frozen=True, kw_only=True)
class Witness:
    """One worker: the hash of each variable (None: unset), and engine arguments by their dotted names."""

    pid: int
    rank: int | None
    environment: Mapping[str, str | None]
    engine: Mapping[str, str]


def hook(
    env: Mapping[str, str | None], arguments: Mapping[str, Data], *, data_dir: str, python_path: str
) -> dict[str, str]:
    """Return the variables that have vLLM load the plug-in, and tell it what to report."""
    folder = f"{data_dir}/{HOOK_FOLDER}"
    engine = sorted(".".join(path) for path, value in leaves(arguments) if value is not None)
    asked = {"environment": sorted(env), "engine": engine}
    path = f"{folder}:{python_path}" if python_path else folder
    return {WITNESS_VARIABLE: json.dumps(asked, separators=(",", ":")), "PYTHONPATH": path}


# Where everything is in a worker's memory (`lib/memory-map`), for the address of a crash.


MEMORY_MAP = "VDBG_MEMORY_MAP"
MEMORY_FOLDER = "lib/memory-map"
_EACH_RANK = "${{ rank.dir }}"


def memory_hook(
    argv: tuple[str, ...], hooks: Mapping[str, str], *, data_dir: str, python_path: str
) -> Mapping[str, str]:
    """Return a step's hooks with those that have each process with a device write its memory map.

    vLLM loads the plug-in by itself. Python without vLLM gets it by a `sitecustomize`, which runs the user's own too.
    """
    folder = f"{data_dir}/{MEMORY_FOLDER}"
    folders = [f"{folder}/python", folder] if recognise(argv).kind == "python" else [folder]
    before = hooks.get("PYTHONPATH", python_path)
    return {**hooks, MEMORY_MAP: _EACH_RANK, "PYTHONPATH": ":".join([*folders, *([before] if before else [])])}


def witnesses(seen: Observation) -> tuple[Witness, ...]:
    """Return what the workers of an attempt reported; a line that is cut short is none."""
    return tuple(_witnesses(seen))


def lost(env: Mapping[str, str | None], seen: Observation) -> Iterator[str]:
    """Yield one sentence for each variable that a worker did not have as the step set it."""
    for worker in witnesses(seen):
        name = "the worker" if worker.rank is None else f"the worker of rank {worker.rank}"
        for variable, wanted in env.items():
            if variable not in worker.environment:
                continue
            had = worker.environment[variable]
            if wanted is None and had is not None:
                yield f"{name} had {variable} set, the step unsets it"
            elif wanted is not None and had is None:
                yield f"{name} had no {variable}, the step asked for {wanted}"
            elif wanted is not None and _OF_A_RANK not in wanted and had != hashed(wanted):
                yield f"{name} had another {variable} than {wanted}, which the step asked for"


def engine_values(observations: Sequence[Observation], path: Sequence[str]) -> list[str]:
    """Return the value of an engine argument in each worker that reported it, as Python writes it."""
    name = ".".join(path)
    return [w.engine[name] for seen in observations for w in witnesses(seen) if name in w.engine]


def hashed(value: str) -> str:
    """Return a variable's value as the plug-in reports it."""
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _witnesses(seen: Observation) -> Iterator[Witness]:
    for match in seen.matched.get(MATCHER.name, ()):
        try:
            found = json.loads(match.groups["seen"])
            yield Witness(
                pid=int(found["pid"]), rank=found["rank"], environment=found["environment"], engine=found["engine"]
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            continue


# What a vLLM engine really runs with: its first log lines, compared with what a step asked for.
#
# The platform, the model or another setting may put a value back (vLLM 0.32.0 on a CPU: `-cc.backend=eager` arrives,
# and `inductor` runs). The engine logs its final configuration in one line when it starts; of the attention backend
# other lines speak. A step whose setting was undone has tried nothing.


_CONFIG = r"Initializing an? (?:V1 )?LLM engine .*?with config: .*?"
# `<CompilationMode.NONE: 0>`, a text in quotes, or a word.
_VALUE = r"(?P<value><[^>]*>|'[^']*'|[^,\s})]+)"
_ENUM = re.compile(r"<\w+\.(?P<name>\w+): '?(?P<number>[^'>]*)'?>")
_BACKEND = ("attention_config", "backend")
_ATTENTION = {
    "refused": r"Cannot use (?:AttentionBackendEnum\.)?(?P<value>\w+) backend on",
    "used": r"Using (?:AttentionBackendEnum\.)?(?P<value>[A-Z][A-Z0-9_]*) (?:attention )?backend(?P<other> for vit)?",
}


def matchers(arguments: Mapping[str, Data]) -> Iterator[Matcher]:
    """Yield the patterns that find what became of a step's engine arguments."""
    for path, _ in _asked(arguments):
        if _is_backend(path):
            for name, pattern in _ATTENTION.items():
                yield Matcher(name=f"attention_{name}", pattern=pattern, take="all")
        else:
            yield Matcher(name=_name(path), pattern=_pattern(path), take="last")


def undone(arguments: Mapping[str, Data], observations: Sequence[Observation]) -> Iterator[str]:
    """Yield one sentence for each argument that the engine logged otherwise; what it does not log is not judged."""
    for path, asked in _asked(arguments):
        spelled = ".".join(path)
        if reported := engine_values(observations, path):
            wrong = [value for value in reported if not _same(asked, value)]
            if wrong:
                yield f"a worker runs with {spelled}={_plain(wrong[-1])}, the step asked for {asked}"
                continue
            if not _is_backend(path):
                continue  # a backend that was asked for may still be refused when its layers are made
        if _is_backend(path):
            if str(asked) in _found(observations, "attention_refused"):
                yield f"vLLM cannot use the attention backend {asked} here, and took another one"
            elif (used := _found(observations, "attention_used")) and str(asked) not in used:
                yield f"vLLM runs with the attention backend {used[-1]}, the step asked for {asked}"
            continue
        had = _found(observations, _name(path))
        if had and not any(_same(asked, value) for value in had):
            yield f"vLLM runs with {spelled}={_plain(had[-1])}, the step asked for {asked}"


def _asked(arguments: Mapping[str, Data]) -> Iterator[tuple[tuple[str, ...], Data]]:
    return ((path, value) for path, value in leaves(arguments) if value is not None)


def _is_backend(path: tuple[str, ...]) -> bool:
    return path in {_BACKEND, ("attention_backend",)}


def _name(path: tuple[str, ...]) -> str:
    return "effective_" + "_".join(path)


def _pattern(path: tuple[str, ...]) -> str:
    first, *inner = map(re.escape, path)
    if not inner:
        return rf"{_CONFIG}\b{first}={_VALUE}"
    nested = "".join(rf".*?'{name}': " for name in inner)
    return rf"{_CONFIG}\b{first}=\{{{nested}{_VALUE}"


def _found(observations: Sequence[Observation], name: str) -> list[str]:
    matches = (match.groups for seen in observations for match in seen.matched.get(name, ()))
    return [groups["value"] for groups in matches if not groups.get("other")]


def _plain(value: str) -> str:
    found = _ENUM.fullmatch(value)
    return found["name"] if found else value.strip("'")


def _same(asked: Data, had: str) -> bool:
    found = _ENUM.fullmatch(had)
    spellings = {found["name"], found["number"]} if found else {had.strip("'")}
    return str(asked).casefold() in {spelling.casefold() for spelling in spellings}


# A workload that serves requests: where it listens by its own command line, and how far its start went.


_DEFAULT_PORTS = {"vllm": 8000, "sglang": 30000}
_ANY_ADDRESS = {"", "0.0.0.0", "::", "[::]"}

# Written by uvicorn, once the server listens. A log level may hide it, so its absence alone proves nothing.
STARTED = Matcher(name="server_started", pattern=r"Application startup complete")
TRACEBACK = Matcher(name="python_traceback", pattern=r"Traceback \(most recent call last\):")
MARKS = {STARTED.name, TRACEBACK.name}  # they say how far a server came, not what decided


def url(argv: Sequence[str]) -> str:
    """Return where a server of this command line listens, as a client on the same machine reaches it.

    VLLM_PORT is not asked: it is the first port of vLLM's own processes (vllm/envs.py, 0.32.0).
    """
    host = _value(argv, "--host") or ""
    port = _value(argv, "--port") or str(_default_port(argv))
    secure = _value(argv, "--ssl-certfile") is not None
    name = "127.0.0.1" if host in _ANY_ADDRESS else host
    name = f"[{name}]" if ":" in name and not name.startswith("[") else name
    return f"{'https' if secure else 'http'}://{name}:{port}"


def with_port(argv: Sequence[str], port: int) -> tuple[str, ...] | None:
    """Return the command line with `--port PORT`; None where it has no such flag and is no known server's."""
    words, found, value_due = [], False, False
    end = argv.index("--") if "--" in argv else len(argv)
    for word in argv[:end]:
        name, equals, _ = word.partition("=")
        if value_due:
            word, value_due = str(port), False
        elif name == "--port":
            found, value_due = True, not equals
            word = f"{name}={port}" if equals else word
        words.append(word)
    if not found and not recognise(tuple(argv)).serves:
        return None
    return (*words, *(() if found else ("--port", str(port))), *argv[end:])


def _default_port(argv: Sequence[str]) -> int:
    return next((port for engine, port in _DEFAULT_PORTS.items() if any(engine in word for word in argv)), 8000)


def _value(argv: Sequence[str], flag: str) -> str | None:
    """Return the value of a flag, the last one where it is repeated; `_` is a spelling of `-`, as in vLLM's parser."""
    found = None
    for index, word in enumerate(argv):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == flag:
            found = value if equals else next(iter(argv[index + 1 : index + 2]), None)
    return found


# What to say before a workload runs whose workers Ray starts: a variable of a step may never reach them.


_BACKENDS = ("--distributed-executor-backend", "--data-parallel-backend")


def ray_hints(argv: Sequence[str], environment: Mapping[str, str | None]) -> Iterator[str]:
    """Yield what a user has to set for the variables of steps to reach Ray's workers."""
    address = environment.get("RAY_ADDRESS")
    if address and address != "local":
        yield (
            f"RAY_ADDRESS={address}: the workers of a cluster that runs already have the environment of its `ray "
            "start`, and none of a step's variables, nor are they ended with the step. Pass the variables on in "
            "runtime_env (env_vars), or unset RAY_ADDRESS and have the workload start Ray"
        )
    elif _uses_ray(argv):
        yield (
            "vLLM copies only its own variables to Ray's workers: name others in VLLM_RAY_EXTRA_ENV_VARS_TO_COPY, as "
            "the shipped runbooks do; over nodes, --nnodes without Ray has the environment of each rank"
        )


def _uses_ray(argv: Sequence[str]) -> bool:
    words = [word.replace("_", "-") if word.startswith("--") else word for word in argv]
    pairs = zip(words, (*words[1:], ""), strict=True)
    return any(word == f"{flag}=ray" or (word, value) == (flag, "ray") for word, value in pairs for flag in _BACKENDS)


# The final inputs of a runbook, and the workload among them, recognised once.


class Inputs(Mapping[str, Data]):
    """A runbook's inputs by name, each of its declared type; the workload is what the input `argv` starts."""

    def __init__(self, values: Mapping[str, Data]) -> None:
        self._values = dict(values)

    @cached_property
    def workload(self) -> Workload:
        """The command line under study; its `argv` is empty where the runbook takes none."""
        argv = self._values.get("argv")
        return recognise(tuple(str(word) for word in argv) if isinstance(argv, list) else ())

    def __getitem__(self, name: str) -> Data:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Inputs({self._values!r})"


# What a command line, an environment or a runbook sets that this vLLM does not read, with what replaced it.


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A user's command line and the environment it inherits."""

    argv: tuple[str, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StaleSetting:
    """One name whose setting has no effect, and `where`: in the command, the environment, or a step of the runbook."""

    where: str
    judged: NameJudgement

    @property
    def name(self) -> str:
        """The flag or variable; for a piece of advice that is not followed, its id."""
        return self.judged.name

    @property
    def text(self) -> str:
        """One sentence with what replaced it and the source of that."""
        source = f" ({self.judged.source})" if self.judged.source else ""
        what = f"{self.judged.what}: " if self.judged.status == "advice" else ""
        return f"{self.where}: {what}{self.judged.message}{source}"

    @property
    def finding(self) -> Finding:
        """A warning: a setting without effect makes a step look tried."""
        instead = self.judged.replaced_by
        return Finding(
            rule="stale-setting",
            level=Level.WARNING,
            message=self.text,
            how_known=HowKnown.HOST_CHECK,
            confidence=0.9,
            next_step=NextStep(f"use {instead}") if instead and instead != "nothing" else None,
        )


def stale_settings(given: Settings, of_steps: Mapping[str, Settings], vllm: str | None) -> tuple[StaleSetting, ...]:
    """Return what is set and deserves a word, the user's own first; `vllm` is a release, the newest known without.

    Of the environment only names of the tables and of vLLM's count. A name of a step that this release does not have
    yet is none: runbooks set what newer releases read, and it does no harm.
    """
    named = replace(given, environment={n: v for n, v in given.environment.items() if _is_ours(n)})
    return (*_of_user(named, vllm), *_of_steps(of_steps, vllm))


def settings_of(steps: Iterable[Step]) -> dict[str, Settings]:
    """Return what each run step of a runbook changes, by its id, its engine arguments as flags."""
    return {
        step.id: Settings(
            argv=("vllm", *as_flags((), step.engine_args), *(w for w in step.argv.append if w.startswith("-"))),
            environment=step.env,
        )
        for step in steps
        if isinstance(step, Run)
    }


def told_before_start(runbook: Runbook, given: Settings, vllm: Callable[[], str | None]) -> tuple[str, ...]:
    """Return a line for each stale setting; `vllm` is asked only where the newest release known gives reason to."""
    of_steps = settings_of(runbook.steps)
    if not stale_settings(given, of_steps, None):
        return ()
    return tuple(setting.text for setting in stale_settings(given, of_steps, vllm()))


def _of_user(given: Settings, vllm: str | None) -> Iterator[StaleSetting]:
    knowledge = shipped_knowledge()
    for where, argv, environment in (("the command", given.argv, {}), ("the environment", (), given.environment)):
        for judged in knowledge.judge_command(argv, environment, vllm):
            yield StaleSetting(where=where, judged=judged)


def _of_steps(of_steps: Mapping[str, Settings], vllm: str | None) -> Iterator[StaleSetting]:
    seen: set[str] = set()
    for step, settings in of_steps.items():
        for judged in shipped_knowledge().judge_command(settings.argv, settings.environment, vllm):
            if judged.level == "error" and judged.status != "not-yet" and judged.name not in seen:
                seen.add(judged.name)
                yield StaleSetting(where=f"step {step}", judged=judged)


def _is_ours(name: str) -> bool:
    knowledge = shipped_knowledge()
    return name.startswith("VLLM_") or name in knowledge.rows or name in knowledge.surface.names
