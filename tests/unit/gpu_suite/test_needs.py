"""On a machine with a GPU and little else the suite says precisely what is missing, and does not fail in every file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.machine import MARK, look
from tests.gpu.needs import ROOT, advice, missing_modules, missing_tools, module_of
from tests.gpu.walking import python_path, vdbg_env


@pytest.mark.parametrize(
    ("requirement", "module"),
    [
        ("cel-expr-python>=0.1.3,<0.2", "cel_expr_python"),
        ("google-re2>=1.1", "re2"),
        ("ruamel.yaml>=0.18", "ruamel.yaml"),
        ("PyYAML", "yaml"),
        ("pytest~=9.2", "pytest"),
    ],
)
def test_a_requirement_is_looked_for_by_the_name_it_is_imported_as(requirement: str, module: str) -> None:
    assert module_of(requirement) == module


def test_every_requirement_of_the_project_is_found_here() -> None:
    assert missing_modules() == ()


def test_the_advice_names_each_package_and_the_way_without_a_network() -> None:
    told = advice(("click>=8.1", "lz4>=4.3"))
    assert "\n    click>=8.1\n    lz4>=4.3\n" in told and "scripts/gpu-wheels" in told and "--no-index" in told


def test_a_bare_python_gets_one_message_and_no_traceback(tmp_path: Path) -> None:
    """Only pytest and its own packages are let through: as on a machine that has little more."""
    hook = "import sys\nfor name in ('click', 'pydantic', 'hypothesis'):\n    sys.modules[name] = None\n"
    (tmp_path / "sitecustomize.py").write_text(hook)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/gpu"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 4, said
    assert "these packages are missing:\n    click>=8.1\n    pydantic>=2.11\n" in said
    assert "Traceback" not in said


def test_missing_tools_are_named_with_what_is_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = missing_tools()
    assert any(line.startswith("cuda-gdb is not here: no second opinion") for line in told)


def stand_in(folder: Path, said: str, status: int = 0) -> None:
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{said}'\nexit {status}\n")
    (folder / "nvidia-smi").chmod(0o755)


def test_the_gpus_are_those_nvidia_smi_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    stand_in(tmp_path, "NVIDIA H100 80GB HBM3, 580.95.05, 9.0\\nNVIDIA H100 80GB HBM3, 580.95.05, 9.0\\n")
    found = look()
    assert not isinstance(found, str) and found.arch == "sm_90" and not found.rehearsal
    assert str(found) == "NVIDIA H100 80GB HBM3 and 1 more, sm_90, driver 580.95.05"


def test_a_stand_ins_name_makes_it_a_rehearsal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    stand_in(tmp_path, f"{MARK} (no GPU), 580.95.05, 12.0\\n")
    found = look()
    assert not isinstance(found, str) and found.rehearsal and found.arch == "sm_120"


def test_a_driver_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    stand_in(tmp_path, "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver\\n", 9)
    found = look()
    assert isinstance(found, str) and "could not communicate with the NVIDIA driver" in found


def test_packages_named_by_a_relative_path_are_found_from_any_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gpu-packages").mkdir()
    (tmp_path / "gpu-packages" / "sitecustomize.py").write_text("print('found')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "builder:gpu-packages")
    assert python_path().split(":")[0] == str(ROOT / "builder")
    assert "found\n" in vdbg_env("--version", cwd=Path("/")).stdout
