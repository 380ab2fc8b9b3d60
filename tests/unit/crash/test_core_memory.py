"""Five crashes, of which the core is the bundled one and the map says what lay where: each sentence in each form."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import reports
from tests.support.command_line import vdbg_env
from tests.support.schemas import Contract
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.crash.core import cores_json, cores_text, read_cores
from vdbg_env.crash.files import SourceFiles
from vdbg_env.crash.memory_files import ask, owner_of_fault, with_owner
from vdbg_env.crash.memory_map import MemoryMap, Region
from vdbg_env.crash.places import AddressWhy
from vdbg_env.evidence.system import Xid
from vdbg_env.report import pages

RECORDING = SHIPPED_DATA / "runbooks" / "recordings" / "illegal-memory-access"
CORE = next(RECORDING.rglob("core.cuda.*"))
READ = read_cores([str(CORE)], SourceFiles()).readings[0]
(WHY,) = READ.addresses
assert WHY and READ.core.metadata
BAD, BASE = WHY.document["value"], WHY.document["base"]["value"]
TABLE = WHY.document["loads"][0]["base"]["value"]
PID, CRASHED = int(CORE.name.split(".")[-2]), READ.core.metadata.row.timestamp


def cache(layer: int, address: int, size: int) -> dict[str, Any]:
    return {"name": f"model.layers.{layer}.self_attn.attn", "kind": "kv-cache", "address": hex(address), "bytes": size}


def paged(layer: int, address: int, blocks: int) -> dict[str, Any]:
    """Return a cache with axes: 64 MiB a block, so that the bad address can be a little behind its end."""
    return {
        **cache(layer, address, blocks << 26), "dtype": "float32", "shape": [blocks, 2, 1 << 19, 16],
        "strides": [1 << 24, 1 << 23, 16, 1], "axes": ["block", "key/value", "slot", "element"],
    }  # fmt: skip


SLOTS = {"name": "slot_mapping", "kind": "buffer", "address": hex(TABLE), "bytes": 4096}
BLOCKS = (BAD - BASE) >> 26
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "key cache overrun": (
        {"tensors": [paged(17, BASE, BLOCKS), SLOTS]},
        "that is 4 bytes past the end of the key cache of layer 17 (model.layers.17.self_attn.attn): "
        f"block {BLOCKS} of 0-{BLOCKS - 1}, slot 0, element 1",
    ),
    "freed buffer": (
        {"freed": [{"address": hex(BAD - 4), "bytes": 65536, "after": CRASHED - 4.0, "before": CRASHED - 3.0}]},
        "that is inside a block of 65,536 bytes that was freed 3.0 s to 4.0 s before this",
    ),
    "wrong layer": (
        {"tensors": [cache(3, BASE, 1 << 20), cache(5, BAD - 4, 1 << 20)]},
        "that is 2,199,022,206,980 bytes (2.0 TiB) past the end of the KV cache of layer 3 "
        "(model.layers.3.self_attn.attn); the KV cache of layer 5 (model.layers.5.self_attn.attn) was there when the "
        "memory map was written",
    ),
    "window of another rank": (
        {"windows": [{"name": "custom all-reduce data", "address": hex(BAD - 4), "bytes": 8192, "rank": 3}]},
        "that is inside rank 3's custom all-reduce data by the memory map; the access failed: that memory was freed "
        "or unmapped since",
    ),
    "one flipped bit": (
        {"tensors": [cache(9, (BAD ^ 1 << 45) - 4, 1 << 20)]},
        "that is one bit (bit 45) away from the KV cache of layer 9 (model.layers.9.self_attn.attn)",
    ),
}


def beside(folder: Path, more: dict[str, Any]) -> Path:
    """Put the core and a map of its process into a folder, as a run has them, and the map of another process."""
    core = folder / CORE.name
    shutil.copyfile(CORE, core)
    for pid, rows in ((PID, more), (1, {"tensors": [cache(0, BAD, 4096)]})):
        document = {"schema": "vdbg-env/memory-map/v1", "process": {"pid": pid, "rank": 0}, **rows}
        (folder / f"memory-map.rank0.{pid}.json").write_text(json.dumps(document))
    return core


@pytest.mark.parametrize("case", CASES)
def test_the_sentence_is_in_the_text_the_json_and_the_page(case: str, tmp_path: Path) -> None:
    more, sentence = CASES[case]
    read = read_cores([str(beside(tmp_path, more))], SourceFiles())
    assert sentence in cores_text(read.readings, read.sources)
    document = json.loads(cores_json(read.readings, read.sources))
    Contract("core-v1").check(document)
    owner = document["faults"][0]["address"]["owner"]
    assert sentence == f"that is {owner['sentence']}"
    assert owner["map"]["pid"] == PID
    (address,) = read.readings[0].addresses
    assert address
    finding = replace(reports.FAULT, why=address.lines, address=address.document)
    template = (SHIPPED_DATA / "templates" / "report.html.j2").read_text()
    page = pages.as_html(replace(reports.FULL, findings=(finding,)), template=template, style="")
    assert sentence.replace("'", "&#39;") in page


def test_pointers_are_named_by_what_they_point_to(tmp_path: Path) -> None:
    read = read_cores([str(beside(tmp_path, CASES["key cache overrun"][0]))], SourceFiles())
    (address,) = read.readings[0].addresses
    assert address
    assert "argument 2 points to the buffer slot_mapping" in address.lines
    assert address.document["loads"][0]["base"]["points_to"] == "the buffer slot_mapping"


def test_a_core_without_a_map_has_no_owner() -> None:
    assert WHY and "owner" not in WHY.document


@pytest.mark.parametrize(("block", "said"), [((BASE, 4096), True), ((0x7F0000000000, 65536), False)])
def test_memory_of_a_core_that_lacks_the_array_says_nothing_of_what_is_near(block: tuple[int, int], said: bool) -> None:
    assert WHY
    held = Region(address=block[0], bytes=block[1], kind="section")
    found = with_owner(WHY, (MemoryMap(file="core", blocks=(held,), source="core"),))
    assert bool(found.document.get("owner")) is said
    assert any("memory map" in line or "past the end" in line for line in found.lines) is said


H100 = Path(__file__).parents[2] / "data" / "gpu" / "nvidia-h100-80gb-hbm3-driver-580-159-04" / "cores"
UNMAPPED = 0x81C5D9E00004  # the address of the planted store in inlined-templates


def of_h100(memory: MemoryMap) -> AddressWhy:
    """Return why the address of an H100's core was bad: an Illegal Address, so nothing was mapped there."""
    read = read_cores([str(H100 / "inlined-templates.nvcudmp.gz")], SourceFiles(), maps=[memory]).readings[0]
    (address,) = read.addresses
    assert address and read.faults[0].exception.unmapped and address.document["value"] == UNMAPPED
    return address


