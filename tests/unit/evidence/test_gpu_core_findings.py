"""A core's faults become findings that name kernel, line, chain and thread; a hang's warps become one."""

from dataclasses import replace

import pytest

from gpucore.core import find_faults, group_warps
from gpucore.core_reader import read_core
from tests.builders.core_builder import (
    BlockSpec,
    CoreSpec,
    DeviceSpec,
    SmSpec,
    WarpSpec,
    build_core,
    exited_warps_core,
    hang_core,
    illegal_address_core,
    sample_module,
)
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.gpu_findings import gpu_core_findings


def findings(core: bytes) -> tuple[Finding, ...]:
    read = read_core(core)
    return gpu_core_findings(find_faults(read), group_warps(read), "cuda.n1.nvcudmp")


def test_a_fault_is_named_down_to_the_line_and_the_thread() -> None:
    (finding,) = findings(illegal_address_core())
    assert (finding.rule, finding.level, finding.how_known) == (
        "gpu-core-warp-illegal-address",
        Level.ERROR,
        HowKnown.GPU_CORE,
    )
    assert finding.message.startswith("Warp Illegal Address at inline_chain.cu:")
    assert "the first is thread (32,0,0) of block (3,0,0)" in finding.message
    assert finding.kernel and finding.kernel.startswith("void kern<float>")
    assert len(finding.chain) > 1 and finding.location == finding.chain[0]
    assert finding.confidence > 0.9
    assert str(finding.next_step) == "see every thread of it, and its registers: vdbg-env core cuda.n1.nvcudmp"


def test_without_line_info_the_kernel_and_the_offset_stay() -> None:
    (finding,) = findings(illegal_address_core(lines=False))
    assert finding.message.startswith("Warp Illegal Address at kern<float>+0x140 (PC 0x7fffd9001140, no line info)")
    assert finding.location is None and finding.confidence < 0.95
    assert finding.next_step and finding.next_step.command
    assert finding.next_step.command.startswith("vdbg-env locate _Z4kernIfEvPT_"), (
        "no build of vLLM is known to have it"
    )


@pytest.mark.parametrize(
    ("kernel", "first"),
    [
        ("_ZN2at6native13reduce_kernelILi512EEEvf", "run it with CUDA_LAUNCH_BLOCKING=1: the Python stack then has"),
        ("triton_poi_fused_add_0", "this kernel is likely Triton's, which a build of vLLM gives no lines; for lines: "),
        (
            "nvjet_hsh_128x256",
            "this kernel is cuBLAS's, which a build of vLLM gives no lines; for lines: none: its code",
        ),
        ("_ZN5flash16flash_fwd_kernelIiEEvi", "it is of vLLM (_vllm_fa2_C), flash-attn, vllm-flash-attn, sgl-kernel"),
        ("_ZN3cub6KernelIN2at6native1TEEEvT_", "its owner is not known: a template of CUB"),
        ("_ZN4vllm15rms_norm_kernelIfEEvPT_", "build with line info, and run this again in that image"),
    ],
)
def test_what_gives_lines_is_what_can_give_them_to_this_kernel(kernel: str, first: str) -> None:
    (fault,) = find_faults(read_core(illegal_address_core(lines=False)))
    (finding,) = gpu_core_findings([replace(fault, kernel=kernel)], ())
    assert str(finding.next_step).startswith(first)
    assert ("vdbg-env build --lineinfo" in str(finding.next_step)) is ("4vllm" in kernel)
    assert ("vdbg-env locate" in str(finding.next_step)) is ("look for the library" in str(finding.next_step))


def test_warps_that_have_exited_are_said_to_have() -> None:
    (finding,) = findings(exited_warps_core())
    assert finding.message.endswith("its warps had already exited")


def test_warps_that_stand_where_the_mark_is_may_be_those_that_failed() -> None:
    """As eleven did on an H100 whose core has the mark of an SM alone."""
    sms = {5: SmSpec(exception=14, error_offset=0x140)}
    blocks = [BlockSpec(sm=5, warps=[WarpSpec(offset=0x170)])]
    (finding,) = findings(build_core(CoreSpec(devices=[DeviceSpec(modules=[sample_module()], sms=sms, blocks=blocks)])))
    assert finding.message.endswith("; which of its warps failed is not known")


def test_in_a_hang_those_who_do_not_wait_are_blamed() -> None:
    (finding,) = findings(hang_core())
    assert finding.rule == "gpu-core-hang"
    assert finding.message == (
        "no exception: 4 warps of kern<float> stand at inline_chain.cu:19, while 12 warps wait at a barrier"
    )


def test_the_driver_s_words_on_a_barrier_are_in_the_finding_of_a_hang() -> None:
    warps = [WarpSpec(offset=0x80), WarpSpec(offset=0x100, barrier_scope=3, barrier_words="mbarrier 0x400")]
    device = DeviceSpec(modules=[sample_module()], blocks=[BlockSpec(warps=warps)])
    (finding,) = findings(build_core(CoreSpec(devices=[device], branch="r590")))
    assert finding.message.endswith("while 1 warp waits at a barrier (the driver: mbarrier 0x400)")


def test_an_exception_whose_name_misleads_is_explained() -> None:
    (finding,) = findings(illegal_address_core(exception=7))
    said = "Warp Invalid Address Space (an address where shared or local memory is mapped, often far out of bounds) at "
    assert finding.message.startswith(said)
    assert finding.rule == "gpu-core-warp-invalid-address-space"


@pytest.mark.parametrize("code", [5, 6, 12, 999])
def test_every_exception_has_a_rule_of_its_own(code: int) -> None:
    (finding,) = findings(illegal_address_core(exception=code))
    assert finding.rule.startswith("gpu-core-") and " " not in finding.rule
