"""Every outcome of the runbooks on trouble with the search itself is taken by a story, by real lines."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.support.shipped import RUNBOOKS, shipped
from tests.unit.run.test_steps import Bench
from vdbg_env.evidence.finding import HowKnown, Observation, WorkerEnvironment
from vdbg_env.run.recordings import ReplayedStep
from vdbg_env.runbook import machine
from vdbg_env.runbook.machine import final_inputs
from vdbg_env.runbook.model import Outcome, Runbook
from vdbg_env.runbook.state import (
    AskPerson,
    BranchTo,
    Decision,
    Facts,
    Finish,
    ResultValue,
    RunState,
    RunStep,
    StepResult,
    UseBuiltin,
)
from vdbg_env.runbook.workload import VARIABLE, WITNESS

SERVE = ("vllm", "serve", "org/model")
IMA = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
WROTE = "coredump: Writing ELF file to /d/core.cuda.n.1.2\ncoredump: All done"
SAW = "coredump: Detected an exception of type CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS (14)\ncoredump:   - Device: 0"
ROOM = "dump-setup: folder /d can be written, 812.4 GiB free on xfs"
FLAGS = "dump-setup: flags not set: skip_shared_memory"
SPEEDS = (
    "read-speed: {} MiB/s in one piece, {} ms for a small read\n"
    "read-speed: 60 s for one reader, 480 s if 8 rank(s) read all"
)
# Walked for every runbook that takes them; here only as far as they lead somewhere of their own.
# Without a workload the step before it is skipped, and leads past it: its `if` is for the plan.
NEVER_CAME_TO = {"packed:skipped"}
BORROWED = {"preflight", "collect_env", "memcheck", "report"}


@dataclass(frozen=True)
class Saw:
    """One attempt: what was printed, how it ended (`exit 1`, `signal 9`, `watch`), the sizes of cores it left.

    Where `bare`, its worker had no variable of the step.
    """

    text: str = ""
    ended: str = "exit 0"
    cores: tuple[int, ...] = ()
    bare: bool = False


@dataclass(frozen=True)
class Story:
    """What each run step saw and each built-in gave, and the outcome of one step that it must take."""

    takes: str
    sees: Mapping[str, Saw] = field(default_factory=dict)
    gives: Mapping[str, Mapping[str, ResultValue]] = field(default_factory=dict)
    argv: tuple[str, ...] = SERVE
    inputs: Mapping[str, str] = field(default_factory=dict)
    goes_to: str | None = None


FAULTED = Saw(IMA, "signal 6")
NO_DUMP: tuple[Story, ...] = (
    Story("setup:0", {"setup": Saw("dump-setup: problem: folder /d is not there, and", "exit 1")}),
    Story("setup:1", {"setup": Saw("dump-setup: problem: CUDA_COREDUMP_FILE has no %p: processes", "exit 1")}),
    Story("setup:2", {"setup": Saw("dump-setup: problem: skip_abort is set: the driver may ignore", "exit 1")}),
    Story("setup:3", {"setup": Saw("dump-setup: problem: this is WSL: the driver there writes no dump", "exit 1")}),
    Story("setup:4", {"setup": Saw(ROOM)}),
    Story("setup:5", {"setup": Saw("Traceback", "exit 1")}),
    Story("probe:0", {"probe": Saw("dump-probe: a kernel writes to address 16\n" + WROTE, "signal 6", (99,))}),
    Story("probe:1", {"probe": Saw("dump-probe: a kernel writes to address 16\n"
                                   "dump-probe: the program goes on after error 700: the driver did not", "exit 1")}),
    Story("probe:2", {"probe": Saw("dump-probe: a kernel writes to address 16", "signal 6")}),
    Story("probe:3", {"probe": Saw("dump-probe: a kernel writes to address 16", "timeout")}),
    Story("probe:4", {"probe": Saw("dump-probe: no driver library (libcuda.so.1: cannot open)", "exit 2")}),
    Story("probe:5", {"probe": Saw("Traceback", "exit 1")}),
    Story("armed:0", {"armed": Saw(IMA, "signal 6", bare=True)}),
    Story("armed:1", {"armed": Saw(f"{IMA}\n{WROTE}", "signal 6", (2048,))}),
    Story("armed:2", {"armed": Saw(f"{SAW}\ncoredump: Writing ELF file to /d/core.cuda.n.1.2", "signal 9", (7,))}),
    Story("armed:3", {"armed": Saw(f"{SAW}\n{IMA}", "signal 6")}),
    Story("armed:4", {"armed": Saw("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "exit 1")}),
    Story("armed:5", {"armed": Saw("", "signal 9")}),
    Story("armed:6", {"armed": FAULTED}),
    Story("armed:7", {"armed": Saw("", "watch")}, goes_to="kernel-hang"),
    Story("armed:8", {"armed": Saw("tokens", "exit 0")}),
    Story("armed:9", {"armed": Saw("ValueError: no", "exit 1")}),
)  # fmt: skip
HELD: Mapping[str, ResultValue] = {
    "size": 10 << 30, "text": "10.0 GiB", "largest": "global memory", "share": 0.99, "flags": ["skip_global_memory"],
    "saved": "9.9 GiB", "savings": 0.99, "whole": True,
}  # fmt: skip
LARGE: tuple[Story, ...] = (
    Story("parts:0", gives={"parts": {**HELD, "whole": False}}),
    Story("parts:1", gives={"parts": HELD}),
    Story("parts:2", gives={"parts": {**HELD, "savings": 0.1}}),
    Story("parts:3", gives={"parts": {}}),
    Story("setup:0", {"setup": Saw("dump-setup: problem: driver 550.54.14 is older than 555: it reads no", "exit 1")}),
    Story("setup:1", {"setup": Saw(f"{FLAGS}\ndump-setup: a full dump of 80 GiB of GPU memory does not fit there")}),
    Story("setup:2", {"setup": Saw(FLAGS)}),
    Story("setup:3", {"setup": Saw(ROOM)}),
    Story("setup:4", {"setup": Saw("Traceback", "exit 1")}),
    Story("light:skipped", argv=()),
    Story("light:0", {"light": Saw("Ignoring unknown coredump flag 'gzip_compress'", "signal 6", (9,))}),
    Story("light:1", {"light": Saw(f"{IMA}\n{WROTE}", "signal 6", (4096, 4096))}),
    Story("light:2", {"light": Saw(f"{IMA}\n{WROTE}", "signal 6", (2 << 30,))}),
    Story("light:3", {"light": FAULTED}, goes_to="no-core-dump"),
    Story("light:4", {"light": Saw("", "watch")}, goes_to="kernel-hang"),
    Story("light:5", {"light": Saw("tokens")}),
    Story("light:6", {"light": Saw("ValueError: no", "exit 1")}),
    Story("packed:0", {"packed": Saw("Ignoring unknown coredump flag 'gzip_compress'", "signal 6", (9,))}),
    Story("packed:1", {"packed": Saw(f"{IMA}\n{WROTE}", "signal 6", (9,))}),
    Story("packed:2", {"packed": FAULTED}),
)  # fmt: skip
KERNEL: Mapping[str, ResultValue] = {"caches": [], "kernel": "scatter", "has_lines": False}
IN_FILE: Mapping[str, ResultValue] = {
    **KERNEL,
    "file": "_C.so",
    "same": True,
    "file_has_lines": False,
    "verdict": "none",
}
LINES: tuple[Story, ...] = tuple(
    Story(f"lines:{number}", gives={"lines": given})
    for number, given in enumerate((
        {**KERNEL, "has_lines": True, "source": "/src/a.cu:3 in f"},
        {**IN_FILE, "file_has_lines": True, "verdict": "full", "located": "/src/a.cu:3 in f"},
        {**IN_FILE, "same": False, "file_has_lines": True, "verdict": "full"},
        {**IN_FILE, "verdict": "partial", "missing": 7},
        {**IN_FILE, "maker": "NCCL", "remedy": "an NCCL built with -lineinfo"},
        {**IN_FILE, "caches": ["ccache"]},
        IN_FILE,
        {**KERNEL, "maker": "Triton", "remedy": "unset TRITON_DISABLE_LINE_INFO"},
        KERNEL,
        {"caches": []},
    ))
)  # fmt: skip
HERE = "model-files: org/model is all here: 5 weight files, 15.26 GiB in /m"
FREE = "model-files: 72.34 GiB are free for /m"
KNOWN = "hub-reach: https://huggingface.co knows org/model, answered in 0.21 s\n"
DOWNLOAD: tuple[Story, ...] = (
    Story("files:0", {"files": Saw("model-files: no model is named on the command line", "exit 2")}),
    Story("files:1", {"files": Saw(f"{HERE}\n{FREE}")}, goes_to="slow-file-system"),
    Story("files:2", {"files": Saw(f"model-files: another process holds /m/.locks/a.lock\n{FREE}", "exit 1")}),
    Story("files:3", {"files": Saw("model-files: 0.70 GiB are free for /m", "exit 1")}),
    Story("files:4", {"files": Saw(f"model-files: 3 file(s) are unfinished, 1.22 GiB of\n{FREE}", "exit 1")}),
    Story("files:5", {"files": Saw(f"model-files: org/model is here in part: 2 files\n{FREE}", "exit 1")}),
    Story("files:6", {"files": Saw(f"model-files: org/model is not here (looked in /m)\n{FREE}", "exit 1")}),
    Story("files:7", {"files": Saw("Traceback", "exit 1")}),
    Story("hub:0", {"hub": Saw("hub-reach: /m is a folder: no hub is needed")}, goes_to="slow-file-system"),
    Story("hub:1", {"hub": Saw("hub-reach: HF_HUB_OFFLINE is set: nothing is downloaded", "exit 1")}),
    Story("hub:2", {"hub": Saw("hub-reach: https://hf.co is not reached: timed out (proxy: none)", "exit 1")}),
    Story("hub:3", {"hub": Saw("hub-reach: https://hf.co says that m is gated (status 401, with a token)", "exit 1")}),
    Story("hub:4", {"hub": Saw(KNOWN + "hub-reach: the weights do not arrive: timed out (proxy: none)", "exit 1")}),
    Story("hub:5", {"hub": Saw(KNOWN + "hub-reach: weights arrive at 1.4 MiB/s")}),
    Story("hub:6", {"hub": Saw(KNOWN + "hub-reach: weights arrive at 84.2 MiB/s")}),
    Story("hub:7", {"hub": Saw("Traceback", "exit 1")}),
    Story("offline:0", {"offline": Saw("INFO:     Application startup complete.", "match")}),
    Story("offline:1", {"offline": Saw("huggingface_hub.errors.LocalEntryNotFoundError: Cannot find", "exit 1")}),
    Story("offline:2", {"offline": Saw("", "watch")}, goes_to="slow-file-system"),
    Story("offline:3", {"offline": Saw("ValueError: no", "exit 1")}),
)  # fmt: skip
SHARDS = "Loading safetensors checkpoint shards:  10% Completed | 3/30 [01:12<10:51, 24.12s/it]"
NFS = "read-speed: 131.42 GiB in 30 files on nfs4 (a shared file system: filer:/models)\n"
DISK = "read-speed: 131.42 GiB in 30 files on ext4 (local: /dev/sda1)\n"
SLOW: tuple[Story, ...] = (
    Story("speed:0", {"speed": Saw("read-speed: no model is named on the command line", "exit 2")}),
    Story("speed:1", {"speed": Saw("read-speed: no weights of org/model are here", "exit 2")}),
    Story("speed:2", {"speed": Saw(f"{DISK}read-speed: memory is short: 131.42 GiB of weights, 64.00 GiB available")}),
    Story("speed:3", {"speed": Saw(NFS + SPEEDS.format(2100, "14.20"))}),
    Story("speed:4", {"speed": Saw(DISK + SPEEDS.format(120, "8.00"))}),
    Story("speed:5", {"speed": Saw(NFS + SPEEDS.format(2100, "0.40"))}),
    Story("speed:6", {"speed": Saw("Traceback", "exit 1")}),
    Story("dummy:skipped", argv=("./a.out",)),
    Story("dummy:0", {"dummy": Saw("INFO:     Application startup complete.", "match")}),
    Story("dummy:1", {"dummy": Saw("Out of memory: Killed process 4711 (python3)", "signal 9")}, goes_to="host-crash"),
    Story("dummy:2", {"dummy": Saw("", "timeout")}, goes_to="kernel-hang"),
    Story("dummy:3", {"dummy": Saw("ValueError: no", "exit 1")}),
    Story("prefetch:0", {"prefetch": Saw("INFO:     Application startup complete.", "match")}),
    Story("prefetch:1", {"prefetch": Saw(SHARDS, "exit 1")}),
    Story("prefetch:2", {"prefetch": Saw("", "watch")}),
    Story("prefetch:3", {"prefetch": Saw("ValueError: no", "exit 1")}),
)  # fmt: skip
BOOKS: Mapping[str, tuple[Story, ...]] = {
    "no-core-dump": NO_DUMP,
    "core-dump-too-large": LARGE,
    "missing-source-lines": LINES,
    "model-download-hangs": DOWNLOAD,
    "slow-file-system": SLOW,
}
# What a step sees that a story says nothing of: the way to the next one.
USUAL: Mapping[str, Saw] = {
    "setup": Saw(ROOM),
    "probe": Saw("dump-probe: no driver library (absent)", "exit 2"),
    "light": Saw(f"{IMA}\n{WROTE}", "signal 6", (2 << 30,)),
    "files": Saw(f"model-files: org/model is not here (looked in /m)\n{FREE}", "exit 1"),
    "hub": Saw(KNOWN + "hub-reach: weights arrive at 84.2 MiB/s"),
    "speed": Saw(NFS + SPEEDS.format(2100, "0.40")),
    "dummy": Saw("INFO:     Application startup complete.", "match"),
}
INPUTS: Mapping[str, Mapping[str, str]] = {"missing-source-lines": {"core": "/c"}}


class Teller:
    """Walks one story and keeps which outcome each step took."""

    def __init__(self, name: str, story: Story, folder: Path) -> None:
        self.story = story
        self.folder = folder
        self.bench = Bench(folder)
        self.runbook = _marked(shipped(name))
        self.inputs = final_inputs(self.runbook, {**INPUTS.get(name, {}), **story.inputs}, story.argv, {})

    def told(self) -> tuple[RunState, Decision]:
        state, decision = machine.start(self.runbook, self.inputs, Facts(data_dir=str(RUNBOOKS)))
        for _ in range(30):
            if isinstance(decision, Finish | BranchTo):
                return state, decision
            state, decision = machine.advance(state, self.answer(decision))
        raise AssertionError("the story has no end")

    def answer(self, decision: Decision) -> StepResult:
        match decision:
            case RunStep():
                seen = self.see(decision)
                results: dict[str, ResultValue] = {}
                for reader in decision.readers:
                    results |= self.bench.steps().read(reader, (seen,), self.bench.progress).results
                return StepResult(step=decision.invocation.step, observations=(seen,), results=results)
            case UseBuiltin(step=step, name=name):
                usual: Mapping[str, ResultValue] = {"gpus": 1, "xids": []} if name == "gpu-health" else {}
                return StepResult(step=step, results=self.story.gives.get(step, usual))
            case _:
                assert not isinstance(decision, AskPerson)
                raise AssertionError(decision)

    def see(self, decision: RunStep) -> Observation:
        """Leave behind what the story says, and have the tool's own matchers and artifact rules look at it."""
        step = decision.invocation.step
        saw = self.story.sees.get(step, USUAL.get(step, Saw("ValueError: no", "exit 1")))
        directory = self.folder / "steps" / step / "1" / "localhost-0"
        directory.mkdir(parents=True)
        reached = 'vdbg-env: engine arguments applied: {"a": 1}\n' if VARIABLE in decision.invocation.env else ""
        (directory / "stderr").write_text(f"{reached}{saw.text}\n")
        for number, _ in enumerate(saw.cores):
            (directory / f"core.cuda.n.{number}.1").touch()
        by, _, number_text = saw.ended.partition(" ")
        ended = {"by": by} | ({{"exit": "code", "signal": "signal"}[by]: int(number_text)} if number_text else {})
        (directory / "ended.json").write_text(json.dumps(ended))
        seen = ReplayedStep(decision.invocation, directory.resolve()).wait()
        assert seen is not None
        assert WITNESS.name in seen.matched or not reached
        sized = {
            name: tuple(replace(one, size=size) for one, size in zip(left, saw.cores, strict=True))
            for name, left in seen.artifacts.items()
        }
        bare = WorkerEnvironment(pid=2, name="python3", seen=dict.fromkeys(decision.invocation.env))
        seen = replace(seen, workers=(bare,) if saw.bare else ())
        return replace(seen, artifacts=sized)  # a core of gigabytes need not be there to be told of


