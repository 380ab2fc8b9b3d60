"""Write what an archive of a run has in it, as text and as JSON."""

from __future__ import annotations

from typing import Literal

from vdbg_env.common.printable import printable
from vdbg_env.common.size import size_text
from vdbg_env.record.export_run import Export
from vdbg_env.report.codec.document import Document, field


def as_text(export: Export) -> str:
    """Return a line for each file, and one for the archive."""
    lines = [f"{size_text(size):>10}  {name}" for name, size in export.files]
    lines.append(f"{export.path} ({size_text(export.size)}): look through it before you publish it")
    return "".join(f"{printable(line)}\n" for line in lines)


class ExportDocument(Document, of=Export):
    """An archive of a run that was written. Fields are only ever added."""

    schema: Literal["vdbg-env/runs-export/v1"]
    path: str
    size: int = field(doc="Bytes of the archive.")
    files: dict[str, int] = field(
        lambda export, _: dict(export.files), doc="The bytes of each file in it, by its name."
    )
    notes: list[str]
