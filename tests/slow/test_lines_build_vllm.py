"""The real thing: a kernel of the stock vLLM wheel, compiled again from the wheel alone, is the stock code.

Needs a package index and some minutes; with VDBG_UNITS=DIR what an earlier run fetched is used.
"""

import json
import os
from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_a_kernel_of_the_stock_wheel_is_identical(tmp_path: Path) -> None:
    work = os.environ.get("VDBG_UNITS")
    if not work:
        pytest.skip("fetches 1.5 GB: VDBG_UNITS=DIR says where to keep it")
    pack = tmp_path / "vllm.lines"
    ran = vdbg_env(
        "lines", "build", "vllm==0.33.0", "--kernel", "moe_align_block_size_kernel", "--arch", "9.0",
        "--work", work, "--output", str(pack), "--json",
    )  # fmt: skip
    assert ran.status == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert result["compiler"] == "13.0.88"
    (unit,) = result["units"]
    assert unit["source"].endswith("csrc/moe/moe_align_sum_kernels.cu")
    assert unit["comparison"]["total"] == len(unit["comparison"]["identical"]) == 114
    assert len(unit["asked_for"]) == 8
    assert pack.stat().st_size < 100_000
