"""Measure what many ranks cost once they have ended: their ends collected, judged, recorded and reported.

    PYTHONPATH=builder:. python -m benchmarks.fleet [--ranks 16 64 256 1000]

The ranks are simulated: each has its folder with output and its file in `ended`, as the real ones leave them, one
crashed and the others were torn down. The engine's own code reads them, runs a step of a runbook to its end and writes
the report in all four formats, in a process of its own, whose peak memory is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vdbg_env.common.programs import Programs
from vdbg_env.crash.files import CoreFiles, SourceFiles
from vdbg_env.evidence.finding import Ended, EndedBy, Match, Observation, RankClock, WorkerEnvironment
from vdbg_env.record.progress import to_document
from vdbg_env.record.run_directory import RunDirectory, RunHead
from vdbg_env.report.assemble import run_report
from vdbg_env.report.pages import write_report
from vdbg_env.run.execute import Execution
from vdbg_env.run.orders import ENDED, KEY, NODE, SEAL, Orders, sealed
from vdbg_env.run.placement import Layout
from vdbg_env.run.ranks import EndingRule, FollowedAttempt, RankRecords
from vdbg_env.runbook import machine
from vdbg_env.runbook.model import Command, Outcome, Run, Runbook, Status
from vdbg_env.runbook.state import Facts, Invocation, StepResult
from vdbg_env.supervisor.job import Job
from vdbg_env_slurm.placement import SlurmCommands, SlurmStep

OUTPUT = 64 << 10
MATCHES, WORKERS = 5, 9  # of each rank: a node with eight GPUs has eight workers and their engine


class Simulated:
    """A StepPlacement whose ranks have all ended as soon as they begin."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def layout(self, invocation: Invocation) -> Layout:
        return Layout(ranks=self.ranks)

    def start(self, invocation: Invocation, directory: Path) -> FollowedAttempt:
        job = Job(directory=".", argv=(), env={}, cwd="/")
        orders = Orders(
            directory=str(directory), step=invocation.step, attempt=1, first=job, others=job, rank_from="", artifacts=()
        )
        step = SlurmStep(
            directory=directory, records=RankRecords(directory, orders), ranks=self.ranks,
            slurm=SlurmCommands(Programs()), job="1", name="simulated", process=None,
        )  # fmt: skip
        return FollowedAttempt(step, self.ranks, EndingRule(invocation, directory))

    def adopt(self, invocation: Invocation, directory: Path) -> None:
        return None


class Nothing:
    """The ports that this run does not use."""

    def use(self, order: object, context: object) -> StepResult:
        raise AssertionError(order)

    def read(self, *_: object) -> object:
        raise AssertionError

    def ask(self, question: object) -> str | None:
        return None

    def pending(self) -> tuple[int, ...]:
        return ()


def written(attempt: Path, ranks: int) -> None:
    """Write what so many ranks leave behind."""
    (attempt / ENDED).mkdir(parents=True)
    printed = (b"(Worker pid=1) INFO 01-01 00:00:00 [core.py:1] step\n" * (OUTPUT // 52))[:OUTPUT]
    for rank in range(ranks):
        folder = attempt / f"node{rank // 8:03d}-{rank}"
        folder.mkdir()
        (folder / "stdout").write_bytes(printed)
        (folder / NODE).write_text(json.dumps({SEAL: sealed(str(rank))}))
        ended = {**to_document(seen(attempt, rank, ranks)), KEY: str(rank)}
        (attempt / ENDED / str(rank)).write_text(json.dumps(ended))


def seen(attempt: Path, rank: int, ranks: int) -> Observation:
    """Return the end of one rank: that in the middle crashed, the others were ended by us."""
    crashed = rank == ranks // 2
    match = Match(
        matcher="m", stream="stderr", line=1, offset=0, text="NCCL WARN Connection closed by remote peer " * 3
    )
    return Observation(
        step="baseline", attempt=1, rank=rank, host=f"node{rank // 8:03d}", duration_s=60.0 + rank / 1000, started=1e9,
        ended=Ended(by=EndedBy.SIGNAL, signal=11) if crashed else Ended(by=EndedBy.PEER, signal=15),
        clock=RankClock(ahead_s=0.0, within_s=0.02), matched={"m": (match,) * MATCHES}, output_bytes=OUTPUT,
        workers=tuple(WorkerEnvironment(pid=n, name="VLLM::Worker", seen={}) for n in range(WORKERS)),
        node={"driver": "580.82", "kernel": "6.8"}, directory=f"steps/baseline/1/node{rank // 8:03d}-{rank}",
    )  # fmt: skip


def measure(ranks: int) -> None:
    """Run one simulated attempt to its report and print one JSON line of figures."""
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "run")
        directory.create()
        written(directory.path / "steps" / "baseline" / "1", ranks)
        step = Run(id="baseline", title="As given", command="work", outcomes=(Outcome(status=Status.REPRODUCED),))
        runbook = Runbook(
            name="fleet", title="fleet", steps=(step,), commands={"work": Command(name="work", argv=("x",))}
        )
        state = machine.start(runbook, {}, Facts(on="slurm"))[0]
        head = RunHead(run="run", runbook="fleet")
        none = Nothing()
        end = Execution(
            directory=directory, head=head, state=state, start_branch=lambda _: state,
            placement=Simulated(ranks), builtins=none, person=none, interrupts=none,  # type: ignore[arg-type]
        )  # fmt: skip
        worked, began = time.process_time(), time.perf_counter()
        end.to_its_end()
        ran = time.perf_counter()
        report = run_report(
            head, end.progress, directory.path, cores=CoreFiles(), sources=SourceFiles((), ()), redact=str,
            elapsed_s=end.elapsed_s, finish=end.finish,
        )  # fmt: skip
        write_report(report, directory.path, ("html", "markdown", "json"))
        done = time.perf_counter()
        figures = {
            "ranks": ranks,
            "collected_s": round(ran - began, 2),
            "reported_s": round(done - ran, 2),
            "processor_s": round(time.process_time() - worked, 2),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            "events_kib": directory.events.stat().st_size >> 10,
            "report_kib": sum(path.stat().st_size for path in directory.path.glob("report.*")) >> 10,
        }
        assert "failed first" in " ".join(report.steps[0].notes)
    print(json.dumps(figures))


def main() -> None:
    """Measure each number of ranks in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64, 256, 1000])
    parser.add_argument("--one", type=int)
    given = parser.parse_args()
    if given.one:
        measure(given.one)
        return
    print(
        f"{'ranks':>6} {'collected':>10} {'reported':>9} {'processor':>10}"
        f" {'peak memory':>12} {'events':>10} {'reports':>10}"
    )
    for ranks in given.ranks:
        argv = [sys.executable, "-m", "benchmarks.fleet", "--one", str(ranks)]
        done = subprocess.run(argv, env=os.environ, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        print(
            f"{found['ranks']:6} {found['collected_s']:8.2f} s {found['reported_s']:7.2f} s"
            f" {found['processor_s']:8.2f} s {found['peak_mib']:8} MiB"
            f" {found['events_kib']:6} KiB {found['report_kib']:6} KiB"
        )


if __name__ == "__main__":
    main()
