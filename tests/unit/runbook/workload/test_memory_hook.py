"""The hook that writes memory maps: in programs without vLLM, under kills, with errors, and how a step gets it.

PyTorch's allocator is a stand-in here, in the form that torch 2.13 has; tests/vllm_real has the real vLLM.
"""

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.command_line import vdbg_env
from tests.support.memory_maps import kv_row
from tests.support.patience import patience
from tests.support.schemas import Contract
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.crash.memory_map import owner_of, read_memory_map
from vdbg_env.runbook.workload import MEMORY_MAP, memory_hook

HOOK = SHIPPED_DATA / "runbooks" / "lib" / "memory-map"
TORCH = """
import sys
__version__ = "2.13.0"
class Tensor: pass
"""
CUDA = """
import os
queued, ready, asked = [], False, 0
segments = [{"address": 0x1000000, "total_size": 4096, "device": 0, "stream": 0, "segment_pool_id": (0, 1),
             "blocks": [{"address": 0x1000000, "size": 1024, "state": "active_allocated"},
                        {"address": 0x1000400, "size": 3072, "state": "inactive"}]}]
def _lazy_call(f, **_): queued.append(f)
def init():
    global ready
    for f in queued: f()
    ready = True  # only now, as in torch/cuda/__init__.py, _lazy_init
def is_available(): return True
def is_initialized(): return ready
def device_count(): return 1
def memory_stats_as_nested_dict(device): return {"segment": {"all": {"allocated": len(segments), "freed": 0}}}
def memory_snapshot(mempool_id=None, include_traces=True):
    if os.environ.get("BROKEN"): raise RuntimeError("the allocator is closed")
    assert include_traces is False
    return segments
"""

STARTED = "import glob, os, time, torch, torch.cuda; torch.cuda.init()"
WRITTEN = """
until, maps = time.time() + 30, os.environ["VDBG_MEMORY_MAP"] + "/m*.json"
while time.time() < until and {!r} not in open(glob.glob(maps)[0]).read():
    time.sleep(0.02)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("__init__.py", TORCH), ("cuda/__init__.py", CUDA)):
        path = tmp_path / "site" / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "maps").mkdir()
    return tmp_path


def run(folder: Path, program: str, **more: str) -> subprocess.CompletedProcess[str]:
    hooks = memory_hook(
        ("python", "x.py"), {}, data_dir=str(SHIPPED_DATA / "runbooks"), python_path=str(folder / "site")
    )
    variables = {**os.environ, **hooks, MEMORY_MAP: str(folder / "maps"), **more}
    return subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=patience(60)
    )


def document(folder: Path) -> dict[str, Any]:
    (path,) = (folder / "maps").glob("memory-map.*.json")
    found: dict[str, Any] = json.loads(path.read_bytes())
    Contract("memory-map-v1").check(found)
    read_memory_map(path.read_bytes())
    return found


def test_a_program_without_vllm_has_its_segments_written_once_the_device_is_ready(folder: Path) -> None:
    ran = run(folder, STARTED + WRITTEN.format('"blocks":[['), RANK="3")
    assert (ran.returncode, ran.stderr) == (0, "")
    found = document(folder)
    assert found["process"]["rank"] == 3
    assert found["releases"] == {"torch": "2.13.0"}
    assert found["segments"][0]["blocks"] == [[0, 1024, "used"]]
    assert found["segments"][0]["pool"] == [0, 1]


def test_blocks_that_went_are_kept_with_their_times_when_segments_change(folder: Path) -> None:
    changed = """
