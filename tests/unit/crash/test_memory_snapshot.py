"""PyTorch's snapshots, in the forms that its releases write, and pickles that want to do more than make values."""

import io
import os
import pickle
import random
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.builders.core_builder import BlockSpec, CoreSpec, DeviceSpec, build_core, illegal_address_core, sample_module
from tests.support.command_line import vdbg_env
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.memory_files import open_maps
from vdbg_env.crash.memory_map import owner_of
from vdbg_env.crash.memory_snapshot import read_snapshot

START = 0x7F4000000000
PROTOCOLS = (2, 3, 4, 5)


def segments(*, addresses: bool = True, pools: bool = True, frames: int = 0, seed: int = 3) -> list[dict[str, Any]]:
    """Return segments as `torch/cuda/_memory_viz.py` reads them; before torch 2.1 a block had no address of its own."""
    chance, found, at = random.Random(seed), [], START
    for number in range(5):
        blocks, inner = [], at
        for _ in range(chance.randint(1, 20)):
            size = 512 * chance.randint(1, 400)
            block: dict[str, Any] = {
                "size": size, "requested_size": size - chance.randint(0, 511),
                "state": chance.choice(("active_allocated", "inactive", "active_pending_free")),
                "frames": [{"filename": "a.py", "line": n, "name": "f"} for n in range(frames)],
            }  # fmt: skip
            blocks.append({"address": inner, **block} if addresses else block)
            inner += size
        found.append({
            "device": 0, "address": at, "total_size": inner - at, "allocated_size": 0, "active_size": 0,
            "requested_size": 0, "stream": 0, "segment_type": "large", "is_expandable": False, "blocks": blocks,
            **({"segment_pool_id": (0, number % 2)} if pools else {}),
        })  # fmt: skip
        at = inner + (2 << 20)
    return found


FORMS: dict[str, Any] = {
    "torch 2.0": segments(addresses=False, pools=False),
    "torch 2.9": {"segments": segments(), "device_traces": [[]], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""}},
    "torch 2.11": {
        "segments": segments(frames=3), "device_traces": [[{"action": "alloc", "addr": 1}]], "external_annotations": [],
        "allocator_settings": {"expandable_segments": True, "roundup_power2_divisions": {"1": 0, "2": 0}},
    },
}  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("form", FORMS)
def test_the_segments_are_those_that_python_s_own_reader_finds(form: str, protocol: int) -> None:
    data = pickle.dumps(FORMS[form], protocol=protocol)
    found = pickle.loads(data)
    rows = found["segments"] if isinstance(found, dict) else found
    memory = read_snapshot(data, "snapshot.pickle")
    kinds = {"inactive": "free", "active_pending_free": "pending", "active_allocated": "used"}
    expected = []
    for row in rows:
        at = row["address"]
        for block in row["blocks"]:
            kind = kinds[block["state"]]
            expected.append(
                (at, block["size"], "graph" if kind == "used" and row.get("segment_pool_id", (0, 0))[1] else kind)
            )
            at += block["size"]
    assert [(block.address, block.bytes, block.kind) for block in memory.blocks] == expected
    assert memory.source == "snapshot"


def test_the_history_after_the_segments_is_not_read() -> None:
    trace = [{"action": "alloc", "addr": n, "size": 1, "frames": []} for n in range(300_000)]
    data = pickle.dumps({"segments": segments(), "device_traces": [trace]})
    began = time.process_time()
    assert read_snapshot(data).blocks
    assert time.process_time() - began < 0.5


