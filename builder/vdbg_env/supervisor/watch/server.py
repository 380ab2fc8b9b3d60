"""Follow the driver of a server: were requests sent, were they answered, did the server end by itself."""

from __future__ import annotations

import os
import time

from vdbg_env.supervisor.job import Job
from vdbg_env.supervisor.phase import EndReason
from vdbg_env.supervisor.watch.helpers import Helpers

ALL_SENT, UNANSWERED = 0, 4  # exit statuses of request_driver, which is a separate program
OWN_END_S = 30.0  # for a server that no longer answers to end by itself


class DrivenServer:
    """The server of a step and the helper that sends it requests, where the step has one."""

    def __init__(self, job: Job, helpers: Helpers) -> None:
        self._job = job
        self._helpers = helpers
        self._output: list[bytes] = []
        self._verdict: EndReason | None = None
        self._due = 0.0

    def start(self) -> None:
        """Start the driver."""
        if self._job.driver:
            problem = self._helpers.start(self._job.driver, self._output.append, self._ended, float("inf"))
            if problem:
                self._verdict = EndReason("not_started", f"no request could be sent: {problem}")

    def verdict(self, now: float) -> EndReason | None:
        """Return why the step is to be ended by now."""
        return self._verdict if now >= self._due else None

    def own_end(self, status: int | None) -> EndReason:
        """Return how a workload ended that was not asked to: no end of a server by itself is a good one."""
        by = "exit" if status is not None and os.WIFEXITED(status) else "signal"
        if self._verdict and self._verdict.by == "watch":
            return EndReason(by, self._verdict.message)
        # `vllm serve` returns 0 after every crash once it was ready.
        return EndReason(by, "the server ended by itself" if self._job.server and status == 0 else None)

    def _ended(self, code: int) -> None:
        last = b"".join(self._output).strip().rpartition(b"\n")[2].decode("utf-8", "replace")
        if code == ALL_SENT:
            self._verdict = EndReason("stopped", last)
        elif code == UNANSWERED:
            # It may be about to die of what keeps it from answering: its own end says more than ours.
            self._verdict = EndReason("watch", f"the server stopped answering: {last}")
            self._due = time.monotonic() + OWN_END_S
        else:
            self._verdict = EndReason("not_started", f"no request could be sent: {last}")
