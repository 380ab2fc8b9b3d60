"""The frozen value of a runbook, which is the shape of its file too: one declaration of each concept."""

from vdbg_env.runbook.model.fields import Data
from vdbg_env.runbook.model.limits import (
    ArtifactRule,
    HangAction,
    KillPolicy,
    Matcher,
    OnFirstFailure,
    OutputPolicy,
    Placement,
    Ready,
    ServerDriver,
    Watch,
)  # fmt: skip
from vdbg_env.runbook.model.runbook import Command, Input, Requires, Runbook
from vdbg_env.runbook.model.step import (
    ArgvOverlay,
    Builtin,
    End,
    Manual,
    Next,
    Outcome,
    Question,
    Repeat,
    Run,
    Skipped,
    Status,
    Step,
    StepRequires,
    ToRunbook,
    ToStep,
    Uses,
)  # fmt: skip

__all__ = [
    "ArgvOverlay", "ArtifactRule", "Builtin", "Command", "Data", "End", "HangAction", "Input", "KillPolicy", "Manual",
    "Matcher", "Next", "OnFirstFailure", "Outcome", "OutputPolicy", "Placement", "Question", "Ready", "Repeat",
    "Requires", "Run", "Runbook", "ServerDriver", "Skipped", "Status", "Step", "StepRequires", "ToRunbook", "ToStep",
    "Uses", "Watch",
]  # fmt: skip