torch.cuda.segments[0]["blocks"][0]["state"] = "inactive"
torch.cuda.segments.append({"address": 0x2000000, "total_size": 512, "blocks": []})
"""
    ran = run(folder, STARTED + WRITTEN.format('"blocks":[[') + changed + WRITTEN.format('freed":[{'))
    assert (ran.returncode, ran.stderr) == (0, "")
    found = document(folder)
    assert found["moment"] == "segments"
    (freed,) = found["freed"]
    assert (freed["address"], freed["bytes"]) == ("0x1000000", 1024)
    assert 0 < freed["before"] - freed["after"] < 40
    memory = read_memory_map(json.dumps(found).encode())
    assert owner_of(memory, 0x1000010).where == "freed"


def test_an_error_of_the_allocator_is_in_no_one_s_way_and_in_the_notes(folder: Path) -> None:
    told = "; os.environ.pop('BROKEN')" + WRITTEN.format('"blocks":[[') + "print('well')"
    ran = run(folder, STARTED + "; time.sleep(0.3)" + told, BROKEN="1")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "well\n", "")
    assert document(folder)["notes"] == ["allocator: RuntimeError: the allocator is closed"]


@pytest.mark.parametrize("value", ["", "off", "/nowhere/at/all"])
def test_it_can_be_switched_off_and_a_folder_that_is_gone_is_no_error(folder: Path, value: str) -> None:
    ran = run(folder, "import torch, torch.cuda; torch.cuda.init(); print('well')", **{MEMORY_MAP: value})
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "well\n", "")
    assert list((folder / "maps").iterdir()) == []


def test_the_user_s_own_sitecustomize_runs_too_and_its_errors_are_shown(folder: Path) -> None:
    own = folder / "site" / "sitecustomize.py"
    own.write_text("import sys; sys.own = 'ran'\n")
    ran = run(folder, "import sys, sitecustomize; print(sys.own, sitecustomize.__file__)")
    assert ran.stdout == f"ran {own}\n"
    own.write_text("raise ValueError('its own error')\n")  # of another length: bytecode is told by length and second
    assert "ValueError: its own" in run(folder, "pass").stderr


def test_a_program_without_torch_is_left_alone(folder: Path) -> None:
    ran = run(folder, "import sys, threading; print(threading.active_count(), 'vllm' in sys.modules)")
    assert ran.stdout == "1 False\n"


def test_a_kill_at_any_moment_leaves_a_whole_map(folder: Path) -> None:
    """A process writes one map after another, each with other rows, and is killed at a moment of chance."""
    program = f"""
import os, sys
sys.path.insert(0, {str(HOOK)!r})
import vdbg_memory_map as hook
state = hook._this_process(0)
rows = [{{"name": f"layers.{{n}}.weight", "address": hex(0x7000000 + n * 4096), "bytes": 4096}} for n in range(4000)]
print("ready", flush=True)
number = 0
while True:
    number += 1
    state.tensors = rows[: 2000 + number % 2000]
    state.write("segments", None)
