"""A small runbook with every kind of decision, to be run with real processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from vdbg_env.common.stop import Clock, Interrupts, SystemClock
from vdbg_env.evidence.finding import Observation
from vdbg_env.record.event_log import Event
from vdbg_env.record.progress import Progress
from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.run.attempt import OneRank
from vdbg_env.run.execute import Execution
from vdbg_env.run.job import StepSettings
from vdbg_env.run.local import LocalProcesses
from vdbg_env.run.placement import StepPlacement, StepRunner
from vdbg_env.runbook import machine
from vdbg_env.runbook.model import (
    Builtin,
    Command,
    End,
    KillPolicy,
    Manual,
    Matcher,
    Outcome,
    Question,
    Repeat,
    Run,
    Runbook,
    Status,
    Step,
    ToRunbook,
    ToStep,
    Uses,
)
from vdbg_env.runbook.state import AskPerson, BranchTo, Facts, RunState, StepResult, UseBuiltin

# Each start leaves its mark, prints what the runbook looks for, and takes long enough to be killed in.
WORKLOAD = (
    "import os,sys,time\n"
    "f=os.open(os.environ['LEDGER'],os.O_WRONLY|os.O_APPEND|os.O_CREAT)\n"
    "os.write(f,(os.environ['STEP']+'\\n').encode())\n"
    "print('CUDA error: an illegal memory access',flush=True)\n"
    "time.sleep(float(os.environ.get('NAP','0.05')))\n"
    "raise SystemExit(1)\n"
)


def small_runbook(name: str = "small") -> Runbook:
    """Two attempts, a question, a built-in, and a branch to another runbook with one more step."""
    if name == "other":
        steps: tuple[Step, ...] = (_run("again", End()),)
    else:
        steps = (
            Uses(
                id="check",
                title="Check",
                uses="builtin/gpu-health@v1",
                outcomes=(Outcome(status=Status.PASS, next=ToStep(step="baseline")),),
            ),
            _run("baseline", ToStep(step="ask"), repeat=Repeat(count=2)),
            Manual(
                id="ask",
                title="Ask",
                question=Question(
                    prompt="Go on?",
                    choices={"yes": ToStep(step="blocking"), "no": End()},
                    default="yes",
                    timeout_s=1.0,
                ),
            ),
            _run("blocking", ToRunbook(runbook="other")),
        )
    return Runbook(
        name=name,
        title=name,
        steps=steps,
        matchers={"ima": Matcher(name="ima", pattern="illegal memory access")},
        commands={"work": Command(name="work", argv=("python3", "-c", WORKLOAD))},
    )


def _run(step: str, following: ToStep | ToRunbook | End, repeat: Repeat = Repeat()) -> Run:  # noqa: B008 - frozen
    return Run(
        id=step,
        title=step,
        command="work",
        env={"STEP": step},
        repeat=repeat,
        kill=KillPolicy(grace_s=0.5),
        matchers={"ima": Matcher(name="ima", pattern="illegal memory access")},
        outcomes=(
            Outcome(status=Status.REPRODUCED, when="has(matched.ima)", next=following),
            Outcome(status=Status.UNRESOLVED, next=following),
        ),
    )


class FakeBuiltins:
    """Gives what a healthy host would."""

    def use(self, order: UseBuiltin, progress: Progress) -> StepResult:
        return StepResult(step=order.step, results={"gpus": 1})

    def read(self, reader: Builtin, observations: Sequence[Observation], progress: Progress) -> StepResult:
        return StepResult(step=observations[0].step)


class Default:
    """A person who is not there."""

    def ask(self, question: AskPerson) -> str | None:
        return None


class NoInterrupts:
    def pending(self) -> tuple[int, ...]:
        return ()


def start_branch(branch: BranchTo) -> RunState:
    return machine.start(small_runbook(branch.runbook), {}, Facts(), came_from=branch.came_from)[0]


def execution(
    path: Path,
    *,
    runner: StepRunner | None = None,
    placement: StepPlacement | None = None,
    clock: Clock | None = None,
    interrupts: Interrupts | None = None,
    listener: Callable[[Event, Progress], None] = lambda _e, _w: None,
    env: dict[str, str] | None = None,
    total_s: float | None = None,
) -> Execution:
    """Return the small runbook's run in a folder, begun or to be continued."""
    directory = RunDirectory(path)
    directory.create()
    return Execution(
        directory=directory,
        head=RunHead(run=path.name, runbook="small"),
        state=machine.start(small_runbook(), {}, Facts())[0],
        start_branch=start_branch,
        placement=placement or OneRank(runner or local(path, env)),
        builtins=FakeBuiltins(),
        person=Default(),
        clock=clock or SystemClock(),
        interrupts=interrupts or NoInterrupts(),
        listener=listener,
        total_s=total_s,
    )


def local(path: Path, env: dict[str, str] | None = None, *, disk_floor: int = 0) -> LocalProcesses:
    base = {"PATH": os.environ["PATH"], "LEDGER": str(path.parent / "ledger"), **(env or {})}
    return LocalProcesses(StepSettings(env=base, cwd=path.parent, mark=str(path), disk_floor=disk_floor))
