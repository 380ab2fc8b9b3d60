"""The job of a supervisor: one JSON document on its standard input, never on disk, as it holds the environment."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from vdbg_env.common.patterns import MatcherSpec
from vdbg_env.supervisor.process_tree import KINDS

LEFT = "what its first process left had to be ended"  # how the note on that begins
FAILED = "the supervisor failed"  # how the end of a step by a fault in this program begins
UNWATCHED = "what watched the command failed"  # the same of a guarded one, which ran to its end


class HangCommand(NamedTuple):
    """A program to run on a hang: `{pid}` in `argv` is filled in; `each` says for which processes of the tree.

    `stopped` is added for a process that is stopped, which a debugger cannot stop once more.
    """

    name: str
    argv: tuple[str, ...]
    each: str = "root"  # root | python | all
    timeout_s: float = 60.0
    stopped: tuple[str, ...] = ()


class Job(NamedTuple):
    """All that a supervisor needs; times in seconds, sizes in bytes, signals as numbers.

    `overlay` holds what the step changes of the environment, to compare it with what each worker really has.
    With `inherit`, `env` is merged into the supervisor's own environment and `unset` removed from that: in a container,
    only the supervisor knows what the engine gave it. `growing` are globs under `directory`, or under `dumps` where
    that is set: while such a file grows, a dump is being written and no process is killed. `cgroups` are the kinds that
    may hold the tree, the surer first. A `server` is not expected to end by itself; `listens` is the URL of one, where
    no other may listen before it is started.

    With `guard`, the process id of `vdbg-env guard`, the workload is in production: signals are passed on to it, it is
    ended when the guard has died, silence alone is not a hang, and a full disk ends the record and not the workload.
    `live` are the descriptors that get its two streams unchanged, `stdin` the one that it reads, and `starts` the one
    that gets a byte before it is started.
    """

    directory: str
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    inherit: bool = False
    unset: tuple[str, ...] = ()
    overlay: dict[str, str | None] = {}  # noqa: RUF012 - a NamedTuple's default, never changed
    timeout_s: float | None = None
    kill_signal: int = 15
    grace_s: float = 15.0
    output_idle_s: float | None = None
    gpu_idle_s: float | None = None
    gpu_pinned_s: float | None = None
    gpu_probe: tuple[str, ...] = ()
    hang_stacks: bool = False
    hang_commands: tuple[HangCommand, ...] = ()
    dump_wait_s: float = 300.0
    growing: tuple[str, ...] = ()
    dumps: str = ""
    output_limit: int = 2 << 30
    output_keep: str = "head+tail"
    matchers: tuple[MatcherSpec, ...] = ()
    literals: tuple[str, ...] = ()
    pseudonym_key: str = ""
    pseudonym_hosts: tuple[str, ...] = ()
    disk_floor: int = 0
    driver: tuple[str, ...] = ()
    server: bool = False
    listens: str = ""
    cgroups: tuple[str, ...] = KINDS
    alarm: str = ""  # a file that is there once another rank hangs: all take their stacks before any of them is ended
    stop: str = ""  # a file that means, once it is there, what a SIGTERM does; more than one if it says so
    guard: int = 0
    live: tuple[int, ...] = ()
    stdin: int = -1
    starts: int = -1


def to_json(job: Job) -> bytes:
    """Return the job as one line of JSON; bytes that are not UTF-8 pass as lone surrogates."""
    document = job._asdict()
    document["matchers"] = [m._asdict() for m in job.matchers]
    document["hang_commands"] = [c._asdict() for c in job.hang_commands]
    return json.dumps(document).encode() + b"\n"


def settled(job: Job, own: Mapping[str, str]) -> Job:
    """Return the job with its whole environment, `own` being that of the supervisor."""
    if not job.inherit:
        return job
    whole = {**own, **job.env}
    return job._replace(env={name: value for name, value in whole.items() if name not in job.unset})


def from_json(data: bytes) -> Job | None:
    """Return the job, or None when it did not arrive whole: the engine died while it sent it."""
    if not data.endswith(b"\n"):
        return None
    document: dict[str, Any] = json.loads(data)
    document["matchers"] = tuple(MatcherSpec(**m) for m in document["matchers"])
    document["hang_commands"] = tuple(HangCommand(**c) for c in document["hang_commands"])
    return Job(**document)


# -- Phases ------------------------------------------------------------------------------------------------------------


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
