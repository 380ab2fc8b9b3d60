"""Write what `build --onto` made: for people in a few lines, for programs as JSON."""

from __future__ import annotations

from typing import Literal

from vdbg_env.application.image.onto import OntoResult
from vdbg_env.application.image.onto_proof import LibraryProof, OntoProof
from vdbg_env.report.codec.document import Document, field
from vdbg_env.report.lineinfo.lines_built import HeadersJson, LinesDocument, Written, lines_text
from vdbg_env.report.plain_text import duration


def onto_text(result: OntoResult) -> str:
    """Return what a build onto an image prints at its end, once it is proven."""
    lines = [lines_text(result.lines, Written(headers=result.headers, flag="--dep")).rstrip("\n")]
    for library in result.proof.libraries:
        lines += [
            f"proven    {library.path}: {library.with_lines} of {library.cubins} cubins carry line info",
            f"          {library.identical:,} of {library.functions:,} functions of these are the original's very code,"
            f" {library.sections} host sections unchanged",
            f"original  {library.kept}",
        ]
    lines += [
        f"base      {result.base.image_id}",
        f"image     {result.image_id}",
        *(f"tag       {tag}" for tag in result.tags),
        f"time      {duration(result.duration_s)}",
    ]
    return "\n".join([*lines, ""])


class LibraryJson(Document, of=LibraryProof):
    """A swapped library, compared with the original that is next to it in the image."""

    path: str
    kept: str
    cubins: int
    with_lines: int
    functions: int
    identical: int
    host_sections: int = field("sections")


class ProofJson(Document, of=OntoProof):
    """What was read back from the finished image."""

    summary: str = field(lambda proof, _: proof.label())
    libraries: list[LibraryJson]


class OntoDocument(Document, of=OntoResult):
    """A proven image, made from another one. Fields are only ever added."""

    schema: Literal["vdbg-env/onto/v1"]
    base: str = field("base.image_id")
    image_id: str
    tags: list[str]
    lines: LinesDocument
    proof: ProofJson
    headers: list[HeadersJson] = field(doc="Lines of other headers than the image's vLLM was built with.")
    duration_s: float = field(lambda result, _: round(result.duration_s, 3))
