"""What a configure that fails says: CMake's first error, although it continues and prints much behind it."""

import os
import sys
from pathlib import Path

import pytest

from vdbg_env.common.errors import BadInput, EngineFailed
from vdbg_env_lines.compilers import Programs, Toolkit
from vdbg_env_lines.sources import LocalUnitBuilds, _headers_used
from vdbg_env_lines.units import ConfiguredTree, OtherProject

# Stands in for CMake: its words, as 4.1 prints them.
PRINTS = """
import sys
print("-- The CXX compiler identification is GNU 14.2.0")
print("CMake Error at CMakeLists.txt:520 (message):")
print("  VLLM_CUTLASS_SRC_DIR is set, but has no")
print("")
print("  CMakeLists.txt")
print("-- more of it")
print("CMake Error at cmake/utils.cmake:12 (message):\\n  a later one")
for number in range(200):
    print(f"-- line {number}")
print("-- Configuring incomplete, errors occurred!")
sys.exit(1)
"""


def test_the_first_error_of_cmake_is_in_the_sentence_and_above_the_last_lines() -> None:
    argv = [sys.executable, "-c", PRINTS]
    with pytest.raises(EngineFailed) as failed:
        Programs(lambda _: None).require(argv, key="k", env=os.environ, what="configuring the sources", next_step="x")
    error = "CMake Error at CMakeLists.txt:520 (message): VLLM_CUTLASS_SRC_DIR is set, but has no CMakeLists.txt"
    assert failed.value.what == f"configuring the sources failed with exit status 1: {error}"
    assert failed.value.details[0] == "| CMake Error at CMakeLists.txt:520 (message):"
    assert failed.value.details[-1] == "| -- Configuring incomplete, errors occurred!"
    assert "later" not in failed.value.what


@pytest.mark.parametrize("requirement", ["torch==2.14.0", "nvidia-nccl-cu13==2.32.3", "Torch==2.14.0"])
def test_a_project_without_sources_is_refused_before_anything_is_fetched(requirement: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no source distribution on the package index"):
        LocalUnitBuilds(lambda _: None, tmp_path / "units").wheel(requirement)
    assert not (tmp_path / "units").exists()


@pytest.mark.parametrize(
    ("versions", "error"), [("0.32.0, 0.33.0", BadInput), ("none", EngineFailed)], ids=["answered", "no-answer"]
)
def test_a_release_that_the_index_does_not_have_is_bad_input(
    versions: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f"| ERROR: Could not find a version that satisfies the requirement vllm==9.99.0 (from versions: {versions})"

    def refuse(*_words: object, **_more: object) -> Path:
        raise EngineFailed("fetching vllm==9.99.0 failed with exit status 1", details=(said,))

    monkeypatch.setattr(Toolkit, "ask_for_sources", lambda _toolkit, _requirement: ())
    monkeypatch.setattr(Toolkit, "tools", lambda _: tmp_path)
    monkeypatch.setattr(Toolkit, "download", refuse)
    with pytest.raises(error) as failed:
        LocalUnitBuilds(lambda _: None, tmp_path / "units").wheel("vllm==9.99.0")
    assert ("lines build vllm==0.33.0" in str(getattr(failed.value, "next_step", ""))) is (error is BadInput)


def test_a_local_tree_is_known_by_its_commit_and_cutlass_by_its_own_header(tmp_path: Path) -> None:
    flash = OtherProject(
        name="flash", repository="https://e/flash.git", revision="b273a02621d3c94b", variable="FLASH_SRC_DIR"
    )
    cutlass = OtherProject(
        name="cutlass", repository="https://e/cutlass.git", revision="v4.7.1", variable="VLLM_CUTLASS_SRC_DIR"
    )
    header = tmp_path / "cutlass" / "include" / "cutlass" / "version.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 7\n#define CUTLASS_PATCH 1\n")
    git = tmp_path / "flash" / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    given = {"FLASH_SRC_DIR": str(tmp_path / "flash"), "VLLM_CUTLASS_SRC_DIR": str(tmp_path / "cutlass")}

    def used() -> list[tuple[str, bool]]:
        return [(one.used, one.other is None) for one in _headers_used((flash, cutlass), given)[0]]

    assert used() == [("unknown", False), ("4.7.1", True)]
    (git / "packed-refs").write_text("# pack-refs\n1234 refs/heads/main\n")
    assert used()[0] == ("1234", False)
    (git / "refs" / "heads" / "main").write_text("b273a02621d3c94b\n")
    assert used()[0] == ("b273a02621d3c94b", True)
    (git / "HEAD").write_text("b273a02621d3c94b\n")
    assert used()[0] == ("b273a02621d3c94b", True)


def test_paths_are_shown_without_the_folders_of_this_machine() -> None:
    shown = (("/units/vllm-1-ab/src/", ""), ("/units/cutlass-4.5.0/", "cutlass-4.5.0/"), ("/units/", ""))
    tree = ConfiguredTree(folder="/units/vllm-1-ab", compiler="/c", units=(), shown=shown)
    assert tree.shown_path("/units/vllm-1-ab/src/csrc/moe/../a.cu") == "csrc/a.cu"
    assert tree.shown_path("/units/cutlass-4.5.0/include/x.h") == "cutlass-4.5.0/include/x.h"
    assert tree.shown_path("/units/cuda-13.0.88/bin/../include/c.h") == "cuda-13.0.88/include/c.h"
    assert tree.shown_path("/usr/include/c++/14/cmath") == "/usr/include/c++/14/cmath"
    assert tree.shown_path("_ZN3fooEv") == "_ZN3fooEv"
