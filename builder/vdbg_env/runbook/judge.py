"""Judge the result of a step, conclude a run, and weigh its findings: outcome, verdict, exit status, fingerprint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, assert_never

from gpucore.dwarf import Chain, SourceFrame, parse_frame
from gpucore.mangling import demangle, short_name
from vdbg_env.common.errors import BadInput
from vdbg_env.evidence.deaths import rank_findings, torchrun_findings
from vdbg_env.evidence.finding import (
    NO_FAILURE,
    UNKNOWN,
    EndedBy,
    Finding,
    HowKnown,
    Level,
    NextStep,
    Observation,
    WorkerEnvironment,
)
from vdbg_env.evidence.log_line import parse_cuda_error
from vdbg_env.evidence.sanitizer import SANITIZER_FAILED
from vdbg_env.evidence.system import NOT_STARTED, memory_kill_findings, not_started_findings, xid_meaning
from vdbg_env.runbook import expressions, workload
from vdbg_env.runbook.expressions import ExpressionFailed, Names, Value, compile_condition
from vdbg_env.runbook.model import Data, End, Manual, Next, Outcome, Run, Runbook, Status, Step, ToRunbook, Uses
from vdbg_env.runbook.state import (
    Finish,
    RunState,
    RunStep,
    StepRecord,
    StepResult,
    Verdict,
    first_end,
    names_in,
    values_before,
    values_of_attempts,
    values_of_results,
)

_UNKNOWN_FACTOR = 0.7  # more likely than not the variable arrived, and so below every finding that saw it arrive
_WITHOUT_DELTA = {HowKnown.GPU_CORE, HowKnown.SANITIZER}  # what these show is true whatever the step's settings were
_SAYS_WELL = {Status.NOT_REPRODUCED, Status.PASS}
_WORKER = re.compile(r"worker|^VLLM::|^ray::", re.IGNORECASE)


def record(state: RunState, step: Step, result: StepResult) -> StepRecord:
    """Return the record of one visit: how it ended, whether the bug showed, and what follows."""
    match step:
        case Manual():
            return _answer(step, result)
        case Run() | Uses():
            return _Judge(state, step, result).record()
        case _:
            assert_never(step)


def _answer(step: Manual, result: StepResult) -> StepRecord:
    choice = step.question.default if result.choice is None else result.choice
    choices = step.question.choices
    if choice not in choices:
        raise BadInput(f"{choice!r} does not answer step {step.id!r}; it takes {', '.join(choices)}")
    return StepRecord(step=step.id, outcome=None, next=choices[choice], choice=choice, notes=result.notes)


class _Judge:
    """One step's result with all the values its expressions may see."""

    def __init__(self, state: RunState, step: Run | Uses, result: StepResult) -> None:
        self.state = state
        self.step = step
        self.result = result
        self.notes: list[str] = list(result.notes)
        self.names: Names = names_in(state.runbook, step, "after")
        self.values: dict[str, Value] = {
            **values_before(state.runbook, state.inputs, state.facts, state.trail),
            **values_of_results(state.runbook, step, result),
        }
        if isinstance(step, Run):
            self.values |= values_of_attempts(step, result.observations)

    def record(self) -> StepRecord:
        """Return the record; a step whose own work failed has the outcome `error`, whatever its text says."""
        self.values["results"] = results = self._results()
        unseen = self.result.error or self._never_ran()
        failure = unseen or self._overlay_lost() or self._undone()
        outcome = self._error_outcome() if failure else self._first_that_holds()
        if not failure and (failure := self._no_request(outcome)):
            outcome = self._error_outcome()
        message = failure or self._text(outcome.message)
        observations = self.result.observations
        # Of a step that tried nothing only an `error` outcome can speak, of one that saw nothing only where it holds.
        told = self._finding(outcome, message) if not failure or self._speaks(outcome, bool(unseen)) else ()
        told = self._less_sure(told)
        lone = (*memory_kill_findings(observations), *rank_findings(observations), *torchrun_findings(observations))
        ends = (*lone, *(() if told else not_started_findings(observations)))
        findings = (*self.result.findings, *(replace(finding, step=self.step.id) for finding in ends), *told)
        artifacts = self.values.get("artifacts")
        return StepRecord(
            step=self.step.id,
            outcome=Status.ERROR if failure else outcome.status,
            next=self._next(outcome.next),
            ended=first_end(observations),
            message=message,
            attempts=len({x.attempt for x in observations}),
            reproduced=0 if failure else self._attempts_that_hold(outcome),
            results=results,
            artifacts=artifacts if isinstance(artifacts, dict) else {},
            findings=findings,
            notes=tuple(self.notes),
        )

    def _results(self) -> dict[str, Data]:
        """Return the results of readers, with the step's own expressions over them; one that fails is left out."""
        found = self.values["results"]
        assert isinstance(found, dict)
        results = dict(found)
        for name, text in self.step.results.items():
            try:
                results[name] = expressions.fill(text, self.names, {**self.values, "results": results})
            except ExpressionFailed as error:
                self.notes.append(f"result {name!r}: {error}")
        return results

    def _first_that_holds(self) -> Outcome:
        """Return the first outcome whose `when` holds; one that cannot be decided does not hold, and that is noted.

        One that hands over to a runbook which has had its say is passed over: another round would show nothing new.
        """
        for outcome in self.step.outcomes:
            if outcome.when is None:
                return outcome
            if self._holds(outcome, self.values, noted=True) and not self._goes_round(outcome):
                return outcome
        return self.step.outcomes[-1]

    def _goes_round(self, outcome: Outcome) -> bool:
        target = self._next(outcome.next)
        if not isinstance(target, ToRunbook) or target.runbook not in {*self.state.came_from, self.state.runbook.name}:
            return False
        self.notes.append(f"runbook {target.runbook!r} was walked already")
        return True

    def _holds(self, outcome: Outcome, values: Mapping[str, Value], *, noted: bool = False) -> bool:
        assert outcome.when is not None
        try:
            return compile_condition(outcome.when, self.names).holds(values)
        except ExpressionFailed as error:
            if noted:
                self.notes.append(f"outcome {outcome.status.value!r}: {error}")
            return False

    def _attempts_that_hold(self, outcome: Outcome) -> int:
        """Count the attempts, each judged alone, that give this outcome: k of n for a bug that comes and goes."""
        if not isinstance(self.step, Run) or outcome.when is None or outcome.status is not Status.REPRODUCED:
            return 0
        attempts = sorted({x.attempt for x in self.result.observations})
        if len(attempts) == 1:
            return 1
        return sum(self._holds(outcome, self._values_of(attempt)) for attempt in attempts)

    def _values_of(self, attempt: int) -> dict[str, Value]:
        assert isinstance(self.step, Run)
        alone = [x for x in self.result.observations if x.attempt == attempt]
        return {**self.values, **values_of_attempts(self.step, alone)}

    def _error_outcome(self) -> Outcome:
        """Return where a step goes that could not do its work: its own `error` outcome, else its last one."""
        errors = (outcome for outcome in self.step.outcomes if outcome.status is Status.ERROR)
        return next(errors, self.step.outcomes[-1])

    def _speaks(self, outcome: Outcome, unseen: bool) -> bool:
        """Whether an outcome has a word on a step that could not do its work."""
        if outcome.status is not Status.ERROR:
            return False
        return not unseen or outcome.when is None or self._holds(outcome, self.values)

    def _finding(self, outcome: Outcome, message: str | None) -> tuple[Finding, ...]:
        if outcome.rule is None:
            return ()
        return (
            Finding(
                rule=outcome.rule,
                level=outcome.level,
                message=message or self.step.title,
                how_known=outcome.how_known,
                confidence=outcome.confidence,
                location=_frame(self._text(outcome.location)),
                step=self.step.id,
                next_step=NextStep.read(said) if (said := self._text(outcome.next_step)) else None,
                **self._process(outcome),
            ),
        )

    def _process(self, outcome: Outcome) -> dict[str, Any]:
        """Return which process the readers of this step say failed; a hang has another finding."""
        results = self.values["results"]
        if outcome.status is Status.HANG or outcome.how_known is not HowKnown.LOG or not isinstance(results, dict):
            return {}
        if "failed_process" in results:
            return {"process": results["failed_process"], "rank": results.get("failed_rank")}
        return {"process": results.get("process"), "rank": results.get("rank") if "process" in results else None}

    def _next(self, target: Next) -> Next:
        """Fill in the name of a runbook that an expression gives; without one the run ends, and that is noted."""
        if not isinstance(target, ToRunbook) or not expressions.is_template(target.runbook):
            return target
        name = self._text(target.runbook)
        return target.model_copy(update={"runbook": name}) if name else End()

    def _text(self, text: str | None) -> str | None:
        if text is None:
            return None
        try:
            return expressions.fill_text(text, self.names, self.values) or None
        except ExpressionFailed as error:
            self.notes.append(str(error))
            return None

    def _never_ran(self) -> str | None:
        """Say why nothing was seen of the workload, when that is so."""
        if not isinstance(self.step, Run):
            return None
        if not self.result.observations:
            return "nothing was observed"
        ended = first_end(self.result.observations)
        if ended and ended.by in {EndedBy.NOT_STARTED, EndedBy.DISK, EndedBy.ENGINE_LOST, EndedBy.NODE_LOST}:
            return ended.message or f"the step did not run to its end ({ended.by.value})"
        return None

    def _no_request(self, outcome: Outcome) -> str | None:
        """Say why a server that was to be sent requests has shown nothing: none arrived, or it refused each.

        A failure that showed at the start counts all the same; that no failure showed, or that the server is silent,
        says nothing then.
        """
        decision = self.state.decision
        if not isinstance(decision, RunStep) or decision.invocation.driver is None:
            return None
        replays = [x.requests for x in self.result.observations if x.requests is not None]
        if not replays or any(x.told_something for x in replays):
            return None
        started = any(workload.STARTED.name in x.matched for x in self.result.observations)
        if outcome.status not in _SAYS_WELL and not (started and outcome.status is Status.HANG):
            return None
        if refused := replays[-1].refused:
            return (
                f"the server refused all {refused} requests (status 4xx): they are for another model, or another path"
            )
        if not replays[-1].recorded:
            return f"{decision.invocation.driver.replay} has no request in it"
        where = f"nothing answered at {decision.invocation.driver.ready.http}"
        return f"no request was sent: {where}" + ("; the server is up, -i url=URL says where" if started else "")

    def _undone(self) -> str | None:
        """Say which engine argument of the step vLLM put back: such a step has tried nothing."""
        if not isinstance(self.step, Run) or not self.step.engine_args:
            return None
        names = names_in(self.state.runbook, self.step, "before")
        try:
            asked = filled_engine_args(self.step, names, self.values)
        except ExpressionFailed as error:
            self.notes.append(str(error))
            return None
        return "; ".join(dict.fromkeys(workload.undone(asked, self.result.observations))) or None

    def _overlay_lost(self) -> str | None:
        """Say which part of the step's delta did not reach the workload: such a step has tried nothing."""
        decision = self.state.decision
        if not isinstance(decision, RunStep) or not decision.invocation.verify_env:
            return None
        seen = {name for x in self.result.observations for name in x.matched}
        if workload.VARIABLE in decision.invocation.env and workload.WITNESS.name not in seen:
            return (
                "the engine arguments did not reach vLLM: the workload made no engine, or VLLM_PLUGINS keeps the "
                "plug-in 'vdbg-env' out"
            )
        env, observations = decision.invocation.env, self.result.observations
        reported = (sentence for seen in observations for sentence in workload.lost(env, seen))
        failed = self.result.results.get("failed_pid")
        kept, aside = _lost_variables(env, observations, failed if isinstance(failed, int) else None)
        self.notes += [f"{sentence}; the process that failed had it" for sentence in aside[:3]]
        lost = sorted({*kept, *reported})
        return "; ".join(lost[:3]) or None

    def _less_sure(self, told: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """Lower the confidence of what rests on the step's delta where it is not known whether a worker had it."""
        decision = self.state.decision
        if not isinstance(decision, RunStep) or not decision.invocation.verify_env or not decision.invocation.env:
            return told
        unknown = sorted({w.name for x in self.result.observations for w in _unknown_workers(x)})
        if not unknown:
            return told
        self.notes.append(
            f"whether {', '.join(sorted(decision.invocation.env))} reached {', '.join(unknown[:3])} is not known: "
            "the process overwrote its environment (setproctitle does so without SPT_NOENV=1, which a launcher took "
            "out); set it where the workers are started"
        )
        return tuple(
            one if one.how_known in _WITHOUT_DELTA else replace(one, confidence=one.confidence * _UNKNOWN_FACTOR)
            for one in told
        )


def _unknown_workers(seen: Observation) -> Iterator[WorkerEnvironment]:
    """Yield the processes of which neither /proc nor the process itself said what it has.

    The front of a server has no witness and does no work on a GPU: where its workers reported, it is not asked.
    """
    if not workload.witnesses(seen):
        yield from (worker for worker in seen.workers if not worker.known)


def _lost_variables(
    env: Mapping[str, str | None], observations: Sequence[Observation], failed: int | None
) -> tuple[list[str], list[str]]:
    """Return one sentence for each variable a worker had otherwise, and those of helpers, which are beside the point.

    A value with a `${{ rank.* }}` is compared loosely.
    """
    lost: list[str] = []
    aside: dict[str, None] = {}
    for seen in observations:
        for worker in seen.workers:
            told = list(_otherwise(env, worker))
            if told and _is_helper(worker, seen, env, failed):
                aside |= dict.fromkeys(told)
            else:
                lost += told
    return lost, list(aside)


def _otherwise(env: Mapping[str, str | None], worker: WorkerEnvironment) -> Iterator[str]:
    for name, wanted in env.items():
        if name in worker.seen and not _same(wanted, had := worker.seen[name]):
            yield (
                f"{worker.name} had {name}={'(unset)' if had is None else had}, "
                f"the step asked for {'(unset)' if wanted is None else wanted}"
            )


def _is_helper(worker: WorkerEnvironment, seen: Observation, env: Mapping[str, str | None], failed: int | None) -> bool:
    """Return whether a process that lacks a variable says nothing of the step: the one that failed had it.

    Which one failed is read from the log. Where no line has its number, a worker's name counts, and whether the first
    process had the variable: one started with an empty environment (`env -i`) is a helper of that.
    """
    had = {one.pid for one in seen.workers if one.known and not list(_otherwise(env, one))}
    if failed in had or worker.pid == failed:
        return worker.pid != failed
    return seen.workers[0].pid in had and not _WORKER.search(worker.name)


def _same(wanted: str | None, had: str | None) -> bool:
    if wanted is None or had is None:
        return wanted == had
    return re.fullmatch(r".*".join(re.escape(x) for x in re.split(r"\$\{\{ rank\.\w+ \}\}", wanted)), had) is not None


def _frame(text: str | None) -> SourceFrame | None:
    return parse_frame(text) if text else None


def filled_engine_args(step: Run, names: Names, values: dict[str, Value]) -> dict[str, Data]:
    """Return the final engine arguments of a step; raises ExpressionFailed."""
    arguments = expressions.fill(dict(step.engine_args), names, values)
    assert isinstance(arguments, dict)
    return arguments


# Conclude a run: its verdict, and the exit status for a shell or for `git bisect run`.


# The strongest outcome decides: a crash seen once stays seen, whatever a later step with another setting showed.
_STRENGTH: tuple[tuple[Status, Verdict, str], ...] = (
    (Status.REPRODUCED, Verdict.REPRODUCED, "the failure was reproduced in step {step!r}"),
    (Status.HANG, Verdict.HANG, "the workload hung in step {step!r}"),
    (Status.FAIL, Verdict.FAILED, "step {step!r} failed"),
    (Status.NOT_REPRODUCED, Verdict.NOT_REPRODUCED, "the failure did not show"),
    (Status.WARN, Verdict.WARNED, "step {step!r} warned"),
    (Status.UNRESOLVED, Verdict.INCONCLUSIVE, "step {step!r} decided nothing"),
    (Status.ERROR, Verdict.INCONCLUSIVE, "step {step!r} could not do its work"),
)


def conclude(trail: Sequence[StepRecord], runbook: Runbook | None = None) -> Finish:
    """Return the end of a finished run.

    Given the runbook, checks of the host alone conclude nothing about a workload that was to be run and never was.
    """
    runs = {step.id for step in runbook.steps if isinstance(step, Run)} if runbook else set()
    tried = [record for record in trail if record.step in runs and record.skipped_because is None]
    if runs and all(record.outcome is Status.ERROR for record in tried):
        failed = next((record.step for record in trail if record.outcome is Status.FAIL), None)
        if failed is None:
            because = next((f": {record.message}" for record in tried if record.message), "")
            ends = {record.ended.by for record in tried if record.ended}
            what = (
                "the workload lost a node each time"
                if EndedBy.NODE_LOST in ends
                else "how the workload ended was not seen"
                if EndedBy.ENGINE_LOST in ends
                else "the workload was never run"
            )
            return Finish(verdict=Verdict.INCONCLUSIVE, why=f"{what}{because}")
    refused = next((x.step for x in tried if x.ended and x.ended.by is EndedBy.NOT_STARTED), None)
    for status, verdict, why in _STRENGTH:
        if status is Status.WARN and refused:
            return Finish(verdict=Verdict.INCONCLUSIVE, why=f"the command of step {refused!r} could not be started")
        record = next((record for record in trail if record.outcome is status), None)
        if record:
            return Finish(verdict=verdict, why=why.format(step=record.step))
    if any(record.outcome is Status.PASS for record in trail):
        return Finish(verdict=Verdict.PASSED, why="every check passed")
    return Finish(verdict=Verdict.INCONCLUSIVE, why="no step said anything")


def exit_status(verdict: Verdict, findings: Sequence[Finding]) -> int:
    """Return the exit status of a run: 0, 3 (an error found), 4 (warnings only), 124 (out of time), 125 (unclear)."""
    levels = {finding.level for finding in findings}
    match verdict:
        case Verdict.OUT_OF_TIME:
            return 124
        case Verdict.REPRODUCED | Verdict.HANG | Verdict.FAILED:
            return 3
        case Verdict.NOT_REPRODUCED | Verdict.PASSED | Verdict.WARNED | Verdict.INCONCLUSIVE if Level.ERROR in levels:
            return 3
        case Verdict.INCONCLUSIVE:
            return 125
        case Verdict.WARNED:
            return 4
        case Verdict.NOT_REPRODUCED | Verdict.PASSED:
            return 4 if Level.WARNING in levels else 0


def bisect_status(verdict: Verdict, *, handed_over: bool = False) -> int:
    """Return the exit status for `git bisect run`: 1 for a bad revision, 0 for a good one, 125 to skip it.

    A revision that hangs or fails otherwise is skipped, and so is one whose failure was handed over to another
    runbook: it says nothing about the bug that is looked for. An engine that fails raises an error,
    which the command line maps to 128 and more: bisecting then stops.
    """
    if handed_over:
        return 125
    match verdict:
        case Verdict.REPRODUCED:
            return 1
        case Verdict.NOT_REPRODUCED | Verdict.PASSED:
            return 0
        case Verdict.HANG | Verdict.FAILED | Verdict.WARNED | Verdict.INCONCLUSIVE | Verdict.OUT_OF_TIME:
            return 125


# Name crashes of one cause alike, and weigh all findings of a run against each other.


PREFIX: Final = "v2-"
"""The version of what fingerprints are made of; another one is made anew from the record before it is compared."""

_FRAMES = 3  # of an exception: the innermost ones
_CHAIN = 16  # frames of a kernel's inline chain
_DIGITS = 16
# Of a traceback: what a program is built on, and the standard library.
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/(?:torch|triton|numpy|transformers|uvloop|uvicorn|fastapi|starlette|anyio|zmq|ray)/"
    r"|/lib/python3[.\d]*/(?!(?:site|dist)-packages/)|^<"
)
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?::|$)")
_SENT = {"SIGTERM", "SIGINT", "SIGHUP"}  # by who stops a program, as a supervisor stops one that has failed
_OF_THE_GPU = {HowKnown.GPU_CORE, HowKnown.SANITIZER, HowKnown.DRIVER}


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """The cause of a crash: `id` names it, `base` names it without its place inside the kernel.

    A core without line info has no chain. It then has the `base` of a crash whose chain a line pack gave, and another
    `id`: `is_same_cause` takes both for one. `kind` is what it is made of: gpu, death, exception, signal, memory, hang
    or failure. Both begin with the version. `frames` are innermost first; of device code they are the
    inline chain.
    """

    id: str
    base: str
    kind: str
    exception: str
    kernel: str | None = None
    frames: tuple[str, ...] = ()

    def is_same_cause(self, other: Fingerprint) -> bool:
        """Return whether two crashes have one cause, as far as each is known."""
        return is_same_cause((self.id, self.base), (other.id, other.base))

    def __str__(self) -> str:
        where = f" in {short_name(self.kernel)}" if self.kernel else ""
        return f"{self.exception}{where}" + (f" at {self.frames[0]}" if self.frames else "")


