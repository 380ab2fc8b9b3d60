"""`builtin/flight-recorder@v1`: who is missing from which collective, by PyTorch's own dumps."""

from __future__ import annotations

import re
from pathlib import Path

from vdbg_env.application.builtins.context import BuiltinContext, BuiltinResult
from vdbg_env.evidence.logs.flight_recorder import flight_findings, read_flight_record
from vdbg_env.evidence.logs.plain_pickle import NotPlainData
from vdbg_env.runbook.catalogue import BuiltinContract

MOST_BYTES = 64 << 20
_RANK = re.compile(r"(\d+)$")

CONTRACT = BuiltinContract(
    name="flight-recorder",
    version=1,
    role="reader",
    does="Reads the dumps of PyTorch's flight recorder: which ranks are missing from which collective.",
    results={"dumps": "int", "missing": "string"},
)


def work(context: BuiltinContext) -> BuiltinResult:
    """Read the dump of each rank, whose number ends the file's name, and compare them."""
    records, notes = [], []
    for path in context.artifact_paths("flight"):
        rank = _RANK.search(path.name)
        try:
            records.append(read_flight_record(_bytes(context, path), int(rank[1]) if rank else 0))
        except NotPlainData as error:
            notes.append(f"{context.relative(path)} was not read: {error}")
    if not records:
        return BuiltinResult(notes=tuple(notes))
    findings = flight_findings(records)
    missing = {"missing": findings[0].message} if findings else {}
    return BuiltinResult(results={"dumps": len(records), **missing}, findings=findings, notes=tuple(notes))


def _bytes(context: BuiltinContext, path: Path) -> bytes:
    data = bytearray()
    for chunk in context.files.chunks(path):
        data += chunk
        if len(data) > MOST_BYTES:
            raise NotPlainData(f"larger than {MOST_BYTES >> 20} MiB")
    return bytes(data)
