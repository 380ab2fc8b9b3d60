"""The outside world as Protocols of few verbs, and the values that cross them.

Engines implement these and are made only in `vdbg_env.cli.wiring`; tests give typed fakes for decisions only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:  # a port only names these: `locate` must not load the planner of images because another command does
    from vdbg_env.application.build_events import BuildEvent
    from vdbg_env.evidence.observation import Observation
    from vdbg_env.image.context import BuildContext
    from vdbg_env.image.plan import BuildPlan
    from vdbg_env.image.run_settings import RunSettings
    from vdbg_env.record.dumps import Dump
    from vdbg_env.runbook.invocation import Invocation

Buffer = bytes | memoryview


@dataclass(frozen=True, kw_only=True)
class BinaryFile:
    """One file that may hold device code: its name as shown to the user, and its bytes (mapped where possible).

    `path` is where the same bytes lie on disk, for programs that want a file; `asked_for` says that the user named this
    very file rather than a place it was found in; `problem` says why a file that was found could not be read.
    """

    name: str
    data: Buffer
    path: Path | None = None
    asked_for: bool = False
    problem: str | None = None


class BinarySource(Protocol):
    """Finds binaries in files, folders, archives, wheels and images."""

    def open(self, target: str) -> AbstractContextManager[Iterator[BinaryFile]]:
        """Yield every candidate in `target`; each one's bytes are valid until the next is asked for.

        Raises BadInput when `target` does not exist or cannot be read.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A helper program that ran to its end."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str


class ProgramRunner(Protocol):
    """Runs a short helper program (cuobjdump, nvidia-smi); never the workload under study."""

    def which(self, program: str) -> str | None:
        """Return the program's full path, or None when it is not at hand."""
        ...

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
        """Run to the end; raises HostNotAble when it cannot be started or outlasts `timeout_s`."""
        ...


NOTHING_LENT: Final[Mapping[str, Buffer]] = MappingProxyType({})

EngineName = Literal["auto", "docker", "buildx", "buildkit", "classic", "host"]


class ScratchFiles(Protocol):
    """Lends bytes out as a file, to programs that want one."""

    def lend(self, data: Buffer, suffix: str) -> AbstractContextManager[Path]:
        """Write the bytes to a file whose name ends in `suffix`; it is gone when the block ends."""
        ...


@dataclass(frozen=True, kw_only=True)
class EngineDescription:
    """Which engine was taken and why; `capabilities` names what a Dockerfile or a build may ask of it.

    Capabilities in use: `secrets` (mounted for one step, never in a layer), `cache-mounts`, `heredocs`, `copy-link`,
    `platforms` (images for another architecture), `containers` (a built image can be started, saved and pushed).
    """

    name: Literal["buildx", "buildkit", "classic", "host"]
    version: str
    why: str
    capabilities: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class BuildOrder:
    """One build: the plan, and the same plan rendered as a context that holds its Dockerfile.

    Containers are built from the context, a bare machine from the plan. `build_args` are values of this machine for
    the plan's arguments (proxies, mirrors), `secrets` id -> file, which only an engine with that capability takes.
    `jobs` is how many compilers run at once: it makes the advice after an out-of-memory kill exact.
    """

    plan: BuildPlan
    context: BuildContext
    dockerfile: str = "Dockerfile"
    build_args: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    jobs: int | None = None
    no_cache: bool = False


