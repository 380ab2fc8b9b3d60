"""Makes, finds and removes the containers of a run's steps: a supervisor's, and those of short helper programs.

Every container of ours carries a label, and one of an attempt the attempt's mark too: what lacks it is never touched.
"""

from __future__ import annotations

import json
import math
import os
import select
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import requests
from docker import errors, types
from docker.utils import socket as frames

import vdbg_env
from vdbg_env.adapters.docker.attach import open_streams, socket_of
from vdbg_env.adapters.docker.client import GONE, OUR_LABEL, Engine, engine_errors, explain
from vdbg_env.adapters.docker.host_config import HostOptions, refused_limit, start_error
from vdbg_env.application.ports import Completed
from vdbg_env.common.errors import BadInput, EngineFailed, HostNotAble, VdbgError
from vdbg_env.image.container.run_settings import Ulimit
from vdbg_env.image.container.step_container import DATA, PACKAGES, Mount, StepContainer

Tell = Callable[[str], None]

PURPOSE = f"{OUR_LABEL}.purpose"
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
        seccomp_profile: str,
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
        self._seccomp_profile = seccomp_profile
        self._tell = tell

    @property
    def engine(self) -> Engine:
        """The engine, over a connection of this process's own: built-ins work in a fork that may be ended."""
        me = os.getpid()
        if me not in self._engines:
            self._engines[me] = self._connect()
        return self._engines[me]

    def close(self) -> None:
        """Remove what was left: by helper programs that were ended while they ran, by an engine that was away."""
        with suppress(VdbgError):
            for container in self._labelled(f"{PURPOSE}=look", f"{LOOK}={self.looks}"):
                self._remove(container)
            ended = (
                self._labelled(f"{PURPOSE}=step", f"{RUN}={self.run_mark}", only_ended=True) if self.run_mark else ()
            )
            for container in ended:
                self._remove(container)

    def supervise(
        self, argv: Sequence[str], directory: Path, order: bytes, *, mark: str, mounts: Sequence[Mount]
    ) -> None:
        """Start a supervisor in a container of its own, and give it its orders once it holds its lock.

        Whatever an earlier engine left under the same mark is removed first. Nothing is left when this fails: BadInput,
        HostNotAble or EngineFailed.
        """
        self.remove(mark)
        labels = {PURPOSE: "step", RUN: self.run_mark, ATTEMPT: mark}
        mounts = (Mount(source=str(directory), target=str(directory)), *mounts)
        with self._begun(argv, labels=labels, mounts=mounts, attached=True, kept=True) as (_, stream):
            self._hand_over(stream, json.dumps(str(directory)).encode() + b"\n", order)

    def run(
        self, argv: Sequence[str], *, timeout_s: float = 60.0, mounts: Sequence[Mount] = (), user: str | None = None
    ) -> Completed:
        """Run a short program in a container of its own; raises HostNotAble when it outlasts `timeout_s`."""
        client, labels = self.engine.client, {PURPOSE: "look", LOOK: self.looks}
        with self._begun(argv, labels=labels, mounts=mounts, user=user) as (container, _):
            try:
                code = int(client.wait(container, timeout=math.ceil(timeout_s))["StatusCode"])
                streams = [client.logs(container, stdout=out, stderr=not out) for out in (True, False)]
            except (requests.exceptions.ReadTimeout, requests.exceptions.ConnectionError) as error:
                what = f"{argv[0]} did not end within {timeout_s:g} seconds in a container of {self._image}"
                raise HostNotAble(what) from error
            except (errors.DockerException, *GONE) as error:
                raise explain(error, self.engine.endpoint) from error
        out, err = (data.decode("utf-8", "replace") for data in streams)
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
            with suppress(errors.APIError, *GONE):  # the engine went away, or somebody removed it: not known then
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

    def _labelled(self, *labels: str, only_ended: bool = False) -> tuple[str, ...]:
        filters: dict[str, Any] = {"label": list(labels), **({"status": "exited"} if only_ended else {})}
        with engine_errors(self.engine.endpoint):
            found = self.engine.client.containers(all=True, filters=filters)
        return tuple(str(container["Id"]) for container in found)

    def _remove(self, container: str) -> None:
        with engine_errors(self.engine.endpoint), suppress(errors.NotFound):
            self.engine.client.remove_container(container, force=True, v=True)

    @property
    def _image(self) -> str:
        return self.container.settings.image

    # -- making one -------------------------------------------------------------------------------------------------

    @contextmanager
    def _begun(
        self,
        argv: Sequence[str],
        *,
        labels: Mapping[str, str],
        mounts: Sequence[Mount] = (),
        user: str | None = None,
        attached: bool = False,
        kept: bool = False,
    ) -> Iterator[tuple[str, Any]]:
        """Start a container, without each limit that the engine refuses; it is removed at the end unless `kept`.

        A refusal shows only when a container starts, so the limit is left out and another container made.
        """
        client = self.engine.client
        while True:
            container = self._create(argv, labels=labels, mounts=mounts, user=user, attached=attached)
            done = False
            try:
                if attached:
                    with open_streams(client, container, interactive=True) as stream:
                        refused = self._start(container)
                        if refused is None:
                            yield container, stream
                else:
                    refused = self._start(container)
                    if refused is None:
                        yield container, None
                done = refused is None
            finally:
                if not (done and kept):
                    with suppress(errors.APIError, *GONE):  # removed already, or gone with its engine
                        client.remove_container(container, force=True, v=True)
            if refused is None:
                return
            self._leave_out(refused)

    def _create(
        self,
        argv: Sequence[str],
        *,
        labels: Mapping[str, str],
        mounts: Sequence[Mount],
        user: str | None,
        attached: bool,
    ) -> str:
        ours, client = self.container, self.engine.client
        with engine_errors(self.engine.endpoint):
            try:
                made = client.create_container(
                    self.image_id or ours.settings.image,
                    entrypoint=[argv[0]],  # the image's own might put its program before ours
                    command=list(argv[1:]),
                    user=user if user is not None else ours.user,
                    working_dir=ours.folder,
                    labels=dict(labels),
                    stdin_open=attached,
                    stop_timeout=ours.settings.stop_grace_s,
                    host_config=client.create_host_config(**self._host_options(mounts, attached=attached)),
                )
            except errors.ImageNotFound as error:
                raise no_such_image(self._image) from error
            except errors.APIError as error:
                raise create_error(str(error)) or error from error
        return str(made["Id"])

    def _host_options(self, mounts: Sequence[Mount], *, attached: bool) -> dict[str, Any]:
        ours = self.container
        options = HostOptions(self.engine, seccomp_profile=self._seccomp_profile).of(ours.settings)
        binds = (*self._own_mounts(), *ours.mounts, *mounts)
        # Docker would make a missing folder with `binds`; a mount of this form is refused instead, and said.
        options["mounts"] = [
            *options.get("mounts", ()),
            *(types.Mount(type="bind", source=m.source, target=m.target, read_only=m.read_only) for m in binds),
        ]
        options["init"] = False  # the supervisor itself reaps what a crashing workload leaves
        # Folders of a user's are closed to containers where SELinux is on, and may not be relabelled under him.
        options["security_opt"] = [*options["security_opt"], "label=disable"]
        if ours.memory is not None:
            options |= {"mem_limit": ours.memory, "memswap_limit": ours.memory}
        if attached:  # the workload's output is the supervisor's to keep; the engine must not write a second copy
            options["log_config"] = types.LogConfig(type="none")
        return options

    def _own_mounts(self) -> tuple[Mount, ...]:
        """Return our package and the shipped runbooks, whose lib/ holds what a step may have a workload load."""
        package = str(Path(vdbg_env.__file__).parent)
        return (
            Mount(source=package, target=f"{PACKAGES}/vdbg_env", read_only=True),
            Mount(source=str(self._runbooks), target=DATA, read_only=True),
        )

    def _start(self, container: str) -> Ulimit | None:
        """Start a container; returns the limit the engine refused, if that is what kept it from starting."""
        settings = self.container.settings
        try:
            self.engine.client.start(container)
        except errors.APIError as error:
            if refused := refused_limit(str(error), settings.ulimits):
                return refused
            known = start_error(error, settings) or first_process_error(str(error), self.container)
            raise known or explain(error, self.engine.endpoint) from error
        except GONE as error:
            raise explain(error, self.engine.endpoint) from error
        return None

    def _leave_out(self, refused: Ulimit) -> None:
        self._tell(f"note: the engine may not raise the {refused.name} limit: {refused.fallback}")
        settings = self.container.settings
        settings = replace(settings, ulimits=tuple(limit for limit in settings.ulimits if limit != refused))
        self.container = replace(self.container, settings=settings)

    def _hand_over(self, stream: Any, place: bytes, order: bytes) -> None:
        """Name its folder to a supervisor, wait until it holds the lock of it, and only then give it its orders."""
        connection = socket_of(stream)
        said: dict[int, bytes] = {frames.STDOUT: b"", frames.STDERR: b""}
        try:
            connection.sendall(place)
            for number, data in _frames_until(stream, time.monotonic() + _START_LIMIT_S):
                said[number] += data
                if said[frames.STDOUT].endswith(b"ready\n"):
                    connection.sendall(order)
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


