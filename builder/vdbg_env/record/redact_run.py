"""Redacts a run that is already on disk, once more and by today's rules: text is rewritten, artifacts are masked."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vdbg_env.record.compressed import mask_artifact
from vdbg_env.record.redaction import Redactor

_LOCKS = {"run.lock", "supervisor.json"}
_TEXTS = {"stdout", "stderr", "kernel.log", "hang.txt", "report.html", "report.md", "report.sarif"}


class Redacted(NamedTuple):
    """The names of the files that changed, and what is to be said of those that could not be looked into whole."""

    changed: tuple[str, ...]
    notes: tuple[str, ...]


def redact_run(run: Path, redactor: Redactor, literals: tuple[bytes, ...] = ()) -> Redacted:
    """Redact every file of a run in place.

    Each file is replaced whole or not at all. JSON is redacted by its values, so that it stays JSON; what a workload
    left behind keeps its length, for a core with bytes missing could not be read.
    """
    changed, notes = [], []
    for path in _files(run):
        name = str(path.relative_to(run))
        done, note = _redact(path, redactor, literals)
        changed += [name] if done else []
        notes += [f"{name}: {note}"] if note else []
    return Redacted(tuple(changed), tuple(notes))


def _files(run: Path) -> Iterator[Path]:
    for path in sorted(run.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.name not in _LOCKS:
            yield path


def _redact(path: Path, redactor: Redactor, literals: tuple[bytes, ...]) -> tuple[bool, str | None]:
    """Redact one file; say whether that changed it, and what of it could not be looked at."""
    match path.suffix:
        case ".json":
            return _replace(path, _json(path.read_bytes(), redactor)), None
        case ".jsonl":
            lines = path.read_bytes().splitlines(keepends=True)
            return _replace(path, b"".join(_json_line(line, redactor) for line in lines)), None
    if path.name in _TEXTS:
        return redact_text(path, redactor), None
    looked = mask_artifact(path, literals)
    return looked.masked > 0, looked.note


def _json(data: bytes, redactor: Redactor) -> bytes:
    try:
        document = json.loads(data)
    except ValueError:
        return redactor.data(data)
    redacted = redactor.document(document)
    return data if redacted == document else json.dumps(redacted, indent=1).encode() + b"\n"


def _json_line(line: bytes, redactor: Redactor) -> bytes:
    try:
        document = json.loads(line)
    except ValueError:
        return redactor.data(line)
    redacted = redactor.document(document)
    return line if redacted == document else json.dumps(redacted).encode() + b"\n"


def _replace(path: Path, data: bytes) -> bool:
    if data == path.read_bytes():
        return False
    with _new(path).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    _new(path).replace(path)
    return True


def redact_text(path: Path, redactor: Redactor) -> bool:
    """Redact a text that may be too large to hold, and say whether that changed it."""
    stream = redactor.stream()
    with path.open("rb") as source, _new(path).open("wb") as target:
        while data := source.read(1 << 18):
            target.write(stream.feed(data))
        target.write(stream.finish())
        target.flush()
        os.fsync(target.fileno())
    changed = not _same(path, _new(path))
    if changed:
        _new(path).replace(path)
    else:
        _new(path).unlink()
    return changed


def _same(one: Path, other: Path) -> bool:
    with one.open("rb") as a, other.open("rb") as b:
        while True:
            left, right = a.read(1 << 18), b.read(1 << 18)
            if left != right:
                return False
            if not left:
                return True


def _new(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")
