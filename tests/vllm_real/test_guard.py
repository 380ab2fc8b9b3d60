"""`vdbg-env guard` around a real `vllm serve`: every way to die, what is said of it, and what is left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory_cgroup import memory_cgroup
from tests.support.patience import patience
from tests.vllm_real.server import RealVllm, Server, free_port, keep_record, left_of
from vdbg_env.supervisor.proc import descendants, title

pytestmark = [pytest.mark.vllm, pytest.mark.long]

ROOT = Path(__file__).parents[2]
HANG_S = 100


@dataclass(frozen=True, slots=True)
class Guarded:
    """A guarded server that has ended."""

    status: int | None
    said: dict[str, Any] | None
    run: Path
    seconds: float  # from the fault to the end of the guard

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "report.json").read_bytes())
        return found

    def left(self) -> list[str]:
        """Return the processes of the workload that still run."""
        return left_of(self.run)


class Guard:
    """Starts servers under guard, in a folder of their own."""

    def __init__(self, vllm: RealVllm, requests: Path, folder: Path) -> None:
        self._vllm = vllm
        self._requests = requests
        self._folder = folder

    def server(
        self,
        *flags: str,
        fault: Mapping[str, object] | None = None,
        cgroup: Path | None = None,
        own: tuple[str, ...] = (),
    ) -> Server:
        """Return a guarded server; guard and all that it starts are in `cgroup`, `own` are guard's flags."""
        port = free_port()
        words = [*own, "--hang-after", f"{HANG_S}s", "--runs", str(self._folder / "runs")]
        argv = [sys.executable, "-m", "vdbg_env", "guard", *words, "--", *self._vllm.serve(port, *flags)]
        if cgroup:
            argv = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(cgroup / "cgroup.procs"), *argv]
        given = {"VDBG_TEST_FAULT": json.dumps({"request": 2, "when": [], **fault})} if fault else {}
        if "--tensor-parallel-size" in flags:  # else both ranks are bound to the first processor
            given["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
        environment = self._vllm.environment(**given)
        environment["PYTHONPATH"] = f"{ROOT / 'builder'}{os.pathsep}{environment['PYTHONPATH']}"
        return Server(argv, environment, port, self._folder / "guarded.log")

    def until_it_ends(
        self,
        fault: Mapping[str, object],
        *,
        asked: int = 4,
        limit_s: float = 300.0,
        cgroup: Path | None = None,
        own: tuple[str, ...] = (),
    ) -> Guarded:
        """Serve until the fault has ended the server."""
        with self.server("--enforce-eager", fault=fault, cgroup=cgroup, own=own) as server:
            server.wait_until_ready()
            struck = time.monotonic()
            server.replay(self._requests, slice(asked), timeout_s=20)
            return self.ended(server, server.wait(patience(limit_s)), struck)

    def ended(self, server: Server, status: int | None, since: float) -> Guarded:
        last = (server.text().splitlines() or [""])[-1]
        said = json.loads(last) if last.startswith('{"schema": "vdbg-env/guard') else None
        (run,) = (self._folder / "runs").glob("*-guard-*")
        found = Guarded(status, said, run, time.monotonic() - since)
        keep_record({"status": status, "said": said, "seconds": round(found.seconds, 1), "left": found.left()})
        return found


@pytest.fixture
def guard(vllm_cpu: RealVllm, recorded_requests: Path, tmp_path: Path) -> Guard:
    return Guard(vllm_cpu, recorded_requests, tmp_path)


@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [
        ("illegal-access", 0, "an illegal memory access was encountered"),
        ("python-error", 0, "The size of tensor a"),
        ("segfault", 0, "Segfault encountered"),
        ("sigkill", 0, "died"),
        ("out-of-memory", 0, "can't allocate memory"),
    ],
)
def test_a_dead_worker_is_explained_and_the_status_is_vllm_s_own(
    guard: Guard, kind: str, status: int, words: str
) -> None:
    done = guard.until_it_ends({"kind": kind})
    assert done.status == status
    assert done.said is not None
    assert done.said["verdict"] == "failed"
    assert words in json.dumps(done.report["findings"])
    assert done.left() == []


def test_a_crash_that_vllm_ends_with_status_0_has_the_status_that_was_asked_for(guard: Guard) -> None:
    done = guard.until_it_ends({"kind": "sigkill"}, own=("--exit-status-on-crash", "70"))
    assert done.status == 70
    assert done.said is not None
    assert (done.said["status"], done.said["ended"]) == (70, {"by": "died", "code": 0, "signal": None})
    assert done.left() == []


@pytest.mark.parametrize(
    ("kind", "how"),
    [("segfault", "SIGSEGV"), ("abort", "SIGABRT"), ("sigkill", "SIGKILL"), ("exit", "exit status 3")],
)
def test_each_way_for_a_worker_to_die_has_its_own_fingerprint(guard: Guard, kind: str, how: str) -> None:
    """In half of the runs vLLM looks too early and prints `exit code: None`; its engine raises `cancelled` in all."""
    done = guard.until_it_ends({"kind": kind})
    assert done.said is not None
    assert how in done.said["found"]
    assert (done.said["rank"], "Worker" in done.said["process"]) == (0, True)
    assert done.report["fingerprint"]["exception"] == f"{how} of Worker"
    if kind == "abort":  # Python's fault handler, which guard sets
        assert "vllm_faults.py" in done.said["location"]


