"""The sample image by `vdbg-env build` against plain `docker build` of the same Dockerfile, compile step and all.

Run as `python -m benchmarks.sample_build [ROUNDS]`; needs the engine and base image of scripts/prepare-engine. Each
round changes one source file, so that both compile anew and take all that stands before from the cache. What the one
does more is the proof: every library read, cuobjdump asked inside the image, the label, the tag.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SAMPLE = Path(__file__).parents[1] / "images" / "sample"
BASE = "vdbg/debian-trixie:local"
VDBG = [sys.executable, "-m", "vdbg_env"]


def timed(argv: list[str], **environment: str) -> float:
    start = time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, **environment})
    return time.perf_counter() - start


def main() -> None:
    """Print each round's two times and the median of their ratios."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    ratios = []
    with tempfile.TemporaryDirectory(prefix="vdbg-bench-") as folder:
        source = Path(folder) / "sample"
        shutil.copytree(SAMPLE, source)
        flags = ["--profile", "sample", "--base", BASE, "--source", str(source)]
        for number in range(-1, rounds):  # the first is not counted: it fills the cache of what stands before
            times = []
            for who in ("ours", "docker"):
                note = f"// {who}, round {number}, {time.time_ns()}\n"
                (source / "src" / "round.h").write_text(note)
                if who == "ours":
                    times.append(timed([*VDBG, "build", "--quiet", *flags, "--tag", "vdbg-bench/ours:1"]))
                else:
                    context = f"{folder}/context"
                    subprocess.run([*VDBG, "render", *flags, context], check=True, capture_output=True)
                    times.append(timed(["docker", "build", "--tag", "vdbg-bench/docker:1", context]))
            if number >= 0:
                ratios.append(times[0] / times[1])
                print(f"round {number}: vdbg-env build {times[0]:.1f} s, docker build {times[1]:.1f} s")
        subprocess.run(["docker", "rmi", "vdbg-bench/ours:1", "vdbg-bench/docker:1"], capture_output=True, check=False)
    print(f"ours / peer, median of {len(ratios)} rounds: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
