"""What a vLLM engine really runs with: its first log lines, compared with what a step asked for.

The platform, the model or another setting may put a value back (vLLM 0.32.0 on a CPU: `-cc.backend=eager` arrives, and
`inductor` runs). The engine logs its final configuration in one line when it starts; of the attention backend other
lines speak. A step whose setting was undone has tried nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from vdbg_env.evidence.observation import Observation
from vdbg_env.runbook.model import Data, Matcher
from vdbg_env.runbook.workload import witness
from vdbg_env.runbook.workload.engine_args import leaves

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
        if reported := witness.engine_values(observations, path):
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
    return [groups["value"] for groups in matches if "other" not in groups]


def _plain(value: str) -> str:
    found = _ENUM.fullmatch(value)
    return found["name"] if found else value.strip("'")


def _same(asked: Data, had: str) -> bool:
    found = _ENUM.fullmatch(had)
    spellings = {found["name"], found["number"]} if found else {had.strip("'")}
    return str(asked).casefold() in {spelling.casefold() for spelling in spellings}
