"""The logs of a real vLLM under faults: the class is the fault, the root a line that names it, and the fix is said."""

from typing import Any

import pytest
import yaml

from tests.support.triage import LOGS, triage_bytes
from vdbg_env.crash.triage import triage_text
from vdbg_env.evidence.triage_verdict import Triage

FOLDER = LOGS / "real-vllm"
LABELS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "labels.yaml").read_text())["logs"]


def triaged(name: str) -> Triage:
    return triage_bytes((FOLDER / f"{name}.log").read_bytes())


@pytest.mark.parametrize("label", LABELS, ids=lambda label: str(label["file"]))
def test_the_fault_is_named(label: dict[str, Any]) -> None:
    verdict = triage_bytes((LOGS / label["file"]).read_bytes())
    assert verdict.failure.name == label["class"]
    assert not label["root"] or (verdict.root_cause and verdict.root_cause.line in label["root"])
    assert label.get("fix", "") in (verdict.fix or "")
    assert "process" not in label or verdict.process == label["process"]
    assert verdict.failed is (bool(label["root"]) or label["class"] != "not-a-gpu-failure")


def test_every_log_has_a_label() -> None:
    assert {path.name for path in FOLDER.glob("*.log")} == {label["file"].split("/")[1] for label in LABELS}


def test_that_the_engine_ended_says_nothing_without_the_error_that_follows_a_crash() -> None:
    """An engine that ends before the API server does, at an orderly end, is reported in the same words."""
    crashed = (FOLDER / "engine-killed.log").read_text().splitlines(keepends=True)
    orderly = [line for line in crashed if "async_llm.py" not in line]
    assert any("engine core exited unexpectedly" in line for line in orderly)
    verdict = triage_bytes("".join(orderly).encode())
    assert (verdict.failure.name, verdict.failed) == ("not-a-gpu-failure", False)


@pytest.mark.parametrize("name", ["bad-flag", "bad-value", "port-in-use", "no-config-file"])
def test_no_traceback_is_spoken_of_where_the_line_says_all(name: str) -> None:
    verdict = triaged(name)
    text = triage_text(verdict, None)
    assert "traceback" not in text
    assert f"next: {verdict.fix}" in text
    assert text.startswith(f"not-a-gpu-failure  ({verdict.title}; ")


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        (
            "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
            "ss -ltnp 'sport = :8000'",
        ),
        ("OSError: [Errno 28] No space left on device: '/root/.cache/vllm'", "df -h"),
        ("python3: can't open file '/src/run.py': [Errno 2] No such file or directory", "give a path that exists"),
        ("serve.py: error: the following arguments are required: --model", "correct --model: `serve.py --help`"),
        ("serve.py: error: argument --port: invalid int value: 'x;rm'", "correct --port: `serve.py --help`"),
    ],
)
def test_what_keeps_any_program_from_its_work_has_its_fix(line: str, fix: str) -> None:
    verdict = triage_bytes(f"{line}\n".encode())
    assert verdict.failed is True
    assert fix in (verdict.fix or ""), verdict


@pytest.mark.parametrize(
    ("line", "process", "rank"),
    [
        ("RayWorkerProc rank=[3] died unexpectedly, shutting down executor.", "RayWorkerProc", 3),
        ("RuntimeError: Engine core process EngineCore_DP1 died unexpectedly.", "EngineCore_DP1", None),
        ("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
         "{'EngineCore_DP0': -15, 'EngineCore_DP1': -9}", "EngineCore_DP1", None),
        ("RuntimeError: Process ApiServer_0 (PID: 12) died with exit code -11", "ApiServer_0", None),
        ("Worker proc VllmWorker-1 died unexpectedly (exit code: 1), shutting down executor.", "VllmWorker-1", 1),
    ],
)  # fmt: skip
def test_the_process_that_died_is_named_and_not_the_one_that_says_so(line: str, process: str, rank: int | None) -> None:
    verdict = triage_bytes(f"(APIServer pid=7) ERROR 11-23 07:19:38 [core.py:1512] {line}\n".encode())
    assert (verdict.failure.name, verdict.process, verdict.rank) == ("host-crash", process, rank)
