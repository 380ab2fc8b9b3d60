"""Starts vLLM's engine with the memory map's plug-in, and writes what each worker itself says of its addresses.

    PYTHON memory_truth.py MODEL OUTPUT RANKS

Runs in vLLM's interpreter, with VDBG_MEMORY_MAP set. OUTPUT gets JSON: for each worker its process, its seconds of
processor time at the end of the start, ADDRESSES of random and boundary addresses with what PyTorch says of them, and
how often the plug-in was called during a generation.
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from vllm import LLM

ADDRESSES = 10_000


def truth(worker: Any) -> dict[str, Any]:
    """Return addresses of single elements by PyTorch's own indexing, and of both sides of each tensor's ends."""
    chance = random.Random(11)
    runner = worker.model_runner
    tensors = {}
    for name, parameter in runner.model.named_parameters():
        if parameter.numel():
            tensors[name] = parameter.data
    for name, layer in runner.vllm_config.compilation_config.static_forward_context.items():
        caches = getattr(layer, "kv_cache", None)
        for number, cache in enumerate(caches if isinstance(caches, (list, tuple)) else [caches]):
            tensors[name if not isinstance(caches, (list, tuple)) or len(caches) == 1 else f"{name}[{number}]"] = cache
    for name in ("input_ids", "positions", "query_start_loc", "seq_lens"):
        found = getattr(runner, name, None)
        found = getattr(found, "gpu", found)
        if hasattr(found, "data_ptr"):
            tensors[name] = found
    inside: list[Any] = []
    names = sorted(tensors)
    while len(inside) < ADDRESSES:
        name = chance.choice(names)
        tensor = tensors[name]
        index = [chance.randrange(size) for size in tensor.shape]
        inside.append([tensor[tuple(index)].data_ptr() + chance.randrange(tensor.element_size()), name, index])
    spans = {}
    for name, tensor in tensors.items():
        last = tensor[tuple(size - 1 for size in tensor.shape)]
        spans[name] = [tensor.data_ptr(), last.data_ptr() + tensor.element_size()]
    parts = []
    for name, layer in runner.vllm_config.compilation_config.static_forward_context.items():
        cache = layer.kv_cache[0] if isinstance(layer.kv_cache, (list, tuple)) else layer.kv_cache
        for number, part in enumerate(split(cache)):
            for _ in range(100):
                index = [chance.randrange(size) for size in part.shape]
                parts.append([part[tuple(index)].data_ptr(), name, number, index])
    return {
        "pid": os.getpid(), "inside": inside, "parts": parts, "spans": spans, "seconds": time.process_time(),
    }  # fmt: skip


def split(cache: Any) -> Any:
    """Return the keys and the values of a layer as [block, head, slot, element]: as vLLM's CPU backend has them."""
    if cache.shape[0] == 2:  # before vLLM 0.13
        return cache.unbind(0)
    blocks, heads, slots, _ = cache.shape
    return cache.view(blocks, heads, 2 * slots, -1).chunk(2, dim=2)


def count(worker: Any) -> None:
    """Begin to count the calls of the plug-in's functions in this worker."""
    worker.vdbg_calls = calls = {"plug-in": 0, "all": 0}

    def seen(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            calls["all"] += 1
            calls["plug-in"] += "vdbg_memory_map" in frame.f_code.co_filename

    sys.setprofile(seen)


def counted(worker: Any) -> Any:
    """End the count and return it."""
    sys.setprofile(None)
    return worker.vdbg_calls


def main() -> None:
    model, output, ranks = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    began = time.monotonic()
    llm = LLM(model, dtype="float32", max_model_len=256, max_num_seqs=8, enforce_eager=True, tensor_parallel_size=ranks)
    started = time.monotonic() - began
    workers = llm.collective_rpc(truth)
    llm.collective_rpc(count)
    answer = llm.generate("hello")[0].outputs[0].token_ids
    calls = llm.collective_rpc(counted)
    document = {"started_s": started, "workers": workers, "calls": calls, "tokens": len(answer)}
    output.write_text(json.dumps(document))


if __name__ == "__main__":
    main()
