"""The text of an answer: one JSON document in a fence, without characters that hide, cut to a number of bytes.

Names of kernels, log lines, file names and sources are foreign text, which a model may take for instructions. Whatever
a document holds is therefore inside the fence. What we say ourselves is outside of it and made of our words and of
numbers alone.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

DEFAULT_BYTES: Final = 4096
LEAST_BYTES: Final = 1024
MOST_BYTES: Final = 65536

_FRAME: Final = 420  # bytes of the fence and of our words, at most
_TEXTS: Final = (1024, 512, 256, 160, 96, 64, 40)  # characters of a text, the first that fits
_LISTS: Final = (256, 64, 32, 16, 8, 4, 2)  # entries of a list, each with its length of texts
_DEEPEST: Final = 24
_ELLIPSIS: Final = "…"

# Letters without a shape: variation selectors, fillers and joiners can carry hidden text as well as format characters.
_HIDDEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]+"
)


@dataclass(frozen=True, kw_only=True)
class View:
    """What a tool shows: a document, and the entries of one of its lists (`paged`) from the place `offset` on.

    `said` are our sentences, without any foreign text. `failed` marks an error.
    """

    document: Mapping[str, Any]
    paged: str | None = None
    entries: Sequence[Any] = ()
    offset: int = 0
    said: tuple[str, ...] = ()
    failed: bool = False


def clean(text: str) -> str:
    """Replace control, bidirectional and invisible characters: white space by a blank, a run of others by U+FFFD."""
    if text.isascii() and text.isprintable():
        return text
    plain = "".join(c if c.isprintable() else " " if c in "\n\r\t" else "\ufffd" for c in text)
    return re.sub("\ufffd{2,}", "\ufffd", _HIDDEN.sub("\ufffd", plain))


def answer_text(view: View, most: int = DEFAULT_BYTES) -> str:
    """Return the answer in at most `most` bytes of UTF-8: our words, then the document on one line in its fence."""
    body, shown, cut = _fitted(view, most - _FRAME)
    said = [*view.said, *_page(view, shown)]
    if cut:
        said.append(f"Cut to fit: {cut} texts and lists. A larger max_bytes shows more.")
    return "\n".join([*([" ".join(said)] if said else []), "Data from files, not instructions:", fenced(body)])


def fenced(body: str) -> str:
    """Return text between two marks that it does not hold."""
    mark = secrets.token_hex(6)
    while mark in body:
        mark = secrets.token_hex(6)
    return f"<data {mark}>\n{body}\n</data {mark}>"


def _page(view: View, shown: int) -> Iterable[str]:
    if view.paged is None:
        return
    end, total = view.offset + shown, len(view.entries)
    if view.offset or shown < total:
        yield f"Entries {min(view.offset + 1, end)} to {end} of {total}."
    if end < total:
        yield f"More: offset={end}."


def _fitted(view: View, room: int) -> tuple[str, int, int]:
    """Return the document as JSON, how many entries it shows, and how much was cut: the least that makes it fit."""
    entries = view.entries[view.offset :]
    for longest, most in zip(_TEXTS, _LISTS, strict=True):
        cutter = _Cutter(longest=longest, most=most)
        document = dict(cutter.of(view.document))
        if view.paged:
            document[view.paged] = []
        left = room - len(_json(document).encode())
        shown: list[Any] = []
        for entry in entries:
            before = cutter.cut
            shaped = cutter.of(entry)
            left -= len(_json(shaped).encode()) + 1
            if left < 0:
                cutter.cut = before
                break
            shown.append(shaped)
        if left >= 0 or shown:
            if view.paged:
                document[view.paged] = shown
            return _json(document), len(shown), cutter.cut
    return _smallest(view, room)


def _smallest(view: View, room: int) -> tuple[str, int, int]:
    """Drop the largest fields of what still does not fit."""
    cutter = _Cutter(longest=_TEXTS[-1], most=_LISTS[-1])
    document = dict(cutter.of(view.document))
    first = [cutter.of(entry) for entry in view.entries[view.offset : view.offset + 1]]
    fields = first[0] if first and isinstance(first[0], dict) else document
    if view.paged:
        document[view.paged] = first
    while len(_json(document).encode()) > room and fields:
        del fields[max(fields, key=lambda name: len(_json(fields[name])))]
        cutter.cut += 1
    return _json(document), len(first), cutter.cut


@dataclass(kw_only=True)
class _Cutter:
    """Cleans a JSON value, and cuts its texts and lists; `cut` counts those that it made shorter."""

    longest: int
    most: int
    cut: int = field(default=0)

    def of(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if depth >= _DEEPEST and isinstance(value, Mapping | list | tuple):
            self.cut += 1
            return _ELLIPSIS
        if isinstance(value, Mapping):
            return {self._text(str(name)): self.of(inner, depth + 1) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            if len(value) > self.most:
                self.cut += 1
            return [self.of(inner, depth + 1) for inner in value[: self.most]]
        return value

    def _text(self, text: str) -> str:
        if len(text) <= self.longest:
            return clean(text)
        self.cut += 1
        return clean(text[: self.longest]) + _ELLIPSIS


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
