"""The JSON of places in device code, as the documents of `core` and `locate` share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucore.dwarf import BorrowedLines, OtherHeaders, SourceFrame
from gpucore.mangling import demangle
from vdbg_env.application.analysis.source_lines import SourceLines
from vdbg_env.report.codec import document as doc
from vdbg_env.report.codec.document import ABSENT, Document


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What belongs to the values that are written: the text of source lines, more by a value's `id`."""

    sources: SourceLines
    more: Mapping[int, object] = field(default_factory=dict)


class Headers(Document, of=OtherHeaders):
    """Another project's headers that a line is of, and the release that the code was built with."""

    project: str
    used: str
    wanted: str


def headers_field() -> Any:
    """Return the field of the headers that a line or a chain is of, absent where they are those of the code."""
    return doc.field(
        lambda value, _: value.headers or ABSENT, may_be_absent=True,
        doc="Where the line is of another release of these headers than the code was built with.",
    )  # fmt: skip


class Frame(Document, of=SourceFrame):
    """A place in source; a chain is leaf first: each frame was inlined at, or called from, the one after it."""

    function: str | None
    file: str
    line: int
    headers: Headers = headers_field()
    text: str = doc.field(
        lambda frame, shown: shown.sources.get((frame.file, frame.line), ABSENT),
        may_be_absent=True, doc="The line, where its source was found.",
    )  # fmt: skip


class Kernel(Document, of=str):
    """A kernel by its mangled and its demangled name."""

    name: str = doc.field(lambda name, _: name)
    demangled: str = doc.field(lambda name, _: demangle(name))


class OtherLines(Document):
    """What another build with the same code says."""

    build: str = doc.field(lambda other, _: other[0])
    chain: list[Frame] = doc.field(lambda other, _: other[1])


class LinesFrom(Document, of=BorrowedLines):
    """Where the chain is from when the code has no line info itself: a line pack."""

    how_known: str
    build: str = doc.field(doc="The build that the lines are of: its release and compiler, else the library's name.")
    pack: str
    others: list[OtherLines] = doc.field(doc="Builds that agree on the code and disagree on its lines.")
    headers: Headers = headers_field()
