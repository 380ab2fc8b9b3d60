"""What a configure and a compile need of torch: its headers and CMake files, from its wheel, without its libraries.

Half a gigabyte of libraries and two of CUDA's would only be linked, and a single cubin is not linked.
"""

from __future__ import annotations

import ast
import zipfile
from pathlib import Path
from typing import Final

from vdbg_env.common.errors import EngineFailed

_TAKEN: Final = ("torch/include/", "torch/share/cmake/", "torch/version.py")
_LOOKED_FOR: Final = ("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_nvshmem", "torch_python")
_EXTENSION: Final = "torch/utils/cpp_extension.py"
_FLAGS: Final = "COMMON_NVCC_FLAGS"

# vLLM's CMake asks torch for two values, and its setup.py for three that are None without CUDA.
_PACKAGE: Final = "from torch.version import __version__\nimport torch.utils, torch.version\n"
_UTILS: Final = """\
import os
cmake_prefix_path = os.path.join(os.path.dirname(os.path.dirname(__file__)), "share", "cmake")
"""


def take_torch_parts(wheel: Path, site: Path) -> None:
    """Write a package `torch` below `site` that a configure can import; raises EngineFailed for another wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.filename.startswith(_TAKEN):
                archive.extract(member, site)
        flags = _nvcc_flags(archive.read(_EXTENSION).decode(), wheel.name)
    package = site / "torch"
    (package / "lib").mkdir()
    (package / "utils").mkdir()
    for name in _LOOKED_FOR:
        (package / "lib" / f"lib{name}.so").touch()
    (package / "__init__.py").write_text(_PACKAGE)
    (package / "utils" / "__init__.py").write_text(_UTILS)
    (package / "utils" / "cpp_extension.py").write_text(f"CUDA_HOME = ROCM_HOME = None\n{_FLAGS} = {flags!r}\n")


def _nvcc_flags(source: str, wheel: str) -> list[str]:
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == _FLAGS:
                flags = ast.literal_eval(value)
                return [str(flag) for flag in flags]
    raise EngineFailed(f"{wheel} has no {_FLAGS}", cause="a torch of another layout than those known")
