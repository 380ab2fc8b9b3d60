"""Reads what an attempt left in its directory: how it ended, what matched, and the files it wrote."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vdbg_env.engines.scribe import ending, lock_file
from vdbg_env.evidence.observation import Artifact, Ended, EndedBy, Match, MemoryKills, Observation, WorkerEnvironment
from vdbg_env.record.compressed import mask_artifact
from vdbg_env.runbook.invocation import ArtifactRule, Invocation

CONTAINER = "container.json"  # how the engine says that the container of an attempt ended, where it ran in one
LOST = "the supervisor was killed; what it had written is kept"
OWN_FILES = {
    CONTAINER,
    *("stdout", "stderr", "kernel.log", "hang.txt", "argv.json", "env.json"),
    *(ending.NAME, f"{ending.NAME}.tmp", lock_file.NAME),
    *(f"{stream}.tail{n}" for stream in ("stdout", "stderr", "kernel.log") for n in (0, 1)),
}


def observation(invocation: Invocation, directory: Path, literals: tuple[bytes, ...]) -> Observation:
    """Return what was seen of an attempt that has ended; its artifacts are redacted in place first.

    Without `ended.json` the end was not seen: `engine_lost`, with whatever was written until then.
    """
    document = _ending(directory)
    notes = list(_notes(document))
    for path in _foreign_files(directory):
        looked = mask_artifact(path, literals)
        if looked.masked and path.exists():
            notes.append(f"{looked.masked} secrets masked in {path.relative_to(directory)}")
        if looked.note:
            notes.append(f"{path.relative_to(directory)}: {looked.note}")
    artifacts = {rule.name: tuple(_artifacts(rule, directory, notes)) for rule in invocation.artifacts}
    rank, host = _place(directory)
    return Observation(
        step=invocation.step,
        attempt=int(directory.parent.name) if directory.parent.name.isdigit() else invocation.attempt,
        rank=rank,
        host=host,
        ended=Ended(
            by=EndedBy(document["by"]),
            code=document.get("code"),
            signal=document.get("signal"),
            core=bool(document.get("core")),
            message=document.get("message"),
        ),
        duration_s=float(document.get("duration_s", 0.0)),
        matched={name: tuple(Match(**match) for match in found) for name, found in document.get("matched", {}).items()},
        artifacts={name: found for name, found in artifacts.items() if found},
        workers=tuple(WorkerEnvironment(**worker) for worker in document.get("workers", [])),
        output_bytes=sum(s["bytes"] for n, s in document.get("output", {}).items() if n != "kernel.log"),
        memory_kills=MemoryKills(**document.get("memory_kills", {})),
        directory=str(directory.relative_to(directory.parents[3])),
        notes=tuple(notes),
    )


def _ending(directory: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads((directory / ending.NAME).read_bytes())
    except FileNotFoundError:
        return {"by": "engine_lost", "message": LOST}
    return document


def _notes(document: dict[str, Any]) -> Iterator[str]:
    yield from document.get("notes", [])
    for name, stream in document.get("output", {}).items():
        if stream["dropped"]:
            yield f"{name}: {stream['dropped']} of {stream['bytes']} bytes dropped by the output limit"
    for done in document.get("hang", []):
        yield f"on hang: {done}"
    for process in document.get("survivors", []):
        yield f"process {process['pid']} ({process['name']}, state {process['state']}) could not be killed"


def _foreign_files(directory: Path) -> Iterator[Path]:
    """Yield the regular files below the step's directory that the workload wrote."""
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.is_symlink() and str(path.relative_to(directory)) not in OWN_FILES:
            yield path


def _artifacts(rule: ArtifactRule, directory: Path, notes: list[str]) -> Iterator[Artifact]:
    found = 0
    for path in sorted(directory.glob(rule.glob)):
        if not path.is_file() or path.resolve() != directory.resolve() / path.relative_to(directory):
            continue  # a link, or below one: what it leads to is not the step's
        if path.name in OWN_FILES:
            continue
        size = path.stat().st_size
        if rule.max_size is not None and size > rule.max_size:
            notes.append(f"{path.name} is left where it is: {size} bytes, {rule.name} may have {rule.max_size}")
            continue
        found += 1
        yield Artifact(
            name=rule.name, path=str(path.relative_to(directory.parents[3])), size=size, sha256=_digest(path)
        )
    if rule.required and not found:
        notes.append(f"artifact {rule.name}: nothing matches {rule.glob}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _place(directory: Path) -> tuple[int, str]:
    """Return rank and host, which the directory is named after (`host-rank`)."""
    host, _, rank = directory.name.rpartition("-")
    return (int(rank), host) if rank.isdigit() else (0, directory.name)