def is_same_cause(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Compare two pairs of `id` and `base`; one that has no place in its kernel fits every place in it."""
    if one[0] == other[0]:
        return True
    return one[1] == other[1] and (one[0] == one[1] or other[0] == other[1])


@dataclass(frozen=True, kw_only=True)
class Crash:
    """What is known of a crash: its findings, the exception (`error`) with its stack, outermost frame first."""

    findings: Sequence[Finding] = ()
    error: str | None = None
    stack: Sequence[SourceFrame] = ()
    failure: str | None = None  # the class that triage named
    signal: str | None = None
    hang: bool = False
    stuck: str | None = None  # how the process that the others wait for hangs: stopped, runs or waits
    died: str | None = None  # how the process died first: a signal's name, or `exit status N`
    process: str | None = None  # what the process is that died or is stuck
    crashed: Sequence[SourceFrame] = ()  # the stack of its thread, innermost frame first


def fingerprint(crash: Crash) -> Fingerprint | None:
    """Return the fingerprint of a crash by the surest of what is known; None where nothing names a cause."""
    on_gpu = sorted(
        (f for f in crash.findings if f.how_known in _OF_THE_GPU and f.level is Level.ERROR and f.kernel),
        key=lambda f: -f.confidence,
    )
    if on_gpu:
        return _of_gpu(on_gpu[0])
    if any(f.rule == "memory-kill" and f.level is Level.ERROR for f in crash.findings):
        return _made("memory", "killed for lack of memory")
    if crash.hang:
        how = f"hang: {crash.process or 'a process'} {crash.stuck}" if crash.stuck else "hang"
        return _made("hang", how, frames=_frames(crash.stack))
    error = crash.error or ""
    cuda = parse_cuda_error(error)
    if cuda:  # noticed at some later call: its stack is another one each time
        return _made("gpu", cuda.name or cuda.message)
    if crash.died:
        return _made("death", f"{crash.died} of {crash.process or 'a process'}", frames=_frames(crash.crashed[::-1]))
    if found := _EXCEPTION.match(error):
        return _made("exception", found["type"], frames=_frames(crash.stack))
    failure = crash.failure if crash.failure not in {None, NO_FAILURE, UNKNOWN} else None
    if crash.signal and not (failure and crash.signal in _SENT):
        return _made("signal", crash.signal, frames=_frames(crash.crashed[::-1] or crash.stack))
    return _made("failure", failure) if failure else None


def _of_gpu(finding: Finding) -> Fingerprint:
    kernel = demangle(finding.kernel or "")
    chain: Chain = finding.chain or ((finding.location,) if finding.location else ())
    exception = finding.rule.removeprefix("gpu-core-")
    return _made("gpu", exception, kernel, tuple(map(_of_chain, chain[:_CHAIN])))


def _made(kind: str, exception: str, kernel: str | None = None, frames: tuple[str, ...] = ()) -> Fingerprint:
    base = _hash(kind, exception, kernel or "")
    own = _hash(kind, exception, kernel or "", *frames) if frames else base
    return Fingerprint(id=own, base=base, kind=kind, exception=exception, kernel=kernel, frames=frames)


def _hash(*parts: str) -> str:
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()
    return f"{PREFIX}{digest[:_DIGITS]}"


def _of_chain(frame: SourceFrame) -> str:
    """Return a frame of device code: its line counts, because one kernel inlines a function in many places."""
    function = f" {short_name(demangle(frame.function))}" if frame.function else ""
    return f"{_last(frame.file)}:{frame.line}{function}"


def _frames(stack: Sequence[SourceFrame]) -> tuple[str, ...]:
    """Return the innermost frames of the project's code, the innermost first; of a library's where there are none."""
    own = [frame for frame in reversed(stack) if not _LIBRARY.search(frame.file)]
    named = (f"{_module(frame.file)} {frame.function or '?'}" for frame in own or list(reversed(stack)))
    return tuple(dict.fromkeys(named))[:_FRAMES]


def _module(file: str) -> str:
    """Return a file as it is called wherever it is installed."""
    inside = _PACKAGES.sub("", file.replace("\\", "/"))
    return inside if inside != file else _last(file)


def _last(file: str) -> str:
    return file.replace("\\", "/").rsplit("/", 1)[-1]


# Weigh all findings of a run against each other, by small rules in a fixed order.
#
# Each source has its own reader, and each reader says how sure it is by itself. These rules weigh one source against
# another: two that name the same line make it surer, a broken GPU explains a software fault, a stack taken after the
# fact is only a hint. The figures are judgements, kept in one place for review.


MOST_SURE = 0.99  # nothing read from a crashed machine is certain
_BROKEN_HARDWARE = 0.5  # how much of its confidence a software finding keeps on a GPU that reports hardware faults
_HINT_BESIDE_PROOF = 0.4  # the most a log's stack is worth once a core or the sanitizer has named the place

_PROOF = {HowKnown.GPU_CORE, HowKnown.SANITIZER}
_WORDS = {
    HowKnown.GPU_CORE: "the GPU core",
    HowKnown.SANITIZER: "compute-sanitizer",
    HowKnown.DRIVER: "the driver",
    HowKnown.LOG: "the log",
    HowKnown.STEP_CHANGE: "a changed step",
    HowKnown.KERNEL_LOG: "the kernel log",
    HowKnown.HOST_CHECK: "a check of the host",
}

Rule = Callable[[Sequence[Finding]], Sequence[Finding]]


def judge(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings of a run by falling confidence, the more severe first among equals, each fault once.

    Warnings of the machine alone are last.
    """
    weighed: Sequence[Finding] = tuple(findings)
    for rule in RULES:
        weighed = rule(weighed)
    levels = list(Level)
    return tuple(sorted(weighed, key=lambda f: (is_backdrop(f), -f.confidence, levels.index(f.level), _strength(f))))


def is_backdrop(finding: Finding) -> bool:
    """Return whether a finding warns of the machine or of a tool only: sure as it is, it explains no failure.

    A command that could not be started is no such warning: nothing else of the run counts before it is.
    """
    warns = finding.how_known is HowKnown.HOST_CHECK and finding.level is not Level.ERROR
    return finding.rule == SANITIZER_FAILED or (warns and finding.rule != NOT_STARTED)


def one_of_each(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Keep the surest of findings that say the same word for word, as several ranks do."""
    kept: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        key = (finding.rule, finding.location, finding.kernel, finding.message)
        if key not in kept or kept[key].confidence < finding.confidence:
            kept[key] = finding
    return tuple(kept.values())


def one_fault_once(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Join findings of one kind that name one place, keeping the most detailed one."""
    kept: list[Finding] = []
    for finding in sorted(findings, key=lambda f: (-len(f.chain), f.kernel is None, -f.confidence)):
        same = next((k for k in kept if k.how_known is finding.how_known and _same_place(k, finding)), None)
        if same is None:
            kept.append(finding)
        elif finding.confidence > same.confidence:
            kept[kept.index(same)] = replace(same, confidence=finding.confidence)
    return tuple(kept)


def hardware_first(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Lower the confidence in software faults on a GPU that reports a hardware fault."""
    broken = [f for f in findings if _is_hardware_fault(f)]
    if not broken:
        return findings
    return tuple(
        f
        if f in broken or f.how_known is HowKnown.HOST_CHECK
        else replace(f, confidence=f.confidence * _BROKEN_HARDWARE)
        for f in findings
    )


def _is_hardware_fault(finding: Finding) -> bool:
    """Return whether the kernel log reports a fault of the GPU itself; an Xid 13 or 31 is what software did."""
    code = finding.rule.removeprefix("xid-")
    if finding.how_known is not HowKnown.KERNEL_LOG or finding.level is not Level.ERROR or not code.isdecimal():
        return False
    return xid_meaning(int(code)).severity == "hardware"


def witnesses_agree(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Make a fault surer that independent sources put at the same place, and say who agrees."""
    result = []
    for finding in findings:
        others = {f.how_known: f for f in findings if f.how_known is not finding.how_known and _same_place(finding, f)}
        if finding.how_known in _PROOF and others:
            doubt = 1 - finding.confidence
            for other in others.values():
                doubt *= 1 - other.confidence / 2
            named = ", ".join(_WORDS[source] for source in HowKnown if source in others)
            message = f"{finding.message} ({named} names the same place)"
            finding = replace(finding, confidence=min(1 - doubt, MOST_SURE), message=message)
        result.append(finding)
    return tuple(result)


def hints_step_back(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Once the faulting instruction is known, a stack of the host is only where the error was noticed."""
    if not any(f.how_known in _PROOF and f.level is Level.ERROR and (f.location or f.kernel) for f in findings):
        return findings
    return tuple(
        replace(f, confidence=min(f.confidence, _HINT_BESIDE_PROOF))
        if f.how_known in {HowKnown.LOG, HowKnown.STEP_CHANGE} and f.location
        else f
        for f in findings
    )


RULES: tuple[Rule, ...] = (one_of_each, one_fault_once, hardware_first, witnesses_agree, hints_step_back)


def _same_place(one: Finding, other: Finding) -> bool:
    """Return whether two findings name one place: the same line, else the same kernel if one has no line."""
    if one.level is not Level.ERROR or other.level is not Level.ERROR:
        return False
    if one.location and other.location:
        return (_file(one), one.location.line) == (_file(other), other.location.line)
    return one.kernel is not None and other.kernel is not None and _kernel(one.kernel) == _kernel(other.kernel)


def _file(finding: Finding) -> str:
    return finding.location.file.rsplit("/", 1)[-1] if finding.location else ""


def _kernel(name: str) -> str:
    return short_name(demangle(name))


def _strength(finding: Finding) -> int:
    return list(HowKnown).index(finding.how_known)
