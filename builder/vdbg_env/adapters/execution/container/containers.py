"""Make, find and remove the containers of a run's steps: a supervisor's, and those of short helper programs.

Each carries a label, and one of an attempt the attempt's mark too: what lacks it is never touched.
"""

from __future__ import annotations

import json
import math
import os
import select
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import requests
from docker import errors
from docker.utils import socket as frames

from vdbg_env.adapters.docker.attach import socket_of
from vdbg_env.adapters.docker.client import GONE, OUR_LABEL, Engine, engine_errors, explain, printed
from vdbg_env.adapters.docker.create import PURPOSE, NewContainer, is_own, started, without
from vdbg_env.application.ports.programs import Completed
from vdbg_env.common.errors import HostNotAble, VdbgError
from vdbg_env.common.resources import package_dir, readers_dir
from vdbg_env.common.stop import ToldToStop, waiting
from vdbg_env.image.settings import DATA, PACKAGES, Mount, StepContainer, Ulimit

Tell = Callable[[str], None]

RUN = f"{OUR_LABEL}.run"
LOOK = f"{OUR_LABEL}.look"
ATTEMPT = f"{OUR_LABEL}.attempt"  # which run, step, attempt and rank a container is of
_START_LIMIT_S = 60.0
_END_LIMIT_S = 15.0


@dataclass(frozen=True, kw_only=True)
class ContainerEnd:
    """How the engine says that a container ended; `known` is False when it could not be asked or has no such one."""

    known: bool = False
    code: int | None = None
    out_of_memory: bool = False


