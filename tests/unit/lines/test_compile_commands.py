"""A unit's own command becomes the command for one cubin; what decides about instructions stays."""

import json

import pytest

from vdbg_env.common.errors import BadInput
from vdbg_env_lines.units import Unit, cubin_argv, read_compile_commands

COMMAND = (
    "/cuda/bin/nvcc -forward-unknown-to-host-compiler -DTORCH_TARGET_VERSION=0x020B000000000000ULL -I/src/csrc "
    "-isystem /torch/include --expt-relaxed-constexpr -O3 -DNDEBUG -std=c++20 -Xcompiler=-fPIC --compress-mode=size "
    "-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a "
    "-gencode arch=compute_120,code=[compute_120,sm_120] -x cu -c /src/csrc/moe/align.cu "
    "-o CMakeFiles/_moe_C.dir/csrc/moe/align.cu.o"
)


def row(command: str = COMMAND, file: str = "/src/csrc/moe/align.cu") -> dict[str, str]:
    return {"directory": "/build", "command": command, "file": file}


def units(*rows: dict[str, str]) -> tuple[Unit, ...]:
    return read_compile_commands(json.dumps(rows or [row()]))


def test_a_unit_knows_its_extension_and_what_it_is_compiled_for() -> None:
    (unit,) = units()
    assert (unit.extension, unit.folder, unit.source) == ("_moe_C", "/build", "/src/csrc/moe/align.cu")
    assert unit.codes == (
        ("compute_80", "sm_80"), ("compute_90a", "sm_90a"), ("compute_120", "compute_120"), ("compute_120", "sm_120"),
    )  # fmt: skip
    assert unit.targets == ("sm_80", "sm_90a", "compute_120", "sm_120")


def test_the_list_of_architectures_is_that_of_the_whole_command() -> None:
    assert units()[0].arch_list == "800,900,1200"


def test_host_sources_are_left_out_and_the_order_is_kept() -> None:
    found = units(row(file="/src/b.cu"), row(file="/src/bindings.cpp"), row(file="/src/a.cu"))
    assert [unit.source for unit in found] == ["/src/b.cu", "/src/a.cu"]


def test_the_command_for_a_cubin_keeps_what_decides_about_instructions() -> None:
    argv = cubin_argv(units()[0], "sm_90a", "/tmp/out.cubin")
    assert argv == (
        "/cuda/bin/nvcc", "-forward-unknown-to-host-compiler", "-DTORCH_TARGET_VERSION=0x020B000000000000ULL",
        "-I/src/csrc", "-isystem", "/torch/include", "--expt-relaxed-constexpr", "-O3", "-DNDEBUG", "-std=c++20",
        "-Xcompiler=-fPIC", "-x", "cu", "-cubin", "/src/csrc/moe/align.cu", "-gencode", "arch=compute_90a,code=sm_90a",
        "-lineinfo", "-o", "/tmp/out.cubin",
    )  # fmt: skip


def test_a_cubin_of_an_architecture_that_the_unit_lacks_is_not_made_up() -> None:
    with pytest.raises(KeyError):
        cubin_argv(units()[0], "sm_75", "/tmp/out.cubin")


def test_commands_in_the_form_of_arguments_are_read_too() -> None:
    (unit,) = units({"directory": "/b", "arguments": ["nvcc", "--generate-code=arch=compute_75,code=[sm_75]", "-c",
                     "x.cu", "-o", "CMakeFiles/a.dir/x.cu.o"], "file": "x.cu"})  # type: ignore[dict-item]  # fmt: skip
    assert unit.codes == (("compute_75", "sm_75"),)
    assert cubin_argv(unit, "sm_75", "o") == (
        "nvcc", "-cubin", "x.cu", "-gencode", "arch=compute_75,code=sm_75", "-lineinfo", "-o", "o",
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "{}", '[{"file": "x.cu"}]', "[1]", '{"a": 1}'])
def test_what_is_not_a_list_of_commands_is_refused(text: str) -> None:
    if text == "{}":
        assert read_compile_commands(text) == ()
        return
    with pytest.raises(BadInput, match=r"compile_commands\.json cannot be read"):
        read_compile_commands(text)
