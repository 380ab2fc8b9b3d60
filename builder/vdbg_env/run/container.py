"""Run steps in containers of an image, each under a supervisor that is in the container with it."""

from __future__ import annotations

import json
import math
import os
import select
import signal
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import requests
from docker import errors
from docker.utils import socket as frames

from vdbg_env.common.errors import BadInput, EngineFailed, HostNotAble, VdbgError
from vdbg_env.common.files import read_document
from vdbg_env.common.programs import Completed, ProgramRunner
from vdbg_env.common.resources import PACKAGE, READERS
from vdbg_env.common.stop import ToldToStop, waiting
from vdbg_env.crash.files import LARGEST, BinaryFile, BinarySource, SourceText
from vdbg_env.engine.client import GONE, OUR_LABEL, Engine, engine_errors, explain, inspect_image, printed
from vdbg_env.engine.containers import PURPOSE, NewContainer, is_own, socket_of, started, without
from vdbg_env.engine.images import DockerImages
from vdbg_env.evidence.finding import Ended, EndedBy, Observation
from vdbg_env.image.settings import DATA, PACKAGES, Mount, StepContainer, StepImage, Ulimit
from vdbg_env.record.run_directory import write_json
from vdbg_env.run.attempt import LOST, SupervisedStep, has_ended
from vdbg_env.run.job import RE2, StepSettings, job_for, mark_of
from vdbg_env.runbook.model import SYNTHETIC
from vdbg_env.runbook.state import Invocation
from vdbg_env.supervisor import control_files
from vdbg_env.supervisor.job import Job, to_json

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
        """Return our packages and the shipped runbooks, whose lib/ holds what a step may have a workload load.

        RE2 is compiled for this Python: an image with another one cannot import it, and does without.
        """
        code = (PACKAGE, READERS, RE2)
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


# Finds out what steps will find in an image, by a first container that is started as theirs will be.


LEAST_PYTHON = (3, 11)
# Plain enough for every Python 3: one that is too old can report that.
_PROBE = (
    "import json, os, shutil, sys\n"
    "tools = dict((name, shutil.which(name)) for name in sys.argv[1:])\n"
    "print(json.dumps(dict(python=sys.executable, version=sys.version_info[:3], user=[os.getuid(), os.getgid()],\n"
    "                      folder=os.getcwd(), tools=dict((n, p) for n, p in tools.items() if p))))\n"
)


def look(containers: StepContainers, tools: Sequence[str], *, name: str | None = None) -> StepImage:
    """Return what an image is and holds; from then on all containers are of exactly that image.

    `name` is what the user calls the image, where it is asked for by its id. What keeps containers from starting (no
    such image, no python3, no GPU to give) shows here, before a run begins. Raises BadInput, HostNotAble and
    EngineFailed.
    """
    asked = containers.container.settings.image
    found = inspect_image(containers.engine, asked, name=name)
    config = found.get("Config") or {}
    containers.image_id = str(found["Id"])
    told = _ask(containers, tools)
    image = StepImage(
        name=name or asked,
        image_id=containers.image_id,
        digest=next(iter(found.get("RepoDigests") or ()), None),
        env=tuple(_pair(text) for text in config.get("Env") or ()),
        labels=tuple(sorted((config.get("Labels") or {}).items())),
        python=told["python"],
        python_version=tuple(told["version"]),
        user=tuple(told["user"]),
        folder=told["folder"],
        tools=tuple(sorted(told["tools"].items())),
    )
    _check(image)
    return image


def _ask(containers: StepContainers, tools: Sequence[str]) -> dict[str, Any]:
    ran = containers.run(("python3", "-I", "-S", "-c", _PROBE, *tools))
    try:
        told: dict[str, Any] = json.loads(ran.stdout)
    except (ValueError, RecursionError):
        raise HostNotAble(
            f"the python3 of {containers.container.settings.image} does not work: it ended with {ran.code}",
            details=tuple(ran.stderr.splitlines()[-3:]),
        ) from None
    return told


