"""Check the flags and variables that runbooks set against what a vLLM release knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vdbg_env.application.knowledge.load import shipped_knowledge
from vdbg_env.common import yaml_source
from vdbg_env.common.errors import Complaint
from vdbg_env.common.resources import data_dir
from vdbg_env.common.yaml_source import Value

_Place = tuple[str | int, ...]
_ALIKE = 0.85


def name_complaints(files: Iterable[Path], vllm: str | None = None) -> tuple[Complaint, ...]:
    """Return a complaint for every stale or never-existing name the files, and the shared steps, set.

    `vllm` is a release, the newest known without one. Every file has passed the runbook's own lint.
    """
    shared = sorted((data_dir("runbooks") / "lib").glob("*.yaml"))
    return tuple(complaint for path in dict.fromkeys([*files, *shared]) for complaint in _of_file(path, vllm))


def _of_file(path: Path, vllm: str | None) -> Iterator[Complaint]:
    source = yaml_source.read(path.read_bytes(), str(path))
    for use in _uses(source.value, ()):
        judged = shipped_knowledge().judge_name(use.flag, vllm)
        instead = judged.replaced_by
        misspelt = judged.status == "unknown" and (use.is_engine_argument or _alike(use.flag, instead))
        if judged.level == "error" or misspelt:
            what = judged.message.replace(use.flag, use.written)
            known = instead and ("instead" in what or "did you mean" in what)
            if use.is_engine_argument and instead:
                what = what.replace(instead, instead[2:].replace("-", "_"))
            yield source.complaint(use.place, what, key=use.is_key, suggestion=None if known else instead)


def _alike(flag: str, known: str | None) -> bool:
    """Return whether a flag is a slip of the pen: what is less alike may be a flag of a script."""
    return known is not None and difflib.SequenceMatcher(None, flag, known).ratio() >= _ALIKE


@dataclass(frozen=True, kw_only=True)
class _Use:
    """One place where a name is set: as the author wrote it, and as the variable or flag that it is in the tables."""

    place: _Place
    written: str
    flag: str
    is_key: bool = True
    is_engine_argument: bool = False


def _uses(value: Value, place: _Place) -> Iterator[_Use]:
    """Yield keys of `env`, keys of `engine_args` as flags, and the flags of vLLM's commands and of what is appended."""
    match value:
        case dict():
            for key, inner in value.items():
                here = (*place, key)
                if place[-1:] == ("env",) and inner is not None:
                    yield _Use(place=here, written=key, flag=key)
                elif place[-1:] == ("engine_args",):
                    yield _Use(place=here, written=key, flag="--" + key.replace("_", "-"), is_engine_argument=True)
                yield from _uses(inner, here)
        case list():
            takes_flags = place[-1:] == ("append",) or (place[-1:] == ("argv",) and "vllm" in value)
            for index, inner in enumerate(value):
                here = (*place, index)
                takes_flags = takes_flags and inner != "--"
                if takes_flags and isinstance(inner, str) and inner.startswith("-") and inner != "-":
                    flag = inner.partition("=")[0]
                    yield _Use(place=here, written=flag, flag=flag, is_key=False)
                yield from _uses(inner, here)
        case _:
            return
