"""Says what a folder of sources holds: by its content, and by the commit it stands at."""

from __future__ import annotations

import hashlib
from pathlib import Path

from vdbg_env.adapters.files.context_tar import walk
from vdbg_env.application.ports import ProgramRunner
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.image.context import TreeOnDisk

_GIT_TIMEOUT_S = 60.0


class SourceTreesOnDisk:
    """SourceTrees over the file system, and git where it is installed."""

    def __init__(self, programs: ProgramRunner) -> None:
        self._programs = programs

    def digest(self, tree: TreeOnDisk) -> str:
        """Return "sha256:..." over all that a build would get of the tree; raises BadInput for what it cannot read."""
        hashed = hashlib.sha256()
        for entry in walk(tree.path, tree.exclude):
            kind = "program" if entry.executable else entry.kind
            content = _content(entry.path) if entry.kind == "file" else entry.target
            hashed.update(f"{kind}\0{entry.relative}\0{content}\0".encode("utf-8", "surrogateescape"))
        return f"sha256:{hashed.hexdigest()}"

    def revision(self, folder: str) -> str | None:
        """Return the commit a checkout stands at, with `-dirty` behind it when files differ; None without git."""
        commit = self._git(folder, "rev-parse", "--verify", "HEAD")
        changes = self._git(folder, "status", "--porcelain", "--", ".")
        if not commit or changes is None:
            return None
        return commit.strip() + ("-dirty" if changes else "")

    def _git(self, folder: str, *words: str) -> str | None:
        if self._programs.which("git") is None:
            return None
        try:
            ran = self._programs.run(["git", "-C", folder, *words], timeout_s=_GIT_TIMEOUT_S)
        except HostNotAble:  # the revision is a label; the digest tells trees apart without it
            return None
        return ran.stdout if ran.code == 0 else None


def _content(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", next_step=f"ls -l {path}") from error
