"""Checks the flags and variables that runbooks set against what a vLLM release knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from vdbg_env.application.knowledge.load import shipped_knowledge
from vdbg_env.common import yaml_source
from vdbg_env.common.errors import Complaint
from vdbg_env.common.resources import data_dir
from vdbg_env.common.yaml_source import Value, YamlSource

_Place = tuple[str | int, ...]


def name_complaints(files: Iterable[Path], vllm: str | None = None) -> tuple[Complaint, ...]:
    """Return a complaint for every stale or never-existing name the files, and the shared steps, set.

    `vllm` is a release, the newest known without one. A file that is no YAML is left to the runbook's own lint.
    """
    shared = sorted((data_dir("runbooks") / "lib").glob("*.yaml"))
    return tuple(complaint for path in dict.fromkeys([*files, *shared]) for complaint in _of_file(path, vllm))


def _of_file(path: Path, vllm: str | None) -> Iterator[Complaint]:
    source = yaml_source.read(path.read_bytes(), str(path))
    for place, name, is_key in _names(source.value, ()):
        judged = shipped_knowledge().judge_name(name, vllm)
        if judged.level == "error":
            yield _complaint(source, place, judged.message, judged.replaced_by, key=is_key)


def _complaint(source: YamlSource, place: _Place, what: str, instead: str | None, *, key: bool) -> Complaint:
    suggestion = instead if instead and "instead" not in what and "did you mean" not in what else None
    return source.complaint(place, what, key=key, suggestion=suggestion)


def _names(value: Value, place: _Place) -> Iterator[tuple[_Place, str, bool]]:
    """Every name that is set: keys of `env`, keys of `engine_args` as flags, words that `append` adds to a command."""
    match value:
        case dict():
            for key, inner in value.items():
                here = (*place, key)
                if place[-1:] == ("env",) and inner is not None:
                    yield here, key, True
                elif place[-1:] == ("engine_args",):
                    yield here, "--" + key.replace("_", "-"), True
                yield from _names(inner, here)
        case list():
            for index, inner in enumerate(value):
                here = (*place, index)
                if place[-1:] == ("append",) and isinstance(inner, str) and inner.startswith("-"):
                    yield here, inner, False
                yield from _names(inner, here)
        case _:
            return
