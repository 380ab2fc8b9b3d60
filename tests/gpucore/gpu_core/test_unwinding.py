"""A thread in the driver's own code is told by the call that led there, where the dump has its backtrace."""

import pytest

from gpucore.core import decode_core
from tests.builders.core_builder import BlockSpec, CoreSpec, DeviceSpec, WarpSpec, build_core, sample_module

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


@pytest.mark.parametrize("backtrace", [(), (0x7000_0000,)], ids=["none", "leads nowhere"])
def test_without_a_backtrace_into_code_the_place_stays_unknown(backtrace: tuple[int, ...]) -> None:
    (fault,) = decode_core(core_of(*backtrace)).faults
    assert fault.location is None and fault.calls_out == 0
