"""The readers are a distribution of their own: they install and work where nothing of vdbg-env is."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "builder" / "gpucore"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of the folder alone, made from its sdist."""
    out = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(LIBRARY)]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (made,) = out.glob("gpucore-*.whl")
    return made


def test_the_wheel_has_the_modules_and_two_dependencies(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        needs = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", archive.read(metadata).decode(), re.MULTILINE)
    modules = {f"gpucore/{path.relative_to(LIBRARY).as_posix()}" for path in LIBRARY.rglob("*.py")}
    assert names == modules | {"gpucore/py.typed"}
    assert sorted(needs) == ["lz4", "zstandard"]


@pytest.mark.slow
def test_an_empty_environment_reads_a_cubin_and_a_core(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "empty"
    venv.create(place, with_pip=True)
    python = str(place / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
    ran = subprocess.run(pip, capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip(f"the two dependencies cannot be had from a package index here: {ran.stderr[-200:]}")
    program = """
import gzip, sys
from gpucore import demangle, find_faults, read_core, verify
cubins, cores = sys.argv[1:]
print(verify(open(f"{cubins}/inline_chain_sm90.cubin", "rb").read()).verdict)
(fault, *_) = find_faults(read_core(gzip.open(f"{cores}/synthetic_sm90_r575_layout.nvcudmp.gz").read()))
print(fault.exception.name, "at line", fault.location.chain[0].line, "of", demangle("_Z1kPf"))
print(sorted(name for name in sys.modules if name.split(".")[0] in ("vdbg_env", "ahocorasick_rs", "pydemumble")))
"""
    data = ROOT / "tests" / "data"
    argv = [python, "-c", program, str(data / "cubins"), str(data / "cores")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert ran.returncode == 0, ran.stderr
    verdict, fault, others = ran.stdout.splitlines()
    assert verdict == "full"
    assert re.fullmatch(r"Warp Illegal Address at line \d+ of _Z1kPf", fault)  # mangled: no demangler is here
    assert others == "[]"
