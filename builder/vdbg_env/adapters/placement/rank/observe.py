"""Make the observation of a rank from its folder; the engine does so too, for a rank that died before it could."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vdbg_env.adapters.execution.attempt_result import Stopped, observation
from vdbg_env.adapters.placement.rank.orders import NODE, Orders
from vdbg_env.adapters.placement.rank.scratch import Allowance, move_dumps
from vdbg_env.common.reading import read_document
from vdbg_env.evidence.observation import Observation, RankClock
from vdbg_env.record.codec import to_document
from vdbg_env.runbook.invocation import Invocation
from vdbg_env.runbook.model import ArtifactRule
from vdbg_env.supervisor.watch.growing_files import GROWTH


def observe(
    orders: Orders,
    folder: Path,
    dumps: Path | None,
    literals: tuple[bytes, ...],
    asked_at: Sequence[float],
    limit_s: float,
) -> dict[str, Any]:
    """Return the observation as a document; once its end was asked for, files are read for `limit_s` seconds.

    Artifacts that were written to `dumps`, on the node's own disk, are moved into `folder`.
    """

    def check() -> None:
        if asked_at and time.monotonic() > asked_at[0] + limit_s:
            raise Stopped

    rules = tuple(ArtifactRule.model_validate(dict(rule)) for rule in orders.artifacts)
    (folder / GROWTH).unlink(missing_ok=True)
    invocation = Invocation(step=orders.step, attempt=orders.attempt, argv=(), artifacts=() if dumps else rules)
    seen = with_node(observation(invocation, folder, literals, check=check), folder)
    if dumps:
        allowance = Allowance(folder, orders.scratch_limit)
        moved = move_dumps(rules, dumps, folder, allowance=allowance, literals=literals, check=check)
        seen = replace(seen, artifacts=moved.artifacts, notes=(*seen.notes, *moved.notes))
    return to_document(seen)


def with_node(seen: Observation, folder: Path) -> Observation:
    """Add what the rank found on its node."""
    try:
        found = read_document(folder / NODE)
    except (OSError, ValueError):
        return seen
    clock = seen.clock or RankClock(**found["clock"])
    return replace(seen, node=dict(found["node"]), clock=clock)
