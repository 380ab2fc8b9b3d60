"""Names of container images, by the grammar of the distribution project's reference package."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vdbg_env.common.errors import BadInput
from vdbg_env.image.text import one_line

_PATH = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_NAME = rf"(?P<name>(?:{_HOST}/)?{_PATH}(?:/{_PATH})*)"
_TAG = r"(?::(?P<tag>\w[\w.-]{0,127}))?"
_DIGEST = r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
_REFERENCE = re.compile(_NAME + _TAG + _DIGEST, re.ASCII)
_IMAGE_ID = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An image by name, tag and digest, the last two where given."""

    name: str
    tag: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        return self.name_and_tag + (f"@{self.digest}" if self.digest else "")

    @property
    def name_and_tag(self) -> str:
        """The reference without its digest."""
        return self.name + (f":{self.tag}" if self.tag else "")


def parse_reference(text: str, what: str) -> Reference:
    """Read an image reference, or the id of a local image; `what` names its place in messages.

    Raises BadInput with what the grammar does not allow.
    """
    one_line(text, what)
    if _IMAGE_ID.fullmatch(text):
        return Reference(name=text)
    found = _REFERENCE.fullmatch(text)
    if found is None or len(found["name"]) > 255:
        raise BadInput(
            f"{what}: {text!r} is not the name of an image",
            cause=_cause(text),
            next_step="write it as [HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST]",
        )
    return Reference(name=found["name"], tag=found["tag"], digest=found["digest"])


def _cause(text: str) -> str | None:
    if "://" in text:
        return "an image has no https:// before its name"
    if text != text.lower():
        return "the name of an image has no capital letters"
    if "@" in text:
        return "a digest is sha256: and 64 hexadecimal digits"
    return None