class StepContainers:
    """The containers of one run, all started alike; `runbooks` is the folder of
    the shipped ones; `tell` gets a line for every limit the engine may not give."""

    def __init__(
        self,
        connect: Callable[[], Engine],
        container: StepContainer,
        *,
        runbooks: Path,
        tell: Tell,
    ) -> None:
        self._connect = connect
        self._engines: dict[int, Engine] = {}
        self.looks = uuid.uuid4().hex  # names the containers of helper programs, for `close`
        self.run_mark = ""  # names the run, once there is one
        self.container = container
        self.image_id: str | None = None  # what the image's name meant when the run began
        self._runbooks = runbooks
        self._tell = tell

    @property
    def engine(self) -> Engine:
        """The engine, over a connection of this process's own: built-ins work in a fork that may be ended."""
        me = os.getpid()
        if me not in self._engines:
            self._engines[me] = self._connect()
        return self._engines[me]

    def close(self) -> None:
        """Remove what was left: by helper programs that were ended while they ran, by an engine that was away.

        A container of a step that runs is left: another vdbg-env may take over the step.
        """
        with suppress(VdbgError, ToldToStop):
            for container in self._labelled(f"{PURPOSE}=look", f"{LOOK}={self.looks}"):
                self._remove(container)
            idle = self._labelled(f"{PURPOSE}=step", f"{RUN}={self.run_mark}", only_idle=True) if self.run_mark else ()
            for container in idle:
                self._remove(container)

    def supervise(
        self, argv: Sequence[str], directory: Path, job: bytes, *, mark: str, mounts: Sequence[Mount]
    ) -> None:
        """Start a supervisor in a new container, and send it its job once it holds its lock.

        Whatever an earlier engine left under the same mark is removed first. Nothing is left when this fails: BadInput,
        HostNotAble or EngineFailed.
        """
        self.remove(mark)
        labels = {RUN: self.run_mark, ATTEMPT: mark}
        mounts = (Mount(source=str(directory), target=str(directory)), *mounts)
        with self._started(argv, labels, mounts, supervised=True) as (_, stream):
            self._hand_over(stream, json.dumps(str(directory)).encode() + b"\n", job)

    def run(
        self, argv: Sequence[str], *, timeout_s: float = 60.0, mounts: Sequence[Mount] = (), user: str | None = None
    ) -> Completed:
        """Run a short program in a new container; raises HostNotAble when it outlasts `timeout_s`."""
        client, labels = self.engine.client, {LOOK: self.looks}
        with self._started(argv, labels, mounts, user) as (container, _):
            try:
                code = int(client.wait(container, timeout=math.ceil(timeout_s))["StatusCode"])
                out, err = printed(client, container)
            except (requests.exceptions.ReadTimeout, requests.exceptions.ConnectionError) as error:
                what = f"{argv[0]} did not end within {timeout_s:g} seconds in a container of {self._image}"
                raise HostNotAble(what) from error
            except (errors.DockerException, *GONE) as error:
                raise explain(error, self.engine.endpoint) from error
        return Completed(argv=tuple(argv), code=code, stdout=out, stderr=err)

    def signal(self, mark: str, number: int) -> None:
        """Send a signal to the first process of an attempt's container; one that has ended is no error."""
        for container in self._marked(mark):
            with suppress(errors.APIError):
                self.engine.client.kill(container, signal=number)

    def end(self, mark: str) -> ContainerEnd:
        """Wait a moment for an attempt's container to end, and return how it did."""
        end = ContainerEnd()
        for container in self._marked(mark):
            with suppress(errors.APIError, *GONE):  # the engine went away, or it was removed: not known then
                self.engine.client.wait(container, timeout=math.ceil(_END_LIMIT_S))
                state = self.engine.client.inspect_container(container)["State"]
                end = ContainerEnd(known=True, code=state.get("ExitCode"), out_of_memory=bool(state.get("OOMKilled")))
        return end

    def remove(self, mark: str) -> None:
        """Remove an attempt's container, running or not; raises EngineFailed when the engine does not do so."""
        for container in self._marked(mark):
            self._remove(container)

    def _marked(self, mark: str) -> tuple[str, ...]:
        return self._labelled(f"{PURPOSE}=step", f"{ATTEMPT}={mark}")

    def _labelled(self, *labels: str, only_idle: bool = False) -> tuple[str, ...]:
        filters: dict[str, Any] = {
            "label": list(labels),
            **({"status": ["created", "exited", "dead"]} if only_idle else {}),
        }
        with engine_errors(self.engine.endpoint):
            found = self.engine.client.containers(all=True, filters=filters)
            return tuple(str(container["Id"]) for container in found if is_own(self.engine, container))

    def _remove(self, container: str) -> None:
        with engine_errors(self.engine.endpoint), suppress(errors.NotFound):
            self.engine.client.remove_container(container, force=True, v=True)

    @property
    def _image(self) -> str:
        return self.container.settings.image

    # -- making one -------------------------------------------------------------------------------------------------

    def _started(
        self,
        argv: Sequence[str],
        labels: Mapping[str, str],
        mounts: Sequence[Mount] = (),
        user: str | None = None,
        *,
        supervised: bool = False,
    ) -> AbstractContextManager[tuple[str, Any]]:
        """Start a container, without each limit that the engine refuses; one that is `supervised` is kept."""
        ours = self.container
        settings = replace(
            ours.settings,
            image=self.image_id or ours.settings.image,
            command=tuple(argv),
            env=(),  # the supervisor adds it: a container's configuration is open to all users of the engine
            mounts=(*self._own_mounts(), *ours.mounts, *mounts),
            user=user if user is not None else ours.user,
            memory=ours.memory,
            folder=ours.folder,
        )
        wanted = NewContainer(
            settings=settings,
            purpose="step" if supervised else "look",
            labels=labels,
            replaces_entrypoint=True,  # the image's own might put its program before ours
            stdin=supervised,
            init=False,  # the supervisor itself reaps what a crashing workload leaves
            log=not supervised,  # its output is the supervisor's to keep, without a second copy in the engine
        )
        return started(self.engine, wanted, self._leave_out, attach=supervised, keep=supervised)

    def _own_mounts(self) -> tuple[Mount, ...]:
        """Return our packages and the shipped runbooks, whose lib/ holds what a step may have a workload load."""
        code = (package_dir(), readers_dir())
        return (
            *(Mount(source=str(folder), target=f"{PACKAGES}/{folder.name}", read_only=True) for folder in code),
            Mount(source=str(self._runbooks), target=DATA, read_only=True),
        )

    def _leave_out(self, refused: Ulimit) -> None:
        self._tell(f"note: the engine may not raise the {refused.name} limit: {refused.fallback}")
        self.container = replace(self.container, settings=without(self.container.settings, refused))

    def _hand_over(self, stream: Any, place: bytes, job: bytes) -> None:
        """Name its folder to a supervisor, wait until it holds the lock of it, and only then send it its job."""
        connection = socket_of(stream)
        said: dict[int, bytes] = {frames.STDOUT: b"", frames.STDERR: b""}
        try:
            with waiting():
                connection.sendall(place)
                for number, data in _frames_until(stream, time.monotonic() + _START_LIMIT_S):
                    said[number] += data
                    if said[frames.STDOUT].endswith(b"ready\n"):
                        connection.sendall(job)
                        return
        except GONE as error:
            raise explain(error, self.engine.endpoint) from error
        told = said[frames.STDERR].decode("utf-8", "replace").strip().splitlines()
        raise HostNotAble(
            f"the supervisor of a step could not be started in a container of {self._image}",
            cause="the run directory cannot be written from there, or its Python lacks a standard module",
            next_step="--run-dir on a disk of this machine that root may write (not a network folder)",
            details=tuple(told[-3:]),
        )


def _frames_until(stream: Any, deadline: float) -> Iterator[tuple[int, bytes]]:
    """Yield what a container prints until it ends or the time is up."""
    connection = socket_of(stream)
    incoming = frames.frames_iter(stream, tty=False)  # type: ignore[no-untyped-call]
    while select.select([connection], [], [], max(0.0, deadline - time.monotonic()))[0]:
        found = next(incoming, None)
        if found is None:
            return
        yield found
