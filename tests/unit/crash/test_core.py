"""`vdbg-env core` as a user meets it: what it prints, what it exits with, and what it says of files that are none."""

import bz2
import gzip
import json
import lzma
import os
import struct
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gpucore.core import decode_core
from gpucore.core_layout import SectionType
from gpucore.elf import Elf
from tests.builders.core_builder import (
    BlockSpec,
    CoreSpec,
    DeviceSpec,
    LaunchSpec,
    ModuleSpec,
    SmSpec,
    WarpSpec,
    build_core,
    exited_warps_core,
    hang_core,
    illegal_address_core,
    sample_module,
)
from tests.builders.cubin import cubin
from tests.support.command_line import vdbg_env
from tests.support.golden import assert_golden
from vdbg_env.common.files import packing_of
from vdbg_env.crash.core import explained, rank_of
from vdbg_env.crash.memory_files import _as_typed
from vdbg_env.crash.packed import expanded
from vdbg_env.evidence.kernel_makers import SITE_PACKAGES

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "docs" / "schemas" / "core-v1.schema.json").read_text())
SOURCES = ROOT / "tests" / "data" / "cubins"

PARAMETERS = struct.pack("<Qif", 0x7F5000000000, 1 << 20, 1.5)


def everything_core() -> bytes:
    """Return a core with clusters, calls, parameters, constant banks and memory."""
    launch = LaunchSpec(cluster=(2, 1, 1), parameters=PARAMETERS, banks=[(0, 0x7F6000000000, 0x220), (4, 0x7F61, 8)])
    warp = WarpSpec(error_offset=0x140, exception=14, calls=(0x100,))
    device = DeviceSpec(
        modules=[sample_module()], launches=[launch], blocks=[BlockSpec(block=(3, 0, 0), warps=[warp])],
        global_memory={0x7F6000000000: bytes(0x220), 0x7F5000000000: bytes(64)},
    )  # fmt: skip
    return build_core(CoreSpec(devices=[device]))


CORES = {
    "fault": illegal_address_core(),
    "no-lines": illegal_address_core(lines=False),
    "oldest-layout": illegal_address_core(branch="r352"),
    "hang": hang_core(),
    "exited-warps": exited_warps_core(words="Illegal address"),
    "truncated": illegal_address_core()[:30_000],
}


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, data in CORES.items():
        Path(f"{name}.nvcudmp").write_bytes(data)


@pytest.mark.parametrize("name", CORES)
def test_what_is_printed(name: str) -> None:
    ran = vdbg_env("core", "--source-root", str(SOURCES), f"{name}.nvcudmp")
    assert_golden(f"core/{name}.txt", ran.stdout)
    assert ran.status == {"hang": 0, "truncated": 4}.get(name, 3)


