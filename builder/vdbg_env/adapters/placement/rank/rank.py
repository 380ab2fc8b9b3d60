"""One rank: take the orders, supervise the workload, make its record on its own node, and say that it has ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from vdbg_env.adapters.placement.rank.node import describe, measure_clock, raise_core_limit
from vdbg_env.adapters.placement.rank.orders import ENDED, NODE, Orders, alike, job_of_rank, read_orders
from vdbg_env.supervisor.entry import supervise
from vdbg_env.supervisor.job import settled
from vdbg_env.supervisor.output.streams import CANCELS
from vdbg_env.supervisor.state import lock_file

COLLECT_LIMIT_S = 20.0  # for the files that a rank left behind, once its end was asked for


def main() -> int:
    """Run one rank; returns 0 when its record was written, whatever became of the workload.

    Exit status 2: the run's folder is not seen from this node.
    """
    orders = read_orders(sys.stdin.buffer.readline())
    if orders is None:
        return 1
    rank = int(os.environ[orders.rank_from])
    host = os.environ.get(orders.host_from) or socket.gethostname()
    folder = Path(orders.directory) / f"{host}-{rank}"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        print(f"{host}: {folder} cannot be made: {error.strerror}; do all nodes share this folder?", file=sys.stderr)
        return 2
    os.chdir(folder)
    lock = lock_file.take(".")
    signal.pthread_sigmask(signal.SIG_BLOCK, CANCELS)
    raise_core_limit()
    refused = ""
    dumps: Path | None = None
    if orders.scratch:
        # Not before it is asked for: the start of most workloads waits for no import.
        from vdbg_env.adapters.placement.rank.scratch import NoScratch, open_scratch

        try:
            dumps = open_scratch(orders.scratch, folder)
        except NoScratch as problem:
            refused = f"--scratch cannot be used on {host}: {problem}"
    job = job_of_rank(orders, rank=rank, host=host, directory=str(folder), dumps=str(dumps or ""))
    node = {
        "step": os.environ.get(orders.step_from, ""),
        "node": describe(job.argv, alike(orders, settled(job, os.environ).env)),
        "clock": measure_clock(folder),
    }
    _write_json(folder / NODE, node)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    supervise(job, lock, refused=refused)
    _report(orders, folder, dumps, rank, tuple(os.fsencode(text) for text in job.literals))
    return 0


def _report(orders: Orders, folder: Path, dumps: Path | None, rank: int, literals: tuple[bytes, ...]) -> None:
    """Mask and hash what the workload left, and write the whole observation as this rank's file of `ended`."""
    # Not before the workload has ended: its start waits for no import.
    from vdbg_env.adapters.placement.rank.observe import observe

    asked_at: list[float] = []
    for number in CANCELS:
        signal.signal(number, lambda *_: asked_at.append(time.monotonic()))
    seen = observe(orders, folder, dumps, literals, asked_at, COLLECT_LIMIT_S)
    _write_json(Path(orders.directory) / ENDED / str(rank), seen)


def _write_json(path: Path, document: object) -> None:
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("w") as file:
        json.dump(document, file)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
