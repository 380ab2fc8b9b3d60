"""`vdbg-env lines` as a user meets it, and the lines of stock code that `core` and `locate` take from packs."""

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from gpucore.code_map import CodeMap
from gpucore.line_packs import PackedHeaders
from tests.builders.core_builder import hang_core, illegal_address_core
from tests.support.command_line import vdbg_env
from tests.support.golden import assert_golden
from tests.support.line_packs import pack_of
from tests.support.schemas import Contract
from vdbg_env.crash.line_packs import PackFile
from vdbg_env.lines.packs import packs_json, summarize

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data"
CUBINS = DATA / "cubins"
STOCK = str(CUBINS / "no_lines_sm90.cubin")


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("VDBG_LINES", raising=False)
    Path("stock.nvcudmp").write_bytes(illegal_address_core(lines=False))
    Path("hang.nvcudmp").write_bytes(hang_core(lines=False))
    Path("sample.lines").write_bytes(pack_of("inline_chain_sm90"))


def schema(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((ROOT / "docs" / "schemas" / name).read_text()))


def test_packing_twice_gives_the_same_bytes() -> None:
    argv = ("lines", "pack", "--release", "sample 1.0", str(CUBINS / "inline_chain_sm90.cubin"))
    assert vdbg_env(*argv, "-o", "a.lines").status == 0
    assert vdbg_env(*argv, "-o", "b.lines").status == 0
    assert Path("a.lines").read_bytes() == Path("b.lines").read_bytes()


def test_a_pack_replaces_a_pack_and_nothing_else() -> None:
    Path("k.cu").write_text("__global__ void k() {}\n")
    for argv in (("pack", str(CUBINS / "inline_chain_sm90.cubin")), ("merge", "sample.lines")):
        ran = vdbg_env("lines", *argv, "-o", "k.cu")
        assert (ran.status, "k.cu is no line pack and is not replaced" in ran.stderr) == (2, True)
        assert Path("k.cu").read_text().startswith("__global__")
        assert vdbg_env("lines", *argv, "-o", "sample.lines").status == 0


def test_what_is_shown_of_a_pack() -> None:
    ran = vdbg_env("lines", "show", "--functions", "sample.lines")
    assert ran.status == 0
    assert_golden("lines/show.txt", ran.stdout)
    (pack,) = json.loads(vdbg_env("lines", "show", "--json", "--functions", "sample.lines").stdout)["packs"]
    assert pack["functions"] == len(pack["listed"]) == 2
    assert pack["binaries"][0] == pack["binaries"][0] | {"release": "sample 1.0", "compiler": "13.0.88"}
    assert [p["size"] for p in pack["listed"][0]["parameters"]] == [8, 4, 8]


def test_all_json_of_packs_fits_the_published_schema() -> None:
    contract = Contract("lines-v1")
    damaged = Path("damaged.lines")
    damaged.write_bytes(Path("sample.lines").read_bytes()[:-1])
    for argv, status in (
        (("show", "sample.lines"), 0),
        (("show", "--functions", "sample.lines"), 0),
        (("list", "sample.lines"), 0),
        (("list", "damaged.lines"), 4),
        (("verify", "sample.lines"), 0),
        (("pack", str(CUBINS / "inline_chain_sm90.cubin"), "-o", "new.lines"), 0),
    ):
        ran = vdbg_env("lines", argv[0], "--json", *argv[1:])
        assert ran.status == status, (argv, ran.stderr)
        document = json.loads(ran.stdout)
        contract.check(document)
        assert len(document["packs"]) == 1
    whole = summarize(PackFile(name="a.lines", data=Path("sample.lines").read_bytes()))
    headers = PackedHeaders(folder="/cutlass", project="CUTLASS", used="4.2", wanted="4.4")
    of_headers = replace(whole, binaries=(replace(whole.binaries[0], headers=(headers,)),))
    contract.check(json.loads(packs_json([of_headers])))
    assert contract.never_met() == set()


def test_an_architecture_that_is_none_is_refused_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    ran = vdbg_env("lines", "build", "vllm==0.33.0", "--all", "--arch", "foo")
    assert ran.status == 2 and ran.stderr.startswith("error: 'foo' is not an architecture\n")