def no_such_image(name: str) -> BadInput:
    """Return the error for an image that the engine does not have."""
    return BadInput(
        f"the engine has no image {name!r}",
        cause="it was built under another name or on another engine, or removed since",
        next_step="docker images, to see what it has, or build one: vdbg-env build --lineinfo",
    )


def create_error(text: str) -> VdbgError | None:
    """Return the error of ours for a container that could not be made."""
    if "bind source path does not exist" in text:
        path = text.rpartition("does not exist:")[2].strip(' ."()')
        return HostNotAble(
            f"the engine's machine does not have {path!r}",
            cause="DOCKER_HOST names another machine, or the engine runs in a virtual machine that is not given it",
            next_step="type this where the engine runs; or vdbg-env doctor, to see which engine it is",
        )
    return None


def first_process_error(text: str, container: StepContainer) -> VdbgError | None:
    """Return the error of ours for an image in which the first process cannot be started."""
    image = container.settings.image
    if "unable to find user" in text or "no matching entries in passwd" in text:
        return BadInput(f"{image} knows no user {container.user!r}", next_step="--user with a number, as in --user 0")
    if "python3" in text and ("executable file not found" in text or "no such file or directory" in text):
        return BadInput(
            f"{image} holds no python3",
            cause="each step is supervised by a small program in its container, which needs Python 3.11 or newer",
            next_step="an image of vdbg-env build has one; else add it: RUN apt-get install -y python3",
        )
    if "is not a directory" in text or "not a directory" in text:
        return BadInput(f"{image} cannot be mounted into: {text}", next_step="another target for --mount")
    return EngineFailed(f"a container of {image} could not be started: {text}") if "OCI runtime" in text else None
