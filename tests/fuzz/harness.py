"""Feeds a reader with bytes that coverage guides, for a time and within a bound of memory; any untyped error ends it.

Each `fuzz_*.py` beside this file is one target: `python tests/fuzz/fuzz_x.py [libFuzzer options]`. `FUZZ_SECONDS` says
for how long, 20 if not set. Input that ended a run lies in the current folder as `crash-*`, `timeout-*` or `oom-*`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import atheris

SECONDS_PER_INPUT = 10
MEMORY_MB = 2048  # the readers' own bound is one expansion of at most 1 GiB


def fuzz(read: Callable[[bytes], None], seeds: Iterable[bytes], *, longest: int = 1 << 16) -> None:
    """Call `read` with mutations of the seeds until the time is up; does not return."""
    with tempfile.TemporaryDirectory(prefix="vdbg-fuzz-") as corpus:
        for number, seed in enumerate(seeds):
            Path(corpus, f"seed-{number}").write_bytes(seed)
        options = [
            f"-max_total_time={os.environ.get('FUZZ_SECONDS', '20')}",
            f"-timeout={SECONDS_PER_INPUT}",
            f"-rss_limit_mb={MEMORY_MB}",
            f"-max_len={longest}",
            "-print_final_stats=1",
        ]
        atheris.Setup([sys.argv[0], *options, *sys.argv[1:], corpus], read)
        atheris.Fuzz()
