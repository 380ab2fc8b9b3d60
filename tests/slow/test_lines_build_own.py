"""An extension of one's own, from its wheel and a crash to the line: by its source tree, with real CMake and nvcc."""

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from gpucore.code_map import CodeMap
from gpucore.fatbin import EntryKind, find_device_code
from tests.builders.core_builder import BlockSpec, CoreSpec, DeviceSpec, LaunchSpec, ModuleSpec, WarpSpec, build_core
from tests.oracle.test_lines_build import toolkit
from tests.support.command_line import vdbg_env

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.nvcc]

CMAKE = """
cmake_minimum_required(VERSION 3.26)
project(mine LANGUAGES CXX CUDA)
add_library(_mine_C SHARED scale.cu gather.cu)
"""
SCALE = """
__global__ void mine_scale(float* x, int n, float by) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= by;
}
extern "C" void scale(float* x, int n) { mine_scale<<<4, 256>>>(x, n, 2); }
"""
GATHER = """
__device__ float row_of(const float* table, const int* rows, int i) {
  return table[rows[i] * 64];
}
__global__ void mine_gather(float* out, const float* table, const int* rows, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = row_of(table, rows, i);
}
extern "C" void gather(float* o, const float* t, const int* r, int n) { mine_gather<<<4, 256>>>(o, t, r, n); }
"""


def test_a_wheel_of_one_s_own_gets_its_lines_from_its_tree(tmp_path: Path) -> None:
    home = toolkit()
    tree = tmp_path / "mine"
    tree.mkdir()
    for name, text in (("CMakeLists.txt", CMAKE), ("scale.cu", SCALE), ("gather.cu", GATHER)):
        (tree / name).write_text(text)
    release = tmp_path / "release"
    release.mkdir()
    for name in ("scale", "gather"):
        flags = ["-O3", "-Xcompiler", "-fPIC", "-arch=sm_90"]
        argv = [str(home / "bin" / "nvcc"), *flags, "-c", str(tree / f"{name}.cu"), "-o", f"{name}.o"]
        subprocess.run(argv, cwd=release, check=True, timeout=300)
    subprocess.run(
        ["g++", "-shared", "-o", "_mine_C.so", "scale.o", "gather.o", f"-L{home / 'lib64'}", "-lcudart"],
        cwd=release, check=True, timeout=300,
    )  # fmt: skip
    wheel = tmp_path / "mine-1.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(release / "_mine_C.so", "mine/_mine_C.so")
        archive.writestr("mine-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    core = _core(release / "_mine_C.so", tmp_path / "core.nvcudmp")
    before = vdbg_env("core", str(core)).stdout
    assert "no line info" in before
    assert "vdbg-env lines build vllm" not in before
    pack = tmp_path / "mine.lines"
    ran = vdbg_env(
        "lines", "build", str(wheel), "--source", str(tree), "--compiler", str(home), "--core", str(core),
        "--work", str(tmp_path / "units"), "--output", str(pack), "--json",
    )  # fmt: skip
    assert ran.status == 0, ran.stderr
    (unit,) = json.loads(ran.stdout)["units"]
    assert unit["source"].endswith("gather.cu")
    assert "gather.cu:" in vdbg_env("core", "--lines", str(pack), str(core)).stdout


def _core(library: Path, path: Path) -> Path:
    cubins = [code.entry for code in find_device_code(library.read_bytes()) if code.entry.kind == EntryKind.ELF]
    (cubin,) = (entry for entry in cubins if b"mine_gather" in bytes(entry.payload()))
    (kernel,) = CodeMap(cubin.payload()).kernels
    device = DeviceSpec(
        modules=[ModuleSpec(cubin=bytes(cubin.payload()))],
        launches=[LaunchSpec(kernel=kernel.name)],
        blocks=[BlockSpec(warps=[WarpSpec(offset=0x40, error_offset=0x40, exception=14, valid=1, active=1)])],
        registers=False,
    )
    path.write_bytes(build_core(CoreSpec(devices=[device])))
    return path
