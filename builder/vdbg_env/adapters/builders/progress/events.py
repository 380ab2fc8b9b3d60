"""Turn BuildKit's progress, from buildx or from the engine, into build events.

BuildKit reports a graph of vertexes (github.com/moby/buildkit, api/services/control/control.proto, `StatusResponse`). A
vertex may be reported many times, out of order, and more than once as started and completed (a cache probe, then the
real run); one step of the Dockerfile must still give one start and one end.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from vdbg_env.adapters.builders.progress.failure_causes import engine_gone, explain_failure
from vdbg_env.application.ports.build_events import (
    BuildEvent,
    BuildFailed,
    BuildWarning,
    OutputLine,
    StepEnded,
    StepStarted,
)

TAIL_LINES = 40
Stream = Literal["stdout", "stderr"]

# "[ 3/12] RUN ...", "[base 2/3] RUN ...", "[linux/arm64 base 2/3] RUN ..."
_NUMBERED = re.compile(r"^\[(?P<stage>[^\]]*?)\s*(?P<number>\d+)/(?P<total>\d+)\] (?P<title>.*)$", re.DOTALL)
_EXIT_CODE = re.compile(r"exit code: (\d+)")
_CONTROL = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1f\x7f]"
)


@dataclass(frozen=True, kw_only=True)
class Vertex:
    """One report about one node of the build graph; times are seconds since the epoch."""

    digest: str
    name: str
    cached: bool = False
    started: float | None = None
    completed: float | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class LogChunk:
    """Some bytes a vertex's command wrote; a line may be spread over several chunks."""

    vertex: str
    stream: Stream
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What one message of the progress stream said."""

    vertexes: tuple[Vertex, ...] = ()
    logs: tuple[LogChunk, ...] = ()
    warnings: tuple[str, ...] = ()


def clean_line(raw: bytes) -> str:
    """Return one line as a person should see it: the last rewrite of a progress bar, without control sequences."""
    text = raw.decode("utf-8", "replace").rstrip("\r")
    return _CONTROL.sub("", text.rsplit("\r", 1)[-1])


class LineSplitter:
    """Collects chunks of one stream into whole lines; `rest` gives what has no line end yet."""

    # A program that never ends its line must not grow the buffer without end.
    _LONGEST = 64 * 1024

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> Iterator[str]:
        *whole, self._held = (self._held + data).split(b"\n")
        yield from map(clean_line, whole)
        if len(self._held) > self._LONGEST:
            yield from self.rest()

    def rest(self) -> Iterator[str]:
        held, self._held = self._held, b""
        if held:
            yield clean_line(held)


@dataclass
class _Step:
    key: str
    title: str
    started: float | None = None
    told: bool = False
    ended: bool = False
    error: str = ""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    lines: dict[Stream, LineSplitter] = field(
        default_factory=lambda: {"stdout": LineSplitter(), "stderr": LineSplitter()}
    )


class ProgressReader:
    """Follows one build; `events` turns each message into events, `failure` says what went wrong at the end."""

    def __init__(self, *, jobs: int | None = None) -> None:
        self._steps: dict[str, _Step] = {}
        self._failed: _Step | None = None
        self._jobs = jobs

    def events(self, progress: Progress) -> Iterator[BuildEvent]:
        for vertex in progress.vertexes:
            yield from self._started(vertex)
        for chunk in progress.logs:
            yield from self._printed(chunk)
        for vertex in progress.vertexes:
            yield from self._ended(vertex)
        for warning in progress.warnings:
            yield BuildWarning(text=warning)

    def running(self) -> str | None:
        """Return the title of the step that was at work last, if any."""
        open_steps = [s for s in self._steps.values() if s.started is not None and not s.ended]
        return open_steps[-1].title if open_steps else None

    def failure(self, message: str) -> BuildFailed:
        """Return the failure the build ended with; `message` is the engine's final message."""
        step = self._failed
        error = step.error if step else message
        code = _EXIT_CODE.search(error) or _EXIT_CODE.search(message)
        tail = tuple(step.tail) if step else ()
        number = int(code[1]) if code else None
        title = step.title if step else (self.running() or "before the first step")
        cause, next_step = explain_failure(title=title, code=number, message=error, tail=tail, jobs=self._jobs)
        return BuildFailed(
            key=step.key if step else None, title=title, code=number, cause=cause, next_step=next_step, tail=tail
        )

    def lost(self, reason: str) -> BuildFailed:
        """Return the failure of a build whose engine went away in the middle of it."""
        cause, next_step = engine_gone(reason)
        title = self.running() or "before the first step"
        return BuildFailed(key=None, title=title, code=None, cause=cause, next_step=next_step)

    def _started(self, vertex: Vertex) -> Iterator[BuildEvent]:
        step = self._steps.get(vertex.digest)
        numbered = _NUMBERED.match(vertex.name)
        if step is None:
            title = numbered["title"] if numbered else vertex.name
            step = self._steps[vertex.digest] = _Step(key=vertex.digest, title=" ".join(title.split()))
        if step.started is None and (vertex.started is not None or vertex.cached):
            step.started = vertex.started or 0.0
            if _worth_telling(vertex):
                yield _told(step, numbered)

    def _printed(self, chunk: LogChunk) -> Iterator[BuildEvent]:
        step = self._steps.get(chunk.vertex)
        if step is None:
            return
        for text in step.lines[chunk.stream].feed(chunk.data):
            step.tail.append(text)
            yield OutputLine(key=step.key, text=text, stream=chunk.stream)

    def _ended(self, vertex: Vertex) -> Iterator[BuildEvent]:
        step = self._steps[vertex.digest]
        if vertex.error and not _is_only_cancelled(vertex.error):
            step.error = vertex.error
            self._failed = self._failed or step
        if step.ended or vertex.completed is None or (step.started is None and not vertex.error):
            return
        step.ended = True
        for stream, splitter in step.lines.items():
            for text in splitter.rest():
                step.tail.append(text)
                yield OutputLine(key=step.key, text=text, stream=stream)
        if _worth_telling(vertex):
            if not step.told:
                yield _told(step, _NUMBERED.match(vertex.name))
            took = 0.0 if vertex.cached else max(0.0, vertex.completed - (vertex.started or vertex.completed))
            yield StepEnded(key=step.key, cached=vertex.cached, duration_s=took, error=vertex.error or None)


def _told(step: _Step, numbered: re.Match[str] | None) -> StepStarted:
    step.told = True
    number, total = (int(numbered["number"]), int(numbered["total"])) if numbered else (None, None)
    return StepStarted(key=step.key, title=step.title, number=number, total=total)


def _worth_telling(vertex: Vertex) -> bool:
    """Leave out BuildKit's own errands, unless one fails."""
    return bool(vertex.error) or not (vertex.name.startswith("[internal]") or vertex.name == "copy /context /")


def _is_only_cancelled(error: str) -> bool:
    # When one step fails, its siblings end with this error; the failing one is what the user needs.
    return "context canceled" in error