"""
    variables = {**os.environ, MEMORY_MAP: str(folder / "maps")}
    chance = random.Random(1)
    for _ in range(25):
        process = subprocess.Popen([sys.executable, "-c", program], env=variables, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        with process.stdout:
            assert process.stdout.readline() == "ready\n"
            time.sleep(chance.random() / 5)
            process.send_signal(signal.SIGKILL)
            process.wait()
    written = list((folder / "maps").glob("memory-map.*.json"))
    assert len(written) > 10
    for path in written:
        assert len(read_memory_map(path.read_bytes()).named) >= 2000


@pytest.mark.parametrize(("argv", "folders"), [(("vllm", "serve", "m"), 1), (("python", "a.py"), 2), (("./a.sh",), 1)])
def test_only_python_without_vllm_gets_a_sitecustomize(argv: tuple[str, ...], folders: int) -> None:
    path = memory_hook(argv, {}, data_dir="/data", python_path="/own")["PYTHONPATH"].split(":")
    assert path == [*["/data/lib/memory-map/python"][: folders - 1], "/data/lib/memory-map", "/own"]


def test_guard_gives_it_and_can_leave_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("guard", "--print-environment")
    assert "VDBG_MEMORY_MAP=FOLDER" in vdbg_env(*asked, "--", "vllm", "serve", "m").stdout
    assert "VDBG_MEMORY_MAP=FOLDER" not in vdbg_env(*asked, "--no-memory-map", "--", "vllm", "serve", "m").stdout
    monkeypatch.setenv("VDBG_GUARD_MEMORY_MAP", "off")
    assert "VDBG_MEMORY_MAP=FOLDER" not in vdbg_env(*asked, "--", "vllm", "serve", "m").stdout


@pytest.mark.parametrize(("option", "given"), [("--memory-map", True), ("--no-memory-map", False)])
def test_a_guarded_command_gets_it_or_not(tmp_path: Path, option: str, given: bool) -> None:
    folder = tmp_path / "folder"
    run = vdbg_env(
        "guard", "--runs", str(tmp_path / "runs"), option, "--", "sh", "-c", f"echo at=$VDBG_MEMORY_MAP > '{folder}'"
    )
    assert run.status == 0, run.stderr
    assert (folder.read_text() != "at=\n") is given


def hook() -> Any:
    """Return the hook's module, in this interpreter."""
    spec = importlib.util.spec_from_file_location("vdbg_memory_map", HOOK / "vdbg_memory_map.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Cache:
    """What the hook asks of a tensor of the KV cache."""

    dtype = "torch.bfloat16"

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], device: str = "cuda") -> None:
        self.shape, self._strides, self.device = shape, strides, SimpleNamespace(type=device)

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def element_size(self) -> int:
        return 2

    def data_ptr(self) -> int:
        return 0x7F0000000000


def backend(*order: str) -> type:
    """Return an attention backend as vLLM had them until 0.31: it says the shape for given sizes."""

    class Backend:
        @staticmethod
        def get_kv_cache_shape(blocks: int, slots: int, heads: int, size: int) -> tuple[int, ...]:
            named = {"B": blocks, "N": slots, "H": heads, "D": size, "2": 2, "2D": 2 * size}
            return tuple(named[letter] for letter in order)

    return Backend


# Of a key in block 5, slot 3, head 1, element 7: its offset in elements by the layout of the release.
@pytest.mark.parametrize(
    ("layer", "cache", "offset"),
    [
        (
            backend("2", "B", "N", "H", "D"),
            Cache((2, 9, 16, 2, 64), (18432, 2048, 128, 64, 1)),
            5 * 2048 + 3 * 128 + 71,
        ),
        (backend("B", "2", "N", "H", "D"), Cache((9, 2, 16, 2, 64), (4096, 2048, 128, 64, 1)), 5 * 4096 + 3 * 128 + 71),
        (None, Cache((9, 2, 16, 128), (4096, 2048, 128, 1)), 5 * 4096 + 2048 + 3 * 128 + 7),
        (None, Cache((9, 2, 16, 128), (4096, 128, 256, 1)), 5 * 4096 + 128 + 3 * 256 + 7),
        (None, Cache((9, 2, 16, 128), (4096, 2048, 128, 1), "cpu"), 5 * 4096 + 2048 + 3 * 64 + 7),
    ],
    ids=["FlashAttention until 0.31", "FlashInfer until 0.31", "0.32 by heads", "0.32 by slots", "0.32 on a CPU"],
)
def test_the_layouts_of_the_cache_are_named(layer: Any, cache: Cache, offset: int) -> None:
    attention = SimpleNamespace(attn_backend=layer, head_size=64)
    row = hook()._kv_row("model.layers.4.attn", attention, cache)
    memory = read_memory_map(json.dumps({"schema": "vdbg-env/memory-map/v1", "tensors": [row]}).encode())
    owner = owner_of(memory, cache.data_ptr() + 2 * offset)
    assert owner.place == {"block": 5, "slot": 3, "head": 1, "key/value": 0, "element": 7}
    assert owner.sentence.startswith("inside the key cache of layer 4")


