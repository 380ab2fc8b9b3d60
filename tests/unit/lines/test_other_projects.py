"""What a release's CMake files pin of other projects, and which package has the nearest headers of CUTLASS.

The text is written as vLLM 0.33.0's files are.
"""

import pytest

from vdbg_env_lines.units import OtherProject, cutlass_release, nearest_cutlass, pinned_projects, project_of

TOP = """
set(CUTLASS_REVISION "v4.7.1")
if (DEFINED ENV{VLLM_CUTLASS_SRC_DIR})
  set(VLLM_CUTLASS_SRC_DIR $ENV{VLLM_CUTLASS_SRC_DIR})
endif()
if(VLLM_CUTLASS_SRC_DIR)
  FetchContent_Declare(cutlass SOURCE_DIR ${VLLM_CUTLASS_SRC_DIR})
else()
  FetchContent_Declare(
      cutlass
      GIT_REPOSITORY https://github.com/nvidia/cutlass.git
      # Please keep this in sync with CUTLASS_REVISION line above (and (with) brackets).
      GIT_TAG ${CUTLASS_REVISION}
      GIT_PROGRESS TRUE
      GIT_SHALLOW TRUE
  )
endif()
"""
FLASH = """
# use --component _vllm_fa2_C
if (DEFINED ENV{VLLM_FLASH_ATTN_SRC_DIR})
FetchContent_Declare(vllm-flash-attn
          GIT_REPOSITORY https://github.com/vllm-project/flash-attention.git
          GIT_TAG b273a02621d3c94bc747df67204f591b67f38fae
          BINARY_DIR ${CMAKE_BINARY_DIR}/vllm-flash-attn)
foreach(_FA_COMPONENT _vllm_fa2_C _vllm_fa3_C)
"""
KDA = """
if(DEFINED ENV{FLASH_KDA_SRC_DIR})
FetchContent_Declare(flashkda
    GIT_REPOSITORY https://github.com/vllm-project/FlashKDA.git
    GIT_TAG 17a037d98da546deb4591e967cf961a43c034d8b
    GIT_PROGRESS TRUE
    GIT_SUBMODULES cutlass)
define_extension_target(_flashkda_C DESTINATION vllm)
"""
DEEPGEMM = """
if (DEFINED ENV{DEEPGEMM_SRC_DIR})
  set(_REPO "https://github.com/vllm-project/DeepGEMM.git")
  set(_TAG "0820030756945b2daec208e8e8255268360f337d")
  FetchContent_Populate(deepgemm
      GIT_REPOSITORY "${_REPO}"
      GIT_TAG "${_TAG}"
      GIT_SUBMODULES "third-party/cutlass" "third-party/deep_jit"
      GIT_PROGRESS TRUE)
"""


def all_of_them() -> tuple[OtherProject, ...]:
    return pinned_projects([TOP, FLASH, KDA, DEEPGEMM])


def test_cutlass_is_cloned_by_its_tag() -> None:
    (cutlass,) = pinned_projects([TOP])
    assert (cutlass.title, cutlass.revision) == ("CUTLASS", "v4.7.1")
    assert cutlass.commands == ("git clone --depth 1 --branch v4.7.1 https://github.com/nvidia/cutlass.git",)
    assert cutlass.flag == 'VLLM_CUTLASS_SRC_DIR="$PWD/cutlass"'


@pytest.mark.parametrize(
    ("library", "folder"),
    [
        ("vllm.whl:vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", "flash-attention"),
        ("vllm.whl:vllm/_flashkda_C.abi3.so", "FlashKDA"),
        ("vllm.whl:vllm/third_party/deep_gemm/_C_extension.abi3.so", "DeepGEMM"),
        ("vllm.whl:vllm/_moe_C_stable_libtorch.abi3.so", None),
    ],
)
def test_the_project_of_a_library(library: str, folder: str | None) -> None:
    found = project_of(all_of_them(), library)
    assert (found and found.folder) == folder


def test_a_commit_is_checked_out_and_its_submodules_fetched() -> None:
    _, flash, kda, deep = all_of_them()
    assert flash.commands == (
        "git clone https://github.com/vllm-project/flash-attention.git",
        "git -C flash-attention checkout b273a02621d3c94bc747df67204f591b67f38fae",
        "git -C flash-attention submodule update --init --recursive",
    )
    assert flash.flag == 'VLLM_FLASH_ATTN_SRC_DIR="$PWD/flash-attention"'
    assert kda.commands[-1] == "git -C FlashKDA submodule update --init --recursive cutlass"
    assert deep.commands[-1].endswith(" third-party/cutlass third-party/deep_jit")
    assert deep.revision == "0820030756945b2daec208e8e8255268360f337d"


def test_what_a_file_says_cannot_become_another_command() -> None:
    (project,) = pinned_projects(["FetchContent_Declare(x GIT_REPOSITORY https://e/x.git;id GIT_TAG $`id`)"])
    assert "'https://e/x.git;id'" in project.commands[0]
    assert "'$`id`'" in project.commands[1]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("v4.7.1", "4.5.0"), ("v4.2.1", "4.2.1"), ("v4.0.0", "4.1.0"), ("v3.8.0", "3.8.0"), ("3f2a9c1", "4.5.0")],
)
def test_the_nearest_headers_that_the_index_has(wanted: str, found: str) -> None:
    assert nearest_cutlass(wanted).release == found


def test_a_release_is_read_from_its_own_header() -> None:
    header = "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 0 \n#define CUTLASS_BUILD 0\n"
    assert cutlass_release(header) == "4.2.0"
    assert cutlass_release("#define OTHER 1\n") == "unknown"
