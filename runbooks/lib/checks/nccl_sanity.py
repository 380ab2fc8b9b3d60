"""Checks that NCCL gives the right sum between these GPUs, eagerly and inside a CUDA graph; prints one line if so.

One node:       python3 -m torch.distributed.run --standalone --nproc-per-node=gpu nccl_sanity.py
Several nodes:  on each, python3 -m torch.distributed.run --nnodes=N --nproc-per-node=gpu \
                    --rdzv-backend=c10d --rdzv-endpoint=HEAD:29500 nccl_sanity.py
"""

import datetime
import os

import torch
import torch.distributed as dist

PATIENCE = datetime.timedelta(seconds=90)


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)  # before the group is made: otherwise every rank would sit on GPU 0
    dist.init_process_group(backend="nccl", timeout=PATIENCE, device_id=device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    value = torch.full((1 << 20,), float(rank), device=device)
    wanted = ranks * (ranks - 1) / 2
    dist.all_reduce(value)
    check(value, wanted, "eager")
    graph, static = torch.cuda.CUDAGraph(), torch.zeros_like(value)
    with torch.cuda.graph(graph):
        dist.all_reduce(static)
    static.fill_(float(rank))
    graph.replay()
    check(static, wanted, "CUDA graph")
    dist.barrier()
    if rank == 0:
        print(f"nccl-sanity: {ranks} ranks agree on a sum, eagerly and in a CUDA graph", flush=True)
    dist.destroy_process_group()


def check(value: torch.Tensor, wanted: float, how: str) -> None:
    torch.cuda.synchronize()
    if not bool((value == wanted).all()):
        raise SystemExit(f"nccl-sanity: {how}: rank {dist.get_rank()} has {value[0].item()}, not {wanted}")


if __name__ == "__main__":
    main()