def _marked(runbook: Runbook) -> Runbook:
    """Have every outcome make a finding whose rule is its own number, so that the record tells which was taken."""
    steps = (
        step.model_copy(update={"outcomes": tuple(_numbered(n, o) for n, o in enumerate(step.outcomes))})
        for step in runbook.steps
    )
    return runbook.model_copy(update={"steps": tuple(steps)})


def _numbered(number: int, outcome: Outcome) -> Outcome:
    return outcome.model_copy(update={"rule": f"outcome:{number}", "how_known": HowKnown.LOG})


def taken(state: RunState) -> set[str]:
    skipped = {f"{record.step}:skipped" for record in state.trail if record.skipped_because}
    return skipped | {
        f"{record.step}:{finding.rule.removeprefix('outcome:')}"
        for record in state.trail
        for finding in record.findings
        if finding.rule.startswith("outcome:")
    }


@pytest.mark.parametrize(
    ("name", "story"),
    [(name, story) for name, stories in BOOKS.items() for story in stories],
    ids=lambda x: getattr(x, "takes", x),
)
def test_a_story_takes_its_outcome_fills_its_texts_and_leads_on(name: str, story: Story, tmp_path: Path) -> None:
    state, end = Teller(name, story, tmp_path).told()
    assert story.takes in taken(state)
    assert (end.runbook if isinstance(end, BranchTo) else None) == story.goes_to
    assert [note for record in state.trail for note in record.notes if "no such" in note or "undeclared" in note] == []


