"""When an ended container of another program is removed: a week after its end, however long it ran."""

import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker.errors import NotFound

from vdbg_env.engine.client import Engine
from vdbg_env.engine.containers import OWNER, PURPOSE, remove_abandoned

DAY = 24 * 3600.0
NEVER = "0001-01-01T00:00:00Z"


class Listed:
    """The part of a client that lists one container, made and ended some days ago; without an end it is gone."""

    def __init__(self, made: float, ended: float | str | None, state: str) -> None:
        self.removed: list[str] = []
        self._made, self._ended, self._state = made, ended, state

    def containers(self, **_: object) -> list[dict[str, Any]]:
        labels = {OWNER: "another boot 1 1", PURPOSE: "step"}
        created = int(time.time() - self._made * DAY)
        return [{"Id": "a", "ImageID": "i", "Labels": labels, "State": self._state, "Created": created}]

    def inspect_container(self, _: str) -> dict[str, Any]:
        if self._ended is None:
            raise NotFound("no such container")
        if isinstance(self._ended, str):
            return {"State": {"FinishedAt": self._ended}}
        ended = datetime.fromtimestamp(time.time() - self._ended * DAY, UTC)
        return {"State": {"FinishedAt": f"{ended:%Y-%m-%dT%H:%M:%S}.123456789Z"}}

    def inspect_image(self, _: str) -> dict[str, Any]:
        return {"Config": {"Labels": None}}

    def remove_container(self, container: str, **_: object) -> None:
        self.removed.append(container)


@pytest.mark.parametrize(
    ("made", "ended", "state", "removed"),
    [
        (8, 0.01, "exited", False),
        (8, 7.5, "exited", True),
        (6, 5, "exited", False),
        (8, NEVER, "created", True),
        (8, NEVER, "running", False),
        (8, None, "exited", False),
    ],
    ids=["it ran for a week", "a week ago", "less than a week ago", "never started", "it runs", "gone meanwhile"],
)
def test_the_week_begins_with_the_end(made: float, ended: float | str | None, state: str, removed: bool) -> None:
    """A server that crashes after eight days has its evidence in a container that its own program still reads."""
    listed = Listed(made, ended, state)
    remove_abandoned(cast(Engine, SimpleNamespace(client=listed, looked_for_abandoned=False)))
    assert bool(listed.removed) == removed
