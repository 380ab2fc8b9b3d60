"""The source of a build: a source distribution, a git reference, a local tree or the bundled project."""

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

    @property
    def version(self) -> str | None:
        """Return the release that the reference names, as in v0.33.0; None for a branch or commit."""
        found = _TAG.fullmatch(self.ref)
        return found[1] if found else None

    def __str__(self) -> str:
        return f"git+{self.url}@{self.ref}"


@dataclass(frozen=True, kw_only=True)
class LocalTree:
    """A checkout on this machine; `revision` is its commit and `version` follows from its last tag, if git knows."""

    path: str
    revision: str | None = None
    version: str | None = None

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, kw_only=True)
class Bundled:
    """A project that ships with vdbg-env, in a folder of that name next to the profiles."""

    name: str

    def __str__(self) -> str:
        return f"bundled:{self.name}"


Source = Sdist | GitRef | LocalTree | Bundled


def release_of(source: Source) -> str | None:
    """Return the release of a source, without what follows its last tag; None where it is not known."""
    match source:
        case Sdist(version=version):
            return version
        case GitRef() | LocalTree():
            return source.version.partition("+")[0] if source.version else None
        case Bundled():
            return None


GRAMMAR = "PROJECT==VERSION, git+https://HOST/REPOSITORY@REF, a folder (./x, /x, ~/x) or bundled:NAME"
_SDIST = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")
_GIT = re.compile(r"git\+((?:https|ssh)://[^\s@]+(?:@[^\s@/]+/[^\s@]+)?)@([A-Za-z0-9_][\w./+-]*)")
_TAG = re.compile(r"(?:refs/tags/)?v?([0-9]+(?:\.[0-9]+)+(?:(?:rc|a|b|\.post)[0-9]+)?)")
_HASH = re.compile(r"#sha(?:256|384|512)=[0-9a-f]+\Z")  # by which pip knows a file to be the one that is meant
_BUNDLED = re.compile(r"bundled:([a-z0-9][a-z0-9-]*)")


def parse_source(text: str) -> Source:
    """Read a source as written in `--source` or a profile's `source:`; raises BadInput for any other form."""
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


def refuse_credentials(url: str, what: str) -> None:
    """Raise BadInput for an address that carries a password or token, which an image and its history would keep."""
    url = _HASH.sub("", url)
    address = re.split(r"[?#]", url, maxsplit=1)[0]
    user, at, host = address.partition("://")[2].partition("/")[0].rpartition("@")
    # A password with a slash in it ends what is before the path, where it looks like a port.
    port = "" if at else host.rpartition("]")[2].partition(":")[2]
    hidden = address != url or ":" in user or bool(port and not port.isdecimal())
    if hidden or (at and not address.startswith(("ssh:", "git+ssh:"))):
        name = host.removesuffix(f":{port}") if port else host
        raise BadInput(
            f"{what} at {name} carries a user name, password or token in its address",
            cause="it would be in the image's history for everyone to read",
            next_step="remove it and pass a .netrc with --secret netrc=FILE, or an ssh key by ssh-agent",
        )


def _git(text: str) -> GitRef:
    refuse_credentials(text, "the git source")
    found = _GIT.fullmatch(text)
    if not found:
        raise BadInput(
            f"the source {text!r} is not git+https://HOST/REPOSITORY@REF",
            cause="the @REF is missing; a branch may be another tomorrow",
            next_step="name a tag or a commit after the @",
        )
    return GitRef(url=found[1], ref=found[2])
