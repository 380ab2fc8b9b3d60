"""The stub of libcuda.so to link with where the toolkit is wheels: the calls of vLLM resolve, and keep it needed."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.toolchain import cuda_tool

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

STEP = Path(__file__).parents[2] / "templates" / "steps" / "driver-stub.sh.j2"
# What `nm -D` lists as undefined in the extensions of the wheel of vLLM 0.33.0.
CALLED = (
    "cuGetProcAddress_v2",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuTensorMapEncodeTiled",
    "cuDevicePrimaryCtxRetain",
)


def run(folder: Path, *argv: str, **environment: str) -> str:
    ran = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_library_that_calls_the_driver_is_linked_as_one_that_needs_it(tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "asks.cu").write_text("#include <cuda.h>\n")
    headers = run(tmp_path, cuda_tool("nvcc"), "-M", "asks.cu").split()
    found = next(Path(header) for header in headers if header.endswith("/include/cuda.h"))
    (tmp_path / "cuda" / "include").symlink_to(found.parent)
    script = STEP.read_text().partition("#}\n")[2]
    run(tmp_path, "sh", "-euc", script, VDBG_ROOT=str(tmp_path))

    calls = "".join(f"void {name}(void);\n" for name in CALLED)
    source = calls + "void call(void) { " + " ".join(f"{name}();" for name in CALLED) + " }\n"
    (tmp_path / "extension.c").write_text(source)
    stub = tmp_path / "cuda" / "lib" / "stubs" / "libcuda.so"
    only_needed = ("-Wl,--as-needed", "-Wl,--no-undefined")
    run(tmp_path, "gcc", "-shared", "-fPIC", "-o", "extension.so", "extension.c", *only_needed, str(stub))
    assert "libcuda.so.1" in run(tmp_path, "readelf", "-d", "extension.so")
