"""The wheel made of the files that run: what an installer of Python needs, the same bytes each time."""

import base64
import csv
import hashlib
import io
import tomllib
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

from vdbg_env import __version__
from vdbg_env.common.resources import PACKAGE, READERS, SHIPPED_DATA
from vdbg_env.engine.trees import own_package

ROOT = Path(__file__).parents[3]


def test_the_wheel_has_every_file_and_its_record_is_right() -> None:
    package = own_package()
    with zipfile.ZipFile(io.BytesIO(package.wheel.data)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert files["vdbg_env/__init__.py"] == (PACKAGE / "__init__.py").read_bytes()
    assert files["gpucore/__init__.py"] == (READERS / "__init__.py").read_bytes()
    assert {"vdbg_env_slurm/placement.py", "vdbg_env_lines/remote.py"} <= files.keys()
    assert "gpucore/pyproject.toml" not in files
    assert (
        files["vdbg_env/_data/templates/entrypoint.sh"] == (SHIPPED_DATA / "templates" / "entrypoint.sh").read_bytes()
    )
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in files)
    (record,) = (name for name in files if name.endswith("/RECORD"))
    rows = list(csv.reader(io.StringIO(files[record].decode())))
    assert [row[0] for row in rows] == list(files)
    for name, digest, size in rows[:-1]:
        expected = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        assert (digest, size) == (f"sha256={expected}", str(len(files[name])))


def test_an_installer_reads_its_name_version_and_requirements(tmp_path: Path) -> None:
    package = own_package()
    zipfile.ZipFile(io.BytesIO(package.wheel.data)).extractall(tmp_path)
    found = PathDistribution(tmp_path / f"vdbg_env-{__version__}.dist-info")
    assert (found.metadata["Name"], found.version) == ("vdbg-env", __version__)
    assert tuple(found.requires or ()) == package.requirements
    assert {"click>=8.1", "pydantic>=2.11"} <= set(package.requirements)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = {(entry.group, entry.name): entry.value for entry in found.entry_points}
    assert points.pop(("console_scripts", "vdbg-env")) == declared["scripts"]["vdbg-env"]
    ours = {group: names for group, names in declared["entry-points"].items() if group.startswith("vdbg_env.")}
    assert points == {(group, name): value for group, names in ours.items() for name, value in names.items()}


def test_the_same_files_give_the_same_bytes() -> None:
    first = own_package()
    own_package.cache_clear()
    assert own_package() is not first and own_package() == first
