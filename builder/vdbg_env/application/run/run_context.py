"""What a run is started with and what it gives: its order, the ports that it uses, and its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vdbg_env.application.ports.steps import Clock, Interrupts, IsolatedWorker, StepPlacement
from vdbg_env.evidence.observation import Observation
from vdbg_env.record.event_log import Event
from vdbg_env.record.progress import Progress, StepVisit
from vdbg_env.record.redaction.redaction import Redactor
from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.runbook.model import Builtin
from vdbg_env.runbook.state import AskPerson, BranchTo, Finish, RunState, StepResult, UseBuiltin

if TYPE_CHECKING:
    from pathlib import Path

Listener = Callable[[Event, Progress], None]


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """What a built-in may read: the run's folder, and the steps before it.

    `began_s` is when this process started or resumed the run, in seconds since the machine's start.
    """

    directory: Path
    state: RunState
    visits: tuple[StepVisit, ...]
    began_s: float


class Builtins(Protocol):
    """The tool's own steps and readers."""

    def use(self, order: UseBuiltin, context: StepContext) -> StepResult:
        """Do a built-in step; a VdbgError becomes the step's `error`."""
        ...

    def read(self, reader: Builtin, observations: Sequence[Observation], context: StepContext) -> StepResult:
        """Read what a run step left behind; a VdbgError becomes the step's `error`."""
        ...


class Person(Protocol):
    """Answers a runbook's questions."""

    def ask(self, question: AskPerson) -> str | None:
        """Return one of the choices, or None without an answer in time."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunOrder:
    """A run to begin or to continue: `state` is the runbook's first state, `total_s` the limit on the whole run.

    `left_s` is how long this process may work on it. No step is started below `disk_floor` bytes of free space.
    """

    directory: RunDirectory
    head: RunHead
    state: RunState
    start_branch: Callable[[BranchTo], RunState]
    total_s: float | None = None
    left_s: float | None = None
    disk_floor: int = 0


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The ports that a run uses; `waiting` is called again and again while an attempt runs."""

    placement: StepPlacement
    builtins: Builtins
    worker: IsolatedWorker
    person: Person
    clock: Clock
    interrupts: Interrupts
    redactor: Redactor
    listener: Listener = lambda _event, _walk: None
    notice: Callable[[str], None] = lambda _text: None
    waiting: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run ended: its progress and its verdict.

    `unfinished` says that it was cut short and can be resumed, `signal` which signal did that, if one did.
    """

    progress: Progress
    finish: Finish
    elapsed_s: float
    unfinished: bool = False
    signal: int | None = None
