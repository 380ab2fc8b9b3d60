"""Whose kernel it is: by the function's own name, by the kernels beside it, by its library; else it is not known."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucore.mangling import demangle
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.evidence.kernel_makers import SITE_PACKAGES, KernelOrigin, find_library, kernel_makers

TABLES = SHIPPED_DATA / "images" / "knowledge" / "kernel-makers.json"


def document() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(TABLES.read_bytes())
    return read


def names(kernel: str) -> list[str]:
    return [maker.name for maker in kernel_makers().by_name(kernel).makers]


@pytest.mark.parametrize(
    ("kernel", "makers"),
    [
        ("triton_poi_fused_add_0", ["Triton"]),
        ("_fwd_grouped_kernel_stage1_kernel", ["Triton"]),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<4>(int)", ["DeepGEMM", "FlashInfer's cubins", "onnxruntime"]),
        ("kernel_cutlass_kernel_flash_attn_cute", ["CuTe DSL"]),
        ("kernel_cutlass_kernel_quackrmsnormRMSNorm_object_at_", ["quack"]),
        ("mhc_pre_big_fuse_tilelang_kernel", ["TileLang"]),
        ("main_kernel", ["TileLang", "TVM"]),
        ("vector_add_Kt1_a1f4_a1f4_i4", ["cuTile"]),
        ("void at::native::vectorized_elementwise_kernel<4, float>(int)", ["PyTorch"]),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", ["NCCL"]),
        ("ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)", ["NCCL"]),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", ["cuBLAS"]),
        ("void nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT<float>(int)", ["cuBLAS"]),
        ("sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x64", ["cuBLAS", "cuDNN", "TensorRT"]),
        ("fmhaSm100fKernel_QkvE4m3OBfloat16H128PagedKvDense", ["FlashInfer's cubins", "TensorRT-LLM's cubins"]),
        ("bmm_Bfloat16_E4m3E4m3_Fp32_t128x16x128_s6_et128x16", ["FlashInfer's cubins", "TensorRT-LLM's cubins"]),
        ("_ZN8__main__3addB2v1B3cw5E5ArrayIfLi1E1C7mutable7alignedE", ["Numba"]),
        ("_ZN6cudapy8__main__7add$241E5ArrayIfLi1E1C7mutable7alignedEi", ["Numba"]),
        ("add_kernel_1c2d3e4f_cuda_kernel_forward", ["Warp"]),
        ("cupy_add__float32_float32_float32", ["CuPy"]),
        ("loop_add_fusion_3", ["XLA"]),
        ("void kDequantizeBlockwise<__half, 512, 64, 8, 1>(float*)", ["bitsandbytes"]),
        ("void faiss::gpu::l2SelectMin1<float>(int)", ["Faiss"]),
        ("void turbomind::gemm::gemm_kernel<float>(int)", ["TurboMind"]),
        ("void onnxruntime::contrib::cuda::(anonymous namespace)::f<c10::Half>(int)", ["onnxruntime"]),
        ("void transformer_engine::(anonymous namespace)::f<c10::Half>(int)", ["Transformer Engine"]),
        ("void mul_mat_q4_K<true>(void const*)", ["llama.cpp", "sgl-kernel", "vLLM"]),
        ("void vllm::rms_norm_kernel<c10::Half, 8>(c10::Half*)", ["vLLM"]),
        ("void vllm::silu_mul_fp8_quant_deep_gemm_kernel<4224>(float*)", ["vLLM"]),
        ("std::enable_if<!(false), void>::type machete::prepack<c10::Half>(int)", ["vLLM"]),
        ("(anonymous namespace)::kda_decode_fusion_many_head<float>(int)", ["vLLM"]),
        # What decided before: a word anywhere in the name.
        ("void sglang::cross_device_reduce_1stage<c10::Half, 2>(int)", ["sgl-kernel"]),
        ("void topkGatingSoftmax<c10::Half, 8>(c10::Half const*)", []),
        ("void f<at::native::A, flashinfer::B, vllm::C>(deep_gemm::D*)", []),
        ("void cutlass::Kernel<cutlass::gemm::kernel::GemmFpAIntB<cutlass::half_t> >(int)", []),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<at::native::A> >(int)", []),
        ("void cub::CUB_300001_SM_750::DeviceReduceKernel<at::native::A, vllm::B>(int)", []),
        ("void thrust::cuda_cub::core::_kernel_agent<faiss::A>(int)", []),
        ("void at_cuda_detail::cub::DeviceScanKernel<int>(int)", ["PyTorch"]),
        # A launcher of CUTLASS is the class that it runs.
        ("void cutlass::device_kernel<torchao::enable_3x_kernel_for_sm90_or_later<cutlass::X> >(int)", ["torchao"]),
        ("void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm10<cutlass::X> >(int)", ["PyTorch"]),
        ("scatter", []),
        ("_ZN12_GLOBAL__N_114_undiff_kernelEi", []),  # cuML's: Triton's names are never mangled
        ("_undiff_kernel(int)", []),
        ("", []),
        ("nvjet", []),
    ],
)  # fmt: skip
def test_the_makers_of_a_kernel_are_told_by_its_own_name(kernel: str, makers: list[str]) -> None:
    assert names(kernel) == makers


# The first words of names in vLLM 0.33.0's wheel: the library is vLLM's where vLLM is the maker.
@pytest.mark.parametrize(
    ("kernel", "library", "makers"),
    [
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::Fwd<int> > >(int)", "_vllm_fa3_C", 5),
        ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<32, 64> >(int)", "_vllm_fa2_C", 6),
        ("void flash::flash_fwd_splitkv_mla_kernel<Mla<576> >(int)", "_flashmla_extension_C", 3),
        ("void smxx::decode::flash_fwd_mla_combine_kernel<cutlass::bfloat16_t>(int)", "_flashmla_C", 3),
        ("void vllm::moe::topkGating<8>(float*)", "_moe_C or _moe_C_stable_libtorch", 1),
        ("void vllm::rms_norm_kernel<float>(float*)", "_C or _C_stable_libtorch", 1),
        ("void cutlass::Kernel2<enable_sm75_to_sm80<cutlass::gemm::kernel::X> >(int)", "_C or _C_stable_libtorch", 2),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<int> >(int)", None, 0),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", None, 1),
    ],
)  # fmt: skip
def test_the_library_of_vllm_is_named_and_who_else_has_the_same_name(
    kernel: str, library: str | None, makers: int
) -> None:
    origin = kernel_makers().by_name(kernel)
    assert (origin.library, len(origin.makers)) == (library, makers)


ENTRIES = sorted({entry for row in document()["kernels"] for entry in row.get("names", ())})


@given(
    st.sampled_from(ENTRIES), st.sampled_from(["void {}<{}>({}*)", "{}<int, {}>({})", "{}({}, {})", "{0}<&{1}>(int)"])
)
def test_arguments_never_decide(entry: str, form: str) -> None:
    """A name of the tables as a template argument or a parameter of an unknown function leaves it unknown."""
    known = f"{entry}T".replace("*", "x")
    assert names(form.format("ours::kernel", known, known)) == []
    if entry.endswith("::"):
        assert names(f"void ours::{entry}kernel<int>(int)") == []  # the outermost scope counts


def test_a_name_that_several_projects_compile_names_them_all_and_in_words() -> None:
    origin = kernel_makers().by_name("void flash::flash_fwd_kernel<int>(int)")
    assert origin.maker is None
    assert origin.text == (
        "vLLM (_vllm_fa2_C), flash-attn, vllm-flash-attn, sgl-kernel, xFormers, DeepSpeed or another project that has "
        "a copy (code of FlashAttention 2), by the kernel's name"
    )
    assert kernel_makers().by_name("void cub::F<int>(int)").text == (
        "not known: a template of CUB, which any project may compile"
    )
    assert kernel_makers().by_name("scatter").text == "not known from the kernel's name"
    assert kernel_makers().by_name("void vllm::f(int)").text == (
        "vLLM's _C or _C_stable_libtorch, by the kernel's name"
    )


def beside(kernel: str, *module: str, core: tuple[str, ...] = ()) -> KernelOrigin:
    makers = kernel_makers()
    return makers.by_neighbours(makers.by_name(kernel), [kernel, *module], core)


def test_kernels_of_the_same_module_tell_the_maker_of_a_template() -> None:
    cub = "void cub::DeviceReduceKernel<int>(int)"
    assert beside(cub).makers == ()
    found = beside(cub, "void vllm::moe::topkGating<8>(float*)", "void cub::EmptyKernel<void>()")
    assert [maker.name for maker in found.makers] == ["vLLM"]
    assert found.decided == "other kernels of its module"
    assert beside(cub, "void vllm::f(int)", "void onnxruntime::cuda::f(int)").makers == (), "they contradict"
    assert beside(cub, "triton_poi_fused_add_0").makers == (), "a guess is no witness"


def test_a_neighbour_does_not_overrule_the_name() -> None:
    flash = "void flash::flash_fwd_kernel<int>(int)"
    assert len(beside("ncclDevKernel_AllReduce", "void vllm::f(int)").makers) == 1
    assert names("ncclDevKernel_AllReduce") == ["NCCL"]
    assert beside(flash, "void vllm::f(int)").maker == kernel_makers().makers["vLLM"]
    assert not beside("cuds_symv_stage2_kernel", "void vllm::f(int)").maker, "vLLM is not one of its makers"


def test_other_kernels_of_the_core_make_one_of_several_makers_likely() -> None:
    flash = "void flash::flash_fwd_kernel<int>(int)"
    found = beside(flash, core=("void vllm::f(int)", "void at::cuda::f(int)"))
    assert found.text == "likely vLLM's _vllm_fa2_C (code of FlashAttention 2), by other kernels of this core"
    both = beside(flash, core=("void vllm::f(int)", "void sglang::f(int)"))
    assert both.maker is None
    assert beside("scatter", core=("void vllm::f(int)",)).makers == (), "an unknown kernel may be anyone's"


@pytest.mark.parametrize(
    ("library", "maker"),
    [
        ("/venv/lib/python3.11/site-packages/sgl_kernel/sm90/common_ops.abi3.so", "sgl-kernel"),
        ("/x/site-packages/vllm/_C_stable_libtorch.abi3.so", "vLLM"),
        ("vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl:vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", "vLLM"),
        ("/usr/lib/x86_64-linux-gnu/libcublasLt.so.13", "cuBLAS"),
        ("/x/site-packages/nvidia/cu13/lib/libcublas.so.13", "cuBLAS"),
        ("/x/site-packages/torch/lib/libtorch_cuda.so", "PyTorch"),
        ("/x/site-packages/nvidia/nccl/lib/libnccl.so.2", "NCCL"),
        ("/home/u/.triton/cache/ABC/add_kernel.cubin", "Triton"),
        ("/home/u/mine/build/ops.so", None),
    ],
)  # fmt: skip
def test_the_library_decides_whose_kernel_it_is(library: str, maker: str | None) -> None:
    makers = kernel_makers()
    found = makers.by_library(library, makers.by_name("void cub::F<int>(int)")).maker
    assert (found.name if found else None) == maker


def test_the_library_of_vllm_that_was_told_by_the_name_is_not_said_of_another_project() -> None:
    makers = kernel_makers()
    flash = makers.by_name("void flash::flash_fwd_kernel<int>(int)")
    assert makers.by_library("/x/site-packages/sgl_kernel/a.so", flash).library is None
    assert makers.by_library("/x/site-packages/vllm/a.so", flash).library == "_vllm_fa2_C"


@pytest.mark.parametrize(
    ("kernel", "commands"),
    [
        ("_ZN4vllm1fEi", ("vdbg-env lines build vllm==VERSION --core 'a b'",)),
        (
            "_ZN6sglang1fEi",
            ("vdbg-env lines pack BUILD -o sgl-kernel.lines", "vdbg-env core --lines sgl-kernel.lines 'a b'"),
        ),
        ("nvjet_tst", ("vdbg-env core --parameters 'a b'",)),
        ("fmhaSm100fKernel_Qkv", ("vdbg-env core --parameters 'a b'",)),
        ("triton_poi_fused_add_0", ()),
        ("scatter", (f"vdbg-env locate scatter {SITE_PACKAGES}",)),
        ("_ZN5flash16flash_fwd_kernelIiEEvi", (f"vdbg-env locate _ZN5flash16flash_fwd_kernelIiEEvi {SITE_PACKAGES}",)),
    ],
)  # fmt: skip
def test_each_maker_has_its_own_next_step(kernel: str, commands: tuple[str, ...]) -> None:
    assert kernel_makers().by_name(kernel).next_commands(kernel, "a b") == commands


def test_no_closed_code_is_to_be_built_with_lineinfo() -> None:
    for row in document()["makers"]:
        remedy = kernel_makers().makers[row["name"]].remedy
        assert row["lines"] != "never" or "-lineinfo" not in remedy
        assert remedy or row["lines"] == "wheel"


def test_the_tables_hold_together() -> None:
    read = document()
    assert read["schema"] == "vdbg-env/kernel-makers/v1"
    known = [row["name"] for row in read["makers"]]
    assert len(known) == len(set(known))
    entries: list[str] = []
    for row in read["makers"]:
        assert set(row) <= {"name", "lines", "project", "remedy", "build", "files", "source"}
        assert row["source"]
        assert row["files"]
        assert row["lines"] in {"wheel", "sources", "run time", "never"}
        assert row["lines"] != "run time" or row["remedy"]
    for row in read["kernels"]:
        allowed = {
            "makers",
            "names",
            "launched",
            "pattern",
            "library",
            "code",
            "others",
            "likely",
            "unmangled",
            "source",
        }
        assert set(row) <= allowed
        assert row["source"]
        assert set(row["makers"]) <= set(known)
        assert row.get("names") or row.get("launched") or row.get("pattern")
        entries += row.get("names", ())
    assert len(entries) == len(set(entries)), "a name has two rows"
    used = {name for row in read["kernels"] for name in row["makers"]}
    assert used <= set(known)
    assert all(row["names"] and row["source"] for row in read["templates"])


@given(st.text(max_size=80))
def test_any_text_is_taken_for_a_name(text: str) -> None:
    origin = kernel_makers().by_name(text)
    assert origin.text
    assert find_library(text or "x")
    assert demangle(text) is not None
