"""What a run asks of the place where its steps are started, and of what is started there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from vdbg_env.common.programs import ProgramRunner
    from vdbg_env.crash.files import BinarySource, SourceText
    from vdbg_env.evidence.finding import Observation
    from vdbg_env.image.settings import StepContainer, StepImage
    from vdbg_env.record.redactor import Pseudonyms
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


DISK_FLOOR = 1 << 30  # bytes left free: below, a step is ended while its record can still be written


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """A folder on each node's own disk for the dumps of ranks; at most `limit` bytes of an attempt are collected."""

    folder: str
    limit: int = 16 << 30


@dataclass(frozen=True, kw_only=True)
class PlacementRequest:
    """The ranks requested on the command line: how they are started, and how many; None is what a step asks for."""

    on: str = "local"
    ranks: int | None = None
    nodes: int | None = None
    arguments: tuple[str, ...] = ()  # for the launcher, unread
    scratch: Scratch | None = None

    def document(self) -> dict[str, Any]:
        """Return what `run.json` keeps of it."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class StepPlace:
    """Where a run's steps are started; `image` and `container` are None for this machine.

    `programs` and `binaries` are those of the place, `reading` gives programs that may also read the folder of a run,
    `sources` finds the text of source lines; `environment` is what a workload inherits, `data_dir` the folder of the
    shipped runbooks as the place sees it. `placement` starts the steps of a run, given the run's folder, the values
    that must not be kept and the pseudonyms if there are any; `close` ends helper programs that are still running.
    `time_left_s` is when the place itself ends, in seconds from now; None where it has no limit. `folder` is where
    commands start, and relative paths of inputs. `in_words` is the place as a report's environment shows it.
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
    on: str = "local"
    nodes: int = 1
    time_left_s: float | None = None
    folder: str = ""
    in_words: Mapping[str, str] = field(default_factory=dict)
