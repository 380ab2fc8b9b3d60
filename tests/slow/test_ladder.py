"""The shipped runbook walks a crashing vLLM to kernel, line and chain, and every branch of it is walked."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders.core_builder import hang_core, illegal_address_core
from tests.support.killing import left_running
from vdbg_env.cli import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WORKLOADS = ROOT / "tests" / "workloads"
# Waits of the shipped runbook that a test cannot afford; the ladder itself is not touched.
SHORTER = [
    (r"output_idle: \d+m", "output_idle: 1500ms"),
    (r"grace: (30s|2m)", "grace: 300ms"),
    (r"dump_wait: \w+", "dump_wait: 20s"),
]

Walk = Callable[..., dict[str, Any]]


@pytest.fixture
def walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Walk:
    """Run the shipped illegal-memory-access on the fake vLLM with a fault, and return the report."""
    runbooks, tools = tmp_path / "runbooks", tmp_path / "bin"
    shutil.copytree(ROOT / "runbooks", runbooks)
    for path in runbooks.rglob("*.yaml"):
        text = path.read_text()
        for pattern, shorter in SHORTER:
            text = re.sub(pattern, shorter, text)
        path.write_text(text)
    tools.mkdir()
    for name, source in (("vllm", "fake_vllm.py"), ("compute-sanitizer", "fake_compute_sanitizer.py")):
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {WORKLOADS / source} "$@"\n')
        (tools / name).chmod(0o755)
    (tmp_path / "ima.core").write_bytes(illegal_address_core())
    (tmp_path / "nolines.core").write_bytes(illegal_address_core(lines=False))
    (tmp_path / "hang.core").write_bytes(hang_core())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("VDBG_ENV_RUNS", raising=False)

    def run(fault: str, *flags: str, core: str = "ima.core", python: bool = False, **env: str) -> dict[str, Any]:
        monkeypatch.setenv("FAKE_VLLM", fault)
        monkeypatch.setenv("FAKE_VLLM_CORE", str(tmp_path / core))
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        workload = [sys.executable, str(WORKLOADS / "fake_vllm.py")] if python else ["vllm", "bench", "throughput"]
        main(["runbook", "illegal-memory-access", "--batch", "--json", *flags, "--", *workload, "-tp", "2"])
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert left_running(Path(tmp_path / "vdbg-runs" / report["run"])) == []
        return report

    return run


def outcomes(report: dict[str, Any]) -> dict[str, str]:
    return {s["id"]: s["outcome"] for s in report["steps"] if s["outcome"]}


LADDER = [
    "blocking",
    "graphs_piecewise",
    "graphs_off",
    "inductor_off",
    "compile_off",
    "eager",
    "all_reduce",
    "attention",
]


def test_an_illegal_access_is_walked_to_kernel_line_and_chain(walk: Walk) -> None:
    report = walk("ima", FAKE_VLLM_NASTY="1")
    seen = outcomes(report)
    assert [seen[step] for step in ["baseline", *LADDER, "coredump"]] == ["reproduced"] * 10
    assert seen["analyse"] == "pass"
    lead = next(f for f in report["findings"] if f["how_known"] == "gpu-core")
    assert lead["level"] == "error"
    assert "kern" in lead["kernel"]
    assert lead["location"]["file"].endswith("inline_chain.cu")
    assert len(lead["chain"]) >= 2
    core = next(s for s in report["steps"] if s["id"] == "coredump")
    assert core["ended"]["code"] == 1


@pytest.mark.parametrize(
    ("fault", "gone_at"),
    [
        ("full-graphs", "graphs_piecewise"),
        ("graphs", "graphs_off"),
        ("inductor", "inductor_off"),
        ("compile", "compile_off"),
        ("compile-and-graphs", "eager"),
        ("all-reduce", "all_reduce"),
        ("attention", "attention"),
        ("race", "blocking"),
    ],
)
def test_the_layer_that_matters_is_found(walk: Walk, fault: str, gone_at: str) -> None:
    report = walk(fault)
    seen = outcomes(report)
    assert seen["baseline"] == "reproduced"
    before = LADDER[: LADDER.index(gone_at)]
    assert [seen[step] for step in before] == ["reproduced"] * len(before)
    assert seen[gone_at] == "not_reproduced"
    assert seen["coredump"] == "reproduced"
    assert any(f["step"] == gone_at for f in report["findings"])


def test_a_script_that_takes_no_flags_is_reached_through_its_environment(walk: Walk) -> None:
    report = walk("graphs", python=True)
    assert outcomes(report)["graphs_off"] == "not_reproduced"


def test_a_core_without_lines_leads_to_the_sanitizer(walk: Walk) -> None:
    report = walk("ima", "-i", "quick=true", core="nolines.core")
    seen = outcomes(report)
    assert "blocking" not in seen
    assert seen["memcheck"] == "reproduced"
    assert any(f["how_known"] == "sanitizer" for f in report["findings"])


def test_no_core_and_a_blind_sanitizer_walk_to_the_last_tool(walk: Walk) -> None:
    seen = outcomes(walk("no-core", "-i", "quick=true", "-i", "deep=true", FAKE_SANITIZER="blind"))
    assert seen["coredump"] == "reproduced"
    assert [seen[s] for s in ("memcheck", "memcheck_uncached", "racecheck", "initcheck", "synccheck")] != []
    assert "analyse" not in seen


def test_a_hang_is_dumped_and_shows_where_every_warp_stands(walk: Walk) -> None:
    report = walk("hang", core="hang.core")
    seen = outcomes(report)
    assert report["runbook"] == "kernel-hang"  # the baseline's silence is handed over
    assert (seen["baseline"], seen["watched"], seen["analyse"]) == ("hang", "hang", "pass")
    assert report["hangs"][0]["warps"]
    folder = Path("vdbg-runs") / report["run"] / "steps/watched/1/localhost-0"
    assert "waits in" in (folder / "hang.txt").read_text()


@pytest.mark.parametrize(
    ("fault", "runbook", "outcome"),
    [
        ("oom", "out-of-memory", "reproduced"),
        ("other", "misaligned-address", "reproduced"),
        ("well", "illegal-memory-access", "not_reproduced"),
        ("host", "illegal-memory-access", "unresolved"),
    ],
)
def test_other_ends_are_told_apart_and_handed_over(walk: Walk, fault: str, runbook: str, outcome: str) -> None:
    report = walk(fault)
    assert (report["runbook"], outcomes(report)["baseline"]) == (runbook, outcome)


def test_noise_and_bytes_that_are_no_text_change_nothing(walk: Walk) -> None:
    for noise in ("binary", str(50 << 20)):
        report = walk("ima", "-i", "quick=true", FAKE_VLLM_NOISE=noise)
        assert outcomes(report)["analyse"] == "pass"


def test_a_log_alone_starts_the_right_runbook(
    walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`triage --run LOG -- ARGV`, from the log of a real crash of the workload to kernel and line."""
    monkeypatch.setenv("FAKE_VLLM", "graphs")
    monkeypatch.setenv("FAKE_VLLM_CORE", str(tmp_path / "ima.core"))
    log = tmp_path / "server.log"
    with log.open("wb") as file:
        assert subprocess.run(["vllm", "bench", "throughput"], stdout=file, stderr=file).returncode == 1
    assert main(["triage", "--run", str(log), "--json", "--", "vllm", "bench", "throughput", "--seed", "1"]) == 3
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert (report["runbook"], report["workload"][-2:]) == ("illegal-memory-access", ["--seed", "1"])
    assert outcomes(report)["graphs_off"] == "not_reproduced"
    assert next(f for f in report["findings"] if f["id"] == report["lead"])["location"]["line"] > 0
    assert "illegal" in printed.err.splitlines()[0]
