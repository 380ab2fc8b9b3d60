"""`vdbg-env locate` as a user meets it, over cubins, a library, and cores."""

import json
import random
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

import jsonschema
import pytest

from gpucore.elf import Buffer
from gpucore.fatbin import Compression, Entry, find_device_code
from tests.builders.core_builder import illegal_address_core
from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, container, host_library
from tests.support.command_line import vdbg_env
from tests.support.cubins import DATA
from tests.support.golden import assert_golden
from vdbg_env.crash.locate import _alike

SCHEMA = json.loads((DATA.parents[2] / "docs" / "schemas" / "locate-v1.schema.json").read_text())
FLOAT = "_Z4kernIfEvPT_iS0_"


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in DATA.glob("*.cubin"):
        Path(path.name).write_bytes(path.read_bytes())
    Path("a.nvcudmp").write_bytes(illegal_address_core())


def located(*argv: str) -> dict[str, object]:
    document = json.loads(vdbg_env("locate", "--json", *argv).stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    return dict(document)


def lines(document: dict[str, object]) -> list[int]:
    chain = document["chain"]
    assert isinstance(chain, list)
    return [frame["line"] for frame in chain]


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("offset", ["0x140", "--kernel", FLOAT, "inline_chain_sm90.cubin"]),
        ("address", ["0x7fffd9001140", "a.nvcudmp"]),
        ("ambiguous", ["kern+0x140", "inline_chain_sm90.cubin"]),
        ("callee", ["slow+0x10", "inline_chain_sm90.cubin"]),
        ("shared-leaf", ["pick_both+0x40", "shared_leaf_sm90.cubin"]),
        ("no-lines", ["kern<float>+0x140", "no_lines_sm90.cubin"]),
    ],
)
def test_what_is_printed(name: str, argv: list[str]) -> None:
    ran = vdbg_env("locate", "--source-root", str(DATA), *argv)
    assert_golden(f"locate/{name}.txt", ran.stdout)
    assert ran.status == {"ambiguous": 4, "callee": 4, "no-lines": 4}.get(name, 0)


def test_json_has_the_promised_fields() -> None:
    found = located("0x140", "--kernel", FLOAT, "inline_chain_sm90.cubin")
    assert found["kernel"] == {"name": FLOAT, "demangled": "void kern<float>(float*, int, float)"}
    assert (found["function"], found["offset"]) == ("void kern<float>(float*, int, float)", "0x140")
    assert lines(found) == [3, 13, 8, 19]
    assert found["ambiguous"] is False


def test_an_address_in_a_core_and_an_offset_in_its_cubin_agree() -> None:
    assert (
        located("0x7fffd9001140", "a.nvcudmp")["chain"] == located(f"{FLOAT}+0x140", "inline_chain_sm90.cubin")["chain"]
    )


def test_a_kernel_is_found_in_a_core_by_name_too() -> None:
    found = located("kern<float>+0x140", "a.nvcudmp")
    assert (found["pc"], lines(found)) == ("0x7fffd9001140", [3, 13, 8, 19])


def test_every_architecture_is_a_candidate_until_one_is_chosen() -> None:
    files = [f"inline_chain_sm{arch}.cubin" for arch in (80, 90, 100)]
    found = located(f"{FLOAT}+0x140", *files)
    assert found["ambiguous"] is True
    assert isinstance(found["candidates"], list)
    assert [place["arch"] for place in found["candidates"]] == ["sm_80", "sm_90", "sm_100"]
    assert located(f"{FLOAT}+0x140", "--arch", "sm_90", *files)["ambiguous"] is False