@pytest.mark.parametrize("name", CORES)
def test_json_keeps_to_the_published_schema(name: str) -> None:
    ran = vdbg_env("core", "--json", "--registers", f"{name}.nvcudmp")
    document = json.loads(ran.stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    if name == "fault":
        assert_golden("core/fault.json", vdbg_env("core", "--json", f"{name}.nvcudmp").stdout)


def test_the_promised_fields_are_there() -> None:
    (fault,) = json.loads(vdbg_env("core", "--json", "fault.nvcudmp").stdout)["faults"]
    assert fault["exception"] == fault["exception"] | {"code": 14, "name": "Warp Illegal Address"}
    assert (fault["scope"], fault["pc"], fault["precise"], fault["offset"]) == ("lane", "0x7fffd9001140", True, "0x140")
    assert fault["kernel"] == {
        "name": "_Z4kernIfEvPT_iS0_", "demangled": "void kern<float>(float*, int, float)",
        "grid": [4, 1, 1], "block": [64, 1, 1], "cluster": [1, 1, 1],
    }  # fmt: skip
    assert [frame["line"] for frame in fault["chain"]] == [3, 13, 8, 19]
    assert fault["threads"]["count"] == 32
    assert fault["threads"]["first"]["block"] == [3, 0, 0]


def test_parameters_clusters_calls_and_memory_are_shown() -> None:
    Path("all.nvcudmp").write_bytes(everything_core())
    ran = vdbg_env("core", "--parameters", "--source-root", str(SOURCES), "all.nvcudmp")
    assert_golden("core/parameters.txt", ran.stdout)
    document = json.loads(vdbg_env("core", "--json", "--parameters", "all.nvcudmp").stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    (launch,) = document["devices"][0]["grids"]
    assert [one["value"] for one in launch["parameters"]["parameters"]] == ["0x7f5000000000", "1048576", "1.5"]
    assert launch["parameters"]["bytes"] == PARAMETERS.hex()
    (fault,) = document["faults"]
    assert fault["threads"]["first"]["block_in_cluster"] == [1, 0, 0] and fault["calls"][0]["offset"] == "0xf0"
    assert [kind["kind"] for kind in document["unused"]] == ["global memory"]


def test_a_thread_in_no_lane_of_a_warp_is_damage_and_no_exception() -> None:
    data = bytearray(CORES["hang"])
    elf = Elf(data)
    table = next(section for section in elf.sections if section.type == SectionType.LANES)
    lane, exception = 16, 32  # in a row: the number of the lane, and that of its exception
    struct.pack_into("<I", data, table.offset + lane, 200)
    struct.pack_into("<I", data, table.offset + exception, 14)
    Path("odd.nvcudmp").write_bytes(data)
    ran = vdbg_env("core", "odd.nvcudmp")
    assert ran.status == 4 and "no exception in what could be read" in ran.stdout
    assert "note: a thread has the lane 200, of the 32 of a warp: it is left out" in ran.stdout


def test_the_words_of_the_driver_on_a_barrier_are_shown() -> None:
    words = "waiting for mbarrier 0x400 phase 1"
    waiting = WarpSpec(barrier_scope=3, barrier_words=words)
    device = DeviceSpec(modules=[sample_module()], blocks=[BlockSpec(warps=[waiting])])
    Path("words.nvcudmp").write_bytes(build_core(CoreSpec(devices=[device], branch="r590")))
    assert f"the driver's words: {words}" in vdbg_env("core", "words.nvcudmp").stdout


def test_several_cores_come_first_in_time_first() -> None:
    Path("late.nvcudmp").write_bytes(illegal_address_core(timestamp=1763696100))
    Path("early.nvcudmp").write_bytes(illegal_address_core(timestamp=1763695000))
    ran = vdbg_env("core", "--json", "late.nvcudmp", "fault.nvcudmp", "early.nvcudmp")
    assert [core["file"] for core in json.loads(ran.stdout)["cores"]] == [
        "early.nvcudmp", "fault.nvcudmp", "late.nvcudmp",
    ]  # fmt: skip
    ran = vdbg_env("core", "late.nvcudmp", "early.nvcudmp")
    assert ran.stdout.startswith("2 of 2 cores with an exception, first in time: Warp Illegal Address")
    assert "\n     +0 s  early.nvcudmp: Warp Illegal Address" in ran.stdout
    assert "  +1100 s  late.nvcudmp" in ran.stdout


def test_cores_of_one_second_come_by_the_number_of_their_rank() -> None:
    for name in ("rank10", "rank2", "rank0", "other"):
        Path(f"{name}.nvcudmp").write_bytes(illegal_address_core(timestamp=1763696100))
    ran = vdbg_env("core", "--json", *(f"{name}.nvcudmp" for name in ("other", "rank10", "rank2", "rank0")))
    assert [core["rank"] for core in json.loads(ran.stdout)["cores"]] == [0, 2, 10, None]


def test_no_core_is_called_the_first_of_one_second_or_of_another_run() -> None:
    for name, timestamp in (("a", 1763696100), ("b", 1763696100), ("c", 1763696107), ("old", 1763696100 - 400 * 86400)):
        Path(f"{name}.nvcudmp").write_bytes(illegal_address_core(timestamp=timestamp))

    def verdict(*names: str) -> str:
        return vdbg_env("core", *(f"{name}.nvcudmp" for name in names)).stdout.partition(": Warp")[0]

    assert verdict("a", "b") == "2 of 2 cores with an exception, all in one second; one of them"
    assert verdict("a", "b", "c") == "3 of 3 cores with an exception, the first 2 in one second; one of them"
    apart = "cores with an exception, over 400 days, so not of one run; of the newest"
    assert verdict("old", "c") == f"2 of 2 {apart}"
    assert verdict("old", "a", "c") == f"3 of 3 {apart} 2, first in time"
    assert "+400 d  c.nvcudmp" in vdbg_env("core", "old.nvcudmp", "c.nvcudmp").stdout
    Path("a.nvcudmp").write_bytes(illegal_address_core(branch="r352"))
    assert verdict("a", "b") == "2 of 2 cores with an exception, in no known order; one of them"


def test_of_many_ranks_those_with_an_exception_are_first_and_the_others_a_line_each() -> None:
    for rank, name in enumerate(("hang", "hang", "fault", "hang")):
        folder = Path("ranks/steps/coredump/1") / f"node-b-{rank}"
        folder.mkdir(parents=True)
        (folder / f"core.cuda.{rank}").write_bytes(CORES[name])
    ran = vdbg_env("core", "ranks")
    first, head, second, *_ = ran.stdout.splitlines()
    assert first.startswith("1 of 4 cores with an exception: Warp Illegal Address in ")
    assert first.endswith("(rank 2)")
    assert head.split() == ["rank", "when", "core"]
    assert second.split()[0] == "2"
    assert second.split(maxsplit=3)[3].startswith("ranks/steps/coredump/1/node-b-2/core.cuda.2: Warp Illegal Address")
    assert ran.stdout.count("no exception; ") == 3, "a line each"
    assert "of the other 3 cores no more is shown (--all shows it)" in ran.stdout
    assert vdbg_env("core", "--all", "ranks").stdout.count("no exception; ") == 6
    document = json.loads(vdbg_env("core", "--json", "ranks").stdout)
    assert [core["rank"] for core in document["cores"]] == [0, 1, 2, 3], "in order of time, as before"
    assert document["verdict"] == first


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("core_rank3.nvcudmp", 3), ("dumps/Rank-12/core.cuda.1", 12), ("rank_0.nvcudmp.gz", 0), ("core.1234", None),
        ("run/steps/x/1/localhost-7/core.cuda.vm.14220.1", 7), ("crank1234567890.x", None), ("a/node-3/core.1", None),
    ],
)  # fmt: skip
def test_the_rank_is_that_of_the_name_or_of_the_runs_folder(path: str, rank: int | None) -> None:
    assert rank_of(path) == rank