class Evil:
    """Makes a file when it is unpickled by a reader that executes pickles."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def cyclic() -> bytes:
    rows: list[Any] = [{"address": START, "total_size": 512, "blocks": []}]
    rows[0]["blocks"] = rows
    return pickle.dumps({"segments": rows})


def huge_index() -> bytes:
    return b"\x80\x02K\x07r\xff\xff\xff\x7fj\xff\xff\xff\x7f."  # a memo of two thousand million entries for others


# Lists of lists: each holds the one before it twice, so that its text has 2**40 numbers; nested 200,000 deep.
BOMB = b"(]q\0" + b"".join(b"]q%c(h%ch%ce" % (n, n - 1, n - 1) for n in range(1, 40)) + b"t"
DEEP = b"]" * 200_000 + b"a" * 199_999


def with_value(name: str, value: bytes) -> bytes:
    """Return a snapshot of one segment with one block, in which one field has a value that is given as instructions."""
    fields = {"address": b"M\0\x10", "total_size": b"M\0\x10", "size": b"M\0\x10", "state": b"X\1\0\0\0x", name: value}
    one, two = (
        b"".join(b"X%c\0\0\0%b%b" % (len(key), key.encode(), fields[key]) for key in keys)
        for keys in (("address", "total_size"), ("size", "state"))
    )
    return b"\x80\x02](}(" + one + b"X\6\0\0\0blocks](}(" + two + b"ueue."


def many_blocks(count: int) -> bytes:
    block = {"size": 1, "state": "inactive"}
    return pickle.dumps([{"address": START, "total_size": count, "blocks": [block] * count}])


def own_blocks(count: int) -> bytes:
    blocks = [{"size": 1, "state": "inactive", "address": START + n} for n in range(count)]
    return pickle.dumps([{"address": START, "total_size": count, "blocks": blocks}])


def long_memo(count: int, apart: int) -> bytes:
    return b"\x80\x02]" + b"".join(b"r" + struct.pack("<I", n * apart) for n in range(count)) + b"."


def with_row(**more: Any) -> bytes:
    return pickle.dumps([{"address": START, "total_size": 1024, "blocks": [{"size": 512, "state": "x"}], **more}])


HOSTILE: dict[str, Callable[[], bytes]] = {  # each is made for its test: some are large
    "cut": lambda: pickle.dumps(FORMS["torch 2.9"])[:2000],
    "cyclic": cyclic,
    "huge index": huge_index,
    "a million times one block": partial(many_blocks, 1_000_000),
    "half a million blocks": partial(own_blocks, 500_000),
    "negative": partial(with_row, address=-1),
    "negative size": partial(with_row, blocks=[{"size": -1, "state": "x"}]),
    "outside": partial(with_row, blocks=[{"size": 4096, "state": "x"}]),
    "overlapping": lambda: pickle.dumps([
        {"address": START + n, "total_size": 1024, "blocks": [{"size": 1024, "state": "x"}]} for n in (0, 512)
    ]),
    "no list": lambda: pickle.dumps({"segments": {"a": 1}}),
    "a number": lambda: pickle.dumps(7),
    "stack": lambda: b"\x80\x02u.",
    "long text": lambda: b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    "many keys": lambda: pickle.dumps({f"k{n}": 0 for n in range(5000)}),
    "keys that collide": lambda: pickle.dumps([{(2**61 - 1) * n: 0 for n in range(900)} for _ in range(500)]),
    "a memo out of order": partial(long_memo, 900_000, 4099),
    "a long memo": partial(long_memo, 1_600_000, 1),
    **{f"bomb as {name}": partial(with_value, name, BOMB) for name in ("address", "total_size", "size")},
    **{f"deep {name}": partial(with_value, name, DEEP) for name in ("address", "total_size", "size")},
    "old protocol": lambda: pickle.dumps(FORMS["torch 2.9"], protocol=0),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_pickle_is_refused_within_a_second_of_processor_time(case: str) -> None:
    data = HOSTILE[case]()
    began = time.process_time()
    with pytest.raises(BadInput):
        read_snapshot(data)
    assert time.process_time() - began < 1.5  # a second of an idle machine


@pytest.mark.parametrize("value", [BOMB, DEEP])
def test_a_state_that_is_no_text_is_a_free_block(value: bytes) -> None:
    assert [block.kind for block in read_snapshot(with_value("state", value)).blocks] == ["free"]


@pytest.mark.parametrize(
    "instructions",
    [
        b"cos\nsystem\n(X\4\0\0\0exittR.",  # GLOBAL, REDUCE
        b"\x8c\5posix\x8c\6system\x93.",  # STACK_GLOBAL
        b"(X\4\0\0\0exitios\nsystem\n.",  # INST
        b"(K\1o.",  # OBJ
        b"}}b.",  # BUILD
        b"\x82\1.",  # EXT1
        b"\x83\1\0.",  # EXT2
        b"\x84\1\0\0\0.",  # EXT4
        b")\x81.",  # NEWOBJ
        b"))}\x92.",  # NEWOBJ_EX
        b"Pname\n.",  # PERSID
        b"K\1Q.",  # BINPERSID
        b"\x97.",  # NEXT_BUFFER
        b")\x98.",  # READONLY_BUFFER
        b"\x96\4\0\0\0\0\0\0\0abcd.",  # BYTEARRAY8
        b"\x8b\xff\xff\xff\x7f.",  # LONG4
    ],
)
def test_each_instruction_that_does_more_than_make_values_ends_it(instructions: bytes) -> None:
    with pytest.raises(BadInput, match="does more than make plain values"):
        read_snapshot(b"\x80\5" + instructions)


def test_nothing_of_a_pickle_is_executed(tmp_path: Path) -> None:
    for protocol in PROTOCOLS:
        data = pickle.dumps({"segments": [Evil(tmp_path / "made")]}, protocol=protocol)
        with pytest.raises(BadInput, match="does more than make plain values"):
            read_snapshot(data)
    assert not (tmp_path / "made").exists()
    pickle.Unpickler(io.BytesIO(data)).load()
    assert (tmp_path / "made").exists(), "the pickle does what it is for where it is executed"


def test_bytes_at_random_end_in_a_typed_error_or_a_map() -> None:
    chance, data = random.Random(5), pickle.dumps(FORMS["torch 2.11"])
    for _ in range(500):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 8)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            read_snapshot(bytes(changed))
        except BadInput:
            continue


def test_locate_reads_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(FORMS["torch 2.9"]))
    ran = vdbg_env("locate", hex(START + 5), "--memory", str(path))
    assert ran.status == 0, ran.stderr
    assert "that was freed" in ran.stdout or "without a name" in ran.stdout or "keeps for later" in ran.stdout


def test_the_memory_sections_of_a_full_core_are_a_map(tmp_path: Path) -> None:
    device = DeviceSpec(
        modules=[sample_module()], blocks=[BlockSpec()], global_memory={START: bytes(4096), START + 8192: bytes(4096)}
    )
    full = tmp_path / "full.nvcudmp"
    full.write_bytes(build_core(CoreSpec(devices=[device], flags=0)))
    (memory,) = open_maps(str(full))
    assert owner_of(memory, START + 4100).sentence.startswith("4 bytes past the end of an allocation of 4,096 bytes")
    light = tmp_path / "light.nvcudmp"
    light.write_bytes(illegal_address_core())
    with pytest.raises(BadInput, match="holds no global memory"):
        open_maps(str(light))
