"""Write what is known of line packs as JSON, schema `vdbg-env/lines/v1`; fields are only ever added."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from vdbg_env.application.line_packs.inspect import PackSummary
from vdbg_env.application.line_packs.pack import Packed
from vdbg_env.cuda.line_pack.record import LineRecord
from vdbg_env.cuda.symbols.demangling import demangle

SCHEMA: Final = "vdbg-env/lines/v1"


def packed(result: Packed, name: str) -> dict[str, Any]:
    """Return a document of what was packed."""
    pack = {
        "name": name,
        "sha256": result.digest,
        "size": len(result.data),
        "functions": result.functions,
        "binaries": [asdict(binary) for binary in result.binaries],
    }
    return {"schema": SCHEMA, "packs": [pack], "problems": list(result.problems)}


def summary(found: PackSummary, records: Iterable[LineRecord] | None = None) -> dict[str, Any]:
    """Return what a pack has, with its functions where they are given."""
    document: dict[str, Any] = {
        "name": found.name,
        "sha256": found.digest,
        "size": found.size,
        "functions": found.functions,
        "binaries": [asdict(binary) for binary in found.binaries],
        "problem": found.problem,
    }
    if records is not None:
        document["listed"] = [_function(record) for record in records]
    return document


def _function(record: LineRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "demangled": demangle(record.name),
        "kernel": record.kernel,
        "archs": list(record.archs),
        "code": record.hash.hex(),
        "size": record.size,
        "covered": record.covered,
        "places": len(record.tree),
        "parameters": [asdict(parameter) for parameter in record.parameters],
        "binaries": list(record.sources),
    }
