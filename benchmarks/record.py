"""Measure what reading records costs: a list of ten thousand runs, and a run of a million events.

    PYTHONPATH=builder:. python -m benchmarks.record [--runs N] [--events N]

The million events are those of a run that was interrupted and resumed again and again: an attempt begins, is ended by
Ctrl-C, the run is resumed. The peer of the list is `ls -l` of the same folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.paired import compare, run_once

TOOL = (sys.executable, "-m", "vdbg_env")
RUNBOOK = """\
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: tiny, title: A tiny runbook}
spec:
  inputs: {argv: {type: array, required: true, description: The workload.}}
  commands: {workload: {argv: "${{ inputs.argv }}", timeout: 20s}}
  steps:
    - id: baseline
      name: Does it fail?
      run: workload
      outcomes:
        - not_reproduced: {when: ended.clean, next: end}
        - unresolved: {next: end}
"""


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("runbooks").mkdir()
        Path("runbooks/tiny.yaml").write_text(RUNBOOK)
        subprocess.run([*TOOL, "runbook", "tiny", "--batch", "--run-dir", "one", "--", "true"], check=True)
        listed(Path("one"), args.runs)
        long(Path("one"), args.events)


def listed(model: Path, count: int) -> None:
    """List `count` runs: with no index, then from the index."""
    home = Path("vdbg-runs")
    files = {name: (model / name).read_text() for name in ("run.json", "events.jsonl", "report.json")}
    for number in range(count):
        run = home / f"run-{number:06}"
        run.mkdir(parents=True)
        for name, text in files.items():
            (run / name).write_text(text)
    first = run_once([*TOOL, "runs", "list"])
    print(f"runs list of {count}, no index yet: {first[0]:.2f} s, {first[1]:.0f} MiB")
    print(compare((f"runs list of {count}", [*TOOL, "runs", "list"]), ("ls -l", ["ls", "-l", str(home)]), runs=5))
    print(compare(("runs list --json", [*TOOL, "runs", "list", "--json"]), ("ls -l", ["ls", "-l", str(home)]), runs=1))


def long(model: Path, count: int) -> None:
    """Show, report and resume a run of `count` events."""
    lines = [json.loads(line) for line in (model / "events.jsonl").read_text().splitlines()]
    write(model / "events.jsonl", chain(interrupted(lines, count), lines[-3:]))
    size = (model / "events.jsonl").stat().st_size / 2**20
    print(f"a log of {count} events, {size:.0f} MiB")
    figure("runs show", ["runs", "show", "one"])
    figure("runs report", ["runs", "report", "one"])
    write(model / "events.jsonl", interrupted(lines, count))
    figure("runbook --resume", ["runbook", "tiny", "--batch", "--resume", "one"])


def figure(name: str, command: Sequence[str]) -> None:
    """Print the time and the memory of one command."""
    wall, peak = run_once([*TOOL, *command])
    print(f"  {name:<20} {wall:7.1f} s {peak:7.0f} MiB")


def interrupted(lines: Sequence[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a run that is interrupted in its first step until there are nearly `count`."""
    started, first, ended = lines[:3]
    yield started
    for number in range(1, count // 4):
        where = f"steps/baseline/{number}/localhost-0"
        yield {**first, "attempt": number, "directory": where}
        seen = {**ended["observation"], "attempt": number, "ended": {"by": "cancel", "signal": 15}, "directory": where}
        yield {**ended, "observation": seen}
        yield {"at": ended["at"], "elapsed_s": ended["elapsed_s"], "kind": "run_interrupted", "signal": 2}
        yield {"at": ended["at"], "elapsed_s": ended["elapsed_s"], "kind": "run_resumed"}


def write(log: Path, events: Iterable[dict[str, Any]]) -> None:
    """Write the events to a log, numbered anew and one by one: a child's peak memory begins at ours."""
    with log.open("w") as file:
        for seq, event in enumerate(events, 1):
            head = {"seq": seq, "at": event["at"], "elapsed_s": event["elapsed_s"], "kind": event["kind"]}
            file.write(json.dumps({**head, **event, "seq": seq}) + "\n")


if __name__ == "__main__":
    main()
