"""Reads the scenarios of tests/data/walks: one file for each runbook, and `common.yaml` with what all may say."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.sights import Sight, Vocabulary, read_text
from tests.support.walks import Scenario
from vdbg_env.runbook.model import TOOLS

WALKS = Path(__file__).parents[1] / "data" / "walks"
_COMMON = "common"


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
    began = given.get("begins", own.get("begins", "preflight pass, collect_env pass"))
    ends = given["ends"]
    closing = "" if ends.startswith("runbook ") or "report" in given["walks"] else "report pass"
    path = ", ".join(part for part in (began, given["walks"], closing) if part)
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
        walks=tuple(part.strip() for part in path.split(",")),
        ends=ends,
    )
