"""Says that the command of a step could not be started: nothing of what was looked for can have been seen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.observation import EndedBy, Observation

NOT_STARTED: Final = "not-started"
_UNDRIVEN: Final = "no request could be sent"  # as the supervisor words it
_TAKEN: Final = re.compile(r"port \d+ is taken: |no request could be sent: the server at \S+ is not proven")
_NO_SCRATCH: Final = "--scratch cannot be used"  # as a rank words it


def not_started_findings(observations: Sequence[Observation]) -> tuple[Finding, ...]:
    """Return one finding with the system's message when an attempt could not be started, else none."""
    refused = next((seen for seen in observations if seen.ended.by is EndedBy.NOT_STARTED), None)
    if refused is None:
        return ()
    return (
        Finding(
            rule=NOT_STARTED,
            level=Level.WARNING,
            message=_message(refused.ended.message or "no reason was given"),
            how_known=HowKnown.HOST_CHECK,
            confidence=1.0,
            next_step=_next_step(refused.ended.message or ""),
        ),
    )


def _message(why: str) -> str:
    return (
        why
        if why.startswith((_UNDRIVEN, _NO_SCRATCH)) or _TAKEN.match(why)
        else f"the command could not be started: {why}"
    )


def _next_step(why: str) -> str:
    if _TAKEN.match(why):
        return (
            "leave that server alone and give the step's own a free port: -i port=auto; requests go only to a process "
            "that COMMAND started on this machine"
        )
    if why.startswith(_UNDRIVEN):
        return "name the server and the requests: -i url=http://HOST:PORT -i request=FILE"
    if why.startswith(_NO_SCRATCH):
        return "name a folder that each node has and that this user may write in, as in --scratch /tmp"
    if "Permission denied" in why:
        return "make the program executable (chmod +x), or start it by its interpreter: python3 FILE"
    return (
        "activate its environment or give its whole path, or --image where only an image has it; "
        "a container sees its image and what --mount names"
    )
