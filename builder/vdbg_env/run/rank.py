"""One rank: take the orders, supervise the workload, make its record on its own node, and say that it has ended."""

from __future__ import annotations

import hashlib
import os
import platform
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from vdbg_env.record.redactor import secret_values
from vdbg_env.record.run_directory import write_json
from vdbg_env.run.orders import ENDED, KEY, NODE, SEAL, Orders, alike, job_of_rank, read_orders, sealed
from vdbg_env.supervisor import control_files
from vdbg_env.supervisor.job import Job, settled
from vdbg_env.supervisor.loop import supervise
from vdbg_env.supervisor.streams import CANCELS

# What a rank finds on its own node: the engine sees another machine.


_OF_A_RANK = (
    "SLURM", "PMI", "PMIX", "OMPI", "VDBG_ENV", "HOSTNAME", "RANK", "LOCAL_RANK", "TMPDIR", "CUDA_VISIBLE",
)  # fmt: skip
_LIBRARIES = ("vllm", "torch", "triton", "flashinfer", "nvidia_nccl")


def describe(argv: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, str]:
    """Return driver, kernel, libraries, limits and a digest of the environment, to compare with other nodes."""
    found = {
        "kernel": platform.release(),
        "libc": "-".join(platform.libc_ver()),
        "processors": str(os.cpu_count()),
        "core limit": "/".join(map(_limit, resource.getrlimit(resource.RLIMIT_CORE))),
        "locked memory": "/".join(map(_limit, resource.getrlimit(resource.RLIMIT_MEMLOCK))),
        "environment": _digest(environment),
    }
    driver = _first_line(Path("/sys/module/nvidia/version"))
    pattern = _first_line(Path("/proc/sys/kernel/core_pattern"))
    found |= {"driver": driver} if driver else {}
    found |= {"core pattern": pattern} if pattern else {}
    return found | _libraries(argv, environment)


def raise_core_limit() -> None:
    """Let the workload write cores as large as this node allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))


def measure_clock(folder: Path) -> dict[str, float]:
    """Compare this node's clock with that of the file server, which puts the time on a file as it is written."""
    probe = folder / ".clock"
    before = time.time()
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, b"0")
        os.fsync(descriptor)
        after = time.time()
        served = os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        probe.unlink()
    ahead = 0.0 if before - 0.02 <= served <= after else (before + after) / 2 - served
    # The kernel's time of a file is that of its last tick, up to 10 ms ago.
    return {"ahead_s": round(ahead, 3), "within_s": round((after - before) / 2 + 0.01, 3)}


def _libraries(argv: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the versions that the workload's Python would import, by the names of their folders."""
    program = shutil.which(argv[0], path=environment.get("PATH")) if argv else None
    if program is None:
        return {}
    found = {}
    for folder in Path(program).parent.parent.glob("lib/python*/site-packages"):
        for name in _LIBRARIES:
            for info in sorted(folder.glob(f"{name}*-*.dist-info")):
                package, _, version = info.name.removesuffix(".dist-info").partition("-")
                found[package] = version
    return found


def _digest(environment: Mapping[str, str]) -> str:
    kept = sorted(f"{name}={value}" for name, value in environment.items() if not name.startswith(_OF_A_RANK))
    return hashlib.sha256("\0".join(kept).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _first_line(path: Path) -> str:
    try:
        return path.read_text().partition("\n")[0].strip()
    except OSError:
        return ""


# One rank: take the orders, supervise the workload, make its record on its own node, and say that it has ended.


UNSEEN = 2  # the exit status where the run's folder, or this very program, is not seen from a node; Python's own is 2
COLLECT_LIMIT_S = 20.0  # for the files that a rank left behind, once its end was asked for


def main() -> int:
    """Run one rank; returns 0 when its record was written, whatever became of the workload.

    The orders are on standard input. Exit status `UNSEEN`: the run's folder is not seen
    from this node; 3: what makes the record is not installed here.
    """
    orders = read_orders(sys.stdin.buffer.readline())
    if orders is None:
        return 1
    rank = int(os.environ[orders.rank_from])
    host = os.environ.get(orders.host_from) or socket.gethostname()
    if find_spec("pydantic") is None:
        print(f"{host}: {sys.executable} has no pydantic 2: install what vdbg-env requires for it", file=sys.stderr)
        return 3
    here = os.getcwd()  # noqa: PTH109
    folder = Path(orders.directory) / f"{host}-{rank}"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        print(f"{host}: {folder} cannot be made: {error.strerror}; do all nodes share this folder?", file=sys.stderr)
        return UNSEEN
    os.chdir(folder)
    lock = control_files.take_lock(".")
    signal.pthread_sigmask(signal.SIG_BLOCK, CANCELS)
    raise_core_limit()
    refused = ""
    dumps: Path | None = None
    if orders.scratch:
        # Not before it is asked for: the start of most workloads waits for no import.
        from vdbg_env.run.rank_record import NoScratch, open_scratch

        try:
            dumps = open_scratch(orders.scratch, folder)
        except NoScratch as problem:
            refused = f"--scratch cannot be used on {host}: {problem}"
    local = os.environ.get(orders.local_from, "0")
    job = job_of_rank(orders, rank=rank, host=host, directory=str(folder), dumps=str(dumps or ""), local=local)
    job = _with_own_secrets(job)
    if job.cwd == ".":
        job = job._replace(cwd=here)
    key = os.urandom(16).hex()  # which no workload knows: another rank's cannot write this one's end
    node = {
        SEAL: sealed(key),
        "step": os.environ.get(orders.step_from, ""),
        "node": describe(job.argv, alike(orders, settled(job, os.environ).env)),
        "clock": measure_clock(folder),
    }
    write_json(folder / NODE, node)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    supervise(job, lock, refused=refused)
    _report(orders, folder, dumps, rank, key, tuple(os.fsencode(text) for text in job.literals))
    return 0


def _report(orders: Orders, folder: Path, dumps: Path | None, rank: int, key: str, literals: tuple[bytes, ...]) -> None:
    """Mask and hash what the workload left, and write the whole observation as this rank's file of `ended`."""
    # Not before the workload has ended: its start waits for no import.
    from vdbg_env.run.rank_record import observe

    asked_at: list[float] = []
    for number in CANCELS:
        signal.signal(number, lambda *_: asked_at.append(time.monotonic()))
    seen = observe(orders, folder, dumps, literals, asked_at, COLLECT_LIMIT_S)
    write_json(Path(orders.directory) / ENDED / str(rank), {**seen, KEY: key})


def _with_own_secrets(job: Job) -> Job:
    """Return the job with the secrets that only this node's environment has: they were not known when it was made."""
    own = {os.fsdecode(value) for value in secret_values(settled(job, os.environ).env)} - set(job.literals)
    return job._replace(literals=tuple(sorted({*job.literals, *own}, key=lambda text: (-len(text), text))))
