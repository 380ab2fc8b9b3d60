"""Measure what running a step costs: overhead next to the child, matching and redaction, hangs, memory.

    PYTHONPATH=builder:. python benchmarks/execution.py [--gib N]

The peer for matching is grep (and ripgrep where it is installed) with the same patterns over the same file, in turn
with ours; grep only matches, the supervisor also redacts and writes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from vdbg_env.common.patterns import LineMatcher, Matchers, MatcherSpec, SearchTimer
from vdbg_env.evidence.finding import Observation
from vdbg_env.record.event_log import Event
from vdbg_env.record.progress import Progress
from vdbg_env.record.redactor import Redactor
from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.run.attempt import OneRank
from vdbg_env.run.execute import Execution
from vdbg_env.run.job import StepSettings
from vdbg_env.run.local import LocalProcesses
from vdbg_env.runbook import machine
from vdbg_env.runbook.model import (
    Builtin,
    Command,
    End,
    KillPolicy,
    Matcher,
    Outcome,
    OutputPolicy,
    Run,
    Runbook,
    Status,
    ToStep,
    Watch,
)
from vdbg_env.runbook.state import AskPerson, Facts, Invocation, StepResult, UseBuiltin

PATTERNS = (
    "an illegal memory access was encountered|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY",
    "misaligned address|device-side assert triggered|unspecified launch failure|no kernel image is available",
    r"Initializing an? (V1 )?LLM engine \(v[^)]+\)",
    r"NVRM: Xid \(PCI:[^)]*\): [0-9]+",
)
LOG = (
    "(EngineCore pid={pid}) INFO 11-21 07:35:{s:02d} [loggers.py:248] Engine 000: Avg prompt throughput: {a} tokens/s, "
    "Running: {b} reqs, GPU KV cache usage: 3.1%\n",
    '(APIServer pid={pid}) INFO:     127.0.0.1:{b} - "POST /v1/completions HTTP/1.1" 200 OK\n',
    "(Worker_TP0 pid={pid}) DEBUG 11-21 07:35:{s:02d} [gpu_model_runner.py:3417] batch {a} x {b}\n",
)


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=1.0, help="output for the memory figure")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        overhead(home)
        matching(home)
        redaction()
        hangs(home)
        memory(home, args.gib)


def overhead(home: Path, runs: int = 40) -> None:
    """A step against a bare start of the same child, in turn: by the runner alone, then with its whole record."""
    for seconds in ("0", "0.2"):
        child = ("sleep", seconds)
        bare, ours, steps = [], [], runner(home)
        for number in range(runs):
            began = time.perf_counter()
            subprocess.run(child, check=True)
            bare.append(time.perf_counter() - began)
            where = place(home, f"overhead{seconds}-{number}")
            began = time.perf_counter()
            observe(steps, where, Invocation(step="step", attempt=1, argv=child))
            ours.append(time.perf_counter() - began)
        beside = [1000 * (a - b) for a, b in zip(ours, bare, strict=True)]
        show(
            f"a step of sleep {seconds}, next to its child", f"{statistics.median(beside):.1f} ms", spread(beside, "ms")
        )
        recorded = [
            1000 * (a - b) for a, b in zip(recorded_steps(home / f"run{seconds}", child, runs), bare, strict=True)
        ]
        show("  the same in a run, events and all", f"{statistics.median(recorded):.1f} ms", spread(recorded, "ms"))


def recorded_steps(home: Path, child: tuple[str, ...], count: int) -> list[float]:
    """Run a runbook of `count` such steps and return how many seconds each took, from event to event."""
    directory = RunDirectory(home)
    directory.create()
    steps = tuple(
        Run(
            id=f"s{number}",
            title="a step",
            command="child",
            outcomes=(Outcome(status=Status.PASS, next=ToStep(step=f"s{number + 1}") if number < count else End()),),
        )
        for number in range(1, count + 1)
    )
    runbook = Runbook(name="steps", title="steps", steps=steps, commands={"child": Command(name="child", argv=child)})
    ends: list[float] = []

    def note(event: Event, _walk: Progress) -> None:
        if event.kind in {"run_started", "step_finished"}:
            ends.append(time.perf_counter())

    execution = Execution(
        directory=directory,
        head=RunHead(run="steps", runbook="steps"),
        state=machine.start(runbook, {}, Facts())[0],
        start_branch=lambda _: machine.start(runbook, {}, Facts())[0],
        placement=OneRank(runner(home)),
        builtins=Nobody(),
        person=Nobody(),
        interrupts=Nobody(),
        listener=note,
    )
    with directory.locked():
        execution.to_its_end()
    return [after - before for before, after in pairwise(ends)]


class Nobody:
    """No person, no signals, no built-ins: the runbook asks for none."""

    def ask(self, _question: AskPerson) -> None:
        return None

    def pending(self) -> tuple[int, ...]:
        return ()

    def use(self, order: UseBuiltin, _progress: Progress) -> StepResult:
        raise NotImplementedError(order.name)

    def read(self, reader: Builtin, _seen: Sequence[Observation], _progress: Progress) -> StepResult:
        raise NotImplementedError(reader.name)


def matching(home: Path, size: int = 200 << 20, runs: int = 5) -> None:
    """Our matchers over a file in the scribe's chunks, against grep with the same patterns."""
    log = home / "log"
    write_log(log, size)
    ours = [size / matched_in(log) / 1e6 for _ in range(runs)]
    show("our matchers, five patterns", f"{statistics.median(ours):.0f} MB/s", spread(ours, "MB/s"))
    for name in ("grep", "rg"):
        program = shutil.which(name)
        if program is None:
            show(name, "not at hand", "")
            continue
        flags = ["-a", "-c", "-E"] if name == "grep" else ["-a", "-c", "--no-mmap"]
        command = [program, *flags, *(word for p in PATTERNS for word in ("-e", p)), str(log)]
        speeds = []
        for _ in range(runs):
            began = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, env={"LC_ALL": "C", "PATH": os.environ["PATH"]})
            speeds.append(size / (time.perf_counter() - began) / 1e6)
        show(f"{name}, the same patterns", f"{statistics.median(speeds):.0f} MB/s", spread(speeds, "MB/s"))
    log.unlink()


