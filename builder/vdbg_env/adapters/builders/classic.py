"""Build with the engine's classic builder, deprecated in favour of BuildKit: on request only."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

from vdbg_env.adapters.builders.cleanup import removing_leftovers
from vdbg_env.adapters.builders.progress.events import TAIL_LINES, LineSplitter
from vdbg_env.adapters.builders.progress.failure_causes import engine_gone, explain_failure
from vdbg_env.adapters.docker.build_api import CLASSIC, image_id_of, order_parameters, post_build
from vdbg_env.adapters.docker.client import GONE, Engine
from vdbg_env.adapters.docker.images import DockerImages
from vdbg_env.adapters.files.context_tar import upload
from vdbg_env.application.ports.build_events import BuildEvent, BuildFailed, Built, OutputLine, StepEnded, StepStarted
from vdbg_env.application.ports.images import BuilderDescription, BuildOrder
from vdbg_env.common.errors import EngineFailed

_STEP = re.compile(r"^(?:Step|STEP) (\d+)/(\d+) ?: (.*)$")  # the second as Podman prints it
_CHATTER = (" ---> ", "--> ", "Successfully built ", "Removing intermediate ")
_CODE = re.compile(r"(?:returned a non-zero code: |exit status )(\d+)")  # the second as Podman prints it


class ClassicBuilder(DockerImages):
    """The classic builder: no mounts, no secrets."""

    def __init__(self, engine: Engine, *, why: str) -> None:
        super().__init__(engine)
        self._why = why

    def describe(self) -> BuilderDescription:
        return BuilderDescription(
            name="classic", version=self.engine.version, why=self._why, capabilities=frozenset({"containers"})
        )

    def build(self, order: BuildOrder) -> Generator[BuildEvent, None, None]:
        """See `ImageBuilder.build`; dropping the connection is what ends a classic build."""
        if order.secrets:
            raise EngineFailed(
                "the classic builder takes no secrets", next_step="build without --engine classic, with docker-buildx"
            )
        with removing_leftovers(self, order.plan) as finished:
            messages = post_build(
                self.engine.client, upload(order.context), version=CLASSIC, parameters=order_parameters(order)
            )
            with closing(messages):
                yield from StepText(jobs=order.jobs).follow(messages)
            finished()


class StepText:
    """Reads the builder's text: `Step 2/5 : RUN ...`, ` ---> Using cache`, output, and an error at the end."""

    def __init__(self, *, jobs: int | None) -> None:
        self._jobs = jobs
        self._open: StepStarted | None = None
        self._since = 0.0
        self._cached = False
        self._lines = LineSplitter()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    def feed(self, data: bytes) -> Iterator[BuildEvent]:
        """Yield what some more of the text says."""
        for text in self._lines.feed(data):
            yield from self._line(text)

    def finish(self, error: str | None) -> Iterator[BuildEvent]:
        """Yield the end of the last step and, for an error, the failure."""
        for text in self._lines.rest():
            yield from self._line(text)
        yield from self._close(error=error)
        if error is not None:
            yield self._failed(error, "")

    def follow(self, messages: Iterator[dict[str, Any]]) -> Iterator[BuildEvent]:
        """Yield the events of a build over the engine's API, its result included."""
        image_id: str | None = None
        error: str | None = None
        try:
            for message in messages:
                image_id = image_id_of(message) or image_id
                error = message.get("error") or error
                yield from self.feed(str(message.get("stream", "")).encode())
        except GONE as gone:
            yield self._failed(None, str(gone))
            return
        for text in self._lines.rest():
            yield from self._line(text)
        if error is not None or image_id is None:
            yield from self._close(error=str(error or "the engine went away"))
            yield self._failed(error, "it closed the connection")
            return
        yield from self._close()
        yield Built(image_id=image_id)

    def _line(self, text: str) -> Iterator[BuildEvent]:
        if found := _STEP.match(text):
            yield from self._close()
            number, total = int(found[1]), int(found[2])
            self._open = StepStarted(key=f"step-{number}", title=found[3].strip(), number=number, total=total)
            self._since = time.monotonic()
            self._cached = False
            self._tail.clear()
            yield self._open
        elif text.strip().startswith(("---> Using cache", "--> Using cache")):
            self._cached = True
        elif self._open and text and not text.startswith(_CHATTER):
            self._tail.append(text)
            yield OutputLine(key=self._open.key, text=text, stream="stdout")

    def _close(self, *, error: str | None = None) -> Iterator[BuildEvent]:
        if self._open is None:
            return
        took = 0.0 if self._cached else time.monotonic() - self._since
        yield StepEnded(key=self._open.key, cached=self._cached, duration_s=took, error=error)
        if error is None:
            self._open = None

    def _failed(self, error: str | None, lost: str) -> BuildFailed:
        """Return the failure for the engine's closing error, or, without one, for an engine that went away."""
        found = _CODE.search(error or "")
        code = int(found[1]) if found else None
        tail = tuple(self._tail)
        title = self._open.title if self._open else "before the first step"
        next_step: str | None
        if error is None:
            cause, next_step = engine_gone(lost)
        else:
            cause, next_step = explain_failure(title=title, code=code, message=error, tail=tail, jobs=self._jobs)
        return BuildFailed(
            key=self._open.key if self._open else None,
            title=title,
            code=code,
            cause=cause,
            next_step=next_step,
            tail=tail,
        )
