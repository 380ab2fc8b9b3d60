"""How many compilers may run at once, from cores and memory."""

from __future__ import annotations

from dataclasses import dataclass

from vdbg_env.common.errors import BadInput

GIB = 1 << 30
MOST_JOBS = 4096


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a build may use: logical cores, and free memory in bytes."""

    cores: int
    free_memory: int


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """The two numbers of a build, how they were calculated, and a warning where the user overrode them.

    vLLM runs MAX_JOBS // NVCC_THREADS compilers, each compiling NVCC_THREADS architectures at once, so the first
    number bounds the memory.
    """

    max_jobs: int
    nvcc_threads: int
    sum: str
    warning: str | None = None


def parallelism(
    machine: Machine, *, architectures: int, gib_per_job: float, requested: int | None = None
) -> Parallelism:
    """Divide cores and memory among compilers; `requested` overrides the result, with a warning when memory is short.

    Raises BadInput for a number of jobs out of range.
    """
    if requested is not None and not 1 <= requested <= MOST_JOBS:
        raise BadInput(
            f"--jobs {requested} is not between 1 and {MOST_JOBS}", next_step="leave --jobs out to have it calculated"
        )
    fit = int(machine.free_memory / (gib_per_job * GIB))
    able = max(1, min(machine.cores, fit))
    free = machine.free_memory / GIB
    text = f"min({machine.cores} cores, {free:.1f} GiB free / {gib_per_job:g} GiB a job = {fit}) = {able}"
    if fit < 1:
        text += ", at least 1"
    jobs = able if requested is None else requested
    warning = None
    if requested is not None and requested > max(1, fit):
        warning = (
            f"--jobs {requested} may need {requested * gib_per_job:g} GiB and {free:.1f} GiB are free: expect exit 137"
        )
    elif fit < 1:
        warning = f"one compiler may need {gib_per_job:g} GiB and {free:.1f} GiB are free: expect exit 137"
    # More threads than architectures would idle; more than jobs would leave no compiler.
    threads = max(1, min(architectures, jobs))
    return Parallelism(max_jobs=jobs, nvcc_threads=threads, sum=text, warning=warning)
