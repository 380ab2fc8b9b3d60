"""What a run asks of the place where its steps are started, and of what is started there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from vdbg_env.common.programs import ProgramRunner
    from vdbg_env.crash.files import BinarySource, SourceText
    from vdbg_env.evidence.finding import Observation
    from vdbg_env.image.settings import StepContainer, StepImage
    from vdbg_env.record.redactor import Pseudonyms, Redactor
    from vdbg_env.runbook.state import Invocation


class StartedStep(Protocol):
    """One attempt of one step that runs, or has ended, under its supervisor."""

    def wait(self, timeout_s: float | None = None) -> Observation | None:
        """Wait for the end and return what was seen; None when it has not ended after `timeout_s` seconds."""
        ...

    def cancel(self, *, firmly: bool = False) -> None:
        """Ask for the end of the tree, with its grace unless `firmly`; return at once."""
        ...


class StepRunner(Protocol):
    """Runs one rank of a step. What it starts outlives this program and can be adopted by the next."""

    def start(self, invocation: Invocation, directory: Path) -> StartedStep:
        """Start an attempt; everything about it is kept in `directory`, which is there and empty.

        Raises HostNotAble when nothing at all can be started here. A workload that cannot be started is no error but
        an observation (`EndedBy.NOT_STARTED`).
        """
        ...

    def adopt(self, invocation: Invocation, directory: Path) -> StartedStep | None:
        """Take over an attempt that another engine started in `directory`; None when it was never really started."""
        ...


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How many ranks an attempt has; `folder` is that of a single rank on this machine.

    It is empty where each rank makes its own in the attempt's folder, `<host>-<rank>`.
    """

    ranks: int = 1
    folder: str = ""


class StartedAttempt(Protocol):
    """One attempt of one step on all its ranks, which run or have ended."""

    def wait(self, timeout_s: float | None = None) -> tuple[Observation, ...] | None:
        """Wait for the end of all ranks and return what was seen of each; None when `timeout_s` seconds are over."""
        ...

    def cancel(self, *, firmly: bool = False) -> None:
        """Ask for the end of all ranks, with their grace unless `firmly`; return at once."""
        ...


class StepPlacement(Protocol):
    """Starts attempts on the ranks of a place. What it starts outlives this program and can be adopted by the next.

    `directory` is the attempt's folder, `steps/<step>/<attempt>`. The invocation may still have `${{ rank.* }}`, which
    the placement fills.
    """

    def layout(self, invocation: Invocation) -> Layout:
        """Return the ranks that an attempt has here."""
        ...

    def start(self, invocation: Invocation, directory: Path) -> StartedAttempt:
        """Start an attempt in a folder that is there, with the single rank's in it; raises HostNotAble."""
        ...

    def adopt(self, invocation: Invocation, directory: Path) -> StartedAttempt | None:
        """Take over an attempt that another engine started; None when no rank of it was ever started."""
        ...


class IsolatedWorker(Protocol):
    """Does a piece of this program's work where it can be ended: it may hang, or take all memory."""

    def do(self, work: Callable[[], bytes], *, timeout_s: float | None, check: Callable[[], None]) -> bytes:
        """Do the work and return its result; `check` is called during the work, and ends it by raising.

        The work may change files, but not this program's memory. Raises HostNotAble when it dies, or takes longer than
        `timeout_s` seconds.
        """
        ...


# Where the steps of a run are started, and the recordings that take their place.


DISK_FLOOR = 1 << 30  # bytes left free: below, a step is ended while its record can still be written


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """A folder on each node's own disk for the dumps of ranks; at most `limit` bytes of an attempt are collected."""

    folder: str
    limit: int = 16 << 30