@pytest.mark.parametrize("name", BOOKS)
def test_no_outcome_is_without_a_story(name: str) -> None:
    runbook = shipped(name)
    own = [step for step in runbook.steps if step.id not in BORROWED]
    wanted = {f"{step.id}:{number}" for step in own for number, _ in enumerate(step.outcomes)}
    wanted |= {f"{step.id}:skipped" for step in own if step.condition} - NEVER_CAME_TO
    assert {story.takes for story in BOOKS[name]} == wanted


def test_variables_that_did_not_reach_the_worker_are_a_finding_of_their_own(tmp_path: Path) -> None:
    state, _ = Teller("no-core-dump", NO_DUMP[12], tmp_path).told()
    record = next(x for x in reversed(state.trail) if x.step == "armed")
    assert record is not None
    assert (record.outcome, [f.rule for f in record.findings]) == ("error", ["outcome:0"])


def test_a_command_that_could_not_be_started_is_not_explained_by_its_variables(tmp_path: Path) -> None:
    story = Story("armed:0", {"armed": Saw("", "not_started")})
    state, _ = Teller("no-core-dump", story, tmp_path).told()
    record = next(x for x in reversed(state.trail) if x.step == "armed")
    assert (record.outcome, [f.rule for f in record.findings]) == ("error", ["not-started"])
