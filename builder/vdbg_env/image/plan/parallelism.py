"""How many compilers may run at once: a sum of cores and memory, told as it was done."""

from __future__ import annotations

from dataclasses import dataclass

from vdbg_env.common.errors import BadInput

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a build may use: logical cores, and free memory in bytes."""

    cores: int
    free_memory: int


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """The two numbers a build takes, the sum that gave them, and a warning where the sum was overruled.

    vLLM runs MAX_JOBS // NVCC_THREADS compilers, each compiling NVCC_THREADS architectures at once, so the first
    number is what bounds the memory.
    """

    max_jobs: int
    nvcc_threads: int
    sum: str
    warning: str | None = None


def parallelism(machine: Machine, *, architectures: int, gib_per_job: float, wanted: int | None = None) -> Parallelism:
    """Divide cores and memory among compilers; `wanted` overrules the sum, with a warning when memory says otherwise.

    Raises BadInput when fewer than one job is wanted.
    """
    if wanted is not None and not 1 <= wanted <= 4096:
        raise BadInput(f"--jobs {wanted} is not between 1 and 4096", next_step="leave --jobs out to have it reckoned")
    fit = int(machine.free_memory / (gib_per_job * GIB))
    able = max(1, min(machine.cores, fit))
    free = machine.free_memory / GIB
    told = f"min({machine.cores} cores, {free:.1f} GiB free / {gib_per_job:g} GiB a job = {fit}) = {able}"
    if fit < 1:
        told += ", at least 1"
    jobs = able if wanted is None else wanted
    warning = None
    if wanted is not None and wanted > max(1, fit):
        warning = f"--jobs {wanted} may need {wanted * gib_per_job:g} GiB and {free:.1f} GiB are free: expect exit 137"
    elif fit < 1:
        warning = f"one compiler may need {gib_per_job:g} GiB and {free:.1f} GiB are free: expect exit 137"
    # More threads than architectures idle; more than jobs would leave not one compiler.
    threads = max(1, min(architectures, jobs))
    return Parallelism(max_jobs=jobs, nvcc_threads=threads, sum=told, warning=warning)
