"""PyTorch's snapshots by the module that reads them for people, `torch/cuda/_memory_viz.py` of each release.

No GPU made these: they have the shape that `torch.cuda.memory._snapshot` documents. `scripts/memory_viz.py
.cache/memory-viz` fetches the modules of torch 2.9 to 2.15 alone, some kilobytes out of each wheel.
"""

import importlib.util
import pickle
import random
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vdbg_env.crash.memory_snapshot import read_snapshot

MODULES = sorted((Path(__file__).parents[2] / ".cache" / "memory-viz").glob("*/_memory_viz.py"))
KINDS = {"active_allocated": "used", "active_awaiting_free": "pending", "active_pending_free": "pending"}
LINE = re.compile(r"stream_(\d+);seg_(\d+);(\w+);(.*) (\d+)\n")

pytestmark = pytest.mark.skipif(not MODULES, reason="no modules of torch: scripts/memory_viz.py .cache/memory-viz")


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_memory_viz", path)
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def snapshot(seed: int) -> dict[str, Any]:
    """Return a snapshot with stacks that blocks share, graph pools, expandable segments and a history."""
    chance, at, segments = random.Random(seed), 0x7F4000000000, []
    stacks: list[list[dict[str, Any]]] = [
        [{"filename": "/a/model.py", "line": n, "name": "forward"} for n in range(depth)] for depth in range(4)
    ]
    for number in range(chance.randint(1, 40)):
        blocks, inner = [], at
        for _ in range(chance.randint(1, 60)):
            size = 512 * chance.randint(1, 4000)
            blocks.append({
                "address": inner, "size": size, "requested_size": size - chance.randint(0, 511),
                "state": chance.choice(("active_allocated", "active_awaiting_free", "inactive", "active_pending_free")),
                "frames": chance.choice(stacks),
            })  # fmt: skip
            inner += size
        segments.append({
            "device": 0, "address": at, "total_size": inner - at, "allocated_size": 0, "active_size": 0,
            "requested_size": 0, "stream": number % 3, "segment_type": chance.choice(("large", "small")),
            "segment_pool_id": (0, number % 2), "is_expandable": chance.random() < 0.5, "frames": chance.choice(stacks),
            "blocks": blocks,
        })  # fmt: skip
        at = inner + (2 << 20) * chance.randint(0, 3)
    trace = {"action": "alloc", "addr": at, "size": 512, "stream": 0, "time_us": 1, "frames": stacks[3]}
    settings = {"expandable_segments": True, "roundup_power2_divisions": {"1": 0, "2": 0}}
    return {
        "segments": segments, "device_traces": [[trace]], "allocator_settings": settings, "external_annotations": [],
    }  # fmt: skip


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.parent.name)
def test_blocks_are_those_that_torch_s_own_module_lists(path: Path) -> None:
    viz = module(path)
    for seed in range(20):
        data = pickle.dumps(snapshot(seed))
        found = pickle.loads(data)
        viz.segsum(found)  # raises where the blocks do not fill their segment
        listed = LINE.findall(viz.segments(found, format_flamegraph=str))
        sizes: dict[int, int] = {}  # by segment: a block has a line, and a second one for what its rounding adds
        kinds: dict[int, dict[str, int]] = {}
        for _, segment, state, _, size in listed:
            start, kind = int(segment), KINDS.get(state, "free")
            sizes[start] = sizes.get(start, 0) + int(size)
            by_kind = kinds.setdefault(start, {})
            by_kind[kind] = by_kind.get(kind, 0) + int(size)
        pools = {row["address"]: row["segment_pool_id"] for row in found["segments"]}
        read = read_snapshot(data).blocks
        for start, size in sizes.items():
            own = [block for block in read if start <= block.address < start + size]
            assert own[0].address == start
            assert all(one.end == other.address for one, other in pairwise(own))
            by_kind = {}
            for block in own:
                kind = "used" if block.kind == "graph" else block.kind
                assert block.kind != "graph" or pools[start] != (0, 0)
                by_kind[kind] = by_kind.get(kind, 0) + block.bytes
            assert by_kind == kinds[start]
        assert sum(block.bytes for block in read) == sum(sizes.values())
