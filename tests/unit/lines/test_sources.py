"""Sources are asked for before anything large is fetched, and a tree of this machine is a source too."""

import os
import tarfile
from pathlib import Path

import pytest

from vdbg_env.common.errors import BadInput
from vdbg_env_lines.compilers import Programs, Toolkit
from vdbg_env_lines.sources import LocalUnitBuilds, cmake_files, fingerprint_of, no_sources, require_cmake
from vdbg_env_lines.units import Release, TreeRequest

MINE = Release(project="mine", version="1.0", requires=())
REQUEST = TreeRequest(release=MINE, compiler="13.0.88", arch_list="9.0")
NO_ONE = "ERROR: Could not find a version that satisfies the requirement mine==1.0 (from versions: {})"


class TooLate(Exception):
    """Something large would have been fetched."""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What pip says of the index; whatever is fetched raises TooLate."""

    def fetch(*_words: object, **_more: object) -> Path:
        raise TooLate

    said: list[str] = []
    monkeypatch.setattr(Toolkit, "ask_for_sources", lambda _toolkit, _requirement: tuple(said))
    for name in ("tools", "download", "compiler"):
        monkeypatch.setattr(Toolkit, name, fetch)
    return said


def builds(tmp_path: Path, source: Path | None = None) -> LocalUnitBuilds:
    return LocalUnitBuilds(lambda _: None, tmp_path / "units", source=source)


def test_a_project_of_wheels_alone_is_refused_before_wheel_tools_and_compiler(tmp_path: Path, index: list[str]) -> None:
    index.append(NO_ONE.format("none"))
    with pytest.raises(BadInput, match=r"mine==1\.0 has no source distribution on the package index") as refused:
        builds(tmp_path).wheel("mine==1.0")
    assert "--source DIR" in str(refused.value.next_step)
    with pytest.raises(BadInput, match="has no source distribution"):
        builds(tmp_path).configure(REQUEST)


def test_a_release_whose_sources_are_not_there_names_those_that_are(tmp_path: Path, index: list[str]) -> None:
    index.append(NO_ONE.format("0.8, 0.9"))
    with pytest.raises(BadInput, match=r"has no source distribution of mine==1\.0") as refused:
        builds(tmp_path).wheel("mine==1.0")
    assert refused.value.details == ("it has those of: 0.8, 0.9",)
    assert str(refused.value.next_step).startswith("vdbg-env lines build mine==0.9, or --source DIR")


@pytest.mark.parametrize(
    "said",
    [
        [],
        ["Collecting mine==1.0", "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."],
        ["WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError'", NO_ONE.format("none")],
        ["WARNING: Could not fetch URL https://e/simple/mine/: 503", NO_ONE.format("none")],
        ["ERROR: unknown command"],
    ],
    ids=["silent", "has-them", "no-network", "server-error", "old-pip"],
)
def test_an_index_that_did_not_say_no_is_no_reason_to_refuse(said: list[str], tmp_path: Path, index: list[str]) -> None:
    index += said
    with pytest.raises(TooLate):
        builds(tmp_path).wheel("mine==1.0")


def test_the_index_is_not_asked_where_the_sources_are_here(tmp_path: Path, index: list[str]) -> None:
    index.append(NO_ONE.format("none"))
    tree = tmp_path / "mine"
    tree.mkdir()
    (tree / "CMakeLists.txt").write_text("project(mine)\n")
    with pytest.raises(TooLate):
        builds(tmp_path, tree).configure(REQUEST)
    with pytest.raises(TooLate):
        builds(tmp_path, tree).wheel("torch==2.14.0")  # a project of wheels alone, by the names that are known
    fetched = tmp_path / "units" / "source-mine-1.0"
    fetched.mkdir(parents=True)
    (fetched / "source.tar.gz").touch()
    with pytest.raises(TooLate):
        builds(tmp_path).configure(REQUEST)


def test_sources_that_cmake_does_not_build_are_refused_before_the_compiler(tmp_path: Path, index: list[str]) -> None:
    del index
    tree = tmp_path / "mine"
    tree.mkdir()
    (tree / "setup.py").touch()
    with pytest.raises(BadInput, match=r"no CMakeLists\.txt") as refused:
        builds(tmp_path, tree).configure(REQUEST)
    assert "vdbg-env lines pack" in str(refused.value.next_step)
    with pytest.raises(BadInput, match="the sources of x"):
        require_cmake({}, "the sources of x")


@pytest.mark.parametrize(
    "requirement", ["nvidia-cublas-cu12==12.9", "nvidia-cudnn-cu13==9.1", "flashinfer-cubin==0.6.13"]
)
def test_closed_code_is_never_to_be_built_with_lineinfo(requirement: str) -> None:
    error = no_sources(requirement)
    assert "its code is closed" in error.what
    assert "-lineinfo" not in f"{error.what} {error.cause} {error.next_step}"
    assert "-lineinfo" in str(no_sources("nvidia-nccl-cu13==2.32.3").next_step), "NCCL has sources"


def test_a_tree_is_told_from_itself_after_a_change(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text("1")
    (tmp_path / ".git").mkdir()
    first = fingerprint_of(tmp_path)
    (tmp_path / ".git" / "index").write_text("x")
    assert fingerprint_of(tmp_path) == first, "git's own files are no source"
    os.utime(tmp_path / "a.cu", ns=(1, 1))
    assert fingerprint_of(tmp_path) != first
    second = fingerprint_of(tmp_path)
    (tmp_path / "b.cu").touch()
    assert fingerprint_of(tmp_path) != second


def test_the_cmake_files_are_the_same_packed_and_unpacked(tmp_path: Path) -> None:
    tree = tmp_path / "mine-1.0"
    (tree / "cmake" / "external_projects").mkdir(parents=True)
    (tree / "CMakeLists.txt").write_text("project(mine)\n")
    (tree / "cmake" / "external_projects" / "flash.cmake").write_text("# flash\n")
    (tree / "other.cmake").write_text("# not asked for\n")
    with tarfile.open(tmp_path / "mine.tar.gz", "w:gz") as packed:
        packed.add(tree, "mine-1.0")
    expected = {"CMakeLists.txt": "project(mine)\n", "cmake/external_projects/flash.cmake": "# flash\n"}
    assert cmake_files(tree) == cmake_files(tmp_path / "mine.tar.gz") == expected


SETUP = """
import pathlib, setuptools
pathlib.Path({mark!r}).touch()
setuptools.setup(name="has", version="1.0")
"""


def test_pip_itself_is_asked_and_runs_nothing_of_the_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real pip, over a folder of files: one project with sources, one with a wheel alone."""
    links, mark = tmp_path / "links", tmp_path / "setup-was-run"
    tree = tmp_path / "has-1.0"
    links.mkdir()
    tree.mkdir()
    (tree / "setup.py").write_text(SETUP.format(mark=str(mark)))
    (tree / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: has\nVersion: 1.0\n")
    with tarfile.open(links / "has-1.0.tar.gz", "w:gz") as packed:
        packed.add(tree, "has-1.0")
    (links / "wheels_alone-1.0-py3-none-any.whl").write_bytes(b"PK\x05\x06" + bytes(18))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    sources = LocalUnitBuilds(lambda _: None, tmp_path / "units")._sources
    sources.require(Release(project="has", version="1.0", requires=()))
    assert not mark.exists(), "the distribution's own code was run"
    with pytest.raises(BadInput, match=r"wheels-alone==1\.0 has no source distribution"):
        sources.require(Release(project="wheels-alone", version="1.0", requires=()))
    said = Toolkit(sources._kept, Programs(lambda _: None)).ask_for_sources("has==2.0")
    assert any("from versions: 1.0" in line for line in said)
