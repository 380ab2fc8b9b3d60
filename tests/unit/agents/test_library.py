"""The Python API: every recipe of the page runs as it is printed, and importing the package loads none of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.core_builder import CUBINS, hang_core, illegal_address_core
from tests.support.command_line import vdbg_env

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "library.md"
RECIPES: list[str] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
SHOWN = {
    "triage_logs": "illegal-memory-access 1 RuntimeError: CUDA error: an illegal memory access was encountered",
    "read_cores": "cores/rank0.nvcudmp Warp Illegal Address /src/kernels/inline_chain.cu:3",
    "sources": "wrote 4 bytes of global memory",
    "verify_files": "libkernels.so sm_90 ",
    "recorded_run": "error memory did not suffice",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "cores").mkdir()
    (folder / "cores" / "rank0.nvcudmp").write_bytes(illegal_address_core())
    (folder / "cores" / "rank1.nvcudmp").write_bytes(hang_core())
    (folder / "server.log").write_text("RuntimeError: CUDA error: an illegal memory access was encountered\n")
    (folder / "libkernels.so").write_bytes((CUBINS / "no_lines_sm90.cubin").read_bytes())
    return folder


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda code: re.findall(r"vdbg_env\.(\w+)", code)[0])
def test_a_recipe_runs_as_printed(recipe: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDBG_ENV_RUNS", str(folder / "vdbg-runs"))
    if "recorded_run" in recipe:
        crash = "print('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB'); raise SystemExit(1)"
        vdbg_env("guard", "--", sys.executable, "-c", crash)
    ran = subprocess.run([sys.executable, "-c", recipe], cwd=folder, capture_output=True, text=True, check=False)
    name = "sources" if "sources=" in recipe else re.findall(r"vdbg_env\.(\w+)", recipe)[0]
    assert SHOWN[name] in ran.stdout, ran.stdout + ran.stderr
    assert ran.returncode == (1 if "sys.exit" in recipe else 0)


def test_there_are_five_recipes_and_each_export_is_in_one() -> None:
    import vdbg_env

    assert len(RECIPES) >= 5
    assert {name for name in vdbg_env.__all__ if any(f"vdbg_env.{name}(" in code for code in RECIPES)} == set(
        vdbg_env.__all__
    )
    with pytest.raises(AttributeError, match="has no attribute 'gone'"):
        vdbg_env.gone  # noqa: B018


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys, vdbg_env; print([m for m in sys.modules if m.startswith(('vdbg_env.', 'gpucore', 'click'))])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
