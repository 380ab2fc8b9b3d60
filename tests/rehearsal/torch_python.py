"""Behaves as a Python whose PyTorch reaches a GPU: plays `torch_crash.py`, and can import what it is asked to.

TORCH_KERNELS names the folder of the kernels that stand for PyTorch's and Triton's.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from tests.gpu.samples import samples


def main() -> None:
    """Play the sample that is asked for."""
    if sys.argv[1] == "-c":
        return  # `import torch`, `import triton`: yes
    sample = next(s for s in samples() if s.source.name == Path(sys.argv[1]).name and s.args == tuple(sys.argv[2:]))
    kernels = Path(os.environ["TORCH_KERNELS"]) / ("triton.cubin" if sample.has_lines else "torch.cubin")
    sys.argv[1:] = [sample.name, str(kernels)]
    runpy.run_module("tests.rehearsal.program", run_name="__main__")


if __name__ == "__main__":
    main()