def test_the_time_of_a_file_is_not_held_against_the_word_of_a_dump() -> None:
    Path("early.nvcudmp").write_bytes(illegal_address_core(timestamp=1763695000))
    Path("torn.nvcudmp").write_bytes(CORES["fault"][: len(CORES["fault"]) // 3])
    os.utime("torn.nvcudmp", (1763000000, 1763000000))
    shown = vdbg_env("core", "early.nvcudmp", "torn.nvcudmp").stdout
    assert "     +0 s  early.nvcudmp" in shown, "also where the torn one is older, by its file"
    assert "        ?  torn.nvcudmp: its end is missing, so whether it has an exception is not known\n" in shown
    assert "of the other 1 core no more is shown" in shown, "it is not called one without an exception"


def test_a_folder_stands_for_the_dumps_in_it(tmp_path: Path) -> None:
    ran = vdbg_env("core", "--json", str(tmp_path))
    assert len(json.loads(ran.stdout)["cores"]) == len(CORES)


def test_a_dump_of_any_name_is_found_in_a_folder_by_its_first_bytes(tmp_path: Path) -> None:
    rank = tmp_path / "run" / "steps" / "coredump" / "1" / "localhost-0"
    rank.mkdir(parents=True)
    (rank / "core.cuda.node7.4711.1763696100").write_bytes(CORES["fault"])
    (rank / "core.4712").write_bytes(CORES["fault"][:18] + b"\x3e\x00")  # of the host
    (rank / "stderr").write_text("CUDA error: an illegal memory access was encountered")
    document = json.loads(vdbg_env("core", "--json", "run").stdout)
    assert Path(document["file"]).name == "core.cuda.node7.4711.1763696100"


def test_a_gzipped_dump_of_any_name_is_found_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    folder.mkdir()
    (folder / "core.cuda.rank5.1.gz").write_bytes(gzip.compress(CORES["fault"]))
    (folder / "core.7.gz").write_bytes(gzip.compress(CORES["fault"][:18] + b"\x3e\x00"))  # of the host
    (folder / "torn.gz").write_bytes(b"\x1f\x8b\x00 no gzip")
    document = json.loads(vdbg_env("core", "--json", "packed").stdout)
    assert Path(document["file"]).name == "core.cuda.rank5.1.gz"


def test_a_gzipped_core_is_read() -> None:
    Path("a.nvcudmp.gz").write_bytes(gzip.compress(CORES["fault"]))
    assert "Warp Illegal Address" in vdbg_env("core", "a.nvcudmp.gz").stdout


def test_a_core_packed_by_zstd_is_read_found_in_a_folder_and_searched(tmp_path: Path) -> None:
    packed = zstandard.compress(CORES["fault"][:4096]) + zstandard.compress(CORES["fault"][4096:])  # two frames
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / "core.7").write_bytes(packed)
    assert "Warp Illegal Address" in vdbg_env("core", str(folder)).stdout
    (tmp_path / "cut.nvcudmp.zst").write_bytes(packed[: len(packed) * 3 // 4])
    ran = vdbg_env("core", str(tmp_path / "cut.nvcudmp.zst"))
    assert "note: truncated: the zstd stream ends early" in ran.stdout
    pc = json.loads(vdbg_env("core", "--json", str(folder)).stdout)["faults"][0]["pc"]
    assert vdbg_env("locate", pc, str(folder / "core.7")).status == 0


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress, "zstd": zstandard.compress, "xz": lzma.compress, "bzip2": bz2.compress,
}  # fmt: skip
HUGE_DICTIONARY = lzma.compress(b"x", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}])
PACKED = zstandard.compress(illegal_address_core())
_LONG = zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(window_log=30)).compressobj()
LONG = _LONG.compress(illegal_address_core()) + _LONG.flush()
SKIPPED = b"\x5a\x2a\x4d\x18" + (5000).to_bytes(4, "little") + bytes(5000)


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (PACKED[: len(PACKED) // 2], "is cut short: nothing of its zstd stream expands (it ends in the middle"),
        (PACKED[:4] + b"\xff" * 300, "is damaged: nothing of its zstd stream expands ("),
        (SKIPPED + b"junk", "is damaged: nothing of its zstd stream expands ("),
        (LONG, "a b.zst cannot be expanded: its zstd stream has a window of more than 128 MiB"),
        (gzip.compress(b"x", mtime=0)[:6], "is cut short: nothing of its gzip stream expands"),
        (lzma.compress(b"x")[:9], "is cut short: nothing of its xz stream expands (it ends in the middle"),
        (lzma.compress(b"x")[:6] + b"\xff" * 99, "is damaged: nothing of its xz stream expands ("),
        (bz2.compress(b"x")[:16] + b"\xff" * 99, "is damaged: nothing of its bzip2 stream expands ("),
        (HUGE_DICTIONARY, "a b.zst cannot be expanded: its xz stream needs more than 256 MiB of memory"),
    ],
    ids=["cut", "damaged", "skipped", "window", "gzip", "xz cut", "xz damaged", "bzip2 damaged", "dictionary"],
)
def test_a_packed_core_that_gives_nothing_is_not_called_empty(packed: bytes, words: str, tmp_path: Path) -> None:
    (core := tmp_path / "a b.zst").write_bytes(packed)
    ran = vdbg_env("core", str(core))
    assert ran.status == 2 and words in ran.stderr and "empty" not in ran.stderr