class ImageEngine(Protocol):
    """Builds an image and hands it on. Everything it makes is labelled `dev.vdbg-env*`; it touches nothing else."""

    def describe(self) -> EngineDescription:
        """Say which engine this is and what it is able to do; does not raise."""
        ...

    def build(self, order: BuildOrder) -> Generator[BuildEvent, None, None]:
        """Build, telling each event as it comes; closing the generator cancels the build and removes what it left.

        A step that fails is an event (`BuildFailed`). Raises EngineFailed when the engine cannot be reached at all.
        """
        ...

    def files(self, image_id: str, folders: Sequence[str]) -> AbstractContextManager[Iterator[BinaryFile]]:
        """Yield every ELF file, archive and fat binary below `folders` of the image, named by its path in the image.

        Each one's bytes are valid until the next is asked for. A folder the image lacks yields nothing.
        """
        ...

    def execute(
        self, image_id: str, argv: Sequence[str], *, timeout_s: float = 600.0, lent: Mapping[str, Buffer] = NOTHING_LENT
    ) -> Completed:
        """Run a program inside the image, without network, and remove its container whatever happens.

        `lent` are files, by their path in the image, that are there for this run alone.

        Raises EngineFailed when the container cannot be started or outlasts `timeout_s`.
        """
        ...

    def tag(self, image_id: str, names: Sequence[str], labels: Mapping[str, str]) -> str:
        """Give the image these labels and names over the same layers; returns the id it has from then on.

        The image under `image_id` is gone afterwards, unless it had a name of its own. Raises BadInput for a name no
        engine takes, EngineFailed when the engine refuses; the image then stays as it was.
        """
        ...

    def save(self, image: str, path: Path) -> int:
        """Write the image as a tar that `docker load` reads, whole or not at all; returns its size in bytes."""
        ...

    def push(self, image: str) -> Iterator[PushProgress]:
        """Push a tagged image, telling how far each layer is; the last event carries the digest.

        Raises EngineFailed with the registry's own words when it refuses or cannot be reached.
        """
        ...

    def remove(self, image_id: str) -> None:
        """Remove an image this program built; one that is gone already, or in use, is left alone."""
        ...


@dataclass(frozen=True, kw_only=True)
class PushProgress:
    """How far one layer of a push is, in bytes where the engine tells them; `digest` is set on the last event."""

    layer: str
    status: str
    current: int | None = None
    total: int | None = None
    digest: str | None = None


class StartedStep(Protocol):
    """One attempt of one step that runs, or has ended, under a supervisor of its own."""

    def wait(self, timeout_s: float | None = None) -> Observation | None:
        """Wait for the end and return what was seen; None when it has not ended after `timeout_s` seconds."""
        ...

    def cancel(self, *, firmly: bool = False) -> None:
        """Have the tree ended, politely first; `firmly` leaves out the politeness. Does not wait."""
        ...


class StepRunner(Protocol):
    """Runs the steps of a runbook. What it starts outlives this program and can be adopted by the next."""

    def start(self, invocation: Invocation, directory: Path) -> StartedStep:
        """Start an attempt; everything about it is kept in `directory`, which is there and empty.

        Raises HostNotAble when nothing at all can be started here. A workload that cannot be started is no error but
        an observation (`EndedBy.NOT_STARTED`).
        """
        ...

    def adopt(self, invocation: Invocation, directory: Path) -> StartedStep | None:
        """Take over an attempt that another engine started in `directory`; None when it was never really started."""
        ...


class Apart(Protocol):
    """Does a piece of this program's own work where it can be ended: it may hang, or take all memory."""

    def do(self, work: Callable[[], bytes], *, timeout_s: float | None, check: Callable[[], None]) -> bytes:
        """Do the work and return what it gave; `check` is called while it lasts, and ends it by raising.

        What the work changes is files alone: nothing of this program's memory. Raises HostNotAble when it outlasts
        `timeout_s` seconds, or dies.
        """
        ...


class Clock(Protocol):
    """Two clocks: one to measure with, one to print."""

    def monotonic(self) -> float:
        """Return seconds that only ever grow, for durations and limits: on Linux, those since the machine's start."""
        ...

    def wall(self) -> float:
        """Return seconds since the epoch, a label only: it may jump by days."""
        ...


class Interrupts(Protocol):
    """Whether the user or the system has asked this program to stop."""

    def pending(self) -> tuple[int, ...]:
        """Return the numbers of the signals that came, oldest first."""
        ...


@dataclass(frozen=True, kw_only=True)
class CoreFile:
    """A GPU core dump on disk, expanded if it was gzipped; `modified` is the file's time in seconds of the epoch."""

    name: str
    data: Buffer
    modified: float
    notes: tuple[str, ...] = ()


class CoreFiles(Protocol):
    """Opens GPU core dumps."""

    def find(self, target: str) -> tuple[str, ...]:
        """Return the dumps that a file or a folder means; raises BadInput when there is none."""
        ...

    def is_gzipped(self, path: str) -> bool:
        """Say whether this is a gzipped file; raises BadInput when it cannot be read."""
        ...

    def open(self, path: str) -> AbstractContextManager[CoreFile]:
        """Yield a dump; its bytes are valid inside the `with` only. Raises BadInput when it cannot be read."""
        ...


class SourceText(Protocol):
    """Finds the text of source lines, wherever the sources lie now."""

    def line(self, file: str, number: int) -> str | None:
        """Return a line by the file name in the line table and its 1-based number; None when it cannot be found."""


