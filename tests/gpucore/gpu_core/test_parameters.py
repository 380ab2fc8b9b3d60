"""The parameters of a launch are decoded by the table that ptxas wrote of its kernel; what is not there is said."""

import struct
from dataclasses import replace

import pytest

from gpucore.core import LaunchParameters, decode_core
from gpucore.elf import Elf, read_parameter_table
from gpucore.mangling import parameter_types
from tests.builders.core_builder import (
    CUBINS,
    BlockSpec,
    CoreSpec,
    DeviceSpec,
    LaunchSpec,
    WarpSpec,
    build_core,
    sample_module,
)

PASSED = struct.pack("<Qif", 0x7F5000000000, 1 << 20, 1.5)
BANK = 0x7F6000000000


def read(launch: LaunchSpec, memory: dict[int, bytes] | None = None, cubin: str = "") -> LaunchParameters:
    module = sample_module(cubin) if cubin else sample_module()
    device = DeviceSpec(modules=[module], launches=[launch], blocks=[BlockSpec()], global_memory=memory or {})
    (found,) = decode_core(build_core(CoreSpec(devices=[device])), parameters=True).launches
    assert found.parameters
    return found.parameters


@pytest.mark.parametrize(("cubin", "offset"), [("inline_chain_sm80", 0x160), ("inline_chain_sm90", 0x210)])
def test_values_are_read_by_type(cubin: str, offset: int) -> None:
    found = read(LaunchSpec(parameters=PASSED, parameters_offset=offset), cubin=cubin)
    assert [(one.type, one.offset, one.size, one.value) for one in found.parameters] == [
        ("float*", 0, 8, "0x7f5000000000"), ("int", 8, 4, "1048576"), ("float", 12, 4, "1.5"),
    ]  # fmt: skip
    assert found.problem is None


def test_more_than_four_kibibytes_are_noted_another_way_by_ptxas() -> None:
    """cuobjdump -elf prints these places of this cubin as EIATTR_KPARAM_INFO_V2."""
    table = read_parameter_table(Elf((CUBINS / "parameters_sm90a.cubin").read_bytes()), "_Z4takePKfPf5Smallxdbh5Large")
    assert table and (table.bank_offset, table.size) == (0x210, 4152)
    assert [(at.offset, at.size) for at in table.parameters] == [
        (0, 8), (8, 8), (16, 12), (32, 8), (40, 8), (48, 1), (49, 1), (56, 4096),
    ]  # fmt: skip


def test_every_plain_type_has_a_value() -> None:
    small = struct.pack("<bxxxihxx", 1, 2, 3)
    passed = struct.pack("<QQ12s4xqd?B6x4096s", 16, 32, small, -5, 0.25, True, 200, bytes(4096))
    launch = LaunchSpec(kernel="take", parameters=passed)
    found = read(launch, cubin="parameters_sm90a").parameters
    assert [one.value for one in found] == ["0x10", "0x20", None, "-5", "0.25", "true", "200", None]
    assert found[2].data == small


def test_constant_bank_0_serves_where_there_is_no_parameter_memory() -> None:
    launch = LaunchSpec(banks=[(0, BANK, 0x220), (4, 0x7F7000000000, 8)])
    found = read(launch, {BANK - 16: bytes(16 + 0x210) + PASSED})
    assert [one.value for one in found.parameters] == ["0x7f5000000000", "1048576", "1.5"]
    assert [(bank.number, bank.size, bank.held) for bank in found.banks] == [(0, 0x220, True), (4, 8, False)]


def test_a_dump_without_them_says_why() -> None:
    found = read(LaunchSpec(banks=[(0, BANK, 0x220)]))
    assert found.data is None and [one.value for one in found.parameters] == [None, None, None]
    assert found.problem == "the dump has neither its parameter memory nor constant bank 0 (a flag left them out)"


def test_fewer_bytes_than_parameters_are_said() -> None:
    found = read(LaunchSpec(parameters=PASSED[:12]))
    assert [one.value for one in found.parameters] == ["0x7f5000000000", "1048576", None]
    assert found.problem == "12 of 16 bytes of parameters are in the dump"


def test_parameters_that_start_elsewhere_than_the_kernels_are_doubted() -> None:
    problem = read(LaunchSpec(parameters=PASSED, parameters_offset=0x160)).problem
    assert problem and "they may be another kernel's" in problem


def test_without_a_table_the_bytes_are_kept() -> None:
    module = sample_module()
    module = replace(module, cubin=module.cubin.replace(b".nv.info._Z4kernIfE", b".nv.inf0._Z4kernIfE"))
    device = DeviceSpec(modules=[module], launches=[LaunchSpec(parameters=PASSED)], blocks=[BlockSpec()])
    (found,) = decode_core(build_core(CoreSpec(devices=[device])), parameters=True).launches
    assert found.parameters and found.parameters.data == PASSED and not found.parameters.parameters
    assert found.parameters.problem == "the image has no parameter table for its kernel"


def test_they_are_read_only_when_asked_for() -> None:
    core = build_core(CoreSpec(devices=[DeviceSpec(modules=[sample_module()], blocks=[BlockSpec()])]))
    assert [launch.parameters for launch in decode_core(core).launches] == [None]


def test_a_damaged_table_is_read_up_to_the_damage() -> None:
    cubin = sample_module().cubin
    elf = Elf(cubin)
    section = elf.section(".nv.info._Z4kernIfEvPT_iS0_")
    assert section
    cut = bytearray(cubin)
    cut[section.offset + 8 + 2] = 0xFF  # the length of the first row of a parameter
    table = read_parameter_table(Elf(cut), "_Z4kernIfEvPT_iS0_")
    assert table and table.parameters == ()
    assert read_parameter_table(elf, "_Z4kern") is None


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("void kern<float>(float*, int, float)", ("float*", "int", "float")),
        ("void k<f(int, int)>(void (*)(int, char), S<a, b>)", ("void (*)(int, char)", "S<a, b>")),
        ("(anonymous namespace)::k(std::pair<int, int> const&)", ("std::pair<int, int> const&",)),
        ("plain", ()),
        ("f()", ()),
    ],
)
def test_types_are_those_of_the_name(name: str, types: tuple[str, ...]) -> None:
    assert parameter_types(name) == types


def test_the_place_of_a_block_in_its_cluster() -> None:
    launch = LaunchSpec(cluster=(2, 1, 1))
    block = BlockSpec(block=(3, 0, 0), warps=[WarpSpec(error_offset=0x140, exception=14)])
    device = DeviceSpec(modules=[sample_module()], launches=[launch], blocks=[block])
    (fault,) = decode_core(build_core(CoreSpec(devices=[device]))).faults
    assert fault.first and (fault.first.at.cluster, fault.first.at.block_in_cluster) == ((1, 0, 0), (1, 0, 0))
    (fault,) = decode_core(build_core(CoreSpec(devices=[device], branch="r525"))).faults
    assert fault.first and fault.first.at.cluster is None


def test_every_call_of_the_first_thread_has_its_place() -> None:
    warp = WarpSpec(error_offset=0x140, exception=14, calls=(0x150, 0x7000_0000))
    device = DeviceSpec(modules=[sample_module()], blocks=[BlockSpec(warps=[warp])])
    (fault,) = decode_core(build_core(CoreSpec(devices=[device]))).faults
    near, far = fault.calls
    assert near.location and (near.location.offset, near.location.chain[0].line) == (0x140, 3)
    assert far.location is None and fault.calls_out == 0
