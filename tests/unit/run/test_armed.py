"""Whether cores have room where they go, and what guard says that it puts into the environment."""

import pytest

from gpucore.arming import CoreSize
from vdbg_env.run.guarded import Room, fitting, listed

GIB = 1 << 30


@pytest.mark.parametrize(
    ("size", "ranks", "free", "taken", "words"),
    [
        ("default", 8, 20 * GIB, "default", None),
        ("default", 8, 4 * GIB, "light", "8 GPU cores (default) may need 8.0 GiB, and 4.0 GiB is free in /runs"),
        ("full", 1, 40 * GIB, "light", "a GPU core (full) may need 80.0 GiB"),
        ("full", 1, 100 * GIB, "full", None),
        ("default", 8, 100 << 20, "light", "a core may be lost"),
        ("light", 2, 256 << 20, "light", "a core may be lost"),
    ],
)
def test_the_smallest_cores_are_taken_rather_than_none(
    size: CoreSize, ranks: int, free: int, taken: str, words: str | None
) -> None:
    got, said = fitting(size, ranks, Room(folder="/runs", free=free, gpu_memory=80 * GIB))
    assert got == taken
    assert (words in said) if words and said else words is said


def test_without_a_gpu_no_core_needs_room() -> None:
    assert fitting("full", 8, Room(folder="/runs", free=0)) == ("full", None)


def test_each_variable_says_how_it_is_switched_off_and_the_user_s_own_stays() -> None:
    variables = {"CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    first, second = listed(variables, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "7"})
    assert first.endswith("off: CUDA_ENABLE_COREDUMP_ON_EXCEPTION=0")
    assert second.startswith("TORCH_NCCL_TRACE_BUFFER_SIZE=7 ") and second.endswith("set by you, and left as it is")
