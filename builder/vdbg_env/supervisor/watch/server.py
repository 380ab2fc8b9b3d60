"""Follow the driver of a server: how its requests went, did the server end by itself, when is it to be stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from vdbg_env.supervisor.job import Job
from vdbg_env.supervisor.phase import EndReason
from vdbg_env.supervisor.processes.sockets import taken
from vdbg_env.supervisor.watch.helpers import Helpers

ALL_SENT, NEVER_READY, UNANSWERED, NOT_THE_STEPS = (
    0,
    3,
    4,
    6,
)  # exit statuses of request_driver, which is a separate program


class DrivenServer:
    """The server of a step and the helper that sends it requests; `progress` is called for each that is answered.

    A server whose engine has died answers with errors, shuts itself down and may end with status 0 (vLLM 0.32.0). So
    after a request that failed it gets its grace to end by itself: its own end says more than ours.
    """

    def __init__(self, job: Job, helpers: Helpers, progress: Callable[[], None], now: Callable[[], float]) -> None:
        self._job = job
        self._helpers = helpers
        self._progress = progress
        self._now = now
        self._rest = b""
        self._complaint = b""
        self._counts: dict[str, Any] = {}
        self._verdict: EndReason | None = None
        self._due = 0.0

    def taken(self) -> str | None:
        """Return who listens already where this server is to listen; None for one in production, which may share."""
        return taken(self._job.listens) if self._job.listens and not self._job.guard else None

    def start(self) -> None:
        """Start the driver where there is one."""
        if self._job.driver:
            problem = self._helpers.start(self._job.driver, self._take, self._ended, float("inf"))
            if problem:
                self._verdict = EndReason("not_started", f"no request could be sent: {problem}")

    def verdict(self, now: float) -> EndReason | None:
        """Return why the step is to be ended by now."""
        return self._verdict if now >= self._due else None

    def own_end(self, status: int | None) -> EndReason:
        """Return how a workload ended that was not asked to: no end of a server by itself is a good one."""
        if status is None or not os.WIFEXITED(status):
            return EndReason("signal")
        # `vllm serve` returns 0 after every crash once it was ready.
        return EndReason("died", "before it was stopped") if self._job.server and status == 0 else EndReason("exit")

    @property
    def requests(self) -> dict[str, Any] | None:
        """How the requests went so far, None where none are to be sent."""
        return {n: x for n, x in self._counts.items() if n != "message"} if self._job.driver else None

    @property
    def waits_for(self) -> str:
        """What the driver waits for, in words; empty where there is none."""
        if not self._job.driver:
            return ""
        counts = self._counts
        if not counts.get("ready"):
            return "the server to be ready"
        return f"answers: {counts['sent']} of {counts['recorded']} requests sent, {counts['answered']} answered"

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                counts = json.loads(line)
            except ValueError:
                self._complaint = line  # the last line of a traceback is the one that says what went wrong
                continue
            if counts["answered"] > self._counts.get("answered", 0):
                self._progress()
            self._counts = counts

    def _ended(self, code: int) -> None:
        said = self._counts.get("message") or self._complaint.decode("utf-8", "replace")
        if code == ALL_SENT:
            self._verdict = EndReason("stopped", said)
        elif code == NEVER_READY:
            self._verdict = EndReason("timeout", said)
        elif code == NOT_THE_STEPS and self._counts.get("sent"):
            self._verdict = EndReason("stopped", said)
        elif code == UNANSWERED:
            self._verdict = EndReason("watch", f"the server stopped answering: {said}")
        else:
            self._verdict = EndReason("not_started", f"no request could be sent: {said}")
        if self._counts.get("failed"):
            self._due = self._now() + self._job.grace_s
