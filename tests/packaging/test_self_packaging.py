"""The package tests itself: what is in the wheel and the sdist, and that the wheel runs where no checkout is."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import vdbg_env

ROOT = Path(__file__).parents[2]
DATA = ("runbooks", "images", "templates", "docs/schemas")

pytestmark = pytest.mark.slow


def tracked(folder: str) -> set[str]:
    listing = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listing.stdout.split("\n")) - {""}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout here to compare with")
    out = tmp_path_factory.mktemp("dist")
    # The wheel is made from the sdist, as it is when somebody installs from one.
    argv = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return out


def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = {n for n in zipfile.ZipFile(wheel).namelist() if not n.partition("/")[0].endswith(".dist-info")}
    alone = {f"builder/gpucore/{name}" for name in ("README.md", "pyproject.toml")}  # for the readers alone
    code = {name.removeprefix("builder/") for name in tracked("builder") - alone}
    data = {f"vdbg_env/_data/{name}" for folder in DATA for name in tracked(folder)}
    assert names == code | data


def test_the_sdist_holds_what_is_needed_to_build_and_test(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked(".") <= names
    assert not {n for n in names if n.startswith((".venv", ".cache", "out/"))}


@pytest.mark.long
def test_the_tests_of_the_sdist_collect(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(argv, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:]


def test_no_address_is_published_until_it_is_set(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA") and one.count("/") == 1)
    head, _, readme = archive.read(name).decode().partition("\n\n")
    if not vdbg_env.REPOSITORY:
        assert "\nProject-URL" not in head
        assert "](docs/" in readme
    assert ("\nAuthor" in head) == bool(vdbg_env.AUTHOR)
    assert "Keywords" in head and "Classifier" in head


def test_the_wheel_runs_where_no_checkout_is(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    script = """
from vdbg_env.common.resources import SHIPPED_DATA
print(*((SHIPPED_DATA / d).is_dir() for d in ('images', 'runbooks')))
"""
    for argv, expected in (
        (["-m", "vdbg_env", "--version"], "vdbg-env, version"),
        (["-c", script], "True True"),
    ):
        ran = subprocess.run(
            [sys.executable, *argv], cwd=elsewhere, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        assert expected in ran.stdout
