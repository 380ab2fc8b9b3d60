"""The events of a build: one stream, the same kinds from every builder.

Every builder keeps this order: a step's `StepStarted` precedes its output and its `StepEnded`; the stream ends with
exactly one `Built` or `BuildFailed`. Steps of different stages may overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class StepStarted:
    """A step began; `number` of `total` are its place in its stage, if the builder reports them."""

    key: str
    title: str
    number: int | None = None
    total: int | None = None


@dataclass(frozen=True, kw_only=True)
class StepEnded:
    """A step ended: taken from the cache, done, or failed when `error` is set; a cached step took 0 seconds."""

    key: str
    cached: bool
    duration_s: float
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class OutputLine:
    """One line a step printed, without its line end and without terminal control sequences."""

    key: str
    text: str
    stream: Literal["stdout", "stderr"]


@dataclass(frozen=True, kw_only=True)
class BuildWarning:
    """Something the user should know that does not stop the build."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Built:
    """The image is finished, untagged, as `image_id`; `digest` is its manifest digest, if the builder reports one."""

    image_id: str
    digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class BuildFailed:
    """The build stopped at a step, or before the first one when `key` is None.

    `code` is the exit status of the step's command (137 = killed, mostly for memory), `cause` says in one sentence
    what is known of the reason, `next_step` what to type, and `tail` holds the last lines the step printed.
    """

    key: str | None
    title: str
    code: int | None
    cause: str
    next_step: str | None = None
    tail: tuple[str, ...] = ()


BuildEvent = StepStarted | StepEnded | OutputLine | BuildWarning | Built | BuildFailed
