"""A second, healthy vLLM on the machine gets no request, ever: its own access log is what counts them."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ladder import outcomes
from tests.support.patience import patience
from tests.vllm_real.server import RealVllm, Server, free_port, keep_record, left_of

pytestmark = [pytest.mark.vllm, pytest.mark.long]

ROOT = Path(__file__).parents[2]
FAULT = {"request": 2, "when": [], "kind": "illegal-access"}
ASKED = re.compile(r'"(?:GET|POST) (/[^ ]*) HTTP')


def asked(server: Server) -> list[str]:
    """Return the path of each request that a server has logged."""
    return ASKED.findall(server.text())


@pytest.fixture
def healthy(vllm_cpu: RealVllm, tmp_path: Path) -> Iterator[Server]:
    """Yield a server in production, next to which the runs of a test take place; it still answers at the end."""
    port = free_port()
    argv = vllm_cpu.serve(port, "--enforce-eager")
    with Server(argv, vllm_cpu.environment(), port, tmp_path / "healthy.log") as server:
        server.wait_until_ready()
        mine = len(asked(server))
        yield server
        assert asked(server)[mine:] == []
        assert server.process.poll() is None
        assert server.ask("GET", "/health", None).status == 200


def vdbg_env(vllm: RealVllm, folder: Path, *words: str, fault: bool = True) -> subprocess.CompletedProcess[str]:
    given = {"VDBG_TEST_FAULT": json.dumps(FAULT)} if fault else {}
    env = vllm.environment(**given)
    env["PYTHONPATH"] = f"{ROOT / 'builder'}{os.pathsep}{env['PYTHONPATH']}"
    return subprocess.run(
        [sys.executable, "-m", "vdbg_env", *words],
        env=env, cwd=folder, capture_output=True, text=True, timeout=2400, check=False,
    )  # fmt: skip


def report_of(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ran.stdout, f"no report, status {ran.returncode}:\n{ran.stderr[-4000:]}"
    report: dict[str, Any] = json.loads(ran.stdout)
    keep_record(report)
    return report


def test_a_run_at_the_port_of_a_healthy_server_stops_and_one_at_a_free_port_traces_the_failure(
    vllm_cpu: RealVllm, healthy: Server, tmp_path: Path
) -> None:
    workload = vllm_cpu.serve(healthy.port, "--enforce-eager")
    ladder = ("runbook", "illegal-memory-access", "--batch", "--json", "-i", "quick=true", "-i", "request=synthetic")
    refused = vdbg_env(vllm_cpu, tmp_path, *ladder, "--", *workload)
    assert refused.returncode == 2
    assert f"port {healthy.port} is taken: process {healthy.process.pid} (" in refused.stderr
    assert "-i port=auto" in refused.stderr
    report = report_of(vdbg_env(vllm_cpu, tmp_path, *ladder, "-i", "port=auto", "--", *workload))
    assert outcomes(report)["baseline"] == "reproduced"
    (run,) = (tmp_path / "vdbg-runs").glob("*-illegal-memory-access-*")
    assert left_of(run) == []
    (baseline,) = [step for step in report["steps"] if step["id"] == "baseline"]
    assert str(healthy.port) not in baseline["argv"]


def test_synthetic_requests_reach_a_healthy_step_and_all_are_answered(
    vllm_cpu: RealVllm, healthy: Server, tmp_path: Path
) -> None:
    words = ("runbook", "launch-config", "--batch", "--json", "-i", "request=synthetic", "-i", "port=auto", "--")
    report = report_of(
        vdbg_env(vllm_cpu, tmp_path, *words, *vllm_cpu.serve(healthy.port, "--enforce-eager"), fault=False)
    )
    assert outcomes(report)["baseline"] == "not_reproduced"
    attempts = sorted((tmp_path / "vdbg-runs").glob("*/steps/baseline/*/*"))
    assert attempts
    for attempt in attempts:
        counts = json.loads((attempt / "ended.json").read_bytes())["requests"]
        assert counts["answered"] == counts["recorded"] == counts["sent"] > 16, counts
        arrived = (attempt / "stdout").read_text().count("POST /v1/completions")
        assert arrived == counts["sent"] + 1, "one more, which finds the path that takes them"


def test_the_next_step_of_a_guard_leaves_the_server_alone_that_was_started_again_at_its_port(
    vllm_cpu: RealVllm, recorded_requests: Path, tmp_path: Path
) -> None:
    port = free_port()
    serve = vllm_cpu.serve(port, "--enforce-eager")
    env = vllm_cpu.environment(VDBG_TEST_FAULT=json.dumps(FAULT))
    env["PYTHONPATH"] = f"{ROOT / 'builder'}{os.pathsep}{env['PYTHONPATH']}"
    runs = tmp_path / "vdbg-runs"
    argv = [sys.executable, "-m", "vdbg_env", "guard", "--runs", str(runs), "--", *serve]
    with Server(argv, env, port, tmp_path / "guarded.log") as guarded:
        guarded.wait_until_ready()
        guarded.replay(recorded_requests, timeout_s=20)
        guarded.wait(patience(300))
        said = json.loads(guarded.text().splitlines()[-1])
    assert "-i request=synthetic -i port=auto --from" in said["next"]
    with Server(serve, vllm_cpu.environment(), port, tmp_path / "again.log") as again:
        again.wait_until_ready()
        mine = len(asked(again))
        words = shlex.split(said["next"])[1:]
        report = report_of(vdbg_env(vllm_cpu, tmp_path, *words, "-i", "quick=true", "--batch", "--json"))
        assert outcomes(report)["baseline"] == "reproduced"
        assert asked(again)[mine:] == []
        assert again.ask("GET", "/health", None).status == 200
