"""Checks that processes can add numbers together: over the network by Gloo, then by NCCL, and NCCL inside a CUDA graph.

One node:       python3 -m torch.distributed.run --standalone --nproc-per-node=gpu nccl_sanity.py
Several nodes:  on each, python3 -m torch.distributed.run --nnodes=N --nproc-per-node=gpu \
                    --rdzv-backend=c10d --rdzv-endpoint=HEAD:29500 nccl_sanity.py

HEAD is a node's address that all nodes reach. NCCL_DEBUG=INFO before it shows interfaces and transports. On a machine
without a GPU (--nproc-per-node=2, say) the network alone is tried.
"""

import datetime
import os
import socket
from collections import Counter

import torch
import torch.distributed as dist

PATIENCE = datetime.timedelta(seconds=90)


def main() -> None:
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)  # before the group is made: otherwise every rank would sit on GPU 0
    dist.init_process_group(backend="cpu:gloo,cuda:nccl" if has_gpu else "gloo", timeout=PATIENCE)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    try_network(rank, ranks)
    if has_gpu:
        try_gpus(device, rank, ranks)
    say(f"{ranks} ranks agree on a sum, eagerly and in a CUDA graph" if has_gpu else "no GPU here: NCCL was not tried")
    dist.destroy_process_group()


def try_network(rank: int, ranks: int) -> None:
    """Add over Gloo, which needs a network interface and nothing of the GPU; vLLM's ranks find each other by it."""
    value = torch.full((128,), float(rank))
    dist.all_reduce(value)
    check(value, wanted_sum(ranks), "gloo")
    names: list[str] = [""] * ranks
    dist.all_gather_object(names, socket.gethostname())
    nodes = ", ".join(f"{count} on {name}" for name, count in sorted(Counter(names).items()))
    say(f"gloo adds over all ranks: {nodes}")


def try_gpus(device: torch.device, rank: int, ranks: int) -> None:
    """Add over NCCL, eagerly and inside a CUDA graph: graphs take another path through it."""
    value = torch.full((1 << 20,), float(rank), device=device)
    dist.all_reduce(value)
    torch.cuda.synchronize()
    check(value, wanted_sum(ranks), "eager")
    graph, static = torch.cuda.CUDAGraph(), torch.zeros_like(value)
    with torch.cuda.graph(graph):
        dist.all_reduce(static)
    static.fill_(float(rank))
    graph.replay()
    torch.cuda.synchronize()
    check(static, wanted_sum(ranks), "CUDA graph")
    dist.barrier()


def wanted_sum(ranks: int) -> float:
    return ranks * (ranks - 1) / 2


def check(value: torch.Tensor, wanted: float, how: str) -> None:
    if not bool((value == wanted).all()):
        raise SystemExit(f"nccl-sanity: {how}: rank {dist.get_rank()} has {value[0].item()}, not {wanted}")


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(f"nccl-sanity: {text}", flush=True)


if __name__ == "__main__":
    main()
