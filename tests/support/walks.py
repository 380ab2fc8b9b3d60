"""Walks shipped runbooks by scenarios written down as data, with the tool's own matchers, readers and engine.

A scenario (tests/data/walks) says what each step saw: the text the workload printed, how it ended, what files it left.
Everything that follows is made by the program itself: `Execution` drives it, the replay's matchers search the
text, the readers and the built-ins read the files. Programs of the host answer from the scenario.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.shipped import RUNBOOKS
from tests.support.sights import Sight
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.programs import Completed
from vdbg_env.crash.files import BinaryFile, CoreFiles
from vdbg_env.evidence.finding import Observation
from vdbg_env.record.event_log import Event
from vdbg_env.record.progress import Progress, StepVisit
from vdbg_env.record.redactor import Redactor
from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.run.attempt import OneRank
from vdbg_env.run.execute import Execution
from vdbg_env.run.library import BuiltinSteps, catalogue
from vdbg_env.run.recordings import ReplayedStep
from vdbg_env.runbook import machine
from vdbg_env.runbook.machine import final_inputs
from vdbg_env.runbook.model import Builtin, End, Manual, Next, Outcome, Runbook, Status, Step, ToRunbook, ToStep
from vdbg_env.runbook.state import AskPerson, BranchTo, Facts, Finish, Invocation, RunState, StepResult, UseBuiltin
from vdbg_env.runbook.workload import VARIABLE

CUBINS = Path(__file__).parents[1] / "data" / "cubins"
WITNESS = 'vdbg-env: engine arguments applied: {"set": "by the plug-in"}\n'
SMI = "NVIDIA H100 80GB HBM3, 580.82.07, 0, Disabled\n"
SMI_TABLE = "| NVIDIA-SMI 580.82.07   Driver Version: 580.82.07   CUDA Version: 13.0 |\n"
SKIPPED = "skipped"

Branch = tuple[str, int | str]
"""A step, with the number of the outcome, the choice, or `skipped`."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One story of one runbook; docs/guides/write-a-runbook.md shows how it is written down."""

    name: str
    runbook: str
    argv: tuple[str, ...]
    inputs: Mapping[str, str]
    host: Mapping[str, str]
    environment: Mapping[str, str]
    tools: frozenset[str]
    interactive: bool
    sees: Mapping[str, tuple[Sight, ...]]
    usual: Mapping[str, tuple[Sight, ...]]
    choices: Mapping[str, Sequence[str]]
    came_from: tuple[str, ...]
    walks: tuple[str, ...]
    ends: str


@dataclass(frozen=True, kw_only=True)
class Told:
    """What came of a scenario: the steps done, the branches taken, how it ended (`finish` None: handed over)."""

    walk: Progress
    branches: frozenset[Branch]
    path: tuple[str, ...]
    finish: Finish | None
    handed_to: str | None

    @property
    def ends(self) -> str:
        """The verdict, or the runbook that goes on."""
        return f"runbook {self.handed_to}" if self.handed_to else str(self.finish and self.finish.verdict.value)


class _MarkedStep(ToStep):
    index: int


class _MarkedRunbook(ToRunbook):
    index: int


class _MarkedEnd(End):
    index: int


def walk_scenario(scenario: Scenario, runbook: Runbook, folder: Path) -> Told:
    """Walk a scenario in an empty folder."""
    return _Walker(scenario, runbook, folder).walked()


def declared(runbook: Runbook) -> frozenset[Branch]:
    """Return every outcome of every step, every choice, and every step that its own condition may skip."""
    return frozenset(_declared(runbook))


def _declared(runbook: Runbook) -> Iterator[Branch]:
    for step in runbook.steps:
        if isinstance(step, Manual):
            yield from ((step.id, choice) for choice in step.question.choices)
        yield from ((step.id, number) for number, _ in enumerate(step.outcomes))
        if step.condition is not None:
            yield step.id, SKIPPED


def branch_text(runbook: Runbook, branch: Branch) -> str:
    """Say which branch that is, as one would look for it in the runbook's file."""
    step, which = branch
    if isinstance(which, str):
        return f"{step}: {which}"
    outcome = runbook.step(step).outcomes[which]
    return f"{step}: {outcome.status.value} when {outcome.when or 'nothing else holds'}"


class _HandedOver(Exception):
    """The run goes on with another runbook, which has scenarios of its own."""


