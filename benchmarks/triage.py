"""Triage of a large log against ripgrep and grep with the same patterns; run as `python -m benchmarks.triage`.

The log is what a busy server writes (access lines, requests with prompts, statistics, NCCL's notes) with one failure at
its very end, so that all of it has to be read.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.paired import measure
from vdbg_env.evidence.triage_rules import rule_book

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
    parser.add_argument("--text", type=Path, metavar="FOLDER", help="real logs to repeat instead, below FOLDER")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="vdbg-bench-") as folder:
        log, patterns = Path(folder) / "server.log", Path(folder) / "patterns"
        wanted = int(asked.size * 1e9)
        size = repeat_logs(log, wanted, asked.text) if asked.text else write_log(log, wanted)
        literals = searched()
        patterns.write_text("\n".join(literals) + "\n")
        print(f"log of {size / 1e9:.2f} GB, {len(literals)} patterns, {asked.runs} rounds, each command in turn")
        print(f"{'':<28} {'best':>8} {'median':>8} MB/s {'per CPU':>8} MB/s {'peak':>8} MiB")
        timed = commands(log, patterns)
        rounds = [[measure(command, allowed=(0, 1, 3)) for _, command in timed] for _ in range(asked.runs)]
        for (name, _), runs in zip(timed, zip(*rounds, strict=True), strict=True):
            mb = size / 1e6
            best, median = mb / min(r.wall_s for r in runs), mb / statistics.median(r.wall_s for r in runs)
            per_cpu = mb / min(r.cpu_s for r in runs)
            print(f"{name:<28} {best:8.0f} {median:8.0f} {per_cpu:13.0f} {max(r.peak_mib for r in runs):13.1f}")


def searched() -> list[str]:
    """Return what triage looks for in a log once it has seen the program work: no signs of progress."""
    rules = [rule for rule in rule_book().scanned if rule.role not in {"progress", "well"}]
    return sorted({literal for rule in rules for literal in rule.literals})


def commands(log: Path, patterns: Path) -> list[tuple[str, list[str]]]:
    """Return the commands to measure, each on one core where it has an option for that.

    grep ends at the first line found when it writes to /dev/null, so the peers write to a file.
    """
    found = [("vdbg-env triage", [sys.executable, "-m", "vdbg_env", "triage", str(log)])]
    into = ["sh", "-c", 'exec "$@" > "$0"', str(patterns.with_suffix(".found"))]
    if rg := shutil.which("rg"):
        command = [rg, "-j1", "--no-mmap", "-F", "-n", "-f", str(patterns), str(log)]
        found.append(("ripgrep -F, one thread", [*into, *command]))
    if grep := shutil.which("grep"):
        found.append(("grep -F", [*into, grep, "-a", "-F", "-n", "-f", str(patterns), str(log)]))
    if wc := shutil.which("wc"):
        found.append(("wc -l, which only reads", [wc, "-l", str(log)]))
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


def repeat_logs(path: Path, size: int, folder: Path) -> int:
    """Write the logs below a folder again and again with other digits each time; returns the size."""
    chance = random.Random(3)
    texts = [file.read_bytes() for file in sorted(folder.rglob("*.log"))]
    with path.open("wb") as log:
        while log.tell() < size:
            digits = bytes.maketrans(b"23456789", bytes(chance.sample(b"23456789", 8)))
            for text in texts:
                log.write(text.translate(digits) + b"\n")
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
