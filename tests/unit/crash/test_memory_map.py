"""Whose memory an address is: every kind of answer, a thousand addresses against a second way, and hostile maps."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import memory_maps
from tests.support.command_line import vdbg_env
from tests.support.memory_maps import FREED, KEYS, LAYER_BYTES, SEGMENT, SLOTS, WEIGHT, WINDOW, encoded, kv_row
from tests.support.schemas import Contract
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.memory_files import ask, open_maps, owners_json
from vdbg_env.crash.memory_map import MemoryMap, owner_of, read_memory_map

MAP = read_memory_map(encoded(), "memory-map.json")
END = KEYS + LAYER_BYTES
CORES = Path(__file__).parents[2] / "data" / "cores"


@pytest.mark.parametrize(
    ("address", "base", "where", "sentence"),
    [
        (KEYS + 8192 * 5 + 3 * 256 + 130, None, "inside",
         "inside the value cache of layer 17 (model.layers.17.self_attn.attn): block 5, head 0, slot 3, element 1"),
        (END + 75_776, KEYS, "past-the-end",
         "75,776 bytes past the end of the key cache of layer 17 (model.layers.17.self_attn.attn): "
         "block 521 of 0-511, head 0, slot 8, element 0"),
        (END + 96, None, "past-the-end",
         "96 bytes past the end of the key cache of layer 17 (model.layers.17.self_attn.attn): block 512 of 0-511, "
         "head 0, slot 0, element 48 (the nearest memory: what the access was meant for is not known)"),
        (WEIGHT - 4096, WEIGHT, "before-the-start", "4,096 bytes before the start of the weight lm_head.weight"),
        (WEIGHT - 4096, None, "before-the-start",
         "4,096 bytes before the start of the weight lm_head.weight (the nearest memory: what the access was meant "
         "for is not known)"),
        (WEIGHT + 1026, None, "inside",
         "inside the weight lm_head.weight: dim 0 1, dim 1 1, which has the same memory as the weight "
         "model.embed_tokens.weight"),
        (FREED + 5, None, "freed",
         "inside a block of 1,048,576 bytes that was freed 8.0 s to 10 s before the map was written"),
        (SEGMENT + (2 << 20), None, "freed",
         "inside a block of 1,048,576 bytes that was freed and is still in use by a stream"),
        (SEGMENT + (1 << 20) + 1, None, "inside", "inside a block of 1,048,576 bytes without a name"),
        (SEGMENT + (64 << 20), None, "inside",
         "inside a block of 2,097,152 bytes without a name, in the pool of CUDA graphs"),
        (SEGMENT + 70_000, None, "between", "in 983,040 bytes that the allocator keeps for later, in no tensor"),
        (WINDOW + 7, None, "inside", "inside rank 3's custom all-reduce data"),
        (0xA32000001000, None, "far",
         "not within 1 GiB of anything in the memory map, so no array was overrun by a little"),
        (0, None, "far", "a null pointer"),
        (0x1F8, None, "far", "a null pointer plus 504 bytes"),
        (KEYS ^ 1 << 44, None, "one-bit",
         "one bit (bit 44) away from the key cache of layer 17 (model.layers.17.self_attn.attn): block 0, head 0, "
         "slot 0, element 0"),
        (KEYS ^ 1 << 44, SLOTS, "before-the-start",
         "17,591,917,608,960 bytes (16.0 TiB) before the start of the buffer input_batch.block_table.slot_mapping"),
        (KEYS + 8 - (1 << 37), KEYS, "one-bit",
         "137,438,953,464 bytes (128.0 GiB) before the start of the key cache of layer 17 "
         "(model.layers.17.self_attn.attn), or one bit (bit 37) away from it: block 0, head 0, slot 0, element 4"),
        (KEYS + 8 ^ 1 << 62, KEYS, "one-bit",
         "one bit (bit 62) away from the key cache of layer 17 (model.layers.17.self_attn.attn): block 0, head 0, "
         "slot 0, element 4"),
        (KEYS + (10 << 20) + 2, KEYS, "past-the-end",
         "6,291,458 bytes past the end of the key cache of layer 17 (model.layers.17.self_attn.attn): block 1280 of "
         "0-511, head 0, slot 0, element 1; the KV cache of layer 16 (model.layers.16.self_attn.attn) lies there"),
        (FREED - 16, FREED, "before-the-start", None),
    ],
)  # fmt: skip
def test_every_answer(address: int, base: int | None, where: str, sentence: str | None) -> None:
    owner = owner_of(MAP, address, base=base)
    assert owner.where == where
    assert sentence is None or owner.sentence == sentence


def test_an_access_that_begins_inside_may_end_outside() -> None:
    owner = owner_of(MAP, END - 4, width=16)
    assert (owner.where, owner.distance) == ("past-the-end", 12)


def test_a_freed_block_is_counted_back_from_the_failure_where_that_is_known() -> None:
    sentence = owner_of(MAP, FREED, at=1003.1).sentence
    assert sentence == "inside a block of 1,048,576 bytes that was freed 1.1 s to 3.1 s before this"


def test_layers_that_are_interleaved_are_told_apart() -> None:
    """vLLM may give each block the bytes of all layers in turn: the extents of the views overlap nearly whole."""
    views = [
        {"name": f"layers.{n}.attn", "kind": "kv-cache", "address": hex(0x1000 + n * 64), "bytes": 64 + 99 * 256,
         "shape": [100, 32], "strides": [128, 1], "axes": ["block", "element"], "dtype": "bfloat16"}
        for n in range(4)
    ]  # fmt: skip
    found = read_memory_map(encoded(tensors=views, windows=[], segments=[], freed=[]))
    for _ in range(2000):
        offset = random.randrange(100 * 256)
        owner = owner_of(found, 0x1000 + offset)
        block, within = divmod(offset, 256)
        assert owner.region and owner.region.name == f"layers.{within // 64}.attn"
        assert (owner.place.get("block", 0), owner.place.get("element", 0)) == (block, within % 64 // 2)


def test_random_maps_agree_with_looking_at_every_row() -> None:
    chance = random.Random(7)
    for _ in range(40):
        rows: list[dict[str, Any]] = [
            {"name": f"t{n}", "address": hex(0x7000_0000 + chance.randrange(1 << 16)), "bytes": chance.randint(1, 4096)}
            for n in range(chance.randint(1, 60))
        ]
        found = read_memory_map(encoded(tensors=rows, windows=[], segments=[], freed=[]))
        spans = {row["name"]: (int(row["address"], 16), int(row["address"], 16) + row["bytes"]) for row in rows}
        for _ in range(100):
            address = 0x7000_0000 + chance.randrange(-5000, 75_000)
            owner = owner_of(found, address)
            holding = {name for name, (start, end) in spans.items() if start <= address < end}
            assert owner.region
            if holding:
                assert owner.where == "inside" and owner.region.name in holding
                assert len(owner.also) == min(4, len(holding) - 1)
                continue
            under = min((address - end for _, end in spans.values() if end <= address), default=1 << 70)
            over = min((start - address for start, _ in spans.values() if start > address), default=1 << 70)
            assert owner.where == ("past-the-end" if under <= over else "before-the-start")
            assert owner.distance == min(under, over)


def test_a_map_that_another_program_wrote_needs_no_more_than_names_and_ranges() -> None:
    rows = [{"name": "cache", "address": hex(KEYS), "bytes": 4096}]
    found = read_memory_map(json.dumps({"schema": "vdbg-env/memory-map/v1", "tensors": rows}).encode())
    assert owner_of(found, KEYS + 5000, base=KEYS).sentence == "904 bytes past the end of the tensor cache"


@pytest.mark.parametrize(
    "more",
    [
        {"schema": "other"},
        {"tensors": [{"name": "a", "address": "0x10", "bytes": -1}]},
        {"tensors": [{"name": "a", "address": "-0x10", "bytes": 1}]},
        {"tensors": [{"name": "a", "address": "0xffffffffffffffff", "bytes": 2}]},
        {"tensors": [{"name": "a", "address": 16, "bytes": 2}]},
        {"tensors": [{"name": ["a"], "address": "0x10", "bytes": 2}]},
        {"tensors": [{**kv_row(1, KEYS), "strides": [-4096, 2048, 128, 64, 1]}]},
        {"tensors": [{**kv_row(1, KEYS), "shape": [512, 2]}]},
        {"tensors": [{**kv_row(1, KEYS), "axes": ["block"]}]},
        {"tensors": [{**kv_row(1, KEYS), "bytes": LAYER_BYTES + 1}]},
        {"tensors": {"a": 1}},
        {"weights": [[0, "a", "0x10"]]},
        {"weights": [[-1, "a", "0x10", 4]]},
        {"weights": [[0, "a", "0x10", 0]]},
        {"weights": [["a", 0, "0x10", 4]]},
        {"tensors": [[]]},
        {"written": "now"},
        {"process": {"pid": -1}},
        {"segments": [{"address": "0x1000", "bytes": 4096, "blocks": [[0, 8192, "used"]]}]},
        {"segments": [{"address": "0x1000", "bytes": 4096, "blocks": [[0, 64, "used"], [32, 64, "used"]]}]},
        {"segments": [{"address": "0x1000", "bytes": 4096, "blocks": [[0, 64, "mine"]]}]},
        {"segments": [{"address": "0x1000", "bytes": 4096, "blocks": [[0, 64, {}]]}]},
        {"segments": [{"address": "0x1000", "bytes": 4096}, {"address": "0x1800", "bytes": 4096}]},
    ],
)
def test_a_map_that_cannot_be_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="is not a memory map"):
        read_memory_map(encoded(**more))


HUGE = b'{"schema":"vdbg-env/memory-map/v1","segments":[{"address":"0x1000","bytes":2000000,"blocks":[%s]}]}'


@pytest.mark.parametrize(
    "made",
    [
        lambda: b"",
        lambda: b"\xff",
        lambda: b"[" * 100_000,
        lambda: b'{"schema":"vdbg-env/memory-map/v1","written":NaN}',
        lambda: HUGE % b",".join(b'[%d,1,"used"]' % n for n in range(1_000_000)),
        lambda: b" " * (17 << 20),
    ],
    ids=["empty", "no text", "deep", "nan", "a million blocks", "17 MiB"],
)
def test_a_hostile_file_is_refused_within_a_second_of_processor_time(made: Callable[[], bytes]) -> None:
    data = made()
    began = time.process_time()
    with pytest.raises(BadInput):
        read_memory_map(data)
    assert time.process_time() - began < 1


def test_questions_of_the_largest_map_with_everything_overlapping_end_soon() -> None:
    rows = [{"name": f"t{n}", "address": hex(0x1000 + n), "bytes": 1 << 30} for n in range(50_000)]
    found = read_memory_map(encoded(tensors=rows, segments=[], freed=[], windows=[]))
    began = time.process_time()
    assert owner_of(found, 0x1000 + 40_000).where == "inside"
    assert owner_of(found, 0x1000).where == "inside"
    assert time.process_time() - began < 1


def test_weights_may_be_written_in_short() -> None:
    rows = [[0, "model.layers.12.qkv.weight", "0x1000", 64], [14, "3.o.weight", "0x2000", 32]]
    found = read_memory_map(encoded(weights=rows))
    assert owner_of(found, 0x1004).sentence == "inside the weight model.layers.12.qkv.weight"
    assert owner_of(found, 0x2000).sentence == "inside the weight model.layers.13.o.weight"


def test_what_a_map_had_no_room_for_is_not_called_free() -> None:
    found = read_memory_map(encoded(left_out={"blocks": 3, "tensors": 0}))
    owner = owner_of(found, SEGMENT + 70_000)
    assert owner.where == "between"
    assert owner.sentence == "in 983,040 bytes of the allocator's, of which the map had no room to say more"


FAR = {"address": "0x1000", "bytes": (1 << 62) + 1, "shape": [2, 1], "strides": [1 << 62, 1]}


@pytest.fixture(scope="module")
def with_gaps() -> tuple[MemoryMap, ...]:
    """Return maps with views with gaps over everything: over many small tensors, and over one another."""
    small = [{"address": hex(0x20000 + n * 16), "bytes": 4, "shape": [4], "strides": [1]} for n in range(90_000)]
    rows = [{**FAR, "address": hex(0x1000 + n)} for n in range(4000)]
    with pytest.raises(BadInput, match="views with gaps"):
        read_memory_map(encoded(tensors=rows * 2))
    maps = (encoded(tensors=tensors, segments=[], freed=[], windows=[]) for tensors in ([FAR, *small], rows))
    return tuple(map(read_memory_map, maps))


@pytest.mark.parametrize("address", [1 << 61, 0x123456789])
def test_views_with_gaps_over_everything_make_no_question_slow(with_gaps: tuple[MemoryMap, ...], address: int) -> None:
    """An address in no tensor is asked for once more with each of its bits turned over."""
    for found in with_gaps:
        began = time.process_time()
        assert owner_of(found, address).where == "far"
        assert time.process_time() - began < 1


def test_a_name_that_no_file_can_hold_is_changed() -> None:
    found = read_memory_map(encoded(tensors=[{"name": "\ud800x", "address": "0x10", "bytes": 4}], notes=["\udfff"]))
    assert owner_of(found, 0x10).sentence.encode() == b"inside the tensor ?x"
    assert found.notes == ("?",)


# A run's folder, and the command.


def folder_with(tmp_path: Path, *documents: dict[str, Any]) -> Path:
    place = tmp_path / "steps" / "guarded" / "1" / "localhost-0"
    place.mkdir(parents=True)
    for one in documents:
        name = f"memory-map.rank{one['process']['rank']}.{one['process']['pid']}.json"
        (place / name).write_text(json.dumps(one))
    return tmp_path


def test_two_ranks_are_told_apart_where_they_differ(tmp_path: Path) -> None:
    other = memory_maps.document(pid=4243, rank=1)
    other["tensors"][0]["name"] = "model.layers.40.self_attn.attn"
    maps = open_maps(str(folder_with(tmp_path, memory_maps.document(), other)))
    owners = ask(maps, KEYS)
    assert owners
    assert [line.split(":")[0] for line in owners.lines] == ["rank 0", "rank 1"]
    same = ask(maps, WEIGHT)
    assert same and len(same.lines) == 1


def test_a_damaged_map_beside_a_whole_one_is_left_out(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, memory_maps.document())
    next(folder.rglob("*.json")).with_name("memory-map.rank1.7.json").write_bytes(b'{"schema"')
    assert len(open_maps(str(folder))) == 1


def test_locate_without_code_says_whose_memory_an_address_is(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, memory_maps.document())
    ran = vdbg_env("locate", hex(END + 96), "--memory", str(folder))
    assert ran.status == 0
    assert "96 bytes past the end of the key cache of layer 17" in ran.stdout
    assert "note: buffers: RuntimeError: no device" in ran.stdout
    document = json.loads(vdbg_env("locate", hex(KEYS), "--memory", str(folder), "--json").stdout)
    Contract("owner-v1").check(document)
    assert document["region"]["layer"] == 17


def test_an_address_of_data_is_found_in_the_map_though_a_core_is_given_too(tmp_path: Path) -> None:
    folder, core = folder_with(tmp_path, memory_maps.document()), str(CORES / "synthetic_sm90_nolines.nvcudmp.gz")
    ran = vdbg_env("locate", hex(END + 96), core, "--memory", str(folder))
    assert (ran.status, "96 bytes past the end of the key cache of layer 17" in ran.stdout) == (0, True)
    assert "is in no code of the given files, but in the memory map" in ran.stderr
    assert vdbg_env("locate", hex(KEYS ^ 5 << 44), core, "--memory", str(folder)).status == 2
    code = vdbg_env("locate", "0x7fffd9001140", core, "--memory", str(folder))
    assert "kern<float>+0x140" in code.stdout and "memory:" not in code.stdout
    document = json.loads(vdbg_env("locate", "0x7fffd9001140", core, "--memory", str(folder), "--json").stdout)
    Contract("locate-v1").check(document)
    assert document["owner"]["where"] == "far"


def test_locate_needs_a_file_of_code_or_a_map(tmp_path: Path) -> None:
    assert vdbg_env("locate", "0x10").status == 2
    assert vdbg_env("locate", "0x10", "--memory", str(tmp_path / "none")).status == 2
    empty = vdbg_env("locate", "0x10", "--memory", str(tmp_path))
    assert (empty.status, "has no memory map" in empty.stderr) == (2, True)
    assert vdbg_env("locate", "kern", "--memory", str(folder_with(tmp_path, memory_maps.document()))).status == 2


def test_the_schema_of_answers_describes_every_field() -> None:
    contract = Contract("owner-v1")
    other = read_memory_map(encoded(process={"pid": 1, "rank": 1}), "other.json")
    for address, base in (
        (KEYS, None), (WEIGHT, None), (WINDOW, None), (FREED, None), (KEYS ^ 1 << 44, None), (END + (6 << 20), KEYS),
    ):  # fmt: skip
        owners = ask((MAP, other), address, base=base)
        assert owners
        contract.check(json.loads(owners_json(owners)))
    renamed = read_memory_map(encoded(tensors=[{**kv_row(3, KEYS), "name": "x"}], process={"pid": 1, "rank": 1}))
    several = ask((MAP, renamed), KEYS)
    assert several
    contract.check(json.loads(owners_json(several)))
    assert {field for field in contract.never_met() if field[0] != "OwnerByMap"} == set()


def test_the_schema_of_maps_describes_what_is_written() -> None:
    contract = Contract("memory-map-v1")
    row = {**kv_row(1, KEYS), "device": "cpu"}
    short = [[0, "model.layers.0.qkv.weight", "0x10", 4096]]
    contract.check({**memory_maps.document(), "tensors": [row], "weights": short})
    assert contract.never_met() == set()
