"""A runbook of two steps for the ranks of a job, and the command line that runs it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.slurm.cluster import Allocated
from tests.support.patience import patience

VDBG = str(Path(sys.executable).parent / "vdbg-env")
RUNBOOK = """
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: ranks, title: Ranks}
spec:
  inputs:
    argv: {type: array, required: true}
  commands:
    workload: {argv: "${{ inputs.argv }}", kill: {grace: 2s}, placement: {on_first_failure: {wait: 600s}}}
  steps:
    - id: first
      run: workload
      outcomes:
        - reproduced: {when: "!ended.clean", message: "${{ ranks.failed }} of ${{ ranks.count }} failed", next: second}
        - not_reproduced: {next: second}
    - id: second
      run: workload
      env: {SECOND: "1"}
      outcomes:
        - reproduced: {when: "!ended.clean", message: "rank ${{ ended.rank }} failed", next: end}
        - not_reproduced: {next: end}
"""
# The first step waits for a file, the second one ends at once: rank 1 with status 3.
WORKLOAD = """
import os, sys, time
rank = int(os.environ["SLURM_PROCID"])
if os.environ.get("SECOND"):
    raise SystemExit(3 if rank == 1 else 0)
open(f"{sys.argv[1]}/runs-{rank}", "w").close()
while not os.path.exists(f"{sys.argv[1]}/go"):
    time.sleep(0.05)
"""


def engine(allocation: Allocated, *words: str) -> "subprocess.Popen[str]":
    """Start the command line inside an allocation, as a user does."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [VDBG, "runbook", *words], env={**os.environ, **allocation.environment}, stdout=pipe, stderr=pipe, text=True
    )


def resumed(run: Path, allocation: Allocated) -> "subprocess.CompletedProcess[str]":
    """Continue a run in another allocation, to its end."""
    ran = engine(allocation, "--resume", str(run), "--batch")
    out, said = ran.communicate(timeout=patience(120))
    return subprocess.CompletedProcess(ran.args, ran.returncode, out, said)


def ends(report: Mapping[str, Any], step: str) -> list[str]:
    (found,) = [one for one in report["steps"] if one["id"] == step]
    return [one["ended"]["by"] for one in sorted(found["attempts"], key=lambda one: one["rank"])]