def _check(image: StepImage) -> None:
    if image.python_version < LEAST_PYTHON:
        version = ".".join(map(str, image.python_version))
        raise BadInput(
            f"{image.name} has Python {version}; the supervisor of a step needs 3.11 or newer",
            next_step="an image with a newer python3 first on its PATH; an image of vdbg-env build has one",
        )
    me = os.geteuid()
    if image.user[0] not in {0, me} and me != 0:
        raise HostNotAble(
            f"{image.name} runs as user {image.user[0]} and you are user {me}: neither may read what the other writes",
            next_step=f"--user 0, which gives you what it wrote; or --user {me}",
        )


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


# Runs the helper programs of an image, each in a new container, and reads the image's binaries.


_OF_THE_MACHINE = frozenset({"dmesg"})  # there is one kernel, and a container may not read its log


class ContainerPrograms:
    """A ProgramRunner over the programs of an image.

    `asked` are the programs that `image.tools` was asked for; `machine` runs what has to be asked outside.
    """

    def __init__(
        self, containers: StepContainers, image: StepImage, *, asked: Sequence[str], machine: ProgramRunner
    ) -> None:
        self._containers = containers
        self._mounts: tuple[Mount, ...] = ()
        self._machine = machine
        self._known: dict[str, str | None] = {**dict.fromkeys(asked), **dict(image.tools)}
        self._python = image.python

    def reading(self, folder: Path) -> ContainerPrograms:
        """Return the same programs, which may read what is in a folder of this machine, under the same name."""
        other = copy(self)
        other._mounts = (Mount(source=str(folder), target=str(folder), read_only=True),)
        return other

    def head(self, program: str) -> bytes:
        """Return nothing: no file of the image is opened for that."""
        return b""

    def which(self, program: str) -> str | None:
        """Return where the image has a program, None where it has none on its PATH."""
        if program in _OF_THE_MACHINE:
            return self._machine.which(program)
        if program not in self._known:
            code = "import shutil, sys; print(shutil.which(sys.argv[1]) or '')"
            ran = self.run((self._python, "-I", "-S", "-c", code, program))
            self._known[program] = ran.stdout.strip() or None
        return self._known[program]

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
        """Run to the end; raises HostNotAble when it cannot be started or outlasts `timeout_s` seconds."""
        if Path(argv[0]).name in _OF_THE_MACHINE:
            return self._machine.run(argv, timeout_s=timeout_s)
        try:
            return self._containers.run(argv, timeout_s=timeout_s, mounts=self._mounts)
        except EngineFailed as error:
            raise HostNotAble(error.what, cause=error.cause, next_step=error.next_step) from error


class ContainerBinaries:
    """A BinarySource over what a container sees: the image, and over it what is mounted from this machine."""

    def __init__(self, containers: StepContainers, image: StepImage, machine: BinarySource) -> None:
        self._containers = containers
        self._image = image
        self._machine = machine

    @contextmanager
    def open(self, target: str) -> Generator[Iterator[BinaryFile], None, None]:
        """Yield every candidate at or below a path of the container; one that is not there yields nothing."""
        with ExitStack() as stack:
            for mount in self._containers.container.mounts:
                if path := mount.outside(target):
                    yield stack.enter_context(self._machine.open(path))
                    return
            images = DockerImages(self._containers.engine)
            yield stack.enter_context(images.files(self._image.image_id, [target]))


# Finds source lines in an image, and in what its containers were given of this machine.


class ContainerSources:
    """SourceText over an image: its files by the names the line table has, then those of `machine`."""

    def __init__(self, containers: StepContainers, image: StepImage, machine: SourceText) -> None:
        self._containers = containers
        self._image = image
        self._machine = machine
        self._known: dict[str, tuple[str, ...]] = {}

    def line(self, file: str, number: int) -> str | None:
        """Return the text of a line, without its end; None when the file is not found or is shorter."""
        lines = self.text(file)
        return lines[number - 1] if lines and 0 < number <= len(lines) else None

    def text(self, file: str) -> Sequence[str] | None:
        """Return all lines of a source file, without their ends; None when it is not found."""
        for mount in self._containers.container.mounts:
            if path := mount.outside(file):
                return self._machine.text(path)
        if file not in self._known:
            self._known[file] = self._lines(file)
        return self._known[file] or self._machine.text(file)

    def _lines(self, file: str) -> tuple[str, ...]:
        """Return a file of the image, nothing where it has none: a report is not to fail for an image that is gone."""
        if not file.startswith("/") or "\0" in file:
            return ()
        try:
            data = DockerImages(self._containers.engine).read(self._image.image_id, file, largest=LARGEST)
        except (VdbgError, ToldToStop):
            return ()
        return tuple((data or b"").decode("utf-8", "replace").splitlines())