def test_the_rank_of_the_worker_that_died_is_its_own(guard: Guard, recorded_requests: Path) -> None:
    fault = {"kind": "sigkill", "rank": 1}
    with guard.server("--enforce-eager", "--tensor-parallel-size", "2", fault=fault) as server:
        server.wait_until_ready()
        struck = time.monotonic()
        server.replay(recorded_requests, timeout_s=20)
        done = guard.ended(server, server.wait(patience(300)), struck)
    assert done.said is not None
    assert (done.said["process"], done.said["rank"]) == ("Worker_TP1", 1)
    assert done.said["found"].startswith("Worker_TP1 (rank 1) was ended by SIGKILL")


def test_an_engine_that_is_killed_is_the_cause(guard: Guard, recorded_requests: Path) -> None:
    with guard.server("--enforce-eager") as server:
        server.wait_until_ready()
        (engine,) = (one.pid for one in descendants(server.process.pid) if title(one) == "VLLM::EngineCore")
        struck = time.monotonic()
        os.kill(engine, signal.SIGKILL)
        server.replay(recorded_requests, slice(1), timeout_s=20)
        done = guard.ended(server, server.wait(patience(300)), struck)
    assert done.said is not None
    assert done.said["found"].startswith("EngineCore was ended by SIGKILL")
    assert (done.said["process"], done.said["rank"]) == ("EngineCore", None)
    assert done.report["fingerprint"]["exception"] == "SIGKILL of EngineCore"


MEMORY = 4 << 30  # bytes: API server, engine and worker have about 2 GB


def test_a_worker_that_its_memory_cgroup_ends(guard: Guard) -> None:
    with memory_cgroup(MEMORY) as group:
        done = guard.until_it_ends({"kind": "hoard"}, cgroup=group)
    assert done.status == 0
    assert_oom_killed(done)


def test_a_cache_that_its_memory_cgroup_has_no_room_for(guard: Guard) -> None:
    with (
        memory_cgroup(MEMORY) as group,
        guard.server("--enforce-eager", "--kv-cache-memory-bytes", "8G", cgroup=group) as server,
    ):
        done = guard.ended(server, server.wait(patience(300)), server.started)
    assert done.status == 1
    assert_oom_killed(done)


def assert_oom_killed(done: Guarded) -> None:
    assert done.said is not None
    assert done.said["verdict"] == "failed"
    finding = next(f for f in done.report["findings"] if f["rule"] == "memory-kill")
    assert finding["level"] == "error"
    if os.access("/dev/kmsg", os.R_OK):
        assert re.search(r"OOM-killed VLLM::Worker\S* \(\d+\)", finding["message"])
    assert done.said["found"] == finding["message"]
    assert done.left() == []


def test_a_hang_is_seen_looked_into_and_ended(guard: Guard) -> None:
    done = guard.until_it_ends({"kind": "spin"}, asked=2, limit_s=HANG_S * 4)
    assert done.said is not None
    assert (done.said["verdict"], done.said["ended"]["by"]) == ("hang", "watch")
    assert done.status not in {0, None}
    (stacks,) = done.run.glob("steps/guarded/*/*/hang.txt")
    assert "EngineCore" in stacks.read_text()
    assert done.said["found"].startswith("VllmWorker-0 (rank 0) runs and makes no progress")
    assert "vllm_faults.py" in done.said["location"]
    assert done.left() == []


def test_a_worker_that_is_stopped_is_named_before_all_that_wait_for_it(guard: Guard) -> None:
    done = guard.until_it_ends({"kind": "stop"}, asked=2, limit_s=HANG_S * 4)
    assert done.said is not None
    assert done.said["verdict"] == "hang"
    assert done.said["found"].startswith("VllmWorker-0 (rank 0) is stopped (state T)")
    assert "in _stop_itself" in done.said["location"]
    assert done.report["fingerprint"]["exception"] == "hang: Worker stopped"
    assert done.left() == []


def test_a_stop_from_outside_is_passed_on_and_not_explained(guard: Guard, recorded_requests: Path) -> None:
    with guard.server("--enforce-eager") as server:
        server.wait_until_ready()
        server.replay(recorded_requests)
        asked = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        done = guard.ended(server, server.wait(patience(60)), asked)
    assert (done.status, done.said) == (0, None)
    assert done.report["verdict"] == "passed"
    assert done.left() == []


def test_the_server_ends_with_a_guard_that_is_killed(guard: Guard) -> None:
    with guard.server("--enforce-eager") as server:
        server.wait_until_ready()
        killed = time.monotonic()
        server.process.kill()
        status = server.wait(10)
        (run,) = (server.log.parent / "runs").glob("*-guard-*")
        (ended,) = (path.parent / "ended.json" for path in run.glob("steps/guarded/*/*/supervisor.json"))
        while not ended.exists() and time.monotonic() < killed + patience(60):
            time.sleep(0.5)
        done = guard.ended(server, status, killed)
    assert (
        json.loads(ended.read_bytes())["message"]
        == "vdbg-env guard was killed, and the workload does not run without it"
    )
    assert done.left() == []
    listed = subprocess.run(
        [sys.executable, "-m", "vdbg_env", "runs", "list"], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "builder"), "VDBG_ENV_RUNS": str(run.parent)},
    )  # fmt: skip
    assert "cut off" in listed.stdout
