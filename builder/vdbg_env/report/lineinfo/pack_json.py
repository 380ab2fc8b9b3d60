"""Write what is known of line packs as JSON, schema `vdbg-env/lines/v1`; fields are only ever added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpucore.cubin import ParameterPlace
from gpucore.line_pack import LineRecord
from gpucore.line_packs import Provenance
from gpucore.mangling import demangle
from vdbg_env.lines.packs import Packed, PackSummary
from vdbg_env.report.codec import document as doc
from vdbg_env.report.codec.document import ABSENT, Document, field


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A pack, with its functions where they were asked for."""

    summary: PackSummary
    records: Sequence[LineRecord] | None = None


class PackedFunction(Document, of=LineRecord):
    """A function of a pack; `code` is the hash of its instructions, `binaries` are the sha256 of where it is from."""

    name: str
    demangled: str = field(lambda record, _: demangle(record.name))
    kernel: bool
    archs: list[str]
    code: str = field(lambda record, _: record.hash.hex())
    size: int
    covered: int = field(doc="bytes of its code that have a line")
    places: int = field(lambda record, _: len(record.tree))
    parameters: list[ParameterPlace]
    binaries: list[str] = field("sources")


class PackJson(Document, of=Listed):
    """A pack; `problem` says why it cannot be used."""

    name: str = field("summary.name")
    sha256: str = field("summary.digest")
    size: int = field("summary.size")
    functions: int = field("summary.functions")
    binaries: list[Provenance] = field("summary.binaries")
    problem: str | None = field("summary.problem")
    listed: list[PackedFunction] = field(
        lambda pack, _: ABSENT if pack.records is None else pack.records, may_be_absent=True,
        doc="every function, with --functions",
    )  # fmt: skip


class PacksDocument(Document, of=tuple[Listed, ...]):
    """What `lines list`, `show` and `verify` found."""

    schema: Literal["vdbg-env/lines/v1"]
    packs: list[PackJson] = field(lambda packs, _: packs)


class NewPack(Document, of=Packed):
    """The pack that was written."""

    name: str = field(lambda _, name: name)
    sha256: str = field("digest")
    size: int = field(lambda result, _: len(result.data))
    functions: int
    binaries: list[Provenance]


class PackedDocument(Document, of=Packed):
    """What `lines pack` packed; `problems` are files that could not be read."""

    schema: Literal["vdbg-env/lines/v1"]
    packs: list[NewPack] = field(lambda result, _: [result])
    problems: list[str]


def packs(found: Sequence[Listed]) -> str:
    """Return what packs have as JSON."""
    return doc.render(found, PacksDocument)
