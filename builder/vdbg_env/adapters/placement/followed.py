"""An attempt of several ranks: the one loop that follows them to their ends, wherever they run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from vdbg_env.adapters.placement.ending_rule import EndingRule
from vdbg_env.adapters.placement.rank.orders import STOP
from vdbg_env.adapters.placement.records import RankRecords
from vdbg_env.common.stop import PATIENCE_S, ToldToStop, in_background
from vdbg_env.common.writing import open_file
from vdbg_env.evidence.observation import Observation

POLL_S = 0.1
AGAIN_S = 2.0  # how often what is away is asked again


class RunningRanks(Protocol):
    """The ranks of one attempt, where they run."""

    def look(self) -> Mapping[int, Observation]:
        """Return what was seen of each rank that has ended; raises HostNotAble when none could be started."""
        ...

    def end(self, *, firmly: bool) -> None:
        """Ask the ranks that still run to end, with their grace unless `firmly`; return at once."""
        ...

    def closed(self, seen: list[Observation]) -> list[Observation]:
        """Clean up after the last rank, and return what was seen with what is known only now."""
        ...


class RemoteRanks(RunningRanks):
    """Ranks on other nodes, known by the records that they write, and ended through their cluster."""

    def __init__(self, directory: Path, records: RankRecords, ranks: int) -> None:
        self._records = records
        self._ranks = ranks
        self._seen: dict[int, Observation] = {}
        self._request = EndRequest(directory, self._ask_to_end)

    def look(self) -> Mapping[int, Observation]:
        """Return the ends that ranks wrote, and those of ranks that will write none; see `RunningRanks.look`.

        Raises ToldToStop where the cluster does not let them be ended, and none has started: that one would end.
        """
        self._request.pursue()
        written = dict(self._seen)
        self._records.read_ends(written, self._ranks)
        if len(written) < self._ranks and self._request.unanswered and not self._records.any_started():
            raise ToldToStop
        for rank in written.keys() - self._seen.keys():
            if (found := self._explained(written[rank])) is not None:
                self._seen[rank] = found
        for rank in range(self._ranks):
            if rank not in written and (found := self._without_end(rank)) is not None:
                self._seen[rank] = found
        return self._seen

    def end(self, *, firmly: bool) -> None:
        """Have every rank ended, with its grace unless `firmly`."""
        self._request.ask(firmly=firmly)

    def _ask_to_end(self, times: int) -> bool:
        """Ask the cluster so often to end the ranks, and return whether it was asked; see `EndRequest`."""
        raise NotImplementedError

    def _explained(self, written: Observation) -> Observation | None:
        """Return an end with its reason, None while that may still become known."""
        return written

    def _without_end(self, rank: int) -> Observation | None:
        """Return what is known of a rank that wrote no end; None while it may still write one."""
        raise NotImplementedError


class FollowedAttempt:
    """A StartedAttempt of `count` ranks; the rule ends those that have no reason to run on."""

    def __init__(self, ranks: RunningRanks, count: int, rule: EndingRule) -> None:
        self._ranks = ranks
        self._count = count
        self._rule = rule
        self._cancelled = False

    def wait(self, timeout_s: float | None = None) -> tuple[Observation, ...] | None:
        """Wait until every rank has ended, or is known to be lost; raises HostNotAble when none could be started."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while len(seen := self._ranks.look()) < self._count:
            if self._rule.due({rank: one.went_well for rank, one in seen.items()}, self._count):
                self._ranks.end(firmly=False)
            left = POLL_S if until is None else min(POLL_S, until - time.monotonic())
            if left <= 0:
                return None
            time.sleep(left)
        ends = self._ranks.closed([seen[rank] for rank in range(self._count)])
        return tuple(ends if self._cancelled else map(self._rule.meant, ends))

    def cancel(self, *, firmly: bool = False) -> None:
        """Have every rank ended, with its grace unless `firmly`."""
        self._cancelled = True
        self._ranks.end(firmly=firmly)


class Repeated:
    """A call in a thread, one at a time and with a pause after each: nothing waits for one."""

    def __init__(self) -> None:
        self._running: Future[None] | None = None
        self._next = 0.0

    def again(self, call: Callable[[], None]) -> None:
        """Start a call, unless one runs or has just ended; raises what the one that has ended raised."""
        if self._running is not None and self._running.done():
            ended, self._running = self._running, None
            self._next = time.monotonic() + AGAIN_S
            ended.result()
        if self._running is None and time.monotonic() >= self._next:
            self._running = in_background(call)


class EndRequest:
    """Ask ranks on other nodes to end: through the cluster, and by a file, as the cluster may be away.

    `send` gets how often they are still to be asked, and returns whether they were; it is called again until they
    were. Times are of the monotonic clock.
    """

    def __init__(self, directory: Path, send: Callable[[int], bool]) -> None:
        self._directory = directory
        self._send = send
        self._sending = Repeated()
        self._sent = 0
        self.times = 0
        self.asked_at: float | None = None
        self.sent_at: float | None = None

    def ask(self, *, firmly: bool) -> None:
        """Ask for the end, a second time where it is to come at once."""
        times = 2 if firmly else 1
        if times > self.times:
            self.times = times
            self.asked_at = self.asked_at or time.monotonic()
            with suppress(OSError):  # a full disk must not keep the cluster from being asked
                stop = open_file(self._directory / STOP, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                with os.fdopen(stop, "w") as file:
                    file.write(str(times))
        self.pursue()

    def pursue(self) -> None:
        """Have sent what was asked for and not sent yet."""
        if self.times > self._sent:
            self._sending.again(partial(self._send_up_to, self.times))

    @property
    def unanswered(self) -> bool:
        """Whether the cluster was asked a while ago, and has not answered yet."""
        asked_at = self.asked_at
        return asked_at is not None and self.sent_at is None and time.monotonic() > asked_at + PATIENCE_S

    def _send_up_to(self, times: int) -> None:
        if self._send(times - self._sent):
            self.sent_at = self.sent_at or time.monotonic()
            self._sent = times