class _Walker:
    """The context of one run: everything outside of the engine answers from the scenario."""

    def __init__(self, scenario: Scenario, runbook: Runbook, folder: Path) -> None:
        self.scenario = scenario
        self.runbook = _marked(runbook)
        self.directory = RunDirectory(folder / "run")
        self.looked_at: set[str] = set()
        self.handed_to: str | None = None
        self.walk: Progress | None = None
        self.steps = BuiltinSteps(
            run_directory=self.directory.path,
            programs=Programs(scenario.host),
            cores=CoreFiles(),
            binaries=Binaries(scenario.host.get("library", "no_lines_sm90")),
            environment=scenario.environment,
            write_report=_no_report,
            redact=Redactor().text,
        )

    def walked(self) -> Told:
        state = self._begun()
        self.directory.create()
        head = RunHead(run="walk", runbook=self.runbook.name, workload=self.scenario.argv)
        execution = Execution(
            directory=self.directory, head=head, state=state, start_branch=self._branch, placement=OneRank(self),
            builtins=self, person=self, interrupts=self, worker=self.do, listener=self._hear,
        )  # fmt: skip
        with suppress(_HandedOver):
            execution.to_its_end()
        assert self.walk is not None
        stale = self.scenario.sees.keys() - self.looked_at - {"*"}
        assert not stale, f"{self.scenario.name}: never came to {', '.join(sorted(stale))}"
        path = tuple(_told(visit) for visit in self.walk.visits if visit.record.skipped_because is None)
        branches = frozenset(b for visit in self.walk.visits if (b := _taken(visit)))
        return Told(walk=self.walk, branches=branches, path=path, finish=execution.finish, handed_to=self.handed_to)

    def _begun(self) -> RunState:
        wanted = self.scenario
        inputs = final_inputs(self.runbook, wanted.inputs, wanted.argv, {})
        facts = Facts(
            tools=wanted.tools, interactive=wanted.interactive, data_dir=str(RUNBOOKS), driver="580.82.07", gpus=1
        )
        return machine.start(self.runbook, inputs, facts, came_from=wanted.came_from)[0]

    def _branch(self, branch: BranchTo) -> RunState:
        self.handed_to = branch.runbook
        raise _HandedOver

    def _hear(self, _event: Event, walk: Progress) -> None:
        self.walk = walk

    # -- what the run asks of the outside ----------------------------------------------------------------------------

    def start(self, invocation: Invocation, directory: Path) -> ReplayedStep:
        """Leave in the folder what the scenario says was seen."""
        told, usual = self.scenario.sees, self.scenario.usual
        sights = told.get(invocation.step) or told.get("*") or usual.get(invocation.step) or usual["*"]
        self.looked_at.add(invocation.step)
        sight = sights[min(invocation.attempt, len(sights)) - 1]
        sight.check(invocation)
        said = (WITNESS if VARIABLE in invocation.env and not sight.unreached else "") + _unconfigured(sight.text)
        (directory / "stderr").write_bytes(said.encode("utf-8", "surrogateescape"))
        for name, data in sight.files.items():
            (directory / name).write_bytes(data)
        (directory / "ended.json").write_text(json.dumps(sight.ended))
        step = ReplayedStep(invocation, directory.resolve())
        seen = step.wait()
        assert seen is not None
        sight.check_stop(invocation, seen)
        return step

    def adopt(self, invocation: Invocation, directory: Path) -> ReplayedStep | None:
        return None

    def use(self, order: UseBuiltin, progress: Progress) -> StepResult:
        """Let the real built-in work on the scenario's host; the report's files alone are not written."""
        if order.name == "report":
            return StepResult(step=order.step, results={"files": ["report.html"]})
        return _promised(order.name, self.steps.use(order, progress))

    def read(self, reader: Builtin, observations: Sequence[Observation], progress: Progress) -> StepResult:
        return self.steps.read(reader, observations, progress)

    def ask(self, question: AskPerson) -> str | None:
        """Give the answers that are written down, one at each asking, and then none."""
        asked = [visit for visit in (self.walk.visits if self.walk else ()) if visit.record.step == question.step]
        answers = self.scenario.choices.get(question.step, ())
        return answers[len(asked)] if len(asked) < len(answers) else None

    def do(self, work: Callable[[], bytes], *, timeout_s: float | None, check: Callable[[], None]) -> bytes:
        """Do a built-in's work here: nothing of a scenario hangs."""
        return work()

    def pending(self) -> tuple[int, ...]:
        return ()