# Run steps in containers: each attempt has one, whose first process is the same supervisor as elsewhere.
#
# Folder, lock, job and end are those of a step on this machine (`supervised_step`), because one kernel holds the lock
# on either side of a bind mount. What differs: a container that loses its first process loses all of them, and nothing
# is left to kill.


_GIVE_BACK = (
    "import sys; sys.path.insert(0, sys.argv[1])\n"
    "from vdbg_env.supervisor.control_files import give_back; give_back(sys.argv[2])"
)
_SIGKILL_STATUS = 128 + signal.SIGKILL


class ContainerSteps:
    """A StepRunner in containers of one image; `here` is where relative paths of a runbook start on this machine."""

    def __init__(self, containers: StepContainers, image: StepImage, settings: StepSettings, *, here: Path) -> None:
        self._containers = containers
        self._image = image
        self._settings = settings
        self._here = here
        containers.run_mark = settings.mark
        self._check_the_way(Path(settings.mark))

    def start(self, invocation: Invocation, directory: Path) -> ContainerStep:
        """Start an attempt; see `StepRunner.start`."""
        where = directory.resolve()
        invocation, mounts = self._visible(invocation)
        self._open_to_container(where)
        step = self._step(invocation, where)
        self._containers.supervise(self._settings.supervisor, where, to_json(step.job), mark=step.mark, mounts=mounts)
        if not control_files.is_held(str(where)) and not has_ended(where):
            self._containers.remove(step.mark)
            raise HostNotAble(
                "a lock that a container holds is not seen here, so steps cannot be followed",
                cause=f"{where} is in a network folder, or the engine runs in a virtual machine",
                next_step="--run-dir on a disk of this machine; or vdbg-env shell, and vdbg-env runbook in there",
            )
        step.started_here = True
        return step

    def adopt(self, invocation: Invocation, directory: Path) -> ContainerStep | None:
        """Take over an attempt: it runs, it has ended, or it is lost; see `StepRunner.adopt`."""
        where = directory.resolve()
        with waiting():
            if not has_ended(where) and not control_files.was_started(str(where)):
                return None
        return self._step(invocation, where)

    def _step(self, invocation: Invocation, where: Path) -> ContainerStep:
        job = job_for(invocation, where, self._settings)
        mark = mark_of(self._settings, invocation, where)
        return ContainerStep(invocation, where, job, mark=mark, containers=self._containers, settings=self._settings)

    def _visible(self, invocation: Invocation) -> tuple[Invocation, tuple[Mount, ...]]:
        """Have the requests that a server's driver replays seen in the container too."""
        driver = invocation.driver
        if driver is None or driver.replay == SYNTHETIC:
            return invocation, ()
        path = str((self._here / driver.replay).resolve())
        return replace(invocation, driver=driver.model_copy(update={"replay": path})), (
            Mount(source=path, target=path, read_only=True),
        )

    def _check_the_way(self, run: Path) -> None:
        """Raise HostNotAble where a mounted folder shows the run's own, which is closed to all but its owner."""
        user = self._image.user[0]
        shown = any(run.is_relative_to(mount.source) for mount in self._containers.container.mounts)
        if shown and user not in {0, os.geteuid()}:
            raise HostNotAble(
                f"{run} is in a mounted folder, and user {user} may not go there",
                cause="a run's record is open to its owner alone",
                next_step="--run-dir with a folder that is not mounted, or --user 0",
            )

    def _open_to_container(self, directory: Path) -> None:
        """Let the image's user write the attempt's folder; root may anyway, and gives back what it wrote."""
        user, group = self._image.user
        if user not in {0, directory.stat().st_uid} and os.geteuid() == 0:
            os.chown(directory, user, group)


