"""When the ranks of an attempt that still run are ended, and what their ends then mean."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from vdbg_env.common.reading import read_document
from vdbg_env.common.writing import NotAFile
from vdbg_env.evidence.observation import EndedBy, Observation
from vdbg_env.record.atomic_write import write_json
from vdbg_env.runbook.invocation import Invocation
from vdbg_env.supervisor.watch.growing_files import GROWTH, GrowingFiles

NAME = "ending.json"  # in the attempt's folder: why its ranks were asked to end, for an engine that takes over
_LOOK_S = 1.0  # how often the sizes of dumps are read


class EndingRule:
    """Decides for one attempt; times are of the monotonic clock.

    A rank that failed ends the attempt: the others get `on_first_failure.wait` to end by themselves, and as long as
    one of their dumps grew in the last `quiet_s` seconds, up to `watch.dump_wait`. When the requests of rank 0 have
    been sent, all are ended.
    """

    def __init__(self, invocation: Invocation, directory: Path, *, quiet_s: float = 2.0) -> None:
        self._invocation = invocation
        self._path = directory / NAME
        globs = (*(rule.glob for rule in invocation.artifacts), GROWTH)
        self._dumps = GrowingFiles(str(directory), tuple(f"*/{glob}" for glob in globs))
        self._quiet_s = quiet_s
        self._failed_at: float | None = None
        self._looked_at = 0.0
        self._growing = False
        self.why = _recorded(self._path)

    def due(self, went_well: Mapping[int, bool], ranks: int) -> bool:
        """Return whether the ranks that still run are to be ended now; `went_well` has those that have ended."""
        if self.why or not went_well or len(went_well) == ranks:
            return False
        if all(went_well.values()):
            if self._invocation.driver is None or 0 not in went_well:
                return False
            self._ask(EndedBy.STOPPED)
            return True
        now = time.monotonic()
        if self._failed_at is None:
            self._failed_at = now
        waited = now - self._failed_at
        if waited < self._invocation.placement.on_first_failure.wait_s:
            return False
        if waited < self._invocation.watch.dump_wait_s and self._dumps_grow(now):
            return False
        self._ask(EndedBy.PEER)
        return True

    def meant(self, seen: Observation) -> Observation:
        """Return what was seen of a rank with the reason why we ended it in place of the signal it got."""
        if not self.why or seen.ended.by is not EndedBy.CANCEL:
            return seen
        return replace(seen, ended=replace(seen.ended, by=EndedBy(self.why), message=None))

    def _dumps_grow(self, now: float) -> bool:
        if now >= self._looked_at + _LOOK_S:
            self._looked_at = now
            self._growing = self._dumps.growing(now, quiet_s=self._quiet_s)
        return self._growing

    def _ask(self, why: EndedBy) -> None:
        self.why = why.value
        write_json(self._path, {"by": self.why})


def _recorded(path: Path) -> str:
    try:
        return EndedBy(read_document(path)["by"]).value
    except (FileNotFoundError, NotAFile, ValueError, KeyError, TypeError):  # none, or not an engine's
        return ""
