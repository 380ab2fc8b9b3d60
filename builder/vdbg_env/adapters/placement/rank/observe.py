"""Make the observation of a rank from its folder; the engine does so too, for a rank that died before it could."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vdbg_env.adapters.execution.attempt_result import Stopped, observation
from vdbg_env.adapters.placement.rank.orders import NODE
from vdbg_env.evidence.observation import Observation, RankClock
from vdbg_env.record.codec import to_document
from vdbg_env.runbook.invocation import Invocation
from vdbg_env.runbook.model import ArtifactRule


def observe(
    step: str,
    attempt: int,
    rules: Sequence[Mapping[str, Any]],
    folder: Path,
    literals: tuple[bytes, ...],
    asked_at: Sequence[float],
    limit_s: float,
) -> dict[str, Any]:
    """Return the observation as a document; once its end was asked for, files are read for `limit_s` seconds."""

    def check() -> None:
        if asked_at and time.monotonic() > asked_at[0] + limit_s:
            raise Stopped

    artifacts = tuple(ArtifactRule.model_validate(dict(rule)) for rule in rules)
    invocation = Invocation(step=step, attempt=attempt, argv=(), artifacts=artifacts)
    return to_document(with_node(observation(invocation, folder, literals, check=check), folder))


def with_node(seen: Observation, folder: Path) -> Observation:
    """Add what the rank found on its node."""
    try:
        found = json.loads((folder / NODE).read_bytes())
    except (OSError, ValueError):
        return seen
    clock = seen.clock or RankClock(**found["clock"])
    return replace(seen, node=dict(found["node"]), clock=clock)
