"""Why an address was bad, as users meet it: in core, locate, the findings of a run, and when something goes wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpucore.code_map import CodeMap
from gpucore.core import decode_core
from gpucore.dwarf import Place
from gpucore.errors import UnreadableBinary
from tests.builders.core_builder import (
    CUBINS,
    BlockSpec,
    CoreSpec,
    DeviceSpec,
    LaneSpec,
    LaunchSpec,
    ModuleSpec,
    WarpSpec,
    build_core,
    illegal_address_core,
)
from tests.support import reports
from tests.support.command_line import vdbg_env
from tests.support.schemas import Contract
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.crash import places
from vdbg_env.crash.core import explained
from vdbg_env.report import as_terminal, pages
from vdbg_env.report.model import report_json

STORE = 0x140  # the store of kern<float> in inline_chain_sm90.cubin


def place_of_the_store() -> tuple[CodeMap, Place]:
    code = CodeMap((CUBINS / "inline_chain_sm90.cubin").read_bytes())
    kernel = next(function for function in code.functions if function.name == "_Z4kernIfEvPT_iS0_")
    return code, Place(section=kernel.section, offset=kernel.start + STORE)


def test_the_place_of_a_store_names_the_argument_that_it_writes_through() -> None:
    found = places.Explainer().place(*place_of_the_store())
    assert found
    assert found.lines[0] == "writes 4 bytes of global memory"
    assert found.lines[1].startswith("= argument1 (argument 1, float*) + 4 * ")
    assert found.document["base"]["argument"] == 1


def test_names_are_taken_from_the_source_where_it_is_found() -> None:
    place = ("locate", "_Z4kernIfEvPT_iS0_+0x140", str(CUBINS / "inline_chain_sm90.cubin"))
    assert "= argument1 (argument 1, float*)" in vdbg_env(*place).stdout
    assert "= p (argument 1, float*)" in vdbg_env(*place, "--source-root", str(CUBINS)).stdout


def test_an_instruction_that_accesses_no_memory_has_no_address() -> None:
    ran = vdbg_env("locate", "--json", "_Z4kernIfEvPT_iS0_", str(CUBINS / "inline_chain_sm90.cubin"))
    assert json.loads(ran.stdout)["address"] is None


def test_a_core_without_a_fault_is_not_explained() -> None:
    data = illegal_address_core()
    read = decode_core(data)
    assert explained(replace(read, faults=()), data).addresses == ()
    (address,) = explained(read, data).addresses
    assert address and address.document["lanes"]["count"] == 32


WAITING = Path(__file__).parents[2] / "data" / "explain" / "why_sm90.cubin"
FLAG = 0x7F3A40000000


def polling_core(wrong: int = 0) -> bytes:
    """Two warps poll `flag[blockIdx.x]`, which is 3; they want 7. `wrong` is added to the address of one thread."""
    held = [0] * 16
    held[0], held[2], held[3], held[5] = 3, (FLAG + 8) & 0xFFFFFFFF, FLAG >> 32, 2
    lanes = {n: LaneSpec(offset=0x80, registers=held) for n in range(32)}
    other = [*held[:2], held[2] + wrong, *held[3:]]
    lanes[5] = LaneSpec(offset=0x80, registers=other)
    warp = WarpSpec(offset=0x80, lanes=lanes, uniform=[7] * 63)
    blocks = [BlockSpec(block=(2, 0, 0), warps=[warp, warp])]
    device = DeviceSpec(
        modules=[ModuleSpec(cubin=WAITING.read_bytes())], launches=[LaunchSpec(kernel="wait(")], blocks=blocks
    )
    return build_core(CoreSpec(devices=[device]))


def test_a_hang_says_what_its_warps_poll(tmp_path: Path) -> None:
    core = tmp_path / "core.nvcudmp"
    core.write_bytes(polling_core())
    shown = vdbg_env("core", str(core), "--source-root", str(WAITING.parent)).stdout
    assert "in a loop at why.cu:60 that ends when flag[blockIdx.x] == wanted" in shown
    assert f"flag[blockIdx.x] is read in each turn at why.cu:60, from {FLAG + 8:#x}; it was 3" in shown
    assert "wanted is 7" in shown
    (group,) = json.loads(vdbg_env("core", "--json", str(core)).stdout)["warps"]
    (polled,) = group["waits"]["polled"]
    assert (polled["address"], polled["value"]) == (FLAG + 8, 3)
    assert group["why"][0].startswith("in a loop at")


def test_registers_that_contradict_each_other_leave_the_formula_of_a_hang_alone(tmp_path: Path) -> None:
    core = tmp_path / "core.nvcudmp"
    core.write_bytes(polling_core(wrong=0x1000))
    (group,) = json.loads(vdbg_env("core", "--json", str(core)).stdout)["warps"]
    assert group["waits"]["polled"][0]["value"] is None


def test_without_a_decoder_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise UnreadableBinary("the encoding of sm_130 is not known")

    monkeypatch.setattr("gpucore.sass.decode", unknown)
    explainer = places.Explainer()
    assert explainer.place(*place_of_the_store()) is None
    assert explainer.notes == (
        "an address is not explained: the encoding of sm_130 is not known",
        "an address is not explained: nvdisasm is not on this machine; pip install nvidia-cuda-nvdisasm",
    )


def test_a_bug_of_the_explanation_costs_no_other_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise KeyError("R7")

    monkeypatch.setattr("gpucore.explain.fault.explain_fault", broken)
    core = tmp_path / "core.nvcudmp"
    core.write_bytes(illegal_address_core())
    ran = vdbg_env("core", str(core))
    assert ran.status == 3
    assert "inline_chain.cu:3" in ran.stdout
    assert "note: an address is not explained: KeyError: 'R7'; report this with the file" in ran.stdout


def test_nvdisasm_is_given_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = tmp_path / "nvdisasm"
    slow.write_text('#!/bin/sh\necho asked >> "$0.log"\nexec sleep 60\n')
    slow.chmod(0o755)
    monkeypatch.setattr(places, "TOOL", str(slow))
    monkeypatch.setattr(places, "_TIMEOUT_S", 0.3)

    def unknown(*_: object) -> None:
        raise UnreadableBinary("the encoding of sm_130 is not known")

    monkeypatch.setattr("gpucore.sass.decode", unknown)
    explainer = places.Explainer()
    assert explainer.place(*place_of_the_store()) is None
    assert (tmp_path / "nvdisasm.log").read_text() == "asked\n"
    assert "an address is not explained" in explainer.notes[-1]


def test_a_report_says_why_in_each_form() -> None:
    finding = replace(reports.FAULT, why=("wrote 4 bytes", "= p (argument 1, float*) + 4 * <i>"), address={"width": 4})
    report = replace(reports.FULL, findings=(finding, *reports.FULL.findings[1:]))
    template = (SHIPPED_DATA / "templates" / "report.html.j2").read_text()
    assert json.loads(report_json(report))["findings"][0]["address"] == {"width": 4}
    assert "= p (argument 1, float*) + 4 * <i>" in pages.as_markdown(report)
    assert "= p (argument 1, float*) + 4 * &lt;i&gt;" in pages.as_html(report, template=template, style="")
    assert "why         wrote 4 bytes" in as_terminal.render(report)


TILES = WAITING.parent / "tile_sm90.cubin"


def tile_fault(kernel: str, opcode: str, uniform: dict[int, int]) -> CoreSpec:
    """Return a core of a warp that failed at the move of a tile, with some uniform registers."""
    data = TILES.read_bytes()
    function = next(one for one in CodeMap(data).kernels if one.demangled.startswith(kernel))
    instructions = places.decoded(CodeMap(data), function.section)
    offset = next(one.offset for one in instructions if one.opcode == opcode)
    lanes = {0: LaneSpec(offset=offset, registers=[4096, *[0] * 15])}
    warp = WarpSpec(
        offset=offset, error_offset=offset, exception=14, valid=1, active=1, marked=1, lanes=lanes,
        uniform=[uniform.get(k, 0) for k in range(63)],
    )  # fmt: skip
    device = DeviceSpec(
        modules=[ModuleSpec(cubin=data)], launches=[LaunchSpec(kernel=kernel, grid=(8, 8, 1))],
        blocks=[BlockSpec(block=(3, 2, 0), warps=[warp])],
    )  # fmt: skip
    return CoreSpec(devices=[device])


def asking_core(word: int) -> bytes:
    """A warp waits for its tile, and for the phase of parity 0 of the mbarrier at 0x1400, which has a word."""
    data = TILES.read_bytes()
    lanes = {n: LaneSpec(offset=0x350, registers=[n if k == 7 else 0 for k in range(16)]) for n in range(32)}
    warp = WarpSpec(offset=0x350, lanes=lanes, uniform=[{4: 0x400, 5: 0x1400}.get(k, 0) for k in range(63)])
    shared = bytes(0x1400) + word.to_bytes(8, "little")
    device = DeviceSpec(
        modules=[ModuleSpec(cubin=data)], launches=[LaunchSpec(kernel="project(")],
        blocks=[BlockSpec(warps=[warp], shared=shared)],
    )  # fmt: skip
    return build_core(CoreSpec(devices=[device]))


@pytest.mark.parametrize(
    ("word", "line"),
    [
        (0x7FFFF800001FFFFE, "that phase is not over: 1 of 1 arrivals is missing"),
        (0x7FFE0E00003FFF80, "that phase is not over: 63 of 64 arrivals are missing and 1,048,575 bytes of copies"),
        (0xFFFFF800001FFFFE, "that phase is over: the mbarrier is in one of parity 1"),
        (0, "nothing has initialised an mbarrier there: it holds 0x0"),
    ],
)
def test_a_hang_at_an_mbarrier_says_what_its_phase_lacks(word: int, line: str, tmp_path: Path) -> None:
    core = tmp_path / "core.nvcudmp"  # the first two words are of an H100, initialised with 1 and with 64
    core.write_bytes(asking_core(word))
    shown = vdbg_env("core", str(core), "--source-root", str(TILES.parent)).stdout
    assert line in shown
    contract = Contract("core-v1")
    document = json.loads(vdbg_env("core", "--json", str(core)).stdout)
    contract.check(document)
    (phase,) = document["warps"][0]["waits"]["phases"]
    assert (phase["mbarrier"]["at"], phase["mbarrier"]["word"]) == (0x1400, word)


def test_the_move_of_a_tile_names_its_tensor_map_and_its_coordinates(tmp_path: Path) -> None:
    core = tmp_path / "core.nvcudmp"
    shared = {6: 0x400, 7: 0x1400, 8: 0x400, 9: 0x1400}
    held = {4: 1000, 5: 0x7FFFF800, **shared, 10: 96, 11: 64 + 1000, 12: 0x270, 13: 0x7F20}
    core.write_bytes(build_core(tile_fault("project(", "UTMALDG", held)))
    shown = vdbg_env("core", str(core), "--source-root", str(TILES.parent)).stdout
    assert "thread (0,0,0) of block (3,2,0) read a tile through a tensor map" in shown
    assert "the tensor map is weights (argument 1, CUtensorMap" in shown
    assert "the tile's coordinates, innermost first: 32*blockIdx.x = 96; 32*blockIdx.y + row = 1064" in shown
    contract = Contract("core-v1")
    document = json.loads(vdbg_env("core", "--json", str(core)).stdout)
    contract.check(document)
    address = document["faults"][0]["address"]
    assert (address["space"], address["base"]["argument"], address["index"]) == ("descriptor", 1, None)
    assert [one["value"] for one in address["coordinates"]] == [96, 1064]
    assert not {at for at in contract.never_met() if at[0] == "AddressCoordinate"}


def test_a_tensor_map_in_an_array_is_named_by_its_formula() -> None:
    code = CodeMap(TILES.read_bytes())
    kernel = next(one for one in code.kernels if one.demangled.startswith("scatter("))
    offset = next(i.offset for i in places.decoded(code, kernel.section) if i.opcode == "UTMASTG")
    found = places.Explainer(lambda file: (TILES.parent / Path(file).name).read_text().splitlines()).place(
        code, Place(section=kernel.section, offset=offset)
    )
    assert found
    assert found.lines[:3] == (
        "writes a tile through a tensor map",
        "the tensor map is at 128*which + maps",
        "the tile's coordinates, innermost first: 32*blockIdx.x; 7; which",
    )
