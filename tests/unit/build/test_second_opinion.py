"""cuda-gdb's answer is put beside ours fairly: what it does not look at, what it does not name, where we differ."""

import pytest

from gpucore.core import decode_core
from tests.builders.core_builder import exited_warps_core, hang_core, illegal_address_core
from vdbg_env.evidence.cuda_gdb import parse_cuda_gdb
from vdbg_env.evidence.gpu_findings import gpu_core_findings
from vdbg_env.run.builtin_steps import compare

NONE = "warning: No exception was found on any device\n"
AT = "The exception was triggered at PC 0x7fffd9001140 (inline_chain.cu:3 in f inlined from inline_chain.cu:13)\n"


@pytest.mark.parametrize(
    ("core", "said", "verdict"),
    [
        (exited_warps_core(), NONE, "cuda-gdb finds no exception (it does not look at exited warps)"),
        (illegal_address_core(), NONE, "cuda-gdb finds no exception, we find Warp Illegal Address"),
        (hang_core(), NONE, "cuda-gdb finds no exception, nor do we"),
        (illegal_address_core(), f"CUDA Exception: Warp Illegal Address\n{AT}",
         "cuda-gdb agrees: Warp Illegal Address at inline_chain.cu:3"),
        (illegal_address_core(exception=12), f"Assertion failed.\n{AT}",
         "cuda-gdb agrees: Warp Assert at inline_chain.cu:3"),
        (illegal_address_core(exception=1), AT, "cuda-gdb agrees: an exception it does not name at inline_chain.cu:3"),
    ],
    ids=["exited", "missed", "hang", "agrees", "assert", "unnamed"],
)  # fmt: skip
def test_what_cuda_gdb_says_is_put_beside_ours(core: bytes, said: str, verdict: str) -> None:
    read = decode_core(core)
    ours = gpu_core_findings(read.faults, read.warp_groups, "core")[0]
    assert compare(read, ours, parse_cuda_gdb(said)) == verdict
