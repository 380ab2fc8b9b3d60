"""A share of `make accept-why`: C++, the interpreter and the formulas that gpucore publishes give the same address."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sass.proofs import prove_unit
from tests.support.toolchain import cuda_tool

# Seeds whose kernels have calls, shared memory, divisions of 64 bits, pointers in memory and loops of every kind. 2008
# subtracts a shifted 0.
SEEDS = {75: range(4), 80: range(4, 8), 90: [*range(8, 12), 2008], 100: range(12, 16), 120: range(16, 20)}


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize("arch", SEEDS)
def test_formula_interpreter_and_cpp_agree(arch: int, tmp_path: Path) -> None:
    outcome, kernels = prove_unit(cuda_tool("nvcc"), cuda_tool("nvdisasm"), tmp_path, arch, SEEDS[arch], launches=2)
    assert kernels == len(SEEDS[arch])
    assert outcome.wrong == []
    assert outcome.right >= 0.9 * outcome.executed > 50
    assert outcome.unexplained == {}
