"""Where the code to build comes from: a source distribution, a git reference, a local tree or the bundled project."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vdbg_env.common.errors import BadInput
from vdbg_env.image.text import one_line


@dataclass(frozen=True, kw_only=True)
class Sdist:
    """The source distribution of one release on a package index."""

    project: str
    version: str

    def __str__(self) -> str:
        return f"{self.project}=={self.version}"


@dataclass(frozen=True, kw_only=True)
class GitRef:
    """A branch, tag or commit of a repository reached over https or ssh."""

    url: str
    ref: str

    def __str__(self) -> str:
        return f"git+{self.url}@{self.ref}"


@dataclass(frozen=True, kw_only=True)
class LocalTree:
    """A checkout on this machine; `revision` is the commit it stands at, where somebody asked git."""

    path: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, kw_only=True)
class Bundled:
    """A project that ships with vdbg-env, in a folder of that name beside the profiles."""

    name: str

    def __str__(self) -> str:
        return f"bundled:{self.name}"


Source = Sdist | GitRef | LocalTree | Bundled

GRAMMAR = "PROJECT==VERSION, git+https://HOST/REPOSITORY@REF, a folder (./x, /x, ~/x) or bundled:NAME"
_SDIST = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")
_GIT = re.compile(r"git\+((?:https|ssh)://[^\s@]+(?:@[^\s@/]+/[^\s@]+)?)@([A-Za-z0-9_][\w./+-]*)")
_BUNDLED = re.compile(r"bundled:([a-z0-9][a-z0-9-]*)")


def parse_source(text: str) -> Source:
    """Read a source as `--source` and a profile's `source:` spell it; raises BadInput when it follows no spelling."""
    one_line(text, "the source")
    if found := _SDIST.fullmatch(text):
        return Sdist(project=found[1], version=found[2])
    if found := _BUNDLED.fullmatch(text):
        return Bundled(name=found[1])
    if text.startswith("git+"):
        return _git(text)
    if text.startswith(("./", "../", "/", "~/")) or text in {".", "..", "~"}:
        return LocalTree(path=text)
    raise BadInput(
        f"the source {text!r} follows no known spelling",
        cause="a folder without ./ before it, or a version with one = sign",
        next_step=f"write {GRAMMAR}",
    )


def _git(text: str) -> GitRef:
    found = _GIT.fullmatch(text)
    if not found:
        raise BadInput(
            f"the source {text!r} is not git+https://HOST/REPOSITORY@REF",
            cause="the @REF is missing; a build from whatever a branch holds today cannot be told from tomorrow's",
            next_step="name a tag or a commit after the @",
        )
    if re.match(r"https://[^/]*@", found[1]):
        raise BadInput(
            "the git source carries a user name or password in its address",
            cause="it would stand in the image's history for everyone to read",
            next_step="take it out and pass a .netrc with --secret netrc=FILE",
        )
    return GitRef(url=found[1], ref=found[2])
