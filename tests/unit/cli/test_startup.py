"""A command that answers one question loads what this takes, and nothing of the rooms it does not walk through."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import vdbg_env as package
from gpucore import CodeMap
from tests.builders.core_builder import CUBINS, illegal_address_core

SAMPLE = CUBINS / "inline_chain_sm90.cubin"
RUN = """
import sys
from vdbg_env.cli import main
status = main(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
sys.exit(status)
"""
HEAVY = {"docker", "jinja2", "pydantic", "requests", "rich", "yaml"}
OTHER_ROOMS = {"vdbg_env.image", "vdbg_env.record", "vdbg_env.runbook"}


def loaded_by(*argv: str | Path) -> set[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(package.__file__).parents[1])}
    ran = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, argv)], capture_output=True, text=True, check=False, env=environment
    )
    assert ran.returncode in {0, 3}, ran.stderr
    return set(ran.stderr.split())


@pytest.fixture
def core(tmp_path: Path) -> Path:
    path = tmp_path / "rank0.nvcudmp"
    path.write_bytes(illegal_address_core())
    return path


def test_locate_in_a_library_loads_no_reader_of_cores() -> None:
    kernel = CodeMap(SAMPLE.read_bytes()).kernels[0].name
    loaded = loaded_by("locate", "0x80", "--kernel", kernel, SAMPLE)
    assert "gpucore.code_map" in loaded
    assert not loaded & (HEAVY | OTHER_ROOMS | {"gpucore.core_reader", "vdbg_env.crash.line_packs"})


def test_core_loads_neither_engines_nor_runbooks(core: Path) -> None:
    loaded = loaded_by("core", core)
    assert "gpucore.core_reader" in loaded
    assert not loaded & (HEAVY | OTHER_ROOMS)


def test_verify_of_a_file_loads_no_engine() -> None:
    loaded = loaded_by("verify", "-q", "--witness", "none", SAMPLE)
    assert "gpucore.lineinfo" in loaded
    assert not loaded & (HEAVY | OTHER_ROOMS)


def test_render_loads_no_reader_of_device_code_and_no_runbook(tmp_path: Path) -> None:
    loaded = loaded_by("render", "--profile", "sample", tmp_path / "rendered")
    assert "vdbg_env.image.planner" in loaded
    other_rooms = {"vdbg_env.crash", "vdbg_env.evidence", "vdbg_env.runbook"}
    assert not loaded & (other_rooms | {"docker.api", "gpucore.elf", "requests"})


def test_ctrl_c_while_it_starts_ends_it_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    for name in ("vdbg_env", "gpucore"):  # what is next to the package comes before what is installed
        (tmp_path / name).symlink_to(Path(package.__file__).parents[1] / name)
    ran = subprocess.run(
        [sys.executable, "-m", "vdbg_env", "--version"],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (-signal.SIGINT, "")
