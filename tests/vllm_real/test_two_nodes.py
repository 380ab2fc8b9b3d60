"""A real vLLM on two nodes of a real Slurm cluster: one engine, a rank on each, and the one that fails is named."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing
from tests.support.patience import patience
from tests.vllm_real.server import RealVllm, free_port
from vdbg_env.evidence.observation import EndedBy, Observation
from vdbg_env.evidence.system.ranks import first_failure
from vdbg_env.runbook.invocation import Invocation
from vdbg_env.runbook.model import KillPolicy, OnFirstFailure, Placement, Ready, ServerDriver, Watch

pytestmark = [pytest.mark.vllm, pytest.mark.long]

PARALLEL = ("--enforce-eager", "--tensor-parallel-size", "2")
READY_S = 600.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if why := missing():
        pytest.skip(why)
    found = Cluster(tmp_path_factory.mktemp("slurm") / "cluster", nodes=2)
    found.start()
    yield found
    found.verb("clean")


def served(
    vllm: RealVllm, cluster: Cluster, requests: Path, folder: Path, fault: Mapping[str, object], watch: Watch
) -> dict[int, Observation]:
    """Serve on two nodes, send the requests at the first, and return what became of each rank."""
    attempt = folder / "run" / "steps" / "step" / "1"
    attempt.mkdir(parents=True)
    port, master = free_port(), free_port()
    argv = (*vllm.serve(port, *PARALLEL, "--master-port", str(master)),)
    environment = vllm.environment(
        VDBG_TEST_FAULT=json.dumps({"request": 2, "when": [], "rank": 1, **fault}),
        VLLM_HOST_IP="127.0.0.1",
        GLOO_SOCKET_IFNAME="lo",
        VLLM_CPU_OMP_THREADS_BIND="${{ rank.number }}",
        VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS="120",
    )
    invocation = Invocation(
        step="step", attempt=1, argv=argv, base_argv=argv, env=dict(environment), server=True, verify_env=False,
        timeout_s=patience(900.0), kill=KillPolicy(grace_s=3.0), watch=watch,
        driver=ServerDriver(
            replay=str(requests), ready=Ready(http=f"http://127.0.0.1:{port}/health", timeout_s=patience(READY_S))
        ),
        placement=Placement(on_first_failure=OnFirstFailure(wait_s=10.0)),
    )  # fmt: skip
    with cluster.allocated(2) as allocation:
        seen = allocation.ranks(attempt).start(invocation, attempt).wait(patience(1200.0))
    assert seen is not None
    return {one.rank: replace(one) for one in seen}


def test_the_rank_that_crashed_is_named(
    vllm_cpu: RealVllm, cluster: Cluster, recorded_requests: Path, tmp_path: Path
) -> None:
    seen = served(vllm_cpu, cluster, recorded_requests, tmp_path, {"kind": "segfault"}, Watch())
    first = first_failure(seen.values())
    assert first is not None
    assert (first.rank, first.host) == (1, "n1"), {rank: one.ended for rank, one in seen.items()}


def test_the_stack_of_the_rank_that_hangs_is_kept(
    vllm_cpu: RealVllm, cluster: Cluster, recorded_requests: Path, tmp_path: Path
) -> None:
    seen = served(vllm_cpu, cluster, recorded_requests, tmp_path, {"kind": "spin"}, Watch(output_idle_s=patience(45.0)))
    assert seen[1].ended.by in {EndedBy.WATCH, EndedBy.PEER}
    stacks = (tmp_path / "run" / seen[1].directory / "hang.txt").read_text()
    assert "VLLM::Worker" in stacks or "vllm" in stacks
