"""Ask a tree of processes to end: its root first, and the others only when the root did not see to it.

A launcher ends what it has started in order, and a signal to all at once takes its children from it. But the root may
lose the signal (`vllm serve` 0.32.0 does so while it starts: it becomes ready, and never ends), so it is asked once
more; and a shell passes nothing on, so in the end each process is asked.
"""

from __future__ import annotations

from collections.abc import Iterable

from vdbg_env.supervisor.processes.proc import Process
from vdbg_env.supervisor.processes.signals import send

AGAIN_S = 5.0  # a ready `vllm serve` ends within 2.5 s
ALL_S = 12.0
ORPHANED_S = 2.0  # for those whose root has ended


class PoliteEnd:
    """The polite signal, from the root outwards, within a grace."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._root = 0
        self._asked_root = 0
        self._asked: set[int] = set()
        self._again_at = self._all_at = self._orphaned_s = 0.0

    def begin(self, root: int, now: float, grace: float) -> None:
        """Begin: the shorter the grace, the sooner the next one is asked."""
        self._root = root
        self._again_at = now + min(AGAIN_S, grace / 4)
        self._all_at = now + min(ALL_S, grace / 2)
        self._orphaned_s = min(ORPHANED_S, grace / 4)

    def step(self, found: Iterable[Process], now: float) -> None:
        """Ask those of the tree whose turn it is."""
        tree = list(found)
        root = [one for one in tree if one.pid == self._root]
        if not root:
            # One that had ended before it was asked has had its time.
            self._all_at = min(self._all_at, now + (self._orphaned_s if self._asked_root else 0.0))
        elif self._asked_root == 0 or (self._asked_root == 1 and now >= self._again_at):
            send(root, self._number)
            self._asked_root += 1
        if now >= self._all_at:
            others = [one for one in tree if one.pid != self._root and one.pid not in self._asked]
            send(others, self._number)
            self._asked |= {one.pid for one in others}
