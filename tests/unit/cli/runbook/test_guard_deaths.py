"""One fingerprint for each way to die: a worker's peer raises the same error whichever it was.

The parent here stands in for vLLM's engine: it prints vLLM 0.32's words, and raises what that raises.
"""

import json
from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env
from tests.unit.cli.runbook.test_guard import guarded, the_run

ENDS = {
    "SIGSEGV": "os.kill(os.getpid(), 11)",
    "SIGABRT": "os.abort()",
    "SIGKILL": "os.kill(os.getpid(), 9)",
    "exit status 3": "os._exit(3)",
}
ENGINE = """
import os, sys, time
child = os.fork()
if child == 0:
    with open('/proc/self/comm', 'w') as name:
        name.write('VLLM::Worker')
    time.sleep(0.8)
    {end}
_, status = os.waitpid(child, 0)
code = os.waitstatus_to_exitcode(status) if {looks} else None
print(f"(EngineCore pid={{os.getpid()}}) ERROR 11-23 07:07:46 [multiproc_executor.py:315] Worker proc VllmWorker-0 "
      f"died unexpectedly (exit code: {{code}}), shutting down executor.", flush=True)
raise RuntimeError("cancelled")
"""


@pytest.mark.parametrize("how", ENDS)
def test_the_process_that_died_and_how_are_the_cause(tmp_path: Path, how: str) -> None:
    said = guarded(tmp_path, ENGINE.format(end=ENDS[how], looks=False)).said
    assert said is not None
    assert how in said["found"] and said["found"].startswith("Worker ")
    assert said["process"] == "Worker"
    report = json.loads((the_run(tmp_path) / "report.json").read_bytes())
    assert report["fingerprint"]["exception"] == f"{how} of Worker"
    assert report["steps"][0]["attempts"][0]["deaths"][0]["name"] == "VLLM::Worker"


@pytest.mark.parametrize("end", ["os._exit(1)", "os.abort()"])
def test_a_cuda_error_that_a_process_printed_before_it_ended_itself_is_the_cause(tmp_path: Path, end: str) -> None:
    """As vLLM's custom all-reduce does, in its words: it prints, and calls `exit`; there is no traceback of it."""
    words = "Failed: Cuda error /v/csrc/custom_all_reduce.cuh:455 'an illegal memory access was encountered'"
    said = guarded(tmp_path, ENGINE.format(end=f"print({words!r}, flush=True); {end}", looks=False)).said
    assert said is not None
    assert "an illegal memory access was encountered" in said["found"]
    assert (said["process"], said["next"].split()[2]) == ("Worker", "illegal-memory-access")
    report = json.loads((the_run(tmp_path) / "report.json").read_bytes())
    assert (report["fingerprint"]["kind"], report["fingerprint"]["exception"]) == ("gpu", "cudaErrorIllegalAddress")


def test_runs_of_an_older_release_are_grouped_with_new_ones_and_by_how_they_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VDBG_ENV_RUNS", str(tmp_path / "runs"))
    for how in ("SIGKILL", "SIGKILL", "exit status 3", "SIGABRT"):
        assert guarded(tmp_path, ENGINE.format(end=ENDS[how], looks=True)).said
    runs = sorted((tmp_path / "runs").glob("*-guard-*"))
    for run in runs[1:]:  # as the release before wrote them
        report = json.loads((run / "report.json").read_bytes())
        report["fingerprint"] = {
            "id": "6e3317b76361304c", "base": "9120c8ee8e29f3e2", "kind": "exception", "exception": "RuntimeError",
            "kernel": None, "frames": ["multiproc_executor.py get_response"],
        }  # fmt: skip
        for step in report["steps"]:
            step["results"] = {
                n: v
                for n, v in step["results"].items()
                if n not in {"died", "failed_process", "failed_rank", "failed_pid"}
            }
            for attempt in step["attempts"]:
                del attempt["deaths"]
        (run / "report.json").write_text(json.dumps(report))
    listed = vdbg_env("runs", "list", "--group", "--json")
    groups = json.loads(listed.stdout)["groups"]
    assert {group["exception"]: group["crashes"] for group in groups} == {
        "SIGKILL of Worker": 2, "exit status 3 of Worker": 1, "SIGABRT of Worker": 1,
    }  # fmt: skip


def test_a_crash_that_a_fleet_has_seen_before_says_how_often_and_on_how_many_nodes(tmp_path: Path) -> None:
    """The folder of runs is shared: the records of the first two are given other hosts' names."""
    crash = ENGINE.format(end=ENDS["SIGABRT"], looks=False)
    for number in range(2):
        assert guarded(tmp_path, crash).said
        newest = max((tmp_path / "runs").glob("*-guard-*"))
        head = json.loads((newest / "run.json").read_bytes())
        (newest / "run.json").write_text(json.dumps(head | {"host": f"node{number}"}))
    said = guarded(tmp_path, crash).said
    assert said is not None
    assert said["seen"] == 3 and {"node0", "node1"} < set(said["seen_on"])
    assert said["history"].startswith("seen 3 times on 3 nodes since 20")
    assert "seen 3 times on 3 nodes" in Path(said["report"]).read_text()
