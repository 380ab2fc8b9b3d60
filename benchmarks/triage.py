"""Triage of a large log against ripgrep and grep with the same patterns; run as `python -m benchmarks.triage`.

The log is what a busy server writes (access lines, requests with prompts, statistics, NCCL's notes) with one failure at
its very end, so that all of it has to be read.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.paired import run_once
from vdbg_env.application.analysis.triage import rule_book

FAILURE = (
    "(EngineCore pid=154) ERROR 11-03 23:14:03 [core.py:1357] "
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
)
WORDS = [
    "the",
    "of",
    "memory",
    "error",
    "kernel",
    "CUDA",
    "please",
    "explain",
    "why",
    "my",
    "training",
    "run",
    "is",
    "slow",
    "when",
    "I",
    "use",
    "two",
    "GPUs",
    "and",
    "NCCL",
    "how",
    "do",
    "I",
    "write",
    "a",
    "haiku",
    "about",
    "water",
    "what",
    "does",
    "segmentation",
    "mean",
    "in",
    "biology",
]
BLOCK_LINES = 10_000  # small, since a child's peak memory begins with what its parent holds


def main(argv: Sequence[str] | None = None) -> None:
    """Print MB/s and peak memory of triage, ripgrep and grep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=float, default=5.0, help="of the log, in GB")
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="vdbg-bench-") as folder:
        log, patterns = Path(folder) / "server.log", Path(folder) / "patterns"
        size = write_log(log, int(asked.size * 1e9))
        literals = sorted({literal for rule in rule_book().scanned for literal in rule.literals})
        patterns.write_text("\n".join(literals) + "\n")
        print(f"log of {size / 1e9:.2f} GB, {len(literals)} patterns, best and median of {asked.runs} runs")
        for name, command in commands(log, patterns):
            runs = sorted(run_once(command, allowed=(0, 1, 3)) for _ in range(asked.runs))
            best, median = size / runs[0][0] / 1e6, size / runs[len(runs) // 2][0] / 1e6
            print(f"{name:<28} {best:8.0f} MB/s {median:8.0f} MB/s   {max(m for _, m in runs):8.1f} MiB", flush=True)


def commands(log: Path, patterns: Path) -> list[tuple[str, list[str]]]:
    """What is measured, each on one core where it lets itself be told."""
    found = [("vdbg-env triage", [sys.executable, "-m", "vdbg_env", "triage", str(log)])]
    if rg := shutil.which("rg"):
        found.append(("ripgrep -F, one thread", [rg, "-j1", "--no-mmap", "-F", "-n", "-f", str(patterns), str(log)]))
    if grep := shutil.which("grep"):
        found.append(("grep -F", [grep, "-F", "-n", "-f", str(patterns), str(log)]))
    return found


def write_log(path: Path, size: int) -> int:
    """Write a log of about `size` bytes, the same every time; returns its exact size."""
    chance = random.Random(3)
    block = "".join(_line(chance) for _ in range(BLOCK_LINES)).encode()
    with path.open("wb") as log:
        for _ in range(max(1, size // len(block))):
            log.write(block)
        log.write(FAILURE.encode())
    return path.stat().st_size


def _line(chance: random.Random) -> str:
    kind, clock = chance.random(), f"11-03 {chance.randint(0, 23):02}:{chance.randint(0, 59):02}:07"
    if kind < 0.55:
        peer = f"10.0.{chance.randint(0, 255)}.{chance.randint(0, 255)}:{chance.randint(1024, 65535)}"
        return f'(APIServer pid=1) INFO:     {peer} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    if kind < 0.80:
        prompt = " ".join(chance.choice(WORDS) for _ in range(chance.randint(5, 80)))
        return f"(APIServer pid=1) INFO {clock} [logger.py:44] Received request chatcmpl-7f: prompt: '{prompt}'\n"
    if kind < 0.90:
        return f"(EngineCore pid=154) DEBUG {clock} [core.py:410] loop active, step {chance.getrandbits(30)}.\n"
    if kind < 0.97:
        speed = (
            f"Avg prompt throughput: {chance.random() * 3000:.1f} tokens/s, Avg generation throughput: 812.4 tokens/s"
        )
        return (
            f"(APIServer pid=1) INFO {clock} [loggers.py:248] Engine 000: {speed}, Running: 31 reqs, Waiting: 0 reqs\n"
        )
    return f"node1:301:301 [{chance.randint(0, 7)}] NCCL INFO Channel 03/0 : 2[2] -> 3[3] via P2P/IPC\n"


if __name__ == "__main__":
    main()