def test_windows_have_the_rank_of_the_world_and_the_signals_before_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks 2 and 3 are the second group of a tensor-parallel size of two: their places in it are 0 and 1."""
    reduce = SimpleNamespace(buffer_ptrs=[0x1000, 0x9000], meta_ptrs=[0x20000, 0x30000], max_size=4096)
    group = SimpleNamespace(device_communicator=SimpleNamespace(ca_comm=reduce), ranks=[2, 3])
    monkeypatch.setitem(sys.modules, "vllm.distributed.parallel_state", SimpleNamespace(_TP=group))
    monkeypatch.setitem(sys.modules, "vllm._custom_ops", SimpleNamespace(meta_size=lambda: 128))
    rows = [(row["name"], row["address"], row["bytes"], row["rank"]) for row in hook()._windows(None, None)]
    assert rows == [
        ("custom all-reduce data", "0x1000", 4096, 2),
        ("custom all-reduce data", "0x9000", 4096, 3),
        ("custom all-reduce signals", "0x20000", 4224, 2),
        ("custom all-reduce signals", "0x30000", 4224, 3),
    ]


def large(weights: int, blocks: int) -> dict[str, Any]:
    """Return a map of a model of 80 layers with experts, before it is made to fit."""
    rows = [
        {"name": f"model.layers.{n // 125}.mlp.experts.{n % 125}.w13_weight", "kind": "weight",
         "address": hex(0x7F0000000000 + n * (4 << 20)), "bytes": (4 << 20) - 100 * (n % 5), "dtype": "bfloat16",
         "shape": [4096, 512], "strides": [512, 1]}
        for n in range(weights)
    ]  # fmt: skip
    caches = [kv_row(n, 0x7E0000000000 + n * (1 << 30)) for n in range(80)]
    filled = [[n * (4 << 20), 4 << 20, "used"] for n in range(weights)]
    small = [[n * 4096, 512 << n % 4, "used"] for n in range(blocks - weights)]
    return {
        "schema": "vdbg-env/memory-map/v1", "tensors": [*caches, *rows], "freed": [],
        "segments": [
            {"address": "0x7f0000000000", "bytes": weights * (4 << 20), "blocks": filled},
            {"address": "0x7d0000000000", "bytes": blocks * 4096, "blocks": small},
        ],
        "left_out": {"blocks": 0, "tensors": 0},
    }  # fmt: skip


def test_the_map_of_a_large_model_has_every_name_in_less_than_a_million_bytes() -> None:
    """80 layers, 10,000 weights, 50,000 blocks: blocks that a weight fills are left out, then the smallest."""
    text = hook()._fitting(large(10_000, 50_000))
    assert len(text) < 1_000_000
    found, memory = json.loads(text), read_memory_map(text.encode())
    kinds = [row.kind for row in memory.named]
    assert (kinds.count("kv-cache"), kinds.count("weight")) == (80, 10_000)
    assert found["left_out"]["tensors"] == 0
    assert found["left_out"]["blocks"] == 50_000 - sum(len(segment["blocks"]) for segment in found["segments"])
    assert found["left_out"]["blocks"] < 45_000
    owner = owner_of(memory, 0x7F0000000000 + 7003 * (4 << 20) + 5)
    assert owner.sentence == "inside the weight model.layers.56.mlp.experts.3.w13_weight"


def test_what_is_too_much_even_so_keeps_the_cache_and_the_large_weights() -> None:
    document = large(60_000, 60_000)
    for row in document["tensors"][80:30_080]:
        row["bytes"] = 4096
    text = hook()._fitting(document)
    assert len(text) < 1_000_000
    memory, found = read_memory_map(text.encode()), json.loads(text)
    kinds = [row.kind for row in memory.named]
    assert kinds.count("kv-cache") == 80
    assert kinds.count("weight") == 60_000 - found["left_out"]["tensors"]
    assert found["left_out"]["blocks"] == 60_000 - sum(len(segment["blocks"]) for segment in found["segments"])
