"""Begins or resumes a run for `vdbg-env runbook`."""

from __future__ import annotations

from vdbg_env.application.runbook_request import RunbookRequest
from vdbg_env.errors import HostNotAble


def run(request: RunbookRequest) -> int:
    """Run the request to its end and return the exit status of its verdict."""
    raise HostNotAble(
        f"steps of {request.runbook!r} cannot be started by this build",
        next_step=f"vdbg-env runbook {request.runbook} --plan -- COMMAND ...",
    )
