"""How long a wish takes to become a Dockerfile: read the library, plan and render, in this process and as a command.

The goal is 50 ms for plan and render. The peer of the whole command is a Python that only imports what it must.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

from benchmarks.paired import compare
from vdbg_env.build.build import read_image_library
from vdbg_env.image.plan import dockerfile
from vdbg_env.image.planner import plan
from vdbg_env.image.profile import BuildRequest

GOAL_S = 0.050
RUNS = 30


def main() -> int:
    """Print the figures; 1 when plan and render miss their goal."""
    library = read_image_library()
    print(f"{'step':<34} {'least':>9} {'median':>9} {'most':>9}")
    row("read the library", read_image_library)
    worst = 0.0
    for name in sorted(library.profiles):
        request = BuildRequest(profile=name)
        worst = max(worst, row(f"plan and render {name}", partial(once, request)))
    print(f"worst median {worst * 1e3:.1f} ms, goal {GOAL_S * 1e3:.0f} ms: {'met' if worst < GOAL_S else 'MISSED'}\n")
    dry_run = [sys.executable, "-m", "vdbg_env", "build", "--profile", "pypi-cu130", "--dry-run"]
    imports = [sys.executable, "-c", "import click, pydantic, yaml, jinja2"]
    print(compare(("vdbg-env build --dry-run", dry_run), ("import click pydantic yaml jinja2", imports), runs=5))
    return 0 if worst < GOAL_S else 1


def once(request: BuildRequest) -> str:
    """Do all of it anew, templates and profile included, as the command does."""
    library = read_image_library()
    return dockerfile(plan(library.spec(request.profile), request, library))


def row(name: str, work: Callable[[], object]) -> float:
    """Time one piece of work, print its row and return its median in seconds."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    median = statistics.median(times)
    print(f"{name:<34} {min(times) * 1e3:7.1f}ms {median * 1e3:7.1f}ms {max(times) * 1e3:7.1f}ms")
    return median


if __name__ == "__main__":
    sys.exit(main())
