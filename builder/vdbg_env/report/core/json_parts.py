"""The JSON of places in device code, as the documents of `core` and `locate` share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vdbg_env.application.analysis.source_lines import SourceLines
from vdbg_env.cuda.lines.source_frame import BorrowedLines, SourceFrame
from vdbg_env.cuda.symbols.demangling import demangle
from vdbg_env.report.codec import document as doc
from vdbg_env.report.codec.document import ABSENT, Document


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What belongs to the values that are written: the text of source lines, more by a value's `id`."""

    sources: SourceLines
    more: Mapping[int, object] = field(default_factory=dict)


class Frame(Document, of=SourceFrame):
    """A place in source; a chain is leaf first: each frame was inlined at, or called from, the one after it."""

    function: str | None
    file: str
    line: int
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
