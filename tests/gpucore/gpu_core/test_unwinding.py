"""A thread in the driver's own code is told by the call that led there, where the dump has its backtrace."""

import json
from pathlib import Path

import pytest

from gpucore.core import decode_core
from tests.builders.core_builder import BlockSpec, CoreSpec, DeviceSpec, WarpSpec, build_core, sample_module
from tests.support.command_line import vdbg_env
from vdbg_env.evidence.gpu_findings import gpu_core_findings

ELSEWHERE = 0x7FFFD0000100


def core_of(*calls: int) -> bytes:
    warp = WarpSpec(error_offset=0, exception=12, outside=ELSEWHERE, calls=calls)
    return build_core(CoreSpec(devices=[DeviceSpec(modules=[sample_module()], blocks=[BlockSpec(warps=[warp])])]))


def test_the_line_is_that_of_the_call_before_the_return_address() -> None:
    """0x140 holds the store of line 3 (tests/data/cubins); a call there would return to 0x150."""
    read = decode_core(core_of(0x150))
    (fault,) = read.faults
    assert (fault.pc, fault.calls_out) == (ELSEWHERE, 1)
    assert fault.location and (fault.location.chain[0].line, fault.location.offset) == (3, 0x140)
    assert any("the place given is the call that led there" in note for note in read.notes)
    (finding,) = gpu_core_findings(read.faults, read.warp_groups, "core")
    assert finding.message.startswith("Warp Assert in code called from inline_chain.cu:3")


@pytest.mark.parametrize("backtrace", [(), (0x7000_0000,)], ids=["none", "leads nowhere"])
def test_without_a_backtrace_into_code_the_place_stays_unknown(backtrace: tuple[int, ...]) -> None:
    (fault,) = decode_core(core_of(*backtrace)).faults
    assert fault.location is None and fault.calls_out == 0


def test_people_and_programs_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.nvcudmp").write_bytes(core_of(0x150))
    told = vdbg_env("core", "a.nvcudmp").stdout
    assert f"PC {ELSEWHERE:#x}, in code that the dump does not hold; called from " in told
    (fault,) = json.loads(vdbg_env("core", "--json", "a.nvcudmp").stdout)["faults"]
    assert (fault["calls_out"], fault["offset"], fault["chain"][0]["line"]) == (1, "0x140", 3)
