"""What a real `vllm serve` does under each fault: its exit status, its log's shape, what it leaves behind.

The runbooks and the triage rely on this behaviour: a new release of vLLM that changes it fails here.
"""

import json
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.patience import patience
from tests.vllm_real import corpus
from tests.vllm_real.conftest import Serving
from tests.vllm_real.server import READY_S, RealVllm, keep_record

pytestmark = [pytest.mark.vllm, pytest.mark.long]

EAGER = ("--enforce-eager",)
TWO_RANKS = ("--enforce-eager", "--tensor-parallel-size", "2")
# Both ranks, and two servers, are bound to the first core otherwise and starve each other.
EACH_ITS_CORE = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
# The rank that did not fail waits this long for the other one, and not five minutes. The first request may need much of
# it: a C++ compiler runs then, with --enforce-eager too.
SHORT_WAIT = {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "60"}


@dataclass(frozen=True, slots=True)
class Case:
    """A fault and what it must look like from outside."""

    fault: Mapping[str, object]
    says: tuple[str, ...]
    flags: tuple[str, ...] = EAGER
    env: Mapping[str, str] = field(default_factory=dict)
    status: int = 0
    hangs: bool = False


# The exit code is None when vLLM looks before the process has been reaped, whatever the process died of.
DEAD_WORKER = r"Worker proc \S+ died unexpectedly \(exit code: (None|-?\d+)\)"
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
DEAD_ENGINE = "vllm.v1.engine.exceptions.EngineDeadError"

CASES = {
    "illegal-access": Case({"kind": "illegal-access"}, (ILLEGAL, DEAD_ENGINE)),
    "illegal-access-compiled": Case({"kind": "illegal-access", "when": ["compiled"]}, (ILLEGAL, DEAD_ENGINE), ()),
    "illegal-access-rank-1": Case(
        {"kind": "illegal-access", "rank": 1}, (ILLEGAL,), TWO_RANKS, EACH_ITS_CORE | SHORT_WAIT
    ),
    "python-error": Case({"kind": "python-error"}, ("RuntimeError: The size of tensor a", DEAD_ENGINE)),
    "missing-weight": Case({"kind": "missing-weight"}, ("KeyError: ", DEAD_ENGINE)),
    "missing-weight-at-start": Case({"kind": "missing-weight", "request": 0}, ("KeyError: ",), status=1),
    "segfault": Case({"kind": "segfault"}, ("Segfault encountered", DEAD_WORKER)),
    "abort": Case({"kind": "abort"}, (DEAD_WORKER,)),
    "sigkill": Case({"kind": "sigkill"}, (DEAD_WORKER,)),
    "exit": Case({"kind": "exit"}, (DEAD_WORKER,)),
    "out-of-memory": Case({"kind": "out-of-memory"}, ("can't allocate memory", DEAD_ENGINE)),
    "spin": Case({"kind": "spin"}, ("No available shared memory broadcast block found in 60 seconds",), hangs=True),
    "wait": Case({"kind": "wait"}, ("No available shared memory broadcast block found in 60 seconds",), hangs=True),
}


@pytest.mark.parametrize("name", CASES)
def test_fault(name: str, vllm_cpu: RealVllm, serving: Serving, recorded_requests: Path, tmp_path: Path) -> None:
    case = CASES[name]
    fault = {"request": 2, "when": [], **case.fault}
    record: dict[str, object] = {"fault": fault, "flags": case.flags}
    with serving(*case.flags, VDBG_TEST_FAULT=json.dumps(fault), **case.env) as server:
        if fault["request"] != 0:
            record["ready_s"] = round(server.wait_until_ready(), 1)
            struck = time.monotonic()
            # After a request that hangs the others would hang as long: the second is the last.
            sent = slice(2) if case.hangs else slice(None)
            answers = server.replay(recorded_requests, sent, timeout_s=75 if case.hangs else patience(90))
            record["answers"] = [(a.status, a.text[:120], round(a.seconds, 1)) for a in answers]
        else:
            struck = time.monotonic()
        if case.hangs:
            assert server.wait(0) is None, "a server that hangs ends by itself"
            record["stopped_by"] = "SIGTERM"
            server.process.send_signal(signal.SIGTERM)
        status = server.wait(patience(READY_S if fault["request"] == 0 else 90))
        left_running, left_in_files = server.left_after(patience(10)), server.left_in_files()
        record |= {
            "status": status,
            "ended_s": round(time.monotonic() - struck, 1),
            "left_running": _names(left_running),
            "left_in_files": left_in_files,
        }
        text = server.text()
    keep_record(record)
    print(json.dumps(record, indent=1))
    for words in case.says:
        assert re.search(words, text), f"{words!r} is not in the log:\n{text[-4000:]}"
    assert status == case.status
    assert left_running == []
    # vLLM never removes its rendezvous file, and the CPU backend's shared memory of several ranks is named after it.
    assert [path for path in left_in_files if "vllm_dist_" not in path] == []
    corpus.keep(name, text, vllm_cpu.names(tmp_path), port=server.port)


def test_no_fault(serving: Serving, recorded_requests: Path, vllm_cpu: RealVllm, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    with serving(*EAGER, VDBG_TEST_WITNESS=str(witness)) as server:
        server.wait_until_ready()
        answers = server.replay(recorded_requests)
        assert [answer.status for answer in answers] == [200] * 4
        assert answers[2].text.endswith("data: [DONE]\n\n")
        assert server.ask("POST", "/v1/nothing", {}).status == 404
        assert server.ask("POST", "/v1/completions", {"prompt": 3.5}).status == 400
        server.process.send_signal(signal.SIGTERM)
        stopping = time.monotonic()
        status = server.wait(patience(60))
        record = {"status": status, "ended_s": round(time.monotonic() - stopping, 1)}
        assert server.left_after(patience(10)) == []
        text = server.text()
    keep_record(record)
    (worker,) = [json.loads(path.read_text()) for path in witness.glob("*.json")]
    assert worker["rank"] == 0
    assert worker["engine"]["enforce_eager"] is True
    assert worker["environment"]["HF_HUB_OFFLINE"] == "1"
    assert status == 0
    corpus.keep("no-fault", text, vllm_cpu.names(tmp_path), port=server.port)


def _names(pids: list[int]) -> list[str]:
    return [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids]
