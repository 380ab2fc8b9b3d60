"""NCCL's debug output."""

import pytest

from vdbg_env.evidence.nccl import parse_nccl_log


@pytest.mark.parametrize("form", ["nranks 128", "nRanks 128", "[nranks=128]", "[nRanks=128]"])
def test_the_number_of_ranks_is_read_in_every_form(form: str) -> None:
    line = f"node:7:9 [0] NCCL INFO AllReduce: opCount 4 sendbuff 0x0 comm 0x55d0 {form} stream 0x1"
    assert parse_nccl_log([line]).ranks == 128
