"""Runs the helper programs of an image, each in a new container, and reads the image's binaries."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from pathlib import Path

from vdbg_env.adapters.docker.images import DockerImages
from vdbg_env.adapters.execution.container.containers import StepContainers
from vdbg_env.application.ports.programs import Completed, ProgramRunner
from vdbg_env.common.errors import EngineFailed, HostNotAble
from vdbg_env.crash.files import BinaryFile, BinarySource
from vdbg_env.image.settings import Mount, StepImage

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
