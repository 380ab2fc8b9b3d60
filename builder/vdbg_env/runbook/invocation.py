"""What is to be started for one step: the whole command, its environment delta, its limits and what to look for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class KillPolicy:
    """How a process tree is ended: `signal` by name, then SIGKILL after `grace_s` seconds."""

    signal: str = "SIGTERM"
    grace_s: float = 15.0


# What a step's workload is given in addition to what the user and the step ask for. vLLM requires setproctitle, which
# overwrites the environment that /proc shows, and with it what a worker really has, unless this is set.
OURS: Mapping[str, str] = {"SPT_NOENV": "1"}

HangAction = Literal["py-spy", "gpu-coredump", "stacks"]


@dataclass(frozen=True, kw_only=True)
class Watch:
    """When silence counts as a hang; times in seconds, None for no watch."""

    output_idle_s: float | None = None
    gpu_idle_s: float | None = None
    gpu_pinned_s: float | None = None
    on_hang: tuple[HangAction, ...] = ("stacks",)
    dump_wait_s: float = 300.0


@dataclass(frozen=True, kw_only=True)
class Matcher:
    """A named pattern over the bytes of the output as they stream; `stop` ends the step at the first match."""

    name: str
    pattern: str
    source: Literal["output", "kernel-log"] = "output"
    take: Literal["first", "last", "all"] = "first"
    stop: bool = False


@dataclass(frozen=True, kw_only=True)
class ArtifactRule:
    """Files to collect after a step: a glob under the step's own folder; `max_size` in bytes."""

    name: str
    glob: str
    required: bool = False
    max_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class OutputPolicy:
    """How much output is kept, in bytes; beyond `limit` the middle is dropped, and said."""

    limit: int = 2 << 30
    keep: Literal["head+tail", "head", "tail"] = "head+tail"


@dataclass(frozen=True, kw_only=True)
class ServerDriver:
    """How a server is driven: wait until `ready_url` answers, replay the requests of `replay`, then stop it.

    Without a `replay` the command is run to its own end.
    """

    ready_url: str
    ready_timeout_s: float = 900.0
    replay: str | None = None


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One start of one step. `env` is a delta: a value sets, None unsets; `argv` stays a list to the end."""

    step: str
    attempt: int
    argv: tuple[str, ...]
    env: Mapping[str, str | None] = field(default_factory=dict)
    base_argv: tuple[str, ...] = ()
    timeout_s: float | None = None
    kill: KillPolicy = field(default_factory=KillPolicy)
    watch: Watch = field(default_factory=Watch)
    output: OutputPolicy = field(default_factory=OutputPolicy)
    matchers: tuple[Matcher, ...] = ()
    artifacts: tuple[ArtifactRule, ...] = ()
    driver: ServerDriver | None = None
    verify_env: bool = True


def placed(invocation: Invocation, *, attempt: int, rank: int, host: str, directory: str) -> Invocation:
    """Return the invocation for one attempt on one rank: the strings `${{ rank.* }}` in it become their values."""
    known = {"dir": directory, "number": str(rank), "host": host}

    def settled(text: str) -> str:
        return _RANK.sub(lambda found: known[found[1]], text)

    return replace(
        invocation,
        attempt=attempt,
        argv=tuple(map(settled, invocation.argv)),
        base_argv=tuple(map(settled, invocation.base_argv)),
        env={name: None if value is None else settled(value) for name, value in invocation.env.items()},
    )


_RANK = re.compile(r"\$\{\{ rank\.(dir|number|host) \}\}")
