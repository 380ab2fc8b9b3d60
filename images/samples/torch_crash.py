"""What PyTorch does with one planted fault: fill | graph | assert | oom | triton.

`graph` is the second story of the seeds: a tensor made to look a million times as long as it is, filled inside a CUDA
graph. Exit status 1 with a Python traceback, or SIGABRT when GPU core dumps are armed.
"""

from __future__ import annotations

import sys
from typing import Any

import torch


class Longer:
    """A view that begins in an allocation and runs 4 GiB past its end."""

    def __init__(self, near: torch.Tensor) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (1 << 30,),
            "typestr": "<f4",
            "data": (near.data_ptr(), False),
            "version": 3,
        }


def fill(x: torch.Tensor) -> None:
    torch.as_tensor(Longer(x), device="cuda").fill_(1)  # PLANTED fill


def graph(x: torch.Tensor) -> None:
    longer = torch.as_tensor(Longer(x), device="cuda")
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        x.add_(1)
        longer.fill_(1)  # PLANTED graph
        x.mul_(2)
    captured.replay()


def index(x: torch.Tensor) -> None:
    x[torch.tensor([1 << 20], device="cuda")]  # PLANTED assert


def out_of_memory(x: torch.Tensor) -> None:
    torch.empty(1 << 42, device=x.device)  # PLANTED oom


def triton_store(x: torch.Tensor) -> None:
    from torch_crash_triton import put

    put[(1,)](x, 1 << 40)


FAULTS = {"fill": fill, "graph": graph, "assert": index, "oom": out_of_memory, "triton": triton_store}


def main() -> None:
    fault = FAULTS[sys.argv[1] if len(sys.argv) > 1 else "fill"]
    x = torch.zeros(1 << 10, device="cuda")
    fault(x)
    print(x.sum().item())
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
