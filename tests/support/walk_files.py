"""Reads the scenarios of tests/data/walks: one file for each runbook, and `common.yaml` with what all may say.

`make golden` writes the path and the end that the program comes to now into each scenario.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.sights import Sight, Vocabulary, read_text
from tests.support.walks import Scenario, Told
from vdbg_env.runbook.model import TOOLS

WALKS = Path(__file__).parents[1] / "data" / "walks"
_COMMON = "common"
_REPORT = "report pass"


def runbooks_with_walks() -> list[str]:
    """Return the names of the runbooks that scenarios are written for."""
    return sorted(path.stem for path in WALKS.glob("*.yaml") if path.stem != _COMMON)


@cache
def scenarios(runbook: str) -> tuple[Scenario, ...]:
    """Return the scenarios of one runbook."""
    common, own = _document(_COMMON), _document(runbook)
    texts = {name: read_text(text) for name, text in {**common["texts"], **own.get("texts", {})}.items()}
    words = Vocabulary(texts=texts, files={**common["files"], **own.get("files", {})})
    usual = {step: words.sights(sight) for step, sight in {**common["usual"], **own.get("usual", {})}.items()}
    return tuple(_scenario(runbook, given, own, usual, words) for given in own["scenarios"])


def rewrite_walks(runbook: str, walks: Sequence[Told]) -> None:
    """Write the path and the end of each walk into its scenario; what the steps saw keeps its form and its comments."""
    file, own = WALKS / f"{runbook}.yaml", _document(runbook)
    text = file.read_text()
    root = yaml.compose(text)
    assert root
    (every,) = (value for key, value in root.value if key.value == "scenarios")
    edits: list[tuple[int, int, str]] = []
    for given, node, walk in zip(own["scenarios"], every.value, walks, strict=True):
        if (walk.path, walk.ends) == (_path(given, own), given["ends"]):
            continue
        begins = _begins(given, own)
        path = ", ".join(walk.path)
        assert path.startswith(begins), f"{runbook}: {given['name']}: write `begins` anew, it is now {path}"
        path = path.removeprefix(begins).removeprefix(", ")
        if not walk.handed_to and path.count("report") == 1:
            path = path.removesuffix(_REPORT).removesuffix(", ")
        if len(path) > 110:
            path = ">-\n" + textwrap.indent(textwrap.fill(path, 118, break_on_hyphens=False), " " * 6)
        at = {key.value: value for key, value in node.value}
        edits.append((at["walks"].start_mark.index, at["walks"].end_mark.index, path))
        edits.append((at["ends"].start_mark.index, at["ends"].end_mark.index, walk.ends))
    for start, end, new in sorted(edits, reverse=True):
        # A folded scalar ends behind its line, and before the indentation of the next key; a plain one within its line.
        old = text[start:end]
        text = text[:start] + new + old[len(old.rstrip()) :] + text[end:]
    file.write_text(text)


def _begins(given: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    return str(given.get("begins", own.get("begins", "preflight pass, collect_env pass")))


def _path(given: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, ...]:
    """Return all steps of a scenario, with those that its file leaves out."""
    closing = "" if given["ends"].startswith("runbook ") or "report" in given["walks"] else _REPORT
    path = ", ".join(part for part in (_begins(given, own), given["walks"], closing) if part)
    return tuple(part.strip() for part in path.split(","))


def _document(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((WALKS / f"{name}.yaml").read_text())
    return document


def _scenario(
    runbook: str,
    given: Mapping[str, Any],
    own: Mapping[str, Any],
    usual: Mapping[str, tuple[Sight, ...]],
    words: Vocabulary,
) -> Scenario:
    unknown = given.keys() - {
        *("name", "argv", "inputs", "host", "environment", "lacks", "interactive"),
        *("sees", "choices", "came_from", "begins", "walks", "ends"),
    }
    assert not unknown, f"{runbook}: {given['name']}: unknown {unknown}"
    return Scenario(
        name=given["name"],
        runbook=runbook,
        argv=tuple(str(given.get("argv", own.get("argv", "vllm serve M"))).split()),
        inputs=given.get("inputs", own.get("inputs", {"request": "requests.jsonl"})),
        host=given.get("host", {}),
        environment=given.get("environment", {}),
        tools=frozenset(TOOLS) - frozenset(str(given.get("lacks", "")).split()),
        interactive=given.get("interactive", False),
        sees={step: words.sights(sight) for step, sight in given.get("sees", {}).items()},
        usual=usual,
        choices={step: tuple(answers) for step, answers in given.get("choices", {}).items()},
        came_from=tuple(str(given.get("came_from", "")).split()),
        walks=_path(given, own),
        ends=given["ends"],
    )
