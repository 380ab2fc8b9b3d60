"""What NCCL's RAS service says of a hang, asked of a stand-in: no real service was ever met.

The stand-in speaks the protocol and the JSON of NCCL 2.32's source, from within the process that hangs.
"""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import patience
from tests.unit.cli.runbook.test_guard import environment, guard_command, the_run
from vdbg_env.run.nccl_ras import address, ask

STAND_IN = """
import json, os, socket, sys, threading, time
def rank(number, done, pid):
    return {"rank": number, "host": "10.0.0.1", "pid": pid, "cuda_dev": number, "nvml_dev": number,
            "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False,
                       "abort_flag": False}, "collective_counts": {"AllReduce": done, "Broadcast": 3}}
pid = int(sys.argv[2]) or os.getpid()
answer = {"nccl_version": "2.32.3", "communicators_count": 1, "communicators": [{
    "hash": "0xabc", "size": 3, "ranks_count": 2, "missing_ranks_count": 1,
    "ranks": [rank(0, 42, pid), rank(1, 41, pid)],
    "missing_ranks": [{"rank": 2, "host": "10.0.0.2", "pid": 7, "cuda_dev": 0, "nvml_dev": 0,
                       "status": {"unresponsive": True, "considered_dead": False}}]}],
    "ras": {"collection_time_sec": 0.1, "timeouts_count": 0}}
def serve(listening):
    while True:
        peer, _ = listening.accept()
        with peer:
            asked = b""
            while b"STATUS\\n" not in asked:
                asked += peer.recv(4096)
            peer.sendall(b"SERVER PROTOCOL 2\\nOK\\nOK\\n" + json.dumps(answer, indent=2).encode() + b"\\n")
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
threading.Thread(target=serve, args=(listening,), daemon=True).start()
while True:
    print("No available shared memory broadcast block found in 60 seconds.", flush=True)
    time.sleep(0.5)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("others", [False, True], ids=["its own", "of other processes"])
def test_the_service_is_asked_when_a_hang_is_judged(tmp_path: Path, others: bool) -> None:
    port = free_port()
    command = (sys.executable, "-c", STAND_IN, str(port), "1" if others else "0")
    done = subprocess.run(
        guard_command(*command, flags=("--hang-after", "2s")), cwd=tmp_path,
        env=environment(tmp_path, NCCL_RAS_ADDR=f"127.0.0.1:{port}"), capture_output=True,
        timeout=patience(90), check=False,
    )  # fmt: skip
    report = json.loads((the_run(tmp_path) / "report.json").read_bytes())
    results = report["steps"][0]["results"]
    said = json.loads(done.stderr.splitlines()[-1])
    assert (said["verdict"], said["next"].split()[:3]) == ("hang", ["vdbg-env", "runbook", "kernel-hang"])
    if others:
        assert "ras_missing" not in results
        assert any("of other processes: not used" in note for note in report["steps"][0]["notes"])
        return
    assert results["ras_nccl"] == "2.32.3"
    (missing,), (behind,) = results["ras_missing"], results["ras_behind"]
    assert missing == "rank 2 (process 7 on 10.0.0.2) of communicator 0xabc (3 ranks) is missing: unresponsive"
    assert "rank 1 " in behind and "has begun 41 AllReduce, others 42" in behind
    assert any(finding["rule"] == "nccl-ras" for finding in report["findings"])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", ("localhost", 28028)),
        ("10.0.0.1:99", ("10.0.0.1", 99)),
        ("[::1]:99", ("::1", 99)),
        (":99", ("localhost", 99)),
        ("node", ("node", 28028)),
    ],
)
def test_the_address_is_that_of_nccl(text: str, place: tuple[str, int]) -> None:
    assert address(text) == place


def test_where_nothing_listens_nothing_is_known() -> None:
    with pytest.raises(OSError):
        ask("127.0.0.1", free_port())
