"""Run the steps of a plan on this machine, each in a new session that ends with it."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import assert_never

from vdbg_env.adapters.builders.progress.events import TAIL_LINES, LineSplitter, Stream
from vdbg_env.adapters.builders.progress.failure_causes import explain_failure
from vdbg_env.application.ports.build_events import (
    BuildEvent,
    BuildFailed,
    BuildWarning,
    OutputLine,
    StepEnded,
    StepStarted,
)
from vdbg_env.application.ports.images import BuildOrder
from vdbg_env.common.errors import HostNotAble
from vdbg_env.image.plan import OBJECTS, CommandStep, CopyStep, Step
from vdbg_env.supervisor.processes.signals import send_to_group

_GRACE_S = 5.0

# What a step keeps from the environment. Everything else is dropped: a CUDAFLAGS or NVCC_APPEND_FLAGS set there
# would change what is compiled, and a container never sees it either.
_KEPT = {
    "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER",
    "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE",
}  # fmt: skip
_KEPT_BEGINNINGS = ("LC_", "PIP_", "UV_")


class StepFailed(Exception):
    """A step failed; carries the event that reports it."""

    def __init__(self, event: BuildFailed) -> None:
        super().__init__(event.title)
        self.event = event


class HostSteps:
    """The steps of one order below one folder; `environment` is what programs of the build run in afterwards.

    `objects` is the folder of all caches of compiled objects.
    """

    def __init__(self, order: BuildOrder, prefix: Path, *, objects: Path) -> None:
        self._order = order
        self._prefix = prefix
        self._objects = objects
        kept = kept_environment()
        self.environment = {**kept, **order.plan.environment(str(prefix), kept)}

    def all_cached(self) -> Iterator[BuildEvent]:
        """Report every step as taken from the cache."""
        for number, step in enumerate(self._order.plan.steps, 1):
            yield self._start(number, step)
            yield StepEnded(key=step.id, cached=True, duration_s=0.0)

    def run(self, context: Path) -> Iterator[BuildEvent]:
        """Run every step in order; raises StepFailed at the first that fails."""
        for number, step in enumerate(self._order.plan.steps, 1):
            if isinstance(step, CommandStep) and step.where == "container":
                yield BuildWarning(text=f"left out without a container: {step.title}")
                continue
            yield self._start(number, step)
            since = time.monotonic()
            match step:
                case CopyStep():
                    self._copy(step, context)
                case CommandStep():
                    yield from self._run(step, since)
                case _:
                    assert_never(step)
            yield StepEnded(key=step.id, cached=False, duration_s=time.monotonic() - since)

    def _start(self, number: int, step: Step) -> StepStarted:
        return StepStarted(key=step.id, title=step.title, number=number, total=len(self._order.plan.steps))

    def _copy(self, step: CopyStep, context: Path) -> None:
        source, target = context / step.source, self._prefix / step.target
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(source, target)

    def _run(self, step: CommandStep, since: float) -> Iterator[BuildEvent]:
        folder = self._prefix / step.cwd
        folder.mkdir(parents=True, exist_ok=True)
        if step.objects is not None:
            self._show_objects(step.objects)
        process = subprocess.Popen(
            ["/bin/sh", "-c", step.script()],
            cwd=folder,
            env={**self.environment, **self._order.build_args, **self._secrets(step)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        tail: deque[str] = deque(maxlen=TAIL_LINES)
        try:
            for line in _lines(process, step.id):
                tail.append(line.text)
                yield line
            code = process.wait()
        finally:
            _end(process)
        if code != 0:
            status = code if code >= 0 else 128 - code
            yield StepEnded(
                key=step.id, cached=False, duration_s=time.monotonic() - since, error=f"exit status {status}"
            )
            raise StepFailed(self._failure(step, status, tuple(tail)))

    def _show_objects(self, name: str) -> None:
        """Link the kept objects to where the step looks for them; they outlive the folder of the build."""
        kept, shown = self._objects / name, self._prefix / OBJECTS
        kept.mkdir(parents=True, exist_ok=True)
        shown.unlink(missing_ok=True)
        shown.symlink_to(kept)

    def _failure(self, step: CommandStep, status: int, tail: tuple[str, ...]) -> BuildFailed:
        cause, next_step = explain_failure(title=step.title, code=status, message="", tail=tail, jobs=self._order.jobs)
        return BuildFailed(key=step.id, title=step.title, code=status, cause=cause, next_step=next_step, tail=tail)

    def _secrets(self, step: CommandStep) -> dict[str, str]:
        """Return the variables with the paths of a step's secrets; they are read in place, never copied."""
        found: dict[str, str] = {}
        for use in step.secrets:
            path = self._order.secrets.get(use.id)
            if path is None:
                continue
            if use.variable is None:
                raise HostNotAble(
                    f"the secret {use.id} must stand at {use.target}, which a bare machine has no private copy of",
                    next_step="build with Docker and docker-buildx",
                )
            found[use.variable] = str(path)
        return found


def kept_environment() -> dict[str, str]:
    """Return what a step keeps of this process's environment."""
    return {name: value for name, value in os.environ.items() if _is_kept(name)}


def _is_kept(name: str) -> bool:
    return name in _KEPT or name.startswith(_KEPT_BEGINNINGS) or name.lower().endswith("_proxy")


def _lines(process: subprocess.Popen[bytes], key: str) -> Iterator[OutputLine]:
    assert process.stdout is not None and process.stderr is not None
    names: dict[int, Stream] = {process.stdout.fileno(): "stdout", process.stderr.fileno(): "stderr"}
    splitters = {number: LineSplitter() for number in names}
    with selectors.DefaultSelector() as selector:
        for number in names:
            selector.register(number, selectors.EVENT_READ)
        while selector.get_map():
            for ready, _ in selector.select():
                data = os.read(ready.fd, 1 << 16)
                texts = splitters[ready.fd].feed(data) if data else splitters[ready.fd].rest()
                yield from (OutputLine(key=key, text=text, stream=names[ready.fd]) for text in texts)
                if not data:
                    selector.unregister(ready.fd)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what the step started, politely then firmly, its background children too."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        send_to_group(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()
