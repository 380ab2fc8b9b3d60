"""Memory maps as vLLM's worker writes them, made up: two layers of KV cache, weights, buffers, a window, segments."""

import json
from typing import Any

KEYS = 0x7F2000000000
LAYER_BYTES = 512 * 2 * 16 * 2 * 64 * 2
SLOTS = 0x7F1FF0000000
WEIGHT = 0x7F1FE0000000
WINDOW = 0x7F3000000000
SEGMENT = 0x7F1FF0000000
FREED = SEGMENT + 0x300000


def kv_row(layer: int, address: int) -> dict[str, Any]:
    return {
        "name": f"model.layers.{layer}.self_attn.attn", "kind": "kv-cache", "address": hex(address),
        "bytes": LAYER_BYTES, "dtype": "bfloat16", "shape": [512, 2, 16, 2, 64], "strides": [4096, 2048, 128, 64, 1],
        "axes": ["block", "head", "slot", "key/value", "element"],
    }  # fmt: skip


def document(*, pid: int = 4242, rank: int | None = 0) -> dict[str, Any]:
    """Return a map: layers 16 and 17 lie apart, what lay at FREED was given back between 1000 and 1002 s."""
    return {
        "schema": "vdbg-env/memory-map/v1",
        "written": 1010.0,
        "moment": "compile_or_warm_up_model",
        "process": {"pid": pid, "rank": rank},
        "releases": {"vllm": "0.33.0", "torch": "2.14.0"},
        "tensors": [
            kv_row(17, KEYS),
            kv_row(16, KEYS + (8 << 20) + (1 << 21)),
            {"name": "lm_head.weight", "kind": "weight", "address": hex(WEIGHT), "bytes": 1 << 20, "dtype": "bfloat16",
             "shape": [1024, 512], "strides": [512, 1]},
            {"name": "model.embed_tokens.weight", "kind": "weight", "address": hex(WEIGHT), "bytes": 1 << 20},
            {"name": "input_batch.block_table.slot_mapping", "kind": "buffer", "address": hex(SLOTS), "bytes": 65536,
             "dtype": "int64", "shape": [8192], "strides": [1]},
        ],
        "windows": [{"name": "custom all-reduce data", "address": hex(WINDOW), "bytes": 8 << 20, "rank": 3}],
        "segments": [
            {"address": hex(SEGMENT), "bytes": 6 << 20, "device": 0, "stream": 0, "pool": [0, 0],
             "blocks": [[0, 65536, "used"], [1 << 20, 1 << 20, "used"], [2 << 20, 1 << 20, "pending"]]},
            {"address": hex(SEGMENT + (64 << 20)), "bytes": 2 << 20, "device": 0, "stream": 7, "pool": [0, 1],
             "blocks": [[0, 2 << 20, "used"]]},
        ],
        "freed": [{"address": hex(FREED), "bytes": 1 << 20, "after": 1000.0, "before": 1002.0}],
        "left_out": {"blocks": 0, "tensors": 1},
        "notes": ["buffers: RuntimeError: no device"],
        "cost": {"writes": 3, "seconds": 0.02},
    }  # fmt: skip


def encoded(**more: Any) -> bytes:
    return json.dumps({**document(), **more}).encode()
