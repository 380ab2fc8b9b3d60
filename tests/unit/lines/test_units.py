"""Sources that name a kernel, and a CUDA toolkit that is installed."""

from pathlib import Path

import pytest

from vdbg_env.common.errors import BadInput
from vdbg_env_lines.compilers import installed_release
from vdbg_env_lines.sources import mentions
from vdbg_env_lines.units import Unit


def test_the_names_of_a_source_are_its_own_and_those_of_what_it_includes(tmp_path: Path) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside.h"
    (tree / "include").mkdir(parents=True)
    outside.write_text("void far();")
    (tree / "a.cu").write_text('#include "a.h"\n#include "shared.h"\n#include "../outside.h"\n#include "none.h"\n')
    (tree / "a.h").write_text('#include "a.cu"\n__global__ void near_kernel();\n')
    (tree / "include" / "shared.h").write_text("void shared_kernel();\n")
    (tree / "b.cu").write_text("// not_a_kernel\n")
    argv = ("nvcc", f"-I{tree / 'include'}")
    units = [
        Unit(source=str(tree / n), extension="_C", folder=str(tree), argv=argv, codes=()) for n in ("a.cu", "b.cu")
    ]
    assert mentions(tree, units, frozenset({"near_kernel", "shared_kernel", "far", "kernel"})) == (2, 0)
    assert mentions(tree, units, frozenset({"not_a_kernel"})) == (0, 1)


@pytest.mark.parametrize(
    ("script", "release"),
    [
        ("echo 'Cuda compilation tools, release 12.9, V12.9.86'", "12.9.86"),
        ("echo no release", None),
        (None, None),
    ],
)
def test_the_release_of_an_installed_toolkit_is_what_its_nvcc_prints(
    tmp_path: Path, script: str | None, release: str | None
) -> None:
    (tmp_path / "bin").mkdir()
    if script:
        (tmp_path / "bin" / "nvcc").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / "nvcc").chmod(0o755)
    if release:
        assert installed_release(tmp_path) == release
        return
    with pytest.raises(BadInput):
        installed_release(tmp_path)