def test_cubins_of_other_names_are_not_expanded() -> None:
    """Names are at the start of a compressed cubin: damage behind them hurts only who asks for that cubin."""
    other = Path("shared_leaf_sm90.cubin").read_bytes() + bytes(random.Random(1).choices(b"abcdefgh", k=400_000))
    entries = [
        EntrySpec(payload=other, how=Compression.ZSTD),
        EntrySpec(payload=Path("inline_chain_sm90.cubin").read_bytes(), how=Compression.ZSTD),
    ]
    library = bytearray(host_library(container(*entries)))
    stored = bytes(next(find_device_code(library)).entry.stored)
    at = library.find(stored) + len(stored) - 12
    library[at : at + 8] = b"\xff" * 8
    Path("lib.so").write_bytes(library)
    assert lines(located(f"{FLOAT}+0x140", "lib.so")) == [3, 13, 8, 19]
    assert "does not decompress" in vdbg_env("locate", "pick_both+0x40", "lib.so").stderr
    missed = vdbg_env("locate", "krn<float>+0x40", "lib.so")
    assert missed.status == 2 and "did you mean 'kern<float>'?" in missed.stderr
    assert _alike("store_rows", "store_row") > _alike("store_rows", "CharAligned_AtoA_nosurf") == 0


def test_sources_that_are_not_where_the_user_said_are_named(tmp_path: Path) -> None:
    place = ("0x140", "--kernel", FLOAT, "inline_chain_sm90.cubin")
    note = "inline_chain.cu was not found by --source-root or --path-map"
    assert note in vdbg_env("locate", "--source-root", str(tmp_path), *place).stderr
    assert note not in vdbg_env("locate", "--source-root", str(DATA), *place).stderr
    assert note not in vdbg_env("locate", *place).stderr, "nothing was said"