class ContainerStep(SupervisedStep):
    """A StartedStep in a container; `started_here` says that this very program started it."""

    def __init__(
        self,
        invocation: Invocation,
        directory: Path,
        job: Job,
        *,
        mark: str,
        containers: StepContainers,
        settings: StepSettings,
    ) -> None:
        super().__init__(invocation, directory, job)
        self.job = job
        self.mark = mark
        self.started_here = False
        self._containers = containers
        self._settings = settings
        self._asked = False
        self._left: str | None = None

    @property
    def _end_file(self) -> Path:
        """The file that says how the container ended: next to the folder that the container could write, not in it."""
        return self._directory.with_name(f"{self._directory.name}.container.json")

    def _ask_to_end(self, *, firmly: bool) -> None:
        self._asked = True
        for number in (signal.SIGTERM, signal.SIGINT) if firmly else (signal.SIGTERM,):
            self._containers.signal(self.mark, number)

    def _lost(self) -> None:
        """End the container, if the engine still has one, and have what root wrote in it given to us."""
        self._containers.signal(self.mark, signal.SIGKILL)
        if os.geteuid() != 0:
            folder = str(self._directory)
            command = (*self._settings.interpreter, "-c", _GIVE_BACK, str(self._settings.packages), folder)
            self._containers.run(command, mounts=(Mount(source=folder, target=folder),), user="0")

    def _over(self) -> None:
        """Write down how the container ended, and remove it; where the engine is gone, it stays, and that is noted."""
        path = self._end_file
        try:
            end = self._containers.end(self.mark)
            if end.known or not path.exists():
                write_json(path, {"known": end.known, "code": end.code, "out_of_memory": end.out_of_memory})
            self._containers.remove(self.mark)
        except VdbgError as error:
            self._left = f"its container could not be removed: {error.what}"

    def _completed(self, seen: Observation) -> Observation:
        end = ContainerEnd()
        with suppress(FileNotFoundError):
            end = ContainerEnd(**read_document(self._end_file))
        memory = self._containers.container.memory
        if self._left and seen.ended.by is EndedBy.CANCEL and not self._asked:
            raise HostNotAble(
                "the container engine was stopped under a step",
                cause="it ended the step's container, and does not respond",
                next_step="systemctl start docker (as root), then continue with --resume: the step is repeated",
            )
        seen = replace(seen, notes=(*seen.notes, self._left)) if self._left else seen
        return told_by_engine(seen, end, memory=memory, unasked=self.started_here and not self._asked)


def told_by_engine(seen: Observation, end: ContainerEnd, *, memory: int | None, unasked: bool) -> Observation:
    """Add to what the supervisor saw what only the engine knows of the end; `memory` is the container's limit in bytes.

    `unasked` says that this program watched the attempt from its start and never asked for its end: a cancel then
    means that the container or its engine was stopped by others.
    """
    ended, notes = seen.ended, seen.notes
    if end.out_of_memory:
        limit = f"the {memory >> 20} MiB of --memory" if memory else "the machine's memory"
        why = f"out of memory: the kernel killed a process of the container, which had used up {limit}"
        killed = ended.by is EndedBy.ENGINE_LOST or ended.signal == signal.SIGKILL or ended.code == _SIGKILL_STATUS
        kills = replace(seen.memory_kills, cgroup=max(1, seen.memory_kills.cgroup))
        ended = replace(ended, message=why) if killed else ended
        return replace(seen, ended=ended, memory_kills=kills, notes=(*notes, why))
    if ended.by is EndedBy.CANCEL and unasked:
        what = "it was stopped from outside: docker stop, or its engine was stopped"
        return replace(seen, ended=replace(ended, by=EndedBy.ENGINE_LOST, message=what))
    if ended.by is EndedBy.ENGINE_LOST and ended.message == LOST:
        return replace(seen, ended=_lost(ended, end))
    return seen


def _lost(ended: Ended, end: ContainerEnd) -> Ended:
    if not end.known:
        return replace(ended, message="its container is gone: it was removed, or its engine was stopped")
    killed = "killed" if end.code == _SIGKILL_STATUS else f"ended with status {end.code}"
    return replace(ended, message=f"its container was {killed} before its end could be written")
