"""Measure redaction with eight known secrets (70 forms) on one core: streams, text files and binary files.

    PYTHONPATH=builder:. python benchmarks/redaction.py [--mib N] [--runs N]

No two lines are the same. A stream is fed in pieces of 64 KiB; files are masked in place, on the disk of TMPDIR.
Printed are MB/s of processor time, the median and the spread, and MB/s by the clock: they are the same on an idle core.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import statistics
import string
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from vdbg_env.common import patterns
from vdbg_env.record.masking import mask_artifact, mask_file, redact_run
from vdbg_env.record.redactor import Redactor, as_literals

PIECE = 64 << 10
_STATS = (
    "(EngineCore_0 pid={pid}) INFO 11-21 07:{m:02d}:{s:02d} [loggers.py:248] Engine 000: "
    "Avg prompt throughput: {a}.{n} tokens/s, Avg generation throughput: {b}.{m} tokens/s, "
    "Running: {r} reqs, Waiting: {s} reqs, "
    "GPU KV cache usage: {m}.{r}%, Prefix cache hit rate: {s}.{n}%\n"
)
_REQUEST = '(APIServer pid={pid}) INFO:     10.0.{m}.{s}:{b} - "POST /v1/completions?n={n} HTTP/1.1" 200 OK\n'
_BATCH = "(Worker_TP0 pid={pid}) DEBUG 11-21 07:{m:02d}:{s:02d} [runner.py:3417] key=layer{n} shape=({a}, {b}) hit\n"
_WORDS = ("model", "layer", "weight", "token", "cache", "block", "kernel", "graph", "key", "value", "load", "shard")


def main() -> None:
    """Print one line for each kind of input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=64, help="size of each input")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    size, known = args.mib << 20, as_literals(secrets())
    print(f"{len(known)} forms of {len(secrets())} secrets, {args.mib} MiB each, load {os.getloadavg()[0]:.1f}")
    texts = {
        "vLLM log": vllm_log(size),
        "log with colours": coloured(size),
        "log with coloured numbers": re.sub(rb"\d+", b"\x1b[1;36m\\g<0>\x1b[0m", vllm_log(size // 2))[:size],
        "prose": prose(size),
        "JSON lines": json_lines(size),
        "vLLM log, a secret in each line": with_secrets(vllm_log(size)),
    }
    for name, data in texts.items():
        show(f"stream, {name}", args.runs, len(data), partial(streamed, data, known))
    show("stream, vLLM log, no known secret", args.runs, size, lambda: streamed(texts["vLLM log"], ()))
    for name, data in texts.items():
        show(f"stream, {name}, standard library alone", args.runs, len(data), partial(without_library, data, known))
    with tempfile.TemporaryDirectory() as folder:
        files = {f"text file, {name}": data for name, data in texts.items()}
        files["binary file, random"] = b"\x7fELF\0" + random.Random(5).randbytes(size)
        files["binary file, a core"] = core(size)
        for name, data in files.items():
            path = Path(folder) / "file"
            path.write_bytes(data)
            show(name, args.runs, len(data), partial(mask_file, path, known))
        path.write_bytes(gzip.compress(texts["vLLM log"], 1))
        show("gzip of a vLLM log, bytes expanded", args.runs, size, lambda: mask_artifact(path, known))
        path.unlink()
        for name in ("JSON lines", "vLLM log, a secret in each line"):
            lines = [json.dumps({"seq": n, "text": line.decode()}) for n, line in enumerate(texts[name].splitlines())]
            (Path(folder) / "events.jsonl").write_text("\n".join(lines))
            size = (Path(folder) / "events.jsonl").stat().st_size
            show(f"runs redact, {name}", 1, size, lambda: redact_run(Path(folder), Redactor(known), known))


def secrets() -> list[str]:
    """Return eight values as they occur: tokens of letters and digits, a password, one with signs."""
    chance = random.Random(11)
    plain = ["".join(chance.choices(string.ascii_letters + string.digits, k=20)) for _ in range(6)]
    return [*plain, "s/lash+plus=eq&\"quote'", "correct horse battery"]


def vllm_log(size: int) -> bytes:
    return numbered(size, (_STATS, _REQUEST, _BATCH))


def coloured(size: int) -> bytes:
    return numbered(
        size, tuple("\x1b[1;36m" + line.replace(")", ")\x1b[0;0m", 1) for line in (_STATS, _REQUEST, _BATCH))
    )


def numbered(size: int, forms: tuple[str, ...]) -> bytes:
    """Return lines of these forms with random numbers, so that no two are the same."""
    chance, total = random.Random(1), 0
    lines: list[bytes] = []
    while total < size:
        numbers = {"pid": chance.randrange(400000), "a": chance.randrange(90000), "b": chance.randrange(65536)}
        small = {"m": chance.randrange(60), "s": chance.randrange(60), "r": chance.randrange(256)}
        lines.append(forms[len(lines) % len(forms)].format(n=len(lines), **numbers, **small).encode())
        total += len(lines[-1])
    return b"".join(lines)[:size]


def prose(size: int) -> bytes:
    """Return lines of words in any order and letters at random: no line's shape comes twice."""
    chance, lines, total = random.Random(2), [], 0
    while total < size:
        words = chance.choices(_WORDS, k=12)
        words[chance.randrange(12)] = "".join(chance.choices(string.ascii_letters, k=9))
        lines.append(" ".join(words).encode() + b"\n")
        total += len(lines[-1])
    return b"".join(lines)[:size]


def json_lines(size: int) -> bytes:
    form = (
        '{{"ts": {n}.{m}, "name": "request", "args": {{"id": "cmpl-{a:x}{b:x}{n:x}", "tokens": {r}, "text": "'
        + "the quick brown fox " * 12
        + '{s}"}}}}\n'
    )
    return numbered(size, (form,))


def with_secrets(text: bytes) -> bytes:
    """Return as much text, each line with a secret: half of them known, half such as rules find."""
    words = [*(value.encode() for value in secrets()), *(b"HF_TOKEN=hf_%d" % (10**19 + n) for n in range(8))]
    lines = text.splitlines()
    return b"\n".join(line + b" " + words[n % len(words)] for n, line in enumerate(lines))[: len(text)]


def core(size: int) -> bytes:
    """Return what a core of a Python process has: zeros, text, machine words, and bytes that look random."""
    chance, parts, total = random.Random(3), [b"\x7fELF\0"], 0
    text = vllm_log(1 << 20)
    while total < size:
        at = chance.randrange(len(text) - 8192)
        words = b"".join(
            (0x7F0000000000 + chance.randrange(1 << 36) * 8).to_bytes(8, "little")
            + chance.randrange(256).to_bytes(8, "little")
            for _ in range(512)
        )
        parts += [bytes(8192), text[at : at + 8192], words, chance.randbytes(8192)]
        total += 4 * 8192
    return b"".join(parts)[:size]


def streamed(data: bytes, known: tuple[bytes, ...]) -> None:
    stream = Redactor(known).stream()
    for at in range(0, len(data), PIECE):
        stream.feed(data[at : at + PIECE])
    stream.finish()


def without_library(data: bytes, known: tuple[bytes, ...]) -> None:
    """What the supervisor in a container of another Python does, which has the standard library alone."""
    re2 = patterns.re2
    patterns.re2 = None
    try:
        streamed(data, known)
    finally:
        patterns.re2 = re2


def show(what: str, runs: int, size: int, work: Callable[[], object]) -> None:
    processor, clock = [], []
    for _ in range(runs):
        began, busy = time.perf_counter(), time.process_time()
        work()
        processor.append(size / (time.process_time() - busy) / 1e6)
        clock.append(size / (time.perf_counter() - began) / 1e6)
    spread = f"{min(processor):.0f} to {max(processor):.0f}"
    print(
        f"{what:<66} {statistics.median(processor):>5.0f} MB/s ({spread}), {statistics.median(clock):.0f} by the clock",
        flush=True,
    )


if __name__ == "__main__":
    main()
