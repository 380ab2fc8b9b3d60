"""The script that derives the rows of images/knowledge/vllm.yaml, run on a small imitation of a release."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.image_library import planned, shipped
from vdbg_env.image.knowledge import read_knowledge
from vdbg_env.image.plan import dockerfile
from vdbg_env.image.profile import BuildRequest, parse_source

SCRIPT = Path(__file__).parents[3] / "scripts" / "vllm_knowledge.py"
CMAKE = """
set(PYTHON_SUPPORTED_VERSIONS "3.11" "3.12")
message(FATAL_ERROR "GCC >= 11.3 is required to build vLLM (found X). ")
message(FATAL_ERROR "GCC >= 13 is required to build vLLM with CUDA (found X). ")
if(DEFINED CMAKE_CUDA_COMPILER_VERSION AND
   CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
  # a comment
  set(CUDA_SUPPORTED_ARCHS "8.0;9.0")
else()
  set(CUDA_SUPPORTED_ARCHS "7.0;8.0")
endif()
set(VLLM_CUTLASS_SRC_DIR $ENV{VLLM_CUTLASS_SRC_DIR})
if(VLLM_GPU_LANG STREQUAL "HIP")
  set(VLLM_EXT_SRC "a.cu")
  define_extension_target(
    _C
    DESTINATION vllm
    LANGUAGE ${VLLM_GPU_LANG}
  )
endif()
define_extension_target(
  spinloop
  DESTINATION vllm
  LANGUAGE CXX
)
define_extension_target(
    _C_stable_libtorch
    DESTINATION vllm
    LANGUAGE ${VLLM_GPU_LANG}
)
"""
DOCKERFILE = """
ARG CUDA_VERSION=13.0.3
ARG PYTHON_VERSION=3.12
ARG NCCL_VERSION=2.31.2
FROM ${BUILD_BASE_IMAGE} AS base
RUN apt-get install -y ccache
FROM ${FINAL_BASE_IMAGE} AS vllm-base
RUN apt-get update -y \\
    && apt-get install -y --no-install-recommends \\
        software-properties-common \\
        ffmpeg \\
    && apt-get install -y \\
        python${PYTHON_VERSION} \\
        # what a comment says is no package
        libibverbs-dev \\
    && rm -rf /var/lib/apt/lists/*
RUN sed -i 's/^nvidia-cutlass-dsl\\[cu13\\]/nvidia-cutlass-dsl/' requirements-cuda.txt; \\
    sed -i 's/^humming-kernels\\[cu13\\]/humming-kernels[cu12]/' requirements-cuda.txt
FROM vllm-base AS vllm-openai
ARG TIMM_VERSION=">=1.0.17"
RUN if [ "$TARGETPLATFORM" = "linux/arm64" ]; then \\
        BITSANDBYTES_VERSION="0.42.0"; \\
    else \\
        BITSANDBYTES_VERSION="0.46.1"; \\
    fi; \\
    uv pip install --system accelerate 'modelscope<1.38' "timm${TIMM_VERSION}" \\
        "bitsandbytes>=${BITSANDBYTES_VERSION}"
"""


def release(tmp_path: Path) -> Path:
    folder = tmp_path / "vllm-9.9.0"
    for name, text in {
        "CMakeLists.txt": CMAKE,
        "docker/Dockerfile": DOCKERFILE,
        "requirements/cuda.txt": "-r common.txt\ntorch==2.99.0\n",
        "cmake/external_projects/flashmla.cmake": "$ENV{FLASH_MLA_SRC_DIR}\n define_extension_target(\n  _flashmla_C\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def derived(folder: Path) -> str:
    return subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, check=True).stdout


def test_a_row_is_derived_from_a_releases_own_files(tmp_path: Path) -> None:
    head = 'schema: vdbg-env/knowledge/v1\nas_of: "2026-01-01"\nvllm:\n'
    row = read_knowledge([("rows", (head + derived(release(tmp_path))).encode())]).vllm["9.9.0"]
    assert (row.torch, row.gcc.least, row.python.least, row.python.most) == ("2.99.0", "13", "3.11", "3.12")
    assert (row.arch["12.9"], row.arch["13.0"]) == (("7.0", "8.0"), ("8.0", "9.0"))
    assert row.dependencies == {"cutlass": "VLLM_CUTLASS_SRC_DIR", "flashmla": "FLASH_MLA_SRC_DIR"}
    assert row.targets == {"_C_stable_libtorch": None, "_flashmla_C": "flashmla"}
    assert row.image is not None
    assert (row.image.cuda, row.image.python, row.image.nccl) == ("13.0.3", "3.12", "2.31.2")
    assert row.image.apt == ("ffmpeg", "libibverbs-dev")
    assert row.image.packages == ("accelerate", "modelscope<1.38", "timm>=1.0.17", "bitsandbytes>=0.46.1")
    assert row.image.cuda12 == {
        "nvidia-cutlass-dsl[cu13]": "nvidia-cutlass-dsl",
        "humming-kernels[cu13]": "humming-kernels[cu12]",
    }


@pytest.mark.parametrize(
    "lost", ["ARG PYTHON_VERSION", "FROM ${FINAL_BASE_IMAGE}", "uv pip install", 'TIMM_VERSION=">']
)
def test_a_dockerfile_of_another_form_stops_it(tmp_path: Path, lost: str) -> None:
    folder = release(tmp_path)
    (folder / "docker/Dockerfile").write_text(DOCKERFILE.replace(lost, "#"))
    ran = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, check=False)
    assert ran.returncode != 0 and "Dockerfile" in ran.stderr


def test_an_unknown_dependency_stops_it(tmp_path: Path) -> None:
    folder = release(tmp_path)
    (folder / "cmake/external_projects/new.cmake").write_text("$ENV{NEW_THING_SRC_DIR}\n")
    ran = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, check=False)
    assert ran.returncode != 0 and "NEW_THING_SRC_DIR" in ran.stderr


def test_every_shipped_row_but_the_oldest_has_what_a_build_needs() -> None:
    for version, row in shipped().knowledge.vllm.items():
        assert row.torch
        assert version == "0.11.0" or (row.arch and row.targets and row.dependencies and row.image)


def test_a_whole_vllm_gets_what_the_releases_own_image_has() -> None:
    text = dockerfile(planned(BuildRequest(profile="vllm-cu130")))
    assert "ffmpeg" in text and "'timm>=1.0.17'" in text
    assert "pip install --no-deps nvidia-nccl-cu13==2.31.2" in text
    one = dockerfile(planned(BuildRequest(profile="vllm-cu130", target="_C_stable_libtorch")))
    assert "ffmpeg" not in one and "nccl" not in one, "one extension needs none of it"
    older = dockerfile(planned(BuildRequest(profile="pypi-cu130", source=parse_source("vllm==0.18.0"))))
    assert "libnccl" not in older, "plain Debian has no such package"


def test_another_python_than_that_of_the_releases_image_is_reported() -> None:
    (note,) = [n for n in planned(BuildRequest(profile="pypi-cu130")).notes if "own image" in n]
    assert note == "vLLM 0.33.0's own image has Python 3.12 and CUDA 13.0.3, this one Python 3.13 and CUDA 13.0"
    assert not [n for n in planned(BuildRequest(profile="vllm-cu130")).notes if "own image" in n]
