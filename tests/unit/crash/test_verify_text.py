"""What the user and other programs see of a proof of line info."""

import json

import pytest

from gpucore.lineinfo import Cause, Counts, Covered, FileReport, FunctionCoverage, LineinfoReport, Missing, Witness
from tests.support.golden import assert_golden
from tests.support.schemas import Contract
from vdbg_env.build.prove import verify_json, verify_text
from vdbg_env.common.console import json_text
from vdbg_env.crash.line_packs import PackCoverage

BLUR = ("_Z4blurILi4EEvPKfPf", "_Z4blurILi8EEvPKfPf")
GOOD = FileReport(
    path="vllm/_moe_C.abi3.so",
    counts=Counts(cubins=3, with_code=2, with_debug_line=2, ptx=1),
    covered=Covered(functions=164, functions_covered=164, instructions=90_112, instructions_covered=90_112, lowest=1.0),
    archs=(
        ("sm_90a", Counts(cubins=2, with_code=1, with_debug_line=1)),
        ("sm_100f", Counts(cubins=1, with_code=1, with_debug_line=1)),
        ("compute_120", Counts(ptx=1)),
    ),
    witness=Witness(tool="cuobjdump", listed=3, rc=0, agrees=True),
)
PARTIAL = FileReport(
    path="vllm/_C.abi3.so",
    counts=Counts(cubins=2440, with_code=2428, with_debug_line=2424, device_debug=2, ptx=28, other=1),
    archs=(
        ("sm_80", Counts(cubins=1220, with_code=1214, with_debug_line=1212)),
        ("sm_90", Counts(cubins=1220, with_code=1214, with_debug_line=1212, device_debug=2)),
        ("compute_90", Counts(ptx=28, other=1)),
    ),
    missing=(
        Missing(arch="sm_80", identifier="csrc/activation.cu", member="", kernels=BLUR, kernel_count=2),
        Missing(arch="sm_90", identifier="csrc/activation.cu", member="", kernels=BLUR, kernel_count=2),
        Missing(arch="sm_80", identifier="", member="libx.a", kernels=("k0", "k1", "k2", "k3"), kernel_count=164),
        Missing(arch="sm_90", identifier="", member="", kernels=(), kernel_count=0),
    ),
    witness=Witness(tool="cuobjdump", listed=1, rc=1, agrees=False, reason="it stopped after 1 of 2440 cubins"),
)
NONE = FileReport(
    path="one.cubin",
    counts=Counts(cubins=1, with_code=1),
    archs=(("sm_90", Counts(cubins=1, with_code=1)),),
    missing=(Missing(arch="sm_90", identifier="", member="", kernels=("_Z1kPf",), kernel_count=1),),
)
EMPTY = FileReport(
    path="libjit.so",
    counts=Counts(cubins=2, with_code=1),
    covered=Covered(functions=3, instructions=304, lowest=0.0),
    archs=(("sm_90", Counts(cubins=2, with_code=1)),),
    missing=(
        Missing(
            arch="sm_90", identifier="", member="", kernels=BLUR, kernel_count=2, cause=Cause.EMPTY_TABLE,
            functions=(FunctionCoverage(name=BLUR[0], kernel=True, instructions=162, covered=0),), function_count=3,
        ),
    ),
    witness=Witness(tool="cuobjdump", listed=2, rc=0, agrees=True),
)  # fmt: skip
LINKED = FileReport(
    path="libmixed.so",
    counts=Counts(cubins=1, with_code=1, partly=1),
    covered=Covered(
        functions=5, functions_covered=3, compiler_made=2, instructions=7000, instructions_covered=6999, lowest=0.9999
    ),
    archs=(("sm_90", Counts(cubins=1, with_code=1, partly=1)),),
    missing=(
        Missing(
            arch="sm_90", identifier="", member="", kernels=BLUR, kernel_count=2, cause=Cause.LINKED_WITHOUT,
            functions=tuple(FunctionCoverage(name=n, kernel=True, instructions=24, covered=0) for n in BLUR),
            function_count=5,
        ),
    ),
)  # fmt: skip
DAMAGED = FileReport(path="bad\nname.so", problem="a fat binary container is cut short (at byte 0x10)")
TEXT_FILE = FileReport(path="notes.txt", problem="neither ELF nor fat binary", next_step="name a library")
PTX_ONLY = FileReport(path="ptx.so", counts=Counts(ptx=2), archs=(("compute_90", Counts(ptx=2)),))
STUBS = FileReport(path="host.so", counts=Counts(cubins=4), archs=(("sm_90", Counts(cubins=4)),))
MANY = FileReport(
    path="many.so",
    counts=Counts(cubins=13, with_code=13, with_debug_line=1),
    archs=(("sm_90", Counts(cubins=13, with_code=13, with_debug_line=1)),),
    missing=tuple(
        Missing(arch="sm_90", identifier=f"{i}.cu", member="", kernels=(f"k{i}",), kernel_count=1) for i in range(12)
    ),
)

ELSEWHERE = FileReport(
    path="libelse.so",
    counts=Counts(cubins=1, with_code=1, with_debug_line=1),
    archs=(("sm_90", Counts(cubins=1, with_code=1, with_debug_line=1)),),
    elsewhere=Counts(cubins=3, with_code=2),
    sections=((".rodata", 3),),
)

REPORTS = {
    "full": LineinfoReport(files=(GOOD,), without_device_code=12),
    "partial": LineinfoReport(files=(GOOD, PARTIAL)),
    "built_by_others": LineinfoReport(files=(GOOD, NONE)),
    "none": LineinfoReport(files=(NONE,)),
    "unreadable": LineinfoReport(files=(GOOD, DAMAGED, TEXT_FILE)),
    "ptx_only": LineinfoReport(files=(PTX_ONLY,)),
    "stubs": LineinfoReport(files=(STUBS,), without_device_code=1),
    "empty_table": LineinfoReport(files=(EMPTY,)),
    "device_link": LineinfoReport(files=(GOOD, LINKED)),
    "causes": LineinfoReport(files=(EMPTY, LINKED, NONE)),
    "nothing": LineinfoReport(files=(), without_device_code=3),
    "many": LineinfoReport(files=(MANY,)),
    "elsewhere": LineinfoReport(files=(GOOD, ELSEWHERE)),
    "cores": LineinfoReport(files=(GOOD,), cores=2, notes=("image:1: judged was what its build made: /opt/vdbg/out",)),
}


@pytest.mark.parametrize("name", REPORTS)
def test_the_table(name: str) -> None:
    assert_golden(f"report/lineinfo_{name}.txt", verify_text(REPORTS[name]))


def test_everything_missing_is_named_on_request() -> None:
    text = verify_text(REPORTS["many"], every_missing=True)
    assert all(f"{i}.cu: kernel k{i}" in text for i in range(12))
    assert "more (--all" not in text


def test_the_json() -> None:
    assert_golden("report/lineinfo_partial.json", json_text(verify_json(REPORTS["partial"])))


def test_the_json_keeps_its_published_schema_and_meets_all_of_it() -> None:
    contract = Contract("verify-v1")
    for report in REPORTS.values():
        contract.check(json.loads(json_text(verify_json(report))))
    packed = PackCoverage(file="a.so", arch="sm_90", functions=3, identical=1, other=1, other_named=["_Z4kernv"])
    contract.check(json.loads(json_text(verify_json(report, [packed]))))
    assert contract.never_met() == set()
