"""How a command is run: what ends it, what counts as a hang, what of its output and files is kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from vdbg_env.runbook.model.fields import Bytes, Count, Named, Part, Seconds, Text

HangAction = Literal["py-spy", "gpu-coredump", "stacks", "nccl-ras"]
Signal = Literal["SIGTERM", "SIGINT", "SIGABRT", "SIGQUIT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGHUP"]


class KillPolicy(Part):
    """How a process tree is ended: the signal, then SIGKILL to all that is left after the grace."""

    signal: Signal = "SIGTERM"
    grace_s: Annotated[Seconds, Field(alias="grace")] = 15.0


class Watch(Part):
    """When silence counts as a hang, and what is done about it."""

    output_idle_s: Annotated[Seconds | None, Field(alias="output_idle")] = None
    gpu_idle_s: Annotated[Seconds | None, Field(alias="gpu_idle")] = None
    gpu_pinned_s: Annotated[Seconds | None, Field(alias="gpu_pinned")] = None
    on_hang: tuple[HangAction, ...] = ("stacks",)
    dump_wait_s: Annotated[Seconds, Field(alias="dump_wait")] = 300.0


class OutputPolicy(Part):
    """How much of the output is kept; beyond the limit the middle is dropped, and reported."""

    limit: Bytes = 2 << 30
    keep: Literal["head+tail", "head", "tail"] = "head+tail"


class OnFirstFailure(Part):
    """How long the other ranks run on after the first one failed; longer while a dump of theirs is growing."""

    wait_s: Annotated[Seconds, Field(alias="wait")] = 30.0


class Placement(Part):
    """How many ranks a command has: `per_node` on each of `nodes`.

    The command line and an allocation are stronger than what is written here.
    """

    nodes: Count | None = None
    per_node: Count | None = None
    on_first_failure: OnFirstFailure = OnFirstFailure()

    @property
    def ranks(self) -> int:
        """How many ranks that makes."""
        return (self.nodes or 1) * (self.per_node or 1)


class Matcher(Named):
    """A named pattern that is searched in every line of the output; `stop` ends the step at the first match."""

    pattern: Annotated[Text, Field(alias="regex")]
    source: Literal["output", "kernel-log"] = "output"
    take: Literal["first", "last", "all"] = "first"
    stop: StrictBool = False


class ArtifactRule(Named):
    """Files to collect after a step: a glob under the folder of the rank."""

    glob: Annotated[Text, Field(alias="path")]
    required: StrictBool = False
    max_size: Bytes | None = None


class Ready(Part):
    """How a server reports that it is ready: this URL answers."""

    http: Text
    timeout_s: Annotated[Seconds, Field(alias="timeout")] = 900.0


SYNTHETIC = "synthetic"


class ServerDriver(Part):
    """How a server is driven: wait until it is ready, send the requests of `replay`, stop it.

    `replay` is a file, or the word `synthetic`: requests that are made for the server's model. A file of that name is
    `./synthetic`.

    `concurrency` bounds how many requests are under way at once; without it they are sent at their recorded times, or
    one after the other where the recording has none.
    """

    replay: Text
    ready: Ready
    concurrency: Count | Text | None = None
