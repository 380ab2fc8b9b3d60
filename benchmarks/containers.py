"""Measures what a step costs in a container of its own, against a bare `docker run` of the same child, in turn.

PYTHONPATH=builder:. python benchmarks/containers.py IMAGE        IMAGE holds a python3
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.execution import show, spread
from vdbg_env.image.settings import Gpu, RunSettings, StepContainer
from vdbg_env.run.begin import Places
from vdbg_env.runbook.state import Invocation

RUNS = 15
CHILD = ("true",)


def main(image: str) -> None:
    """Print the time of a step and of a bare container."""
    settings = RunSettings(image=image, gpu=Gpu(by="none"), dumps=None)
    place = Places(environment=os.environ).containers(StepContainer(settings=settings), name=None, notice=print)
    ours, bare = [], []
    with tempfile.TemporaryDirectory() as folder:
        placement = place.placement(Path(folder) / "run", (), None)
        for number in range(RUNS):
            directory = Path(folder) / "run" / "steps" / "step" / str(number)
            (directory / "localhost-0").mkdir(parents=True)
            began = time.perf_counter()
            seen = placement.start(Invocation(step="step", attempt=number, argv=CHILD), directory).wait(60)
            assert seen and seen[0].ended.clean, seen
            ours.append(1000 * (time.perf_counter() - began))
            began = time.perf_counter()
            subprocess.run(["docker", "run", "--rm", image, *CHILD], check=True)
            bare.append(1000 * (time.perf_counter() - began))
    place.close()
    show("a step in a container of its own", f"{statistics.median(ours):.0f} ms", spread(ours, "ms"))
    show("docker run --rm of the same child", f"{statistics.median(bare):.0f} ms", spread(bare, "ms"))


if __name__ == "__main__":
    main(sys.argv[1])
