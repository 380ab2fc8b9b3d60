"""Redact a run that is already on disk by today's rules: text is rewritten, artifacts are masked."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from vdbg_env.common.nesting import limit_nesting, nesting_notes
from vdbg_env.common.reading import LARGEST_DOCUMENT
from vdbg_env.record.atomic_write import replacement
from vdbg_env.record.redaction.compressed import mask_artifact
from vdbg_env.record.redaction.file_names import redact_names
from vdbg_env.record.redaction.redaction import Redactor

_CHUNK = 1 << 18
_LOCKS = {"run.lock", "supervisor.json"}
_TEXTS = {"stdout", "stderr", "kernel.log", "hang.txt", "report.html", "report.md", "report.sarif"}


class Redacted(NamedTuple):
    """The names of the files that changed, and notes on those that could not be searched to their end."""

    changed: tuple[str, ...]
    notes: tuple[str, ...]


def redact_run(run: Path, redactor: Redactor, literals: tuple[bytes, ...] = ()) -> Redacted:
    """Redact every file of a run in place.

    Each file is replaced whole or not at all. JSON is redacted by its values, so that it stays JSON; what a workload
    left behind keeps its length, for a core with bytes missing could not be read.
    """
    changed = list[str]()
    notes = nesting_notes(limit_nesting(run))
    renamed = redact_names(run, redactor.finder)
    if renamed:
        notes.append(f"{renamed} file names had a secret and were changed")
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
    match path.suffix if path.stat().st_size <= LARGEST_DOCUMENT else "":
        case ".json":
            return _replace(path, _json(path.read_bytes(), redactor)), None
        case ".jsonl":
            lines = path.read_bytes().splitlines(keepends=True)
            return _replace(path, b"".join(_json_line(line, redactor) for line in lines)), None
    if path.name in _TEXTS or path.suffix in {".json", ".jsonl"}:
        return redact_text(path, redactor), None
    looked = mask_artifact(path, literals)
    return looked.masked > 0, looked.note


def _json(data: bytes, redactor: Redactor) -> bytes:
    return _by_values(data, redactor, indent=1)


def _json_line(line: bytes, redactor: Redactor) -> bytes:
    return _by_values(line, redactor, indent=None)


def _by_values(data: bytes, redactor: Redactor, *, indent: int | None) -> bytes:
    """Redact a JSON document by its values; one that is no JSON, or too deep to be read, as a text."""
    try:
        document = json.loads(data)
        redacted = redactor.document(document)
        return data if redacted == document else json.dumps(redacted, indent=indent).encode() + b"\n"
    except (ValueError, RecursionError):
        return redactor.data(data)


def _replace(path: Path, data: bytes) -> bool:
    if data == path.read_bytes():
        return False
    with replacement(path) as file:
        file.write(data)
    return True


def redact_text(path: Path, redactor: Redactor) -> bool:
    """Redact a text that may be too large to hold, and say whether that changed it."""
    with tempfile.TemporaryFile(dir=path.parent) as redacted:
        stream = redactor.stream()
        with path.open("rb") as source:
            while data := source.read(_CHUNK):
                redacted.write(stream.feed(data))
        redacted.write(stream.finish())
        if _same(path, redacted):
            return False
        redacted.seek(0)
        with replacement(path) as target:
            shutil.copyfileobj(redacted, target, _CHUNK)
    return True


def _same(path: Path, other: IO[bytes]) -> bool:
    other.seek(0)
    with path.open("rb") as file:
        while True:
            left, right = file.read(_CHUNK), other.read(_CHUNK)
            if left != right:
                return False
            if not left:
                return True
