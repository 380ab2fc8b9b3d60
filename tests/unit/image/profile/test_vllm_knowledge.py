"""The script that derives the rows of images/knowledge/vllm.yaml, run on a small imitation of a release."""

import subprocess
import sys
from pathlib import Path

from tests.support.image_library import shipped
from vdbg_env.image.profile.knowledge import read_knowledge

SCRIPT = Path(__file__).parents[4] / "scripts" / "vllm_knowledge.py"
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


def release(tmp_path: Path) -> Path:
    folder = tmp_path / "vllm-9.9.0"
    for name, text in {
        "CMakeLists.txt": CMAKE,
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


def test_an_unknown_dependency_stops_it(tmp_path: Path) -> None:
    folder = release(tmp_path)
    (folder / "cmake/external_projects/new.cmake").write_text("$ENV{NEW_THING_SRC_DIR}\n")
    ran = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, check=False)
    assert ran.returncode != 0 and "NEW_THING_SRC_DIR" in ran.stderr


def test_every_shipped_row_but_the_oldest_has_what_a_build_needs() -> None:
    for version, row in shipped().knowledge.vllm.items():
        assert row.torch
        assert version == "0.11.0" or (row.arch and row.targets and row.dependencies)