@dataclass(frozen=True, kw_only=True)
class StepPlace:
    """Where a run's steps are started; `image` and `container` are None for this machine.

    `programs` and `binaries` are those of the place, `reading` gives programs that may also read the folder of a run,
    `sources` finds the text of source lines; `environment` is what a workload inherits, `data_dir` the folder of the
    shipped runbooks as the place sees it. `placement` starts the steps of a run, given the run's folder, the values
    that must not be kept and the pseudonyms if there are any; `close` ends helper programs that are still running.
    `time_left_s` is when the place itself ends, in
    seconds from now; None where it has no limit. `folder` is where commands start, and relative paths of inputs.
    """

    programs: ProgramRunner
    reading: Callable[[Path], ProgramRunner]
    binaries: BinarySource
    environment: Mapping[str, str]
    data_dir: str
    sources: SourceText
    placement: Callable[[Path, tuple[str, ...], Pseudonyms | None], StepPlacement]
    close: Callable[[], None]
    container: StepContainer | None = None
    image: StepImage | None = None
    on: Literal["local", "docker", "slurm"] = "local"
    nodes: int = 1
    time_left_s: float | None = None
    scratch: Scratch | None = None
    folder: str = ""

    @property
    def in_words(self) -> Mapping[str, str]:
        """The place as a report's environment shows it; nothing for this machine."""
        if self.on == "slurm":
            return {"steps run in": f"a Slurm allocation of {self.nodes} nodes", **self._dumps}
        if self.image is None:
            return {}
        return {"steps run in": f"containers of {self.image.name}", "image": self.image.digest or self.image.image_id}

    @property
    def _dumps(self) -> Mapping[str, str]:
        if self.scratch is None:
            return {}
        limit = self.scratch.limit >> 20
        return {"dumps go to": f"{self.scratch.folder} of each node; all ranks together move at most {limit} MiB"}


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """A whole run as a job of a queue.

    `engine` are the words that start this program on the batch node, `words` those that begin the run and `resume`
    those that continue it. `setup` is a shell file read there first; `arguments` are for the queue's program, unread.
    """

    name: str
    folder: str
    engine: tuple[str, ...]
    words: tuple[str, ...]
    resume: tuple[str, ...]
    nodes: int | None = None
    ranks: int | None = None
    setup: str = ""
    arguments: tuple[str, ...] = ()


class StepPlaces(Protocol):
    """Opens the places where steps are started."""

    def starting_in(self, folder: str) -> StepPlaces | None:
        """Return the same places, with commands that start in another folder; None where there is no such folder."""
        ...

    def keeping_free(self, disk_floor: int) -> StepPlaces:
        """Return the same places, where a step is ended while so many bytes of the disk are still free."""
        ...

    def here(self, *, ranks: int | None = None) -> StepPlace:
        """Return this machine; an attempt has `ranks` of them, or as many as its step asks for where that is None."""
        ...

    def slurm(
        self, *, ranks: int | None, nodes: int | None, extra: tuple[str, ...], scratch: Scratch | None = None
    ) -> StepPlace:
        """Return the nodes of the Slurm allocation around this process; `extra` are arguments for srun.

        Raises BadInput outside of one.
        """
        ...

    def containers(self, container: StepContainer, *, name: str | None, notice: Callable[[str], None]) -> StepPlace:
        """Return containers of an image, once a first one has run; `name` is what the user calls the image.

        Raises BadInput, HostNotAble and EngineFailed when steps could not be started there.
        """
        ...

    def with_pseudonyms(self, placement: StepPlacement, redactor: Redactor) -> StepPlacement:
        """Return a placement whose artifacts have pseudonyms for hosts and addresses."""
        ...


@dataclass(frozen=True, kw_only=True)
class GuardSettings:
    """Limits of a guarded workload: sizes in bytes, times in seconds.

    `log_limit` is what is kept of each stream, `disk_floor` the free space below which nothing is recorded; without
    `hang_after_s` nothing counts as a hang.
    """

    log_limit: int = 64 << 20
    disk_floor: int = DISK_FLOOR
    hang_after_s: float | None = 900.0


@dataclass(frozen=True, kw_only=True)
class RecordingHead:
    """Where and when a recording was made; `synthetic` says that it was written by hand, without a GPU."""

    runbook: str
    recorded_on: str
    recorded_at: str
    synthetic: bool


class Recordings(Protocol):
    """Reads, writes and plays recordings of runs."""

    def bundled(self, runbook: str) -> Path | None:
        """Return the recording that is shipped for a runbook."""
        ...

    def check_target(self, folder: Path) -> None:
        """Raise BadInput unless a recording can be written there."""
        ...

    def read(self, folder: Path) -> RecordingHead:
        """Return the head of a recording; raises BadInput for a folder that is not a recording."""
        ...

    def write(self, run: Path, folder: Path, head: RecordingHead) -> None:
        """Write the recording of a run; raises BadInput when the folder exists already."""
        ...

    def player(self, folder: Path, redactor: Redactor) -> StepPlacement:
        """Return what plays a recording, redacted once more, in place of running steps."""
        ...

    def answered(self, run: Path, placement: StepPlacement, redactor: Redactor) -> StepPlacement:
        """Return a placement that takes from another run what that has seen already, and starts the rest."""
        ...
