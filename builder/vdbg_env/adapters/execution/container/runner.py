"""Run steps in containers: each attempt has one, whose first process is the same supervisor as elsewhere.

Folder, lock, job and end are those of a step on this machine (`supervised_step`), because one kernel holds the lock on
either side of a bind mount. What differs: a container that loses its first process loses all of them, and nothing is
left to kill.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vdbg_env.adapters.execution.attempt_result import LOST
from vdbg_env.adapters.execution.container.containers import ContainerEnd, StepContainers
from vdbg_env.adapters.execution.job_builder import StepSettings, job_for, mark_of
from vdbg_env.adapters.execution.supervised_step import SupervisedStep, has_ended
from vdbg_env.common.errors import HostNotAble, VdbgError
from vdbg_env.common.reading import read_document
from vdbg_env.common.stop import waiting
from vdbg_env.evidence.observation import Ended, EndedBy, Observation
from vdbg_env.image.settings import Mount, StepImage
from vdbg_env.record.atomic_write import write_json
from vdbg_env.runbook.invocation import Invocation
from vdbg_env.runbook.model import SYNTHETIC
from vdbg_env.supervisor.job import Job, to_json
from vdbg_env.supervisor.state import lock_file

_GIVE_BACK = (
    "import sys; sys.path.insert(0, sys.argv[1])\n"
    "from vdbg_env.supervisor.state.ownership import give_back; give_back(sys.argv[2])"
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
        if not lock_file.is_held(str(where)) and not has_ended(where):
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
            if not has_ended(where) and not lock_file.was_started(str(where)):
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
