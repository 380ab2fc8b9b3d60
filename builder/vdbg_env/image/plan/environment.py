"""The environment of a debug image: what makes compilers leave line info, and what keeps caches from taking it away."""

from __future__ import annotations

from vdbg_env.image.plan.plan import Variable
from vdbg_env.image.profile.request import BuildRequest, DebugInfo
from vdbg_env.image.profile.spec import ImageSpec

FLAG: dict[DebugInfo, str] = {"lineinfo": "-lineinfo", "device-debug": "-G"}

# A launcher named in the environment would put a cache in front of the compiler, and a precompiled wheel would leave
# nothing to compile at all; neither is what a debug build wants.
UNSET_FOR_COMPILE = (
    "CMAKE_C_COMPILER_LAUNCHER",
    "CMAKE_CXX_COMPILER_LAUNCHER",
    "CMAKE_CUDA_COMPILER_LAUNCHER",
    "CCACHE_PREFIX",
    "RUSTC_WRAPPER",
    "VLLM_USE_PRECOMPILED",
    "VLLM_PRECOMPILED_WHEEL_LOCATION",
)
NO_LAUNCHER = tuple(f"-DCMAKE_{language}_COMPILER_LAUNCHER=" for language in ("C", "CXX", "CUDA"))


def image_environment(spec: ImageSpec, request: BuildRequest, arch: tuple[str, ...]) -> tuple[Variable, ...]:
    """Return what is set in the image for builds and runs alike: ours, then the profile's over it."""
    ours = (*_toolchain(spec), *_line_info(request.debug, arch))
    profile = spec.environment
    kept = tuple(v for v in ours if v.name not in profile)
    return (*kept, *(Variable(name=name, value=value) for name, value in sorted(profile.items()) if value is not None))


def overruled(spec: ImageSpec) -> tuple[str, ...]:
    """Warn of each guard against caches that the profile takes away."""
    guards = {"CCACHE_DISABLE", "VLLM_DISABLE_SCCACHE", "NVCC_PREPEND_FLAGS"}
    lost = [f"the profile overrules {name}" for name in sorted(guards & set(spec.environment))]
    lost += [f"the profile passes {a}" for a in spec.build.cmake_args if "LAUNCHER=" in a or "CUDA_FLAGS=" in a]
    return tuple(f"{what}: a cache may hand back objects without line info, which the proof will find" for what in lost)


def _toolchain(spec: ImageSpec) -> tuple[Variable, ...]:
    built = ("out/bin",) if spec.build.system == "cmake" else ()
    path = (*built, "venv/bin", *(("cuda/bin",) if spec.toolchain.provided_by == "wheels" else ()))
    if spec.toolchain.provided_by == "wheels":
        home = Variable(name="CUDA_HOME", value="cuda", kind="path")
    else:
        home = Variable(name="CUDA_HOME", value=spec.toolchain.home)
    return (Variable(name="PATH", value=path, kind="search"), home)


def _line_info(debug: DebugInfo, arch: tuple[str, ...]) -> tuple[Variable, ...]:
    values = {
        # nvcc reads this whoever starts it, kernels compiled at run time included; ccache does not, hence the next.
        "NVCC_PREPEND_FLAGS": FLAG[debug],
        "CCACHE_DISABLE": "1",
        # vLLM prefers sccache to ccache where both are found, and sccache does not know CCACHE_DISABLE.
        "VLLM_DISABLE_SCCACHE": "1",
        "TORCH_CUDA_ARCH_LIST": ";".join(arch),
        # Kernels compiled at run time, each by its own switch. FLASHINFER_JIT_DEBUG is left alone: it turns the
        # optimiser off, and with it many a bug.
        "FLASHINFER_JIT_LINEINFO": "1",
        "CUTE_DSL_LINEINFO": "1",
        "TRITON_DISABLE_LINE_INFO": "0",
    }
    return tuple(Variable(name=name, value=value) for name, value in values.items())
