"""Names of images: checked before a build starts, so that no hour of compiling ends in a name no engine takes."""

from __future__ import annotations

import re

from vdbg_env.errors import BadInput

# The grammar of github.com/distribution/reference: [HOST[:PORT]/]PATH[:TAG].
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_HOST = r"(?:localhost|[A-Za-z0-9][A-Za-z0-9-]*(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9][A-Za-z0-9.-]*(?=:[0-9]+/))(?::[0-9]+)?"
_NAME = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?")


def check_image_name(name: str) -> str:
    """Return `name` when an engine takes it for an image; raises BadInput when none does."""
    if _NAME.fullmatch(name):
        return name
    raise BadInput(
        f"{name!r} is no name for an image",
        cause="a capital letter, a blank or a line break in it, or an empty part",
        next_step="use [HOST[:PORT]/]NAME[:TAG] in lower-case letters, digits and single . _ - between them",
    )


def split_tag(name: str) -> tuple[str, str]:
    """Split "host:5000/name:tag" into repository and tag; the tag is "latest" when the name has none."""
    head, slash, last = name.rpartition("/")
    repository, colon, tag = last.partition(":")
    return head + slash + repository, tag if colon else "latest"


def registry_of(repository: str) -> str:
    """Return the host a repository's name begins with, or "" for the default registry."""
    host, slash, _ = repository.partition("/")
    return host if slash and ("." in host or ":" in host or host == "localhost") else ""