@pytest.mark.parametrize(
    ("kind", "what"), [("tensor", "the tensor y"), ("free", "65,536 bytes that the allocator keeps for later")]
)
def test_memory_that_an_illegal_address_was_in_is_there_no_more(kind: str, what: str) -> None:
    row = Region(address=UNMAPPED - 4, bytes=65536, kind=kind, name="y" if kind == "tensor" else "")
    address = of_h100(MemoryMap(named=(row,)) if kind == "tensor" else MemoryMap(blocks=(row,)))
    owner = address.document["owner"]
    assert owner["where"] == "freed" and owner["sentence"].startswith(f"inside {what}")
    assert owner["sentence"].endswith(" by the memory map; the access failed: that memory was freed or unmapped since")
    assert f"that is {owner['sentence']}" in address.lines


def test_a_pointer_to_what_is_there_no_more_pointed_to_it() -> None:
    base = of_h100(MemoryMap()).document["base"]["value"]
    tensor = Region(address=base, bytes=UNMAPPED - base + 4096, kind="tensor", name="y")
    assert any(line.endswith(" pointed to the tensor y") for line in of_h100(MemoryMap(named=(tensor,))).lines)


def test_memory_that_the_core_itself_holds_was_mapped() -> None:
    held = Region(address=UNMAPPED - 4, bytes=65536, kind="section")
    owner = of_h100(MemoryMap(blocks=(held,), source="core")).document["owner"]
    assert owner["where"] == "inside"
    assert owner["sentence"].endswith(
        "so it is mapped: another address was the bad one, or such an access is not allowed there"
    )


def test_the_map_of_a_rank_that_the_failure_contradicts_comes_after_one_that_it_does_not() -> None:
    inside = MemoryMap(rank=1, named=(Region(address=UNMAPPED - 4, bytes=4096, kind="tensor", name="y"),))
    behind = MemoryMap(rank=0, named=(Region(address=UNMAPPED - 4096, bytes=4096, kind="tensor", name="x"),))
    found = ask([inside, behind], UNMAPPED, unmapped=True)
    assert found and found.best.map.rank == 0 and "past the end of the tensor x" in found.best.sentence


def test_a_page_without_an_entry_in_the_tables_was_freed_and_one_that_may_not_be_written_was_not() -> None:
    memory = MemoryMap(named=(Region(address=UNMAPPED & ~4095, bytes=4096, kind="tensor", name="y"),))
    for fault, where in {"FAULT_PDE": "freed", "FAULT_RO_VIOLATION": "inside"}.items():
        xid = Xid(code=31, bus="0000:06:00", line=1, address=UNMAPPED & ~4095, fault=fault, access="WRITE")
        _, document = owner_of_fault(xid, [memory])
        assert document and document["where"] == where


def test_core_takes_the_map_that_is_given(tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    memory.write_text(json.dumps({"schema": "vdbg-env/memory-map/v1", **CASES["wrong layer"][0]}))
    ran = vdbg_env("core", str(CORE), "--memory", str(memory))
    assert "the KV cache of layer 5" in ran.stdout


def test_a_run_that_is_replayed_has_it_on_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDBG_ENV_RUNS", str(tmp_path))
    recording, run = tmp_path / "recording", tmp_path / "run"
    shutil.copytree(RECORDING, recording)
    beside(next(recording.rglob(CORE.name)).parent, CASES["key cache overrun"][0])
    ran = vdbg_env(
        "runbook",
        "illegal-memory-access",
        "--replay",
        str(recording),
        "--run-dir",
        str(run),
        "--",
        "./inlined_templates",
    )
    assert ran.status == 3, ran.stderr
    assert "4 bytes past the end of the key cache of layer 17" in (run / "report.html").read_text()
    (group,) = json.loads(vdbg_env("runs", "list", "--group", "--json").stdout)["groups"]
    assert group["culprit"] == "the buffer slot_mapping"
