"""The environment of a debug image: it makes compilers write line info, and keeps caches from removing it."""

from __future__ import annotations

from vdbg_env.image.plan.plan import Variable
from vdbg_env.image.profile.request import BuildRequest, DebugInfo
from vdbg_env.image.profile.spec import ImageSpec

FLAG: dict[DebugInfo, str] = {"lineinfo": "-lineinfo", "device-debug": "-G"}

# A launcher named in the environment would put a cache in front of the compiler, and a precompiled wheel would leave
# nothing to compile at all.
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
    """Return what is set in the image for builds and runs: ours, overridden by the profile's."""
    ours = {v.name: v for v in (*_toolchain(spec), *_line_info(request.debug, arch))}
    profile = {
        name: Variable(name=name, value=value, late=name in ours and ours[name].late)
        for name, value in sorted(spec.environment.items())
        if value is not None
    }
    kept = (v for v in ours.values() if v.name not in spec.environment)
    return (*kept, *profile.values())


def overridden(spec: ImageSpec) -> tuple[str, ...]:
    """Return a warning for each setting of the profile that changes or loses what the build relies on."""
    guards = {"CCACHE_DISABLE", "VLLM_DISABLE_SCCACHE", "NVCC_PREPEND_FLAGS", "CMAKE_ARGS"}
    lost = [f"the profile overrides {name}" for name in sorted(guards & set(spec.environment))]
    lost += [f"the profile passes {a}" for a in spec.build.cmake_args if "LAUNCHER=" in a or "CUDA_FLAGS=" in a]
    ours = [
        f"the profile overrides {name}" for name in sorted({"PATH", "CUDA_HOME", "VDBG_ROOT"} & set(spec.environment))
    ]
    unset = (
        f"the profile sets {name}, which the compile step unsets: with it, nothing or not all would be compiled here"
        for name in UNSET_FOR_COMPILE
        if spec.environment.get(name)
    )
    return (
        *(f"{what}: a cache may return objects without line info, which the proof will find" for what in lost),
        *(f"{what}: compilers and tools are then looked for there and nowhere else" for what in ours),
        *unset,
    )


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
        # Every nvcc reads this, also for kernels compiled at run time; ccache does not hash it, hence the next one.
        "NVCC_PREPEND_FLAGS": FLAG[debug],
        "CCACHE_DISABLE": "1",
        # vLLM prefers sccache to ccache where both are found, and sccache ignores CCACHE_DISABLE.
        "VLLM_DISABLE_SCCACHE": "1",
        "TORCH_CUDA_ARCH_LIST": ";".join(arch),
        # Kernels compiled at run time, each by its own switch. FLASHINFER_JIT_DEBUG is not set: it turns the optimiser
        # off, and many bugs vanish with it.
        "FLASHINFER_JIT_LINEINFO": "1",
        "CUTE_DSL_LINEINFO": "1",
        "TRITON_DISABLE_LINE_INFO": "0",
    }
    return tuple(Variable(name=name, value=value, late=True) for name, value in values.items())