def test_a_release_library_has_nothing_to_pack() -> None:
    ran = vdbg_env("lines", "pack", STOCK, "-o", "a.lines")
    assert ran.status == 2
    assert "none of 2 functions has line info" in ran.stderr
    assert "build it with NVCC_PREPEND_FLAGS=-lineinfo" in ran.stderr, "no vLLM's: a name that anyone may give"
    assert not Path("a.lines").exists()


def test_a_core_of_stock_code_has_the_chain_of_the_rebuild() -> None:
    ran = vdbg_env("core", "--lines", "sample.lines", "stock.nvcudmp")
    assert ran.status == 3
    assert_golden("core/packed-lines.txt", ran.stdout)
    document = json.loads(vdbg_env("core", "--json", "--lines", "sample.lines", "stock.nvcudmp").stdout)
    schema("core-v1.schema.json").validate(document)
    (fault,) = document["faults"]
    assert [frame["line"] for frame in fault["chain"]] == [3, 13, 8, 19]
    assert fault["lines_from"]["how_known"] == "line table of a build with identical code"
    assert fault["lines_from"]["build"] == "sample 1.0, nvcc 13.0.88"
    assert not any("no line info" in note for note in document["notes"])


def test_without_a_pack_there_is_kernel_offset_and_what_to_type() -> None:
    ran = vdbg_env("core", "stock.nvcudmp")
    assert "kern<float>+0x140" in ran.stdout
    assert "--lines PACK" in ran.stdout
    assert json.loads(vdbg_env("core", "--json", "stock.nvcudmp").stdout)["faults"][0]["lines_from"] is None


def test_a_hang_gets_lines_too() -> None:
    found = json.loads(vdbg_env("core", "--json", "--lines", "sample.lines", "hang.nvcudmp").stdout)
    assert all(group["chain"] and group["lines_from"] for group in found["warps"])


