"""What the slow tests share."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.killing import left_running
from tests.support.ladder import RUNBOOK, WORKLOADS, lay_out
from vdbg_env.cli import main


@pytest.fixture
def walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """Run the shipped illegal-memory-access on the fake vLLM with a fault, and return the report."""
    for name, value in lay_out(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VDBG_ENV_RUNS", raising=False)

    def run(
        fault: str,
        *flags: str,
        core: str = "ima.core",
        python: bool = False,
        command: Sequence[str] = ("bench", "throughput", "-tp", "2"),
        **env: str,
    ) -> dict[str, Any]:
        monkeypatch.setenv("FAKE_VLLM", fault)
        monkeypatch.setenv("FAKE_VLLM_CORE", str(tmp_path / core))
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        workload = [sys.executable, str(WORKLOADS / "fake_vllm.py"), "-tp", "2"] if python else ["vllm", *command]
        main(["runbook", RUNBOOK, "--batch", "--json", *flags, "--", *workload])
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert left_running(Path(tmp_path / "vdbg-runs" / report["run"])) == []
        return report

    return run
