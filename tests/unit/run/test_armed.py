"""Whether cores have room where they go, and what guard says that it puts into the environment."""

import os
import sys
from pathlib import Path

import pytest

from gpucore.arming import CoreSize
from vdbg_env.run.begin import RunbookRequest
from vdbg_env.run.guarded import Guarded, GuardFlags, Room, fitting, listed
from vdbg_env.run.session import Session
from vdbg_env.runbook.state import Invocation

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


@pytest.mark.parametrize("torch, new", [("2.11.0+cu130", True), ("2.7.1", False), ("2.10.0", True), (None, None)])
def test_the_flight_recorder_is_armed_by_the_names_that_the_workload_s_torch_has(
    tmp_path: Path, torch: str | None, new: bool | None
) -> None:
    """PyTorch 2.8 renamed them and warns of the old ones; both are given where the release is not known."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    if torch:
        packages = tmp_path / "lib" / "python3.12" / "site-packages" / "torch"
        packages.mkdir(parents=True)
        (packages / "version.py").write_text(f"from typing import Optional\n\n__version__ = {torch!r}\n")
    asked = RunbookRequest(runbook="guard", argv=(str(python), "x.py"), batch=True, at_once=True)
    planned = Session(asked, lambda _: None, environment={"PATH": os.environ["PATH"]}).plan().steps[0].invocation
    assert planned
    folder = "${{ rank.dir }}/flight-recorder."
    old = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": folder}
    today = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_TEMP_FILE": folder}
    armed = {name: value for name in (*old, *today) if (value := planned.env.get(name))}
    assert armed == ({**old, **today} if new is None else today if new else old)


def test_a_variable_that_the_user_set_by_its_old_name_is_not_set_by_its_new_one() -> None:
    environment = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "7"}
    env = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": None, "PYTHONFAULTHANDLER": "1"}
    left = Guarded(GuardFlags()).without_the_users(
        Invocation(step="guarded", attempt=1, argv=("x",), env=env), environment
    )
    assert left.env == {"PYTHONFAULTHANDLER": "1"}