@pytest.mark.parametrize("how", ["variable", "default folder"])
def test_a_folder_of_dumps_needs_no_other_input(how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / ("data/vdbg-env/lines" if how == "default folder" else "packs")
    folder.mkdir(parents=True)
    Path("sample.lines").rename(folder / "sample.lines")
    if how == "variable":
        monkeypatch.setenv("VDBG_LINES", os.path.relpath(folder))  # blanks separate places
    Path("dumps").mkdir()
    Path("stock.nvcudmp").rename("dumps/rank0.nvcudmp")
    Path("hang.nvcudmp").rename("dumps/rank1.nvcudmp")
    cores = json.loads(vdbg_env("core", "--json", "dumps").stdout)["cores"]
    assert all(place["chain"] for core in cores for place in (*core["faults"], *core["warps"]))


def test_another_build_is_named_and_its_lines_are_not_shown() -> None:
    Path("other.nvcudmp").write_bytes(
        gzip.decompress((DATA / "cores" / "synthetic_sm90_nolines.nvcudmp.gz").read_bytes())
    )
    ran = vdbg_env("core", "--json", "--lines", "sample.lines", "other.nvcudmp")
    document = json.loads(ran.stdout)
    assert document["faults"][0]["chain"] == []
    assert any("another build of it (sample 1.0, nvcc 13.0.88, sm_90)" in note for note in document["notes"])


def test_a_place_in_a_stock_library_is_located() -> None:
    ran = vdbg_env("locate", "0x140", "--kernel", "kern<float>", "--lines", "sample.lines", STOCK)
    assert ran.status == 0
    assert_golden("locate/packed-lines.txt", ran.stdout.replace(STOCK, "no_lines_sm90.cubin"))
    document = json.loads(
        vdbg_env("locate", "--json", "0x140", "-k", "kern<float>", "--lines", "sample.lines", STOCK).stdout
    )
    schema("locate-v1.schema.json").validate(document)
    assert document["lines_from"]["pack"] == "sample.lines"


def test_a_damaged_pack_is_noted_and_gives_no_line() -> None:
    data = bytearray(Path("sample.lines").read_bytes())
    data[-40] ^= 1
    Path("sample.lines").write_bytes(data)
    document = json.loads(vdbg_env("core", "--json", "--lines", "sample.lines", "stock.nvcudmp").stdout)
    assert document["faults"][0]["chain"] == []
    assert any("sample.lines is not used" in note and "checksum" in note for note in document["notes"])


def test_a_pack_that_is_named_must_be_there() -> None:
    ran = vdbg_env("core", "--lines", "none.lines", "stock.nvcudmp")
    assert ran.status == 2
    assert "no line pack none.lines" in ran.stderr


def test_which_functions_of_a_stock_library_would_have_lines() -> None:
    ran = vdbg_env("verify", "--witness", "none", "--lines", "sample.lines", STOCK)
    assert ran.status == 3
    assert "sm_90: 2 of 2 functions\n" in ran.stdout
    other = str(CUBINS / "inline_chain_sm80.cubin")
    document = json.loads(vdbg_env("verify", "--json", "--witness", "none", "--lines", "sample.lines", other).stdout)
    schema("verify-v1.schema.json").validate(document)
    (packed,) = document["line_packs"]
    assert packed == packed | {"arch": "sm_80", "functions": 2, "identical": 0, "other": 0, "unknown": 2}
    changed = bytearray((CUBINS / "no_lines_sm90.cubin").read_bytes())
    code = CodeMap(bytes(changed))
    kernel = code.kernels[0]
    changed[code.elf.sections[kernel.section].offset + kernel.start] ^= 1
    Path("changed.cubin").write_bytes(changed)
    document = json.loads(
        vdbg_env("verify", "--json", "--witness", "none", "--lines", "sample.lines", "changed.cubin").stdout
    )
    (packed,) = document["line_packs"]
    assert packed == packed | {"identical": 1, "other": 1, "unknown": 0, "other_named": [kernel.name]}
    plain = json.loads(vdbg_env("verify", "--json", "--witness", "none", other).stdout)
    assert "line_packs" not in plain


SANITIZER = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at {place}
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f6510c00001 is out of bounds
========= ERROR SUMMARY: 1 error
"""
DEBUGGER = """CUDA Exception: Warp Illegal Address
The exception was triggered at PC 0x7fffd9001140 <void kern<float>(float*, int, float)+320>
"""


@pytest.mark.parametrize(
    "log",
    [
        SANITIZER.format(place="void kern<float>(float *, int, float)+0x140"),
        SANITIZER.format(place="void kern<float>(float *, int, float):0x140 in /src/kernels/inline_chain.cu:3"),
        SANITIZER.format(place="0x140 in void kern<float>(float *, int, float)"),
        DEBUGGER,
    ],
)
def test_a_place_that_a_log_names_gets_its_lines(log: str) -> None:
    Path("run.log").write_text(log)
    ran = vdbg_env("triage", "--json", "--lines", "sample.lines", "run.log")
    document = json.loads(ran.stdout)
    schema("triage-v1.schema.json").validate(document)
    assert document["lines"], document
    for found in document["lines"]:
        assert [frame["line"] for frame in found["chain"]] == [3, 13, 8, 19]
        assert (found["offset"], found["archs"]) == ("0x140", ["sm_90"])
        assert "code that ran was not compared" in found["how_known"]
    assert "by name and offset alone" in vdbg_env("triage", "--lines", "sample.lines", "run.log").stdout
    assert json.loads(vdbg_env("triage", "--json", "run.log").stdout)["lines"] == []


def test_the_drivers_lines_have_no_offset() -> None:
    Path("run.log").write_text(
        "[06:43:15.209195] coredump: Detected an exception of type CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS (14)\n"
        "[06:43:15.209210] coredump:   - PC 0x7462c3bac310\n"
        "[06:43:15.209477] coredump: Stack trace (lane masks: active 0xFFFFFFFF, valid 0xFFFFFFFF):\n"
        "[06:43:15.209486] coredump:   #0\t0x7462c3bac620\t_Z4kernIfEvPT_iS0_\n"
    )
    document = json.loads(vdbg_env("triage", "--json", "--lines", "sample.lines", "run.log").stdout)
    assert document["kernel"] == "_Z4kernIfEvPT_iS0_"
    assert document["lines"] == []


def test_a_folder_without_packs_is_told_from_one_whose_packs_are_sound() -> None:
    Path("nothing").mkdir()
    ran = vdbg_env("lines", "verify", "nothing")
    assert ran.status == 4 and ran.stderr.startswith("no line pack in nothing")