def _unconfigured(text: str) -> str:
    """Leave out the configuration that an engine logged: one log serves many steps, whatever each of them changes."""
    return re.sub(r"(LLM engine \(v[^)]*\)) with config: .*", r"\1", text)


def _no_report(_formats: Iterable[str]) -> tuple[str, ...]:
    raise AssertionError("the report step is answered by the walker")


def _promised(name: str, result: StepResult) -> StepResult:
    contract = catalogue().find(name, 1)
    assert contract is not None
    assert result.results.keys() <= contract.results.keys(), f"{name} gives what the catalogue does not know"
    return result


def _marked(runbook: Runbook) -> Runbook:
    """Number every outcome's way on, so that the record tells which of several with one status was taken."""
    return runbook.model_copy(update={"steps": tuple(_marked_step(step) for step in runbook.steps)})


def _marked_step(step: Step) -> Step:
    outcomes = tuple(_marked_outcome(number, outcome) for number, outcome in enumerate(step.outcomes))
    return step.model_copy(update={"outcomes": outcomes})


def _marked_outcome(number: int, outcome: Outcome) -> Outcome:
    following: Next
    match outcome.next:
        case ToStep(step=step):
            following = _MarkedStep(step=step, index=number)
        case ToRunbook(runbook=runbook):
            following = _MarkedRunbook(runbook=runbook, index=number)
        case End():
            following = _MarkedEnd(index=number)
    return outcome.model_copy(update={"next": following})


# How a skip is worded that is not for its condition: a missing tool, no engine, a program that does not start.
_OF_OTHER_REASONS = ("was not found", "vLLM engine to change", "either")


def _taken(visit: StepVisit) -> Branch | None:
    """Return the branch of one visit; None where the engine itself judged, such as a step that tried nothing."""
    record = visit.record
    if record.skipped_because is not None:
        return (record.step, SKIPPED) if not record.skipped_because.endswith(_OF_OTHER_REASONS) else None
    if record.choice is not None:
        return record.step, record.choice
    assert isinstance(record.next, _MarkedStep | _MarkedRunbook | _MarkedEnd), f"{record.step} led to {record.next}"
    index = record.next.index
    if record.outcome is Status.ERROR and visit.step.outcomes[index].status is not Status.ERROR:
        return None
    return record.step, index


def _told(visit: StepVisit) -> str:
    record = visit.record
    if record.choice is not None:
        return f"{record.step} {record.choice}"
    taken = _taken(visit)
    outcome = visit.step.outcomes[taken[1]] if taken and isinstance(taken[1], int) else None
    rule = f" {outcome.rule}" if outcome and outcome.rule else ""
    return f"{record.step} {record.outcome.value if record.outcome else '-'}{rule}"


@dataclass
class Programs:
    """The helper programs of a host, which say what the scenario wrote down; `absent` and `stuck` are words of its."""

    host: Mapping[str, str]
    library: str = ""
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def head(self, program: str) -> bytes:
        return b""

    def which(self, program: str) -> str | None:
        here = {"nvidia-smi", "dmesg", "python3", *self.host}
        if program not in here or self.host.get(program) == "absent":
            return None
        return f"/usr/bin/{program}"

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
        program = Path(argv[0]).name
        said = self.host.get(program)
        if said == "stuck":
            raise HostNotAble(f"{argv[0]} did not end within {timeout_s:g} s")
        code, out = 0, said or ""
        if program == "nvidia-smi":
            out = (said or SMI) if len(argv) > 1 else SMI_TABLE
        elif program == "python3":
            asks_for_versions = any("importlib.metadata" in word for word in argv)
            out = said or json.dumps({"vllm": "0.33.0", "torch": "2.14.0"}) if asks_for_versions else "/opt/vllm"
        elif said == "closed":
            code, out = 1, "dmesg: read kernel buffer failed: Operation not permitted"
        return Completed(argv=tuple(argv), code=code, stdout=out, stderr="")


@dataclass
class Binaries:
    """The libraries on disk: one cubin of tests/data/cubins."""

    cubin: str

    @contextmanager
    def open(self, target: str) -> Iterator[Iterator[BinaryFile]]:
        data = (CUBINS / f"{self.cubin}.cubin").read_bytes()
        yield iter([BinaryFile(name=f"{target}/_C_stable_libtorch.abi3.so", data=data)])
