"""Jobs come from cores and memory, and the sum is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.common.errors import BadInput
from vdbg_env.image.plan import GIB, Machine, parallelism


def test_memory_bounds_what_cores_would_allow() -> None:
    found = parallelism(Machine(cores=64, free_memory=62 * GIB), architectures=1, gib_per_job=5)
    assert (found.max_jobs, found.nvcc_threads, found.warning) == (12, 1, None)
    assert found.sum == "min(64 cores, 62.0 GiB free / 5 GiB a job = 12) = 12"


def test_several_architectures_share_the_jobs() -> None:
    found = parallelism(Machine(cores=16, free_memory=512 * GIB), architectures=4, gib_per_job=5)
    assert (found.max_jobs, found.nvcc_threads) == (16, 4)


def test_a_machine_too_small_still_tries_one_and_says_what_to_expect() -> None:
    found = parallelism(Machine(cores=2, free_memory=2 * GIB), architectures=1, gib_per_job=5)
    assert found.max_jobs == 1
    assert found.warning == "one compiler may need 5 GiB and 2.0 GiB are free: expect exit 137"


def test_more_jobs_than_memory_are_given_with_a_warning() -> None:
    found = parallelism(Machine(cores=64, free_memory=20 * GIB), architectures=1, gib_per_job=5, requested=32)
    assert found.max_jobs == 32
    assert found.warning == "--jobs 32 may need 160 GiB and 20.0 GiB are free: expect exit 137"


@pytest.mark.parametrize("wanted", [0, -1, 5000])
def test_jobs_that_make_no_sense_are_refused(wanted: int) -> None:
    with pytest.raises(BadInput, match="not between"):
        parallelism(Machine(cores=2, free_memory=GIB), architectures=1, gib_per_job=5, requested=wanted)


@given(st.integers(1, 512), st.integers(0, 4096), st.integers(1, 12), st.floats(0.5, 20))
def test_the_sum_never_asks_for_more_than_there_is(cores: int, gib: int, architectures: int, each: float) -> None:
    found = parallelism(Machine(cores=cores, free_memory=gib * GIB), architectures=architectures, gib_per_job=each)
    assert 1 <= found.nvcc_threads <= found.max_jobs <= cores
    assert found.max_jobs == 1 or found.max_jobs * each <= gib * (1 + 1e-9)
