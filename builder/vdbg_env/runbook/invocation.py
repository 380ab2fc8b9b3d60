"""What is to be started for one step: the whole command, its environment delta, its limits and what to look for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vdbg_env.runbook.model import ArtifactRule, KillPolicy, Matcher, OutputPolicy, Placement, ServerDriver, Watch

# What a step's workload is given in addition to what the user and the step ask for. vLLM requires setproctitle, which
# overwrites the environment that /proc shows, and with it what a worker really has, unless this is set.
OURS: Mapping[str, str] = {"SPT_NOENV": "1"}


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One start of one step. `env` is a delta: a value sets, None unsets; `argv` stays a list to the end.

    Without a `driver` the command runs to its end; a `server` has none while it is well, and is ended when one of the
    matchers named in `decisive` has matched and its grace is over. `listens` is its URL, where nothing may listen
    before it is started. `hooks` are variables by which our plug-in is loaded, and those of ranks; they are no part of
    the delta. `alarm` is a file, seen from a rank's folder: a rank that hangs has all others take their stacks by it.
    """

    step: str
    attempt: int
    argv: tuple[str, ...]
    env: Mapping[str, str | None] = field(default_factory=dict)
    hooks: Mapping[str, str] = field(default_factory=dict)
    base_argv: tuple[str, ...] = ()
    timeout_s: float | None = None
    kill: KillPolicy = field(default_factory=KillPolicy)
    watch: Watch = field(default_factory=Watch)
    output: OutputPolicy = field(default_factory=OutputPolicy)
    matchers: tuple[Matcher, ...] = ()
    artifacts: tuple[ArtifactRule, ...] = ()
    driver: ServerDriver | None = None
    server: bool = False
    listens: str = ""
    decisive: tuple[str, ...] = ()
    verify_env: bool = True
    alarm: str = ""
    placement: Placement = field(default_factory=Placement)


def placed(invocation: Invocation, *, attempt: int, rank: int, host: str, directory: str) -> Invocation:
    """Return the invocation for one attempt on one rank: the strings `${{ rank.* }}` in it become their values."""
    known = {"dir": directory, "number": str(rank), "host": host, "local": str(rank)}

    def filled(text: str) -> str:
        return _RANK.sub(lambda found: known[found[1]], text)

    return replace(
        invocation,
        attempt=attempt,
        argv=tuple(map(filled, invocation.argv)),
        base_argv=tuple(map(filled, invocation.base_argv)),
        env={name: None if value is None else filled(value) for name, value in invocation.env.items()},
        hooks={name: filled(value) for name, value in invocation.hooks.items()},
    )


_RANK = re.compile(r"\$\{\{ rank\.(dir|number|host|local) \}\}")