@dataclass(frozen=True, kw_only=True)
class LogFile:
    """One log: its name as shown to the user, and its bytes in chunks, decompressed, read once."""

    name: str
    chunks: Iterator[bytes]


class LogSource(Protocol):
    """Finds logs: files, folders of per-rank logs, compressed files, the standard input."""

    def open(self, targets: Sequence[str]) -> Iterator[LogFile]:
        """Yield every log of `targets` in order; each one's chunks are valid until the next is asked for.

        Raises BadInput when a target does not exist or cannot be read, also from the chunks where a file is damaged.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class StoredImage:
    """One image in the engine's store that this program built; `created` is in seconds since the epoch."""

    image_id: str
    names: tuple[str, ...]
    created: float
    size: int
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class GpuAccess:
    """How a container gets at the GPUs of the engine's machine, and how that is known."""

    by: Literal["cdi", "runtime", "none"]
    why: str


class ContainerRunner(Protocol):
    """Starts debug containers and removes them whatever happens."""

    def images(self) -> tuple[StoredImage, ...]:
        """Return the images this program built, newest first."""
        ...

    def gpu_access(self) -> GpuAccess:
        """Find out how containers get at GPUs: a registered runtime alone is no proof that there is one."""
        ...

    def run(self, settings: RunSettings, tell: Callable[[str], None]) -> int:
        """Run a container on this program's own streams and return the exit status of its command.

        `tell` gets a line for every limit the engine may not give. On an interrupt the container is asked to stop, gets
        its grace, and the interrupt goes on. Raises BadInput without such an image, EngineFailed when it cannot start.
        """
        ...


class DumpStore(Protocol):
    """A place where dumps outlive the container that wrote them: a folder, or a named volume."""

    @property
    def name(self) -> str:
        """The place as a user would name it."""
        ...

    def list(self) -> tuple[Dump, ...]:
        """Return every file, each with its kind by its first bytes; an empty or missing place holds none.

        Raises BadInput when it cannot be read.
        """
        ...

    def remove(self, paths: Sequence[str]) -> None:
        """Remove these files; one that is gone already is no error."""
        ...

    def read(self, path: str) -> AbstractContextManager[Iterator[bytes]]:
        """Yield a file's bytes in pieces; raises BadInput when it is not there."""
        ...


class PipeState(StrEnum):
    """What can be said of a process's core-dump pipe before it is fired."""

    READY = "ready"  # the process holds its reading end
    STALE = "stale"  # the pipe is there, but nobody reads it
    MISSING = "missing"  # armed by its environment, but no pipe yet: CUDA has not started in it
    NOT_ARMED = "not-armed"
    FORBIDDEN = "forbidden"  # its environment or its files may not be looked at


@dataclass(frozen=True, kw_only=True)
class DumpTarget:
    """One process of a tree, and its core-dump pipe.

    `namespace_pid` is its number inside its container, where `%p` comes from. `pipe` is the path as the process sees
    it, `descriptor` the number of its reading end. The dump will lie in `dump_folder`, as the process sees it, under a
    name that the regular expression `dump_name` fits.
    """

    pid: int
    name: str
    namespace_pid: int
    state: PipeState
    pipe: str | None = None
    descriptor: int | None = None
    dump_folder: str | None = None
    dump_name: str = ""


@dataclass(frozen=True, kw_only=True)
class DumpFile:
    """A dump that was written: its path as the process sees it and as this program reaches it, its size in bytes."""

    path: str
    reachable: str
    size: int
    complete: bool


class FiredDump(Protocol):
    """A dump that was asked for."""

    @property
    def written(self) -> int:
        """How many bytes went into the pipe."""
        ...

    def wait(self, timeout_s: float) -> DumpFile | None:
        """Wait until the dump is complete or the process is gone; None when no file was seen."""
        ...

    def close(self) -> None:
        """Let go of what was held open to reach the file."""
        ...


class CorePipes(Protocol):
    """Finds and fires the user-triggered core-dump pipes of a process tree."""

    def tree(self, pid: int) -> tuple[DumpTarget, ...]:
        """Return a process and all below it; raises BadInput when there is no such process."""
        ...

    def fire(self, target: DumpTarget) -> FiredDump:
        """Write into a pipe that is READY; raises HostNotAble, with the reason, when that cannot be done."""
        ...
