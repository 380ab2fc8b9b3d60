"""Each shipped runbook from the command line to its report, with real processes that fail as recorded logs say."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.killing import left_running
from tests.support.ladder import WORKLOADS, lay_out, program
from tests.support.triage import LOGS
from vdbg_env.cli import main
from vdbg_env.evidence.triage_rules import rule_book

pytestmark = pytest.mark.slow

SERVE, BENCH = ("serve", "M"), ("bench", "throughput", "--model", "M")


@dataclass(frozen=True)
class Case:
    """What the workload does, and what must be told: outcomes of steps, rules found, the runbook that ends it."""

    log: str = ""
    end: str = "1"
    gone_with: str = ""
    argv: tuple[str, ...] = BENCH
    env: dict[str, str] = field(default_factory=dict)
    ends_in: str = ""
    verdict: str = "reproduced"
    status: int = 3
    outcomes: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


CASES = {
    "illegal-memory-access": Case(
        log="dev/ima-v1-enginecore.log", gone_with="--enforce-eager",
        rules=("VDBG024", "VDBG030", "sanitizer-memcheck"), outcomes=("eager not_reproduced", "memcheck reproduced"),
    ),
    "misaligned-address": Case(
        log="dev/misaligned-flashinfer.log", gone_with="cudagraph_mode=NONE", rules=("VDBG021",),
        outcomes=("graphs_piecewise reproduced", "graphs_off not_reproduced", "coredump reproduced"),
    ),
    "device-side-assert": Case(
        log="dev/assert-idx-dim.log", gone_with="--enforce-eager", rules=("VDBG131", "VDBG134"),
        outcomes=("baseline reproduced", "eager not_reproduced"),
    ),
    "kernel-hang": Case(
        env={"FAKE_VLLM": "hang"}, verdict="hang", rules=("gpu-core-hang",), outcomes=("watched hang", "analyse pass"),
    ),
    "nccl-failure": Case(
        log="held-out/nccl-unhandled-system.log", gone_with="NCCL_P2P_DISABLE", rules=("VDBG12A", "VDBG127"),
        outcomes=("p2p_off not_reproduced",),
    ),
    "out-of-memory": Case(
        log="dev/oom-under-enginedead.log", gone_with="0.82", rules=("VDBG119",), outcomes=("less not_reproduced",),
    ),
    "cuda-graph-capture": Case(
        log="held-out/graph-capture-allreduce.log", gone_with="cudagraph_mode=NONE", rules=("VDBG164",),
        outcomes=("graphs_piecewise reproduced", "graphs_off not_reproduced"),
    ),
    "version-mismatch": Case(
        log="dev/version-nccl-symbol.log", rules=("VDBG140", "VDBG141"), argv=SERVE, outcomes=("parts warn",),
    ),
    "driver-problem": Case(
        log="dev/driver-no-gpus.log", rules=("VDBG192", "VDBG196"), argv=SERVE, outcomes=("init fail",),
    ),
    "no-kernel-image": Case(
        log="held-out/no-image-sm120.log", gone_with="TRITON_ATTN", rules=("VDBG152", "VDBG026"),
        outcomes=("code unresolved", "attention not_reproduced"),
    ),
    "triton-compile": Case(
        log="held-out/triton-compilation-error.log", gone_with="TRITON_CACHE_DIR", rules=("VDBG204",),
        outcomes=("fresh not_reproduced",),
    ),
    "launch-config": Case(
        log="dev/launch-triton-error.log", gone_with="backend=eager", rules=("VDBG210", "VDBG022"),
        outcomes=("graphs_off reproduced", "inductor_off not_reproduced"),
    ),
    "cublas-or-cudnn-failure": Case(
        log="dev/cublas-alloc.log", gone_with="0.82", rules=("VDBG220", "VDBG11C", "VDBG119"),
        ends_in="out-of-memory", outcomes=("less not_reproduced",),
    ),
    "model-load": Case(
        log="dev/load-truncated-safetensors.log", gone_with="--load-format", rules=("VDBG234", "VDBG239"),
        outcomes=("dummy not_reproduced",),
    ),
    "host-crash": Case(
        log="dev/host-segv-worker.log", end="signal 11", outcomes=("baseline reproduced",),
    ),
    "wrong-output": Case(
        log="held-out/wrong-not-close.log", gone_with="--enforce-eager", rules=("VDBG024", "sanitizer-memcheck"),
        outcomes=("eager not_reproduced", "memcheck reproduced"),
    ),
}  # fmt: skip


def test_every_class_of_failure_is_here() -> None:
    assert {failure.runbook for failure in rule_book().classes.values()} - {None} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_runbook_from_the_command_line_to_its_report(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    environment = lay_out(tmp_path)
    if case.log:
        program(tmp_path / "bin" / "vllm", f'exec {sys.executable} {WORKLOADS / "says_log.py"} "$@"')
    environment |= {"SAYS_LOG": str(LOGS / case.log), "SAYS_END": case.end, "SAYS_GONE_WITH": case.gone_with}
    for variable, value in {**environment, "FAKE_VLLM_CORE": str(tmp_path / "hang.core"), **case.env}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VDBG_ENV_RUNS", raising=False)
    status = main(["runbook", name, "--batch", "--json", "--", "vllm", *case.argv])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    done = [f"{step['id']} {step['outcome']}" for step in report["steps"] if step["outcome"]]
    assert (report["verdict"], status) == (case.verdict, case.status), done
    assert report["runbook"] == (case.ends_in or name)
    assert set(case.outcomes) <= set(done)
    assert set(case.rules) <= {finding["rule"] for finding in report["findings"]}
    assert report["next_steps"]
    assert left_running(tmp_path / "vdbg-runs" / report["run"]) == []
