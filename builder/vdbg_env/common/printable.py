"""Text from others, as a terminal or a page may show it."""

from __future__ import annotations

import json
import re

_BEYOND_ASCII = re.compile(r"[^\n -~]+")


def printable(text: str, *, keep: str = "") -> str:
    """Escape what would move a cursor, forge a line or turn text around; characters in `keep` stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def printable_json(text: str) -> str:
    """Return a JSON document with such characters as its own escapes; `json.dumps` leaves those beyond ASCII."""

    def escaped(found: re.Match[str]) -> str:
        return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in found[0])

    return _BEYOND_ASCII.sub(escaped, text)


def json_text(document: object) -> str:
    """Return values as indented JSON that ends with a newline; characters that a terminal acts on are escapes."""
    return printable_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"
