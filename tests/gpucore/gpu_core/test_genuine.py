"""Cores that a driver wrote on a GPU: what was planted is read from them, and every section is accounted for."""

import gzip
from pathlib import Path

import pytest

from gpucore.core import DecodedCore, Scope, decode_core
from gpucore.core_layout import generation_flags
from gpucore.core_reader import CoreSections

H100 = Path(__file__).parents[2] / "data" / "gpu" / "nvidia-h100-80gb-hbm3-driver-580-159-04" / "cores"
CUT = {"cut-by-exit"}
WHOLE = sorted({path.name.removesuffix(".nvcudmp.gz") for path in H100.glob("*.gz")} - CUT)


def contents(name: str) -> bytes:
    return gzip.decompress((H100 / f"{name}.nvcudmp.gz").read_bytes())


def genuine(name: str) -> DecodedCore:
    return decode_core(contents(name), parameters=True)


@pytest.mark.parametrize("name", WHOLE)
def test_a_core_of_a_driver_is_read_to_its_last_section(name: str) -> None:
    read = genuine(name)
    assert read.core.complete and str(read.core.identity) == "0x33/7"
    assert read.core.metadata and read.core.metadata.row[1:5] == (580, 159, 13, 0)
    assert {kind.kind for kind in read.core.unused} <= {"global memory", "local memory", "shared memory"}
    assert [device.name for device in read.core.devices] == ["NVIDIA H100 80GB HBM3"]
    assert not [note for note in read.notes if "no line info" not in note and "no loaded code" not in note]


def test_the_line_in_four_inlined_templates_is_found() -> None:
    (fault,) = genuine("inlined-templates").faults
    assert (fault.exception.code, fault.scope, fault.precise, fault.threads) == (14, Scope.LANE, True, 32)
    assert fault.first and fault.first.at.block == (5, 0, 0)
    assert fault.location and [frame.line for frame in fault.location.chain] == [13, 28, 34, 39]
    assert fault.location.chain[0].file == "/src/samples/inlined_templates.cu"


def test_parameters_are_there_without_constant_banks() -> None:
    read = genuine("exited-warp-without-lines")
    assert read.core.metadata and "skip_constbank_memory" in generation_flags(read.core.metadata.row.flags)
    assert read.launches[0].parameters
    assert [one.value for one in read.launches[0].parameters.parameters[1:]] == ["1024", f"{1 << 36}"]


def test_a_warp_beside_the_mark_of_an_exited_one_has_not_failed() -> None:
    read = genuine("exited-warp-without-lines")
    (fault,) = read.faults
    assert (fault.scope, fault.precise, fault.threads, fault.sms) == (Scope.SM, True, 0, (128,))
    assert fault.location and fault.location.offset == 0x170
    (left,) = read.warp_groups  # threads 96 to 127; thread 77 was the one
    assert (left.state, left.first.thread, left.first.sm) == ("running", (96, 0, 0), 128)


def test_a_fault_of_an_unloaded_module_is_no_jump_to_nowhere() -> None:
    read = genuine("unloaded-module")
    (fault,) = read.faults
    assert (fault.scope, fault.location, read.launches) == (Scope.SM, None, ())
    assert any("the module was unloaded" in note for note in read.notes)


def test_what_a_core_without_global_memory_holds_of_it_is_the_drivers_own() -> None:
    read = genuine("inlined-templates")
    assert next(kind for kind in read.core.unused if kind.kind == "global memory").bytes == 68_608
    assert CoreSections(contents("inlined-templates")).global_memory() == ()


def test_a_core_that_the_driver_did_not_finish_is_no_core_without_a_fault() -> None:
    read = genuine("cut-by-exit")
    assert read.core.truncated and not read.core.complete and not read.core.devices
