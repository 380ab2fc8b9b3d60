"""Identify a folder of sources: by its content, and by the commit of its checkout."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from vdbg_env.adapters.files.context_tar import walk
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.common.programs import ProgramRunner
from vdbg_env.image.context import TreeOnDisk, one_line

_GIT_TIMEOUT_S = 60.0
_DESCRIBED = re.compile(r"v(?P<tag>[0-9][0-9a-z.]*)-(?P<commits>[0-9]+)-(?P<commit>g[0-9a-f]+)")
# A checkout's own configuration may name programs, and the checkout may be anyone's: none of them runs, nothing is
# fetched, and the index is not written (git-config(1): core.fsmonitor, core.hooksPath, filter.*; githooks(5)).
_GIT = ("env", "GIT_ALLOW_PROTOCOL=none", "GIT_NO_LAZY_FETCH=1", "GIT_OPTIONAL_LOCKS=0", "VDBG_NONE=",
        "git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")  # fmt: skip
_OWN_SCOPES = {"local", "worktree"}

_METADATA_VERSION = re.compile(r"^Version: ([0-9][0-9A-Za-z.]*)", re.MULTILINE)  # without "+empty" and the like


class SourceTreesOnDisk:
    """SourceTrees over the file system, and git where it is installed."""

    def __init__(self, programs: ProgramRunner) -> None:
        self._programs = programs

    def existing(self, text: str, flag: str) -> str:
        """See `SourceTrees.existing`."""
        path = Path(one_line(text, flag)).expanduser()
        if not path.is_dir():
            what = "a file, not a folder" if path.exists() else "not there"
            raise BadInput(f"{flag}: {path} is {what}", next_step="name a folder that exists")
        return str(path.resolve())

    def digest(self, tree: TreeOnDisk) -> str:
        """See `SourceTrees.digest`."""
        hashed = hashlib.sha256()
        for entry in walk(tree):
            kind = "program" if entry.executable else entry.kind
            content = _content(entry.path) if entry.kind == "file" else entry.target
            hashed.update(f"{kind}\0{entry.relative}\0{content}\0".encode("utf-8", "surrogateescape"))
        return f"sha256:{hashed.hexdigest()}"

    def revision(self, folder: str) -> str | None:
        """See `SourceTrees.revision`."""
        if _released(folder):  # a repository around an unpacked source distribution is another project's
            return None
        commit = self._git(folder, "rev-parse", "--verify", "HEAD")
        changed = self._changed(folder)
        if not commit or changed is None:
            return None
        return commit.strip() + ("-dirty" if changed else "")

    def version(self, folder: str) -> str | None:
        """See `SourceTrees.version`."""
        if released := _released(folder):
            return released
        said = self._git(folder, "describe", "--tags", "--long", "--match", "v[0-9]*")
        found = _DESCRIBED.fullmatch(said.strip()) if said else None
        if found is None:
            return None
        # Files that git does not know are no change of the version, as with `git describe --dirty`.
        changed = self._changed(folder, "--untracked-files=no")
        local = [found["commits"], found["commit"]] if found["commits"] != "0" else []
        local += ["dirty"] if changed else []
        return found["tag"] + (f"+{'.'.join(local)}" if local else "")

    def _changed(self, folder: str, *options: str) -> bool | None:
        """Return whether files differ from the commit, submodules by theirs alone; None where that is not known."""
        settings = self._git(folder, "config", "--null", "--show-scope", "--list")
        if settings is None:
            return None
        words = settings.split("\0")
        own = {e.partition("\n")[0] for s, e in zip(words[::2], words[1::2], strict=False) if s in _OWN_SCOPES}
        # Not `-c NAME=`: the name of a filter may have a "=" too, and the last one counts here.
        without = (f"--config-env={name}=VDBG_NONE" for name in sorted(own) if name.startswith("filter."))
        said = self._git(folder, *without, "status", "--porcelain", "--ignore-submodules=dirty", *options, "--", ".")
        return None if said is None else bool(said)

    def _git(self, folder: str, *words: str) -> str | None:
        if self._programs.which("git") is None:
            return None
        try:
            ran = self._programs.run([*_GIT, "-C", folder, *words], timeout_s=_GIT_TIMEOUT_S)
        except HostNotAble:  # the revision is a label; the digest tells trees apart without it
            return None
        return ran.stdout if ran.code == 0 else None


def _released(folder: str) -> str | None:
    """Return the version in the metadata of an unpacked source distribution, None for any other folder."""
    try:
        text = (Path(folder) / "PKG-INFO").read_text(errors="replace")
    except OSError:
        return None
    found = _METADATA_VERSION.search(text)
    return found[1] if found else None


def _content(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", next_step=f"ls -l {path}") from error