def matched_in(log: Path) -> float:
    """Return how many seconds our matchers take for a file."""
    specs = (MatcherSpec(name=p[:9], pattern=p, take="all") for p in PATTERNS)
    matchers = Matchers([LineMatcher(spec) for spec in specs], SearchTimer())
    began, lines, offset = time.perf_counter(), 0, 0
    with log.open("rb") as file:
        rest = b""
        while chunk := file.read(256 << 10):
            block, _, rest = (rest + chunk).rpartition(b"\n")
            matchers.look(block, "stdout", lines, offset)
            lines += block.count(b"\n") + 1
            offset += len(block) + 1
    return time.perf_counter() - began


def redaction(size: int = 64 << 20) -> None:
    """Redaction of a log with one secret in a thousand lines, and of random bytes."""
    text = b"".join(log_lines(1 << 20, secret_every=1000))
    for name, data in (("a log", text), ("random bytes", os.urandom(1 << 20))):
        stream, began, done = Redactor((b"some-known-value",)).stream(), time.perf_counter(), 0
        while done < size:
            for at in range(0, len(data), 256 << 10):
                stream.feed(data[at : at + (256 << 10)])
            done += len(data)
        show(f"redaction of {name}", f"{done / (time.perf_counter() - began) / 1e6:.0f} MB/s", "")


def hangs(home: Path, runs: int = 5) -> None:
    """How long after its watch a silent workload is ended, the grace of 0.2 s included."""
    late = []
    for number in range(runs):
        invocation = Invocation(
            step="step",
            attempt=1,
            argv=("sleep", "60"),
            watch=Watch(output_idle_s=1.0),
            kill=KillPolicy(grace_s=0.2),
        )
        began = time.perf_counter()
        observe(runner(home), place(home, f"hang{number}"), invocation)
        late.append(time.perf_counter() - began - 1.0)
    show("a hang is ended after its watch by", f"{statistics.median(late):.2f} s", spread(late, "s"))


def memory(home: Path, gib: float) -> None:
    """Memory the supervisor gains while output passes, and the rate."""
    block = b"".join(log_lines(1 << 20))
    (home / "block").write_bytes(block)
    count = int(gib * (1 << 30) / len(block))
    code = (
        f"import os\nblock = open({str(home / 'block')!r}, 'rb').read()\nfor _ in range({count}):\n"
        "    view = memoryview(block)\n    while view: view = view[os.write(1, view):]"
    )
    invocation = Invocation(
        step="step",
        attempt=1,
        argv=(sys.executable, "-c", code),
        output=OutputPolicy(limit=256 << 20),
        matchers=tuple(Matcher(name=f"p{n}", pattern=p) for n, p in enumerate(PATTERNS)),
    )
    directory = place(home, "memory")
    began = time.perf_counter()
    step = runner(home).start(invocation, directory)
    pid = json.loads((directory / "supervisor.json").read_text().splitlines()[0])["pid"]
    first, peak, seen = resident_kib(pid), 0, None
    while seen is None:
        seen = step.wait(0.2)
        peak = max(peak, resident_kib(pid))
    wall = time.perf_counter() - began
    rate = f"{seen.output_bytes / wall / 1e6:.0f} MB/s redacted, matched and written"
    show(f"memory gained over {gib:g} GiB of output", f"{(peak - first) / 1024:.1f} MiB", rate)


def runner(home: Path) -> LocalProcesses:
    return LocalProcesses(StepSettings(env={"PATH": os.environ["PATH"]}, cwd=home, mark=str(home)))


def place(home: Path, name: str) -> Path:
    directory = home / name / "steps" / "step" / "1" / "localhost-0"
    directory.mkdir(parents=True)
    return directory


def observe(steps: LocalProcesses, where: Path, invocation: Invocation) -> Observation:
    seen = steps.start(invocation, where).wait(60)
    assert seen is not None
    return seen


def write_log(path: Path, size: int) -> None:
    block = b"".join(log_lines(1 << 20))
    with path.open("wb") as file:
        for _ in range(size // len(block)):
            file.write(block)


def log_lines(size: int, *, secret_every: int = 0) -> list[bytes]:
    lines, total, number = [], 0, 0
    while total < size:
        text = LOG[number % len(LOG)].format(pid=4711 + number % 8, s=number % 60, a=number * 7 % 9000, b=number % 999)
        if secret_every and number % secret_every == 0:
            text = f"HF_TOKEN=hf_{number:032d}\n"
        lines.append(text.encode())
        total += len(lines[-1])
        number += 1
    return lines


def resident_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


def spread(values: list[float], unit: str) -> str:
    return f"{min(values):.2f} to {max(values):.2f} {unit} in {len(values)} runs"


def show(what: str, figure: str, more: str) -> None:
    print(f"{what:<44} {figure:>14}   {more}", flush=True)


if __name__ == "__main__":
    main()
