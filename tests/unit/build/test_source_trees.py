"""A local tree is known again by what it holds, and by the commit it stands at."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env
from vdbg_env.engine import trees
from vdbg_env.image.context import TreeOnDisk


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "csrc").mkdir(parents=True)
    (folder / "csrc" / "k.cu").write_text("__global__ void k() {}\n")
    (folder / "setup.sh").write_text("make\n")
    (folder / "link").symlink_to("setup.sh")
    return folder


def digest(folder: Path) -> str:
    return trees.digest(TreeOnDisk(name="source", path=str(folder), exclude=(".git", "*.o")))


@pytest.mark.parametrize(
    "change",
    [
        lambda f: (f / "csrc" / "k.cu").write_text("__global__ void k() { }\n"),
        lambda f: (f / "csrc" / "k.cu").rename(f / "csrc" / "l.cu"),
        lambda f: (f / "setup.sh").chmod(0o755),
        lambda f: ((f / "link").unlink(), (f / "link").symlink_to("csrc")),
        lambda f: (f / "empty").mkdir(),
    ],
    ids=["content", "name", "mode", "link", "folder"],
)
def test_every_change_of_the_tree_changes_its_digest(tree: Path, change: Callable[[Path], object]) -> None:
    before = digest(tree)
    assert before == digest(tree)
    change(tree)
    assert digest(tree) != before


def test_what_the_build_does_not_get_does_not_count(tree: Path) -> None:
    before = digest(tree)
    (tree / "csrc" / "k.o").write_bytes(b"an object of an earlier build")
    (tree / "setup.sh").touch()
    assert digest(tree) == before


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    return subprocess.run(["git", *who, "-C", folder, *words], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="no git here")
def test_the_revision_is_the_commit_and_says_whether_files_differ(tree: Path) -> None:
    assert trees.revision(str(tree)) is None
    git(tree, "init", "-q")
    assert trees.revision(str(tree)) is None, "there is no commit yet"
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "first")
    commit = git(tree, "rev-parse", "HEAD").strip()
    assert trees.revision(str(tree)) == commit
    (tree / "csrc" / "new.cu").write_text("")
    assert trees.revision(str(tree)) == f"{commit}-dirty"


@pytest.mark.skipif(shutil.which("git") is None, reason="no git here")
def test_the_plan_of_a_local_tree_knows_its_content_and_its_commit(tree: Path) -> None:
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "first")

    def label(name: str) -> str:
        ran = vdbg_env("build", "--dry-run", "--profile", "sample", "--source", str(tree))
        assert ran.status == 0, ran.stderr
        return next(line for line in ran.stdout.splitlines() if name in line)

    first = label("plan.digest")
    assert git(tree, "rev-parse", "HEAD").strip() in label("image.revision")
    (tree / "csrc" / "k.cu").write_text("__global__ void other() {}\n")
    assert label("plan.digest") != first
    assert "-dirty" in label("image.revision")


def test_an_unpacked_source_distribution_has_the_version_of_its_metadata(tree: Path) -> None:
    """A repository around it, here one with another tag, is not its own."""
    git(tree.parent, "init", "--quiet")
    git(tree.parent, "add", ".")
    git(tree.parent, "commit", "--quiet", "--message", "one")
    git(tree.parent, "tag", "v9.9.9")
    assert trees.version(str(tree)) == "9.9.9"
    (tree / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: vllm\nVersion: 0.33.0+empty\n")
    assert (trees.version(str(tree)), trees.revision(str(tree))) == ("0.33.0", None)


@pytest.mark.skipif(shutil.which("git") is None, reason="no git here")
def test_no_program_that_a_checkout_names_runs_here(tree: Path, tmp_path: Path) -> None:
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "first")
    git(tree, "tag", "v1.2.0")
    ran = tmp_path / "ran"
    filters = ("filter.a.clean", "filter.B c.process", "filter.d=e.clean")
    for name in ("core.fsmonitor", *filters, "core.sshCommand", "core.pager"):
        git(tree, "config", name, f"touch '{ran}'; false")
    git(tree, "config", "filter.a.required", "true")
    git(tree, "config", "remote.origin.promisor", "true")
    git(tree, "config", "remote.origin.url", f"ext::touch {ran}")
    git(tree, "config", "protocol.ext.allow", "always")
    for hook in ("post-index-change", "reference-transaction"):
        path = tree / ".git" / "hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch '{ran}'\n")
        path.chmod(0o755)
    (tree / ".gitattributes").write_text('* filter=a\n*.txt filter="B c"\n*.sh filter=d=e\n')
    for path in tree.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            os.utime(path, (1, 1))  # git reads it again, through the filter
    revision, version = trees.revision(str(tree)), trees.version(str(tree))
    assert not ran.exists()
    assert (revision or "").endswith("-dirty") and version == "1.2.0", "a new file is no change of the version"
