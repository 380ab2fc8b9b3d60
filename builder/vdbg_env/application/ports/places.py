"""Where the steps of a run are started, and the recordings that take their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from vdbg_env.application.ports.programs import ProgramRunner
    from vdbg_env.application.ports.steps import StepPlacement
    from vdbg_env.crash.files import BinarySource, SourceText
    from vdbg_env.image.settings import StepContainer, StepImage
    from vdbg_env.record.redaction.redaction import Pseudonyms, Redactor


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