@pytest.mark.parametrize(("kind", "pack"), PACKINGS.items())
def test_a_packed_core_is_read_found_by_its_contents_and_as_far_as_it_goes(
    kind: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    data = illegal_address_core(table_first=True)
    packed = pack(data[:4096]) + pack(data[4096:])  # two parts, as programs that use all cores write them
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / "core.7").write_bytes(packed)
    for place in (folder, folder / "core.7"):
        assert "Warp Illegal Address" in vdbg_env("core", str(place)).stdout
    (cut := tmp_path / "cut.nvcudmp").write_bytes(packed[: len(packed) * 7 // 8])
    ran = vdbg_env("core", str(cut))
    assert f"note: truncated: the {kind} stream ends early" in ran.stdout or "is cut short" in ran.stderr


@pytest.mark.parametrize("pack", [lzma.compress, bz2.compress])
def test_a_core_packed_in_text_or_by_an_odd_name_is_no_surprise(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """`BZh` begins a text as well, and zeros may follow an xz stream."""
    (core := tmp_path / "a").write_bytes(pack(illegal_address_core()) + (bytes(8) if pack is lzma.compress else b""))
    assert "Warp Illegal Address" in (ran := vdbg_env("core", str(core))).stdout and "note: bytes" not in ran.stdout
    assert packing_of(b"BZh9 is") is None and packing_of(bz2.compress(b"")[:8]) == "bzip2"


def test_a_core_that_pzstd_packed_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / "core.7").write_bytes(SKIPPED + PACKED)
    for place in (folder, folder / "core.7"):
        assert "Warp Illegal Address" in vdbg_env("core", str(place)).stdout


@pytest.mark.parametrize(("kind", "pack"), PACKINGS.items())
def test_what_follows_a_packed_core_does_not_make_it_cut_short(
    kind: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    (core := tmp_path / "a").write_bytes(pack(illegal_address_core()) + b"trailing junk")
    ran = vdbg_env("core", str(core))
    assert f"note: bytes that are no {kind} follow its {kind} stream; they are left out" in ran.stdout
    assert "truncated" not in ran.stdout and "Warp Illegal Address" in ran.stdout


def test_a_core_counts_once_however_many_links_lead_to_it(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    (folder / "b").mkdir(parents=True)
    (core := folder / "b" / "core.nvcudmp").write_bytes(CORES["fault"])
    (folder / "a.nvcudmp").symlink_to(core)
    (folder / "b" / "hard.nvcudmp").hardlink_to(core)
    assert vdbg_env("core", str(folder)).stdout.startswith(f"{core}: Warp Illegal Address")
    (folder / "other.nvcudmp").write_bytes(CORES["fault"])
    assert vdbg_env("core", str(folder)).stdout.startswith("2 of 2 cores with an exception")


def test_zeros_that_were_packed_take_little_memory() -> None:
    """A mebibyte of zstd's may be 32 GiB of them."""
    for kind, pack in PACKINGS.items():
        packed = pack(bytes(1 << 28))
        sizes = [len(piece) for piece in expanded(iter([packed]), packed[:8], "a")]
        assert sum(sizes) == 1 << 28 and max(sizes) <= (1 << 27 if kind == "zstd" else 1 << 20), kind


@given(
    st.sampled_from([*PACKINGS]), st.lists(st.binary(max_size=99), min_size=1, max_size=3), st.integers(1, 40),
    st.integers(0, 60), st.binary(max_size=20),
)  # fmt: skip
def test_packed_bytes_give_what_was_packed_or_an_error(
    kind: str, parts: list[bytes], step: int, lost: int, behind: bytes
) -> None:
    packed = b"".join(map(PACKINGS[kind], parts))
    whole = (packed[:-lost] if lost else packed + behind) or packed
    pieces = iter([whole[at : at + step] for at in range(0, len(whole), step)])
    given_out = b""
    try:
        for piece in expanded(pieces, packed[:8], "a"):
            given_out += piece
    except EOFError:
        assert lost or behind.strip(b"\0"), "what is whole has no end too early"
    assert b"".join(parts).startswith(given_out)
    assert lost or given_out == b"".join(parts)


def test_a_gzipped_core_that_is_cut_short_is_read_as_far_as_it_goes() -> None:
    packed = gzip.compress(illegal_address_core(table_first=True))
    Path("a.nvcudmp.gz").write_bytes(packed[: len(packed) * 3 // 4])
    ran = vdbg_env("core", "a.nvcudmp.gz")
    assert "note: truncated: the gzip stream ends early" in ran.stdout
    assert ran.status in {3, 4}


def test_what_was_loaded_is_read_from_a_full_core_and_never_called_the_loaded_value(tmp_path: Path) -> None:
    """This H100's core has its global memory: the index that was loaded is -1 there."""
    (core,) = (ROOT / "tests" / "data" / "gpu").glob("*/cores/cooperative.nvcudmp.xz")
    text = vdbg_env("core", str(core)).stdout
    assert "             not known: loaded1\n" in text
    words = "memory at 0x7f1489e00808 held -1 when the core was written: that may be newer than what loaded1 got"
    assert f"argument2[blockIdx.x], index 2\n             {words}\n" in text
    (fault,) = json.loads(vdbg_env("core", "--json", str(core)).stdout)["faults"]
    (load,) = fault["address"]["loads"]
    assert (load["value"], load["in_memory"]) == (None, {"address": 0x7F1489E00808, "value": 0xFFFFFFFF})
    assert fault["address"]["value"] is None


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"\xff\xff\xff\xff", "int const*", "-1"), (b"\xff\xff\xff\xff", "unsigned int const*", "4294967295"),
        (b"\0\0\x80\x3f", "float*", "1"), (bytes(8), "double*", "0"), (b"\x08" + bytes(7), "float* const*", "0x8"),
        (b"\xfe", "signed char*", "-2"), (b"\x01\x02", None, "513"),
    ],
)  # fmt: skip
def test_memory_is_shown_as_the_type_of_its_pointer(data: bytes, kind: str | None, words: str) -> None:
    assert _as_typed(data, kind) == words


def test_a_fault_without_why_says_so(tmp_path: Path) -> None:
    """What failed there was never an access: that is better said than left out."""
    faulting, sms = WarpSpec(offset=0x20, error_offset=0x10, exception=14), {0: SmSpec(exception=14, error_offset=0x10)}
    blocks = [BlockSpec(block=(0, 0, 0), sm=0, warps=[faulting])]
    device = DeviceSpec(modules=[sample_module("inline_chain_sm90")], blocks=blocks, sms=sms)
    (core := tmp_path / "a").write_bytes(build_core(CoreSpec(devices=[device])))
    assert "note: an address is not explained: " in vdbg_env("core", str(core)).stdout


def test_warps_at_a_barrier_are_headed_by_its_line_and_not_by_the_next_of_another_branch() -> None:
    """Of this H100's core, warps that waited at line 76 were headed by line 75, with the other branch's source."""
    (core,) = (ROOT / "tests" / "data" / "gpu").glob("*/cores/named.nvcudmp.gz")
    text = vdbg_env("core", str(core)).stdout
    (_, *places) = text.split("warps stood:")[1].split(" x named+")
    assert [place.split()[:2] for place in places] == [
        ["0x70", "/src/cores/states.cu:76"],
        ["0x80", "/src/cores/states.cu:75"],
    ]
    assert "waits at barrier 4 at states.cu:76: it takes 96 threads, 64 are there\n" in places[0]
    first, _ = json.loads(vdbg_env("core", "--json", str(core)).stdout)["warps"]
    assert (first["offset"], first["waits"]["offset"], first["chain"][0]["line"]) == ("0x70", 0x70, 76)
    jsonschema.validate(json.loads(vdbg_env("core", "--json", str(core)).stdout), SCHEMA)
    assert first["waits"]["barrier"] == {
        "number": 4, "threads": 96, "whole_block": False, "there": 64, "may_have_arrived": False
    }  # fmt: skip


def test_source_text_is_shown_by_mapping_too() -> None:
    ran = vdbg_env("core", "--path-map", f"/src/kernels={SOURCES}", "fault.nvcudmp")
    assert "p[i] = v;" in ran.stdout


def test_a_mapping_without_equals_is_bad_usage() -> None:
    ran = vdbg_env("core", "--path-map", "nonsense", "fault.nvcudmp")
    assert ran.status == 2
    assert "is not of the form OLD=NEW" in ran.stderr


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("empty", b"", "the file is empty"),
        ("text", b"core dumped, it said\n" * 9, "not a GPU core dump: no ELF header"),
        (
            "host",
            b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x04\x00\x3e\x00" + bytes(44),
            "of a host process, not of a GPU",
        ),
        ("cubin", (SOURCES / "inline_chain_sm90.cubin").read_bytes(), "a cubin, not a GPU core dump"),
    ],
)
def test_what_is_no_core_is_called_what_it_is(name: str, data: bytes, said: str) -> None:
    Path(name).write_bytes(data)
    ran = vdbg_env("core", name)
    assert ran.status == 2
    assert f"error: {name}: " in ran.stderr
    assert said in ran.stderr


def test_one_unreadable_file_does_not_hide_the_others() -> None:
    Path("empty").write_bytes(b"")
    ran = vdbg_env("core", "empty", "fault.nvcudmp")
    assert ran.status == 3
    assert "Warp Illegal Address" in ran.stdout
    assert "empty: not read: the file is empty" in ran.stderr


def test_a_missing_file_and_an_empty_folder_are_bad_input(tmp_path: Path) -> None:
    assert vdbg_env("core", "nowhere.nvcudmp").status == 2
    Path("bare").mkdir()
    ran = vdbg_env("core", "bare")
    assert ran.status == 2
    assert "no GPU core dump below bare" in ran.stderr


def test_a_pipe_nobody_writes_to_is_refused_not_waited_for() -> None:
    os.mkfifo("pipe.nvcudmp")
    for argv in (["core", "pipe.nvcudmp"], ["locate", "0x10", "-k", "k", "pipe.nvcudmp"]):
        ran = vdbg_env(*argv)
        assert ran.status == 2
        assert "is a pipe or a device" in ran.stderr


@pytest.mark.parametrize("argv", [["core"], ["locate", "0x10"], ["verify"]])
def test_a_name_no_file_system_takes_is_bad_input(argv: list[str]) -> None:
    ran = vdbg_env(*argv, "a" * 300)
    assert ran.status == 2
    assert "error: " in ran.stderr


def test_registers_are_shown_on_request() -> None:
    assert "R0   0x00010000" in vdbg_env("core", "--registers", "fault.nvcudmp").stdout
    assert "R0 " not in vdbg_env("core", "fault.nvcudmp").stdout


VLLM = "vdbg-env lines build vllm==VERSION --core 'a core.nvcudmp'"
ARGUMENTS = "vdbg-env core --parameters 'a core.nvcudmp'"
FLASH = "_ZN5flash16flash_fwd_kernelILi8EEEvPf"
PACK = "vdbg-env core --lines sgl-kernel.lines 'a core.nvcudmp'"
FIND = f"vdbg-env locate {{}} {SITE_PACKAGES}"


@pytest.mark.parametrize(
    ("kernel", "beside", "library", "tried"),
    [
        ("_ZN4vllm3moe10topkGatingILi8EEEvPf", "", "vLLM's _moe_C or _moe_C_stable_libtorch, by the kernel's", VLLM),
        (FLASH, "", "vLLM (_vllm_fa2_C), flash-attn, vllm-flash-attn, sgl-kernel, ", FIND),
        (
            FLASH, "_ZN4vllm1fEi",
            "likely vLLM's _vllm_fa2_C (code of FlashAttention 2), by other kernels of this core", VLLM,
        ),
        ("triton_poi_fused_add_0", "", "likely Triton, by the kernel's name; for lines: unset TRITON_", None),
        ("nvjet_hsh_128x256", "", "cuBLAS, by the kernel's name; for lines: none: its code is closed; ", ARGUMENTS),
        ("_ZN3cub6KernelIN2at6native1TEEEvT_", "", "not known: a template of CUB, which any project may ", FIND),
        ("scatter", "_ZN4vllm1fEi", "not known from the kernel's name\n", FIND),
        ("_ZN6sglang1fEi", "", "sgl-kernel, by the kernel's name; for lines: a build of sgl-kernel with -", PACK),
    ],
)  # fmt: skip
def test_a_kernel_without_lines_names_its_makers_and_what_gives_them(
    kernel: str, beside: str, library: str, tried: str | None
) -> None:
    device = DeviceSpec(
        modules=[ModuleSpec(cubin=cubin(name)) for name in (kernel, beside) if name],
        launches=[LaunchSpec(kernel=kernel)],
        blocks=[BlockSpec(warps=[WarpSpec(offset=0x20, error_offset=0x20, exception=14)])],
        registers=False,
    )
    Path("a core.nvcudmp").write_bytes(build_core(CoreSpec(devices=[device])))
    printed = vdbg_env("core", "a core.nvcudmp").stdout
    assert f"    library  {library}" in printed
    last = printed.splitlines()[-1]
    assert (last == f"  try: {(tried or '').format(kernel)}") == bool(tried)
    assert ("  try: " in printed) == bool(tried)
    document = json.loads(vdbg_env("core", "--json", "a core.nvcudmp").stdout)
    (fault,) = document["faults"]
    assert (fault["library"] is not None) == (tried == VLLM)
    assert document["next"] == [line.removeprefix("  try: ") for line in printed.splitlines() if "  try: " in line]
    assert fault["makers"]["names"] == [] or fault["makers"]["names"][0] in library


def test_a_pack_of_another_build_is_looked_into_and_not_made_once_more() -> None:
    kernel = "_ZN6sglang1fEi"
    device = DeviceSpec(
        modules=[ModuleSpec(cubin=cubin(kernel))],
        launches=[LaunchSpec(kernel=kernel)],
        blocks=[BlockSpec(warps=[WarpSpec(offset=0x20, error_offset=0x20, exception=14)])],
        registers=False,
    )
    Path("core.nvcudmp").write_bytes(build_core(CoreSpec(devices=[device])))
    packed = vdbg_env("lines", "pack", str(SOURCES / "inline_chain_sm90.cubin"), "-o", "other.lines")
    assert packed.status == 0, packed.stderr
    assert "  try: vdbg-env lines pack BUILD -o sgl-kernel.lines\n" in vdbg_env("core", "core.nvcudmp").stdout
    printed = vdbg_env("core", "--lines", "other.lines", "core.nvcudmp").stdout
    assert [line for line in printed.splitlines() if "try:" in line] == ["  try: vdbg-env lines show other.lines"]


def test_the_step_to_the_arguments_is_not_said_where_they_are_shown() -> None:
    device = DeviceSpec(
        modules=[ModuleSpec(cubin=cubin("nvjet_hsh_128x256"))],
        launches=[LaunchSpec(kernel="nvjet_hsh_128x256")],
        blocks=[BlockSpec(warps=[WarpSpec(offset=0x20, error_offset=0x20, exception=14)])],
        registers=False,
    )
    Path("closed.nvcudmp").write_bytes(build_core(CoreSpec(devices=[device])))
    assert "  try: vdbg-env core --parameters closed.nvcudmp\n" in vdbg_env("core", "closed.nvcudmp").stdout
    assert "  try: " not in vdbg_env("core", "--parameters", "closed.nvcudmp").stdout


def test_a_core_in_which_nothing_ran_is_not_called_the_core_of_a_clean_program() -> None:
    """A driver that wrote one because of an exception lost the place of it."""
    idle = build_core(CoreSpec(devices=[DeviceSpec(modules=[sample_module()], launches=(), sms={0: SmSpec()})]))
    read = explained(decode_core(idle), idle)
    assert read.core.complete and any("no kernel was on the GPU" in note for note in read.notes)
    hung = hang_core()
    assert not explained(decode_core(hung), hung).notes
