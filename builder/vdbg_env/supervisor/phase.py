"""The phases of a step between its start and its end, and the reason of its end."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Phase(enum.Enum):
    """The phases of a step between its start and its end."""

    RUNNING = enum.auto()
    HANGING = enum.auto()  # it hangs, and is being looked at
    SETTLING = enum.auto()  # a dump may still be growing: no process is signalled
    LINGERING = enum.auto()  # the first process has ended by itself, others live on
    TERMINATING = enum.auto()  # the polite signal is out
    KILLING = enum.auto()


class EndReason(NamedTuple):
    """Who ended the step; `by` is a value of `vdbg_env.evidence.observation.EndedBy`."""

    by: str
    message: str | None = None