def test_a_copy_of_a_cubin_is_expanded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the 5,666 cubins of libcublasLt 1,261 differ."""
    one = EntrySpec(payload=Path("inline_chain_sm90.cubin").read_bytes(), how=Compression.LZ4)
    again = replace(one, identifier="other.cu")
    Path("lib.so").write_bytes(host_library(container(one, one, again), container(one)))
    expanded: list[str] = []
    payload = Entry.payload

    def counted(entry: Entry) -> Buffer:
        expanded.append(entry.identifier)
        return payload(entry)

    monkeypatch.setattr(Entry, "payload", counted)
    found = located(f"{FLOAT}+0x140", "lib.so")
    assert (lines(found), found["ambiguous"], expanded) == ([3, 13, 8, 19], False, ["", "other.cu"])


def test_copies_of_one_cubin_are_not_ambiguous() -> None:
    Path("copy.cubin").write_bytes(Path("inline_chain_sm90.cubin").read_bytes())
    ran = vdbg_env("locate", f"{FLOAT}+0x140", "inline_chain_sm90.cubin", "copy.cubin")
    assert ran.status == 0
    assert "(1 more cubin with the same code and the same lines)" in ran.stdout


def test_a_folder_is_searched() -> None:
    Path("damaged.cubin").write_bytes(Path("inline_chain_sm90.cubin").read_bytes()[:5000])
    assert located(f"{FLOAT}+0x140", "--arch", "sm_80", ".")["file"] == "inline_chain_sm80.cubin"


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_packed_tar_is_searched_and_not_taken_for_a_core(tmp_path: Path, mode: Literal["w", "w:gz", "w:xz"]) -> None:
    with tarfile.open(tmp_path / "libs.tgz", mode) as packed:
        packed.add("inline_chain_sm90.cubin", "a.cubin")
    ran = vdbg_env("locate", f"{FLOAT}+0x140", str(tmp_path / "libs.tgz"))
    assert (ran.status, ran.stderr) == (0, "")
    assert "inline_chain.cu:3" in ran.stdout


def test_the_file_in_angle_brackets_chooses() -> None:
    found = located("pick_both<shared_leaf.cu>+0x40", "shared_leaf_sm90.cubin", "inline_chain_sm90.cubin")
    assert lines(found) == [2, 8, 14]


def test_a_name_alone_is_where_the_function_begins() -> None:
    whole = "void kern<float>(float*, int, float)"
    for name in ("kern<float>", whole):
        assert located(name, "inline_chain_sm90.cubin") == located(f"{name}+0x0", "inline_chain_sm90.cubin")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["kren<float>+0x10", "inline_chain_sm90.cubin"], "did you mean 'kern<float>'?"),
        (["krn+0x10", "inline_chain_sm90.cubin"], "did you mean 'kern'?"),
        (["kern<float>+0x9000", "inline_chain_sm90.cubin"], "offset 0x9000 lies outside void kern<float>"),
        (["0x7fffd9001140", "inline_chain_sm90.cubin"], "is in no code of the given files"),
        (["0x10", "a.nvcudmp"], "is in no code of the given files"),
        (["kern+0x10", "--arch", "sm_75", "inline_chain_sm90.cubin"], "no device code for sm_75"),
        (["inline_chain_sm90.cubin", "kern"], "neither an address, an offset, nor a function"),
        (["kern(int)", "inline_chain_sm90.cubin"], "void kern<double>(double*, int, double)"),
        (["0x10", "nowhere.so"], "nowhere.so"),
    ],
)
def test_what_is_not_found_says_why(argv: list[str], said: str) -> None:
    ran = vdbg_env("locate", *argv)
    assert ran.status == 2
    assert said in ran.stderr


def note_on(library: str, kernel: str, *beside: str) -> str:
    """Return what `locate` says about the lines of a kernel in a library that is at a path."""
    path = Path(library)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cubin(kernel, *beside))
    printed = vdbg_env("locate", kernel, library).stdout
    return next(line for line in printed.splitlines() if line.startswith("note: "))


@pytest.mark.parametrize(
    ("library", "kernel", "beside", "says"),
    [
        ("x/site-packages/vllm/_C.so", "scatter", "", "vLLM's, by its library; vdbg-env lines build vllm==0.33.0 "),
        ("y/vllm/_C.so", "scatter", "", "it is vLLM's, by its library; vdbg-env lines build vllm==VERSION --kernel "),
        ("x/nvidia/cublas/lib/libcublas.so.13", "scatter", "", ", and there is none: its code is closed (cuBLAS)"),
        ("x/mine/ops.so", "scatter", "", "of a build with -lineinfo, vdbg-env lines pack BUILD -o NAME.lines"),
        ("x/mine/ops.so", "nvjet_a", "", ", and there is none: its code is closed (cuBLAS)"),
        ("x/mine/ops.so", "triton_poi_fused_a", "", "likely Triton's, by the kernel's name; for lines: unset TRITON"),
        ("x/mine/ops.so", "_ZN6sglang1fEi", "", "a build of sgl-kernel with -lineinfo has them, and vdbg-env lines"),
        ("x/mine/ops.so", "_ZN3cub1kEv", "_ZN5faiss1kEi", "a line pack of the same code has it"),
        ("x/mine/ops.so", "_ZN3cub1kEv", "_ZN6sglang1fEi", "it is sgl-kernel's, by other kernels of its module; "),
    ],
)  # fmt: skip
def test_what_gives_lines_is_said_of_the_library(library: str, kernel: str, beside: str, says: str) -> None:
    Path("x/site-packages/vllm-0.33.0.dist-info").mkdir(parents=True)
    said = note_on(library, kernel, *([beside] if beside else []))
    assert says in said
    assert ("-lineinfo" in said) is not ("closed" in said or "lines build" in said or "Triton" in said)


def test_the_folder_of_a_core_says_nothing_of_the_library_of_its_kernels() -> None:
    Path("site-packages/vllm").mkdir(parents=True)
    core = Path("site-packages/vllm/core.nvcudmp")
    core.write_bytes(illegal_address_core(lines=False))
    printed = vdbg_env("locate", "0x7fffd9001140", str(core)).stdout
    assert "has no line info" in printed
    assert "vLLM" not in printed


def test_a_name_that_no_library_has_leads_to_the_caches_of_compilers_and_then_to_the_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd() / "home"))
    Path("home").mkdir()
    ran = vdbg_env("locate", "no_such_kernel", "inline_chain_sm90.cubin")
    assert "CUDA_LAUNCH_BLOCKING=1" in ran.stderr
    Path("home/.triton").mkdir()
    ran = vdbg_env("locate", "no_such_kernel", "inline_chain_sm90.cubin")
    assert "vdbg-env locate no_such_kernel ~/.triton\n" in ran.stderr
    Path("home/.triton/k.cubin").write_bytes(cubin("other"))
    ran = vdbg_env("locate", "no_such_kernel", str(Path("home/.triton").resolve()))
    assert "CUDA_LAUNCH_BLOCKING=1" in ran.stderr, "the caches were looked into"
