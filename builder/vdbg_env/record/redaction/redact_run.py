"""Redact a run that is already on disk by today's rules: text is rewritten, artifacts are masked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from vdbg_env.common.nesting import limit_nesting, nesting_notes
from vdbg_env.record.atomic_write import replacement
from vdbg_env.record.redaction.compressed import mask_artifact
from vdbg_env.record.redaction.file_names import redact_names
from vdbg_env.record.redaction.redaction import Redactor

_CHUNK = 1 << 18
_MOST_HELD = 1 << 20  # bytes that are read ahead of what is written: a redactor holds back fewer, or drops them
# Bytes of a JSON document that is redacted by its values, which takes ten times as much memory, and a second.
_BY_VALUES = 4 << 20
_LOCKS = {"run.lock", "supervisor.json"}
_TEXTS = {"stdout", "stderr", "kernel.log", "hang.txt", "report.html", "report.md", "report.sarif"}
Check = Callable[[], None]
Pieces = Iterator[tuple[bytes, bytes]]  # what is read, and what may be written by then


class Redacted(NamedTuple):
    """The names of the files that changed, and notes on those that could not be searched to their end."""

    changed: tuple[str, ...]
    notes: tuple[str, ...]


def redact_run(
    run: Path, redactor: Redactor, literals: tuple[bytes, ...] = (), *, check: Check = lambda: None
) -> Redacted:
    """Redact every file of a run in place.

    Each file is replaced whole or not at all. JSON is redacted by its values, and as text where a document or a line
    of a log is longer than 4 MiB; it stays JSON, but for a private key there that has no end. What a workload left
    behind keeps its length, because a core with bytes missing could not be read. `check` is called about
    every second and may raise.
    """
    changed = list[str]()
    notes = nesting_notes(limit_nesting(run, check=check))
    renamed = redact_names(run, redactor.finder, check)
    if renamed:
        notes.append(f"{renamed} file names, links or attributes had a secret and were changed")
    for path in _files(run):
        check()
        name = str(path.relative_to(run))
        done, note = _redact(path, redactor, literals, check)
        changed += [name] if done else []
        notes += [f"{name}: {note}"] if note else []
    return Redacted(tuple(changed), tuple(notes))


def _files(run: Path) -> Iterator[Path]:
    for path in sorted(run.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.name not in _LOCKS:
            yield path


def _redact(path: Path, redactor: Redactor, literals: tuple[bytes, ...], check: Check) -> tuple[bool, str | None]:
    """Redact one file; say whether that changed it, and what of it could not be looked at."""
    if path.suffix == ".jsonl":
        return _rewritten(path, partial(_log, redactor=redactor), check), None
    if path.suffix == ".json" and path.stat().st_size <= _BY_VALUES:
        return _rewritten(path, partial(_document, redactor=redactor), check), None
    if path.suffix == ".json" or path.name in _TEXTS:
        text = partial(_text, redactor=redactor, json=path.suffix == ".json")
        return _rewritten(path, text, check), None
    looked = mask_artifact(path, literals, pseudonyms=redactor.pseudonyms, check=check)
    return looked.masked > 0, looked.note


def redact_text(path: Path, redactor: Redactor, *, check: Check = lambda: None) -> bool:
    """Redact a text of any length, and say whether that changed it; `check` is called often and may raise."""
    return _rewritten(path, partial(_text, redactor=redactor), check)


def _document(source: IO[bytes], *, redactor: Redactor) -> Pieces:
    data = source.read()
    yield data, _by_values(data, redactor, indent=1)


def _log(source: IO[bytes], *, redactor: Redactor) -> Pieces:
    """Redact a JSON document on each line; a line that is too long to be parsed is redacted as a text."""
    while line := source.readline(_BY_VALUES):
        if len(line) < _BY_VALUES or line.endswith(b"\n"):
            yield line, _by_values(line, redactor, indent=None)
        else:
            yield from _text(source, redactor=redactor, first=line, json=True)


def _text(source: IO[bytes], *, redactor: Redactor, first: bytes = b"", json: bool = False) -> Pieces:
    """Redact all that follows, or with `first` the line that it begins."""
    stream = redactor.stream(json=json)
    read = source.readline if first else source.read
    data = first or read(_CHUNK)
    while data:
        yield data, stream.feed(data)
        data = b"" if first and data.endswith(b"\n") else read(_CHUNK)
    yield b"", stream.finish()


def _by_values(data: bytes, redactor: Redactor, *, indent: int | None) -> bytes:
    """Redact a JSON document by its values; one that is no JSON, or too deep to be read, as a text."""
    try:
        document = json.loads(data)
        redacted = redactor.document(document)
        return data if redacted == document else json.dumps(redacted, indent=indent).encode() + b"\n"
    except (ValueError, RecursionError):
        return redactor.data(data)


def _rewritten(path: Path, redacted: Callable[[IO[bytes]], Pieces], check: Check) -> bool:
    """Write what `redacted` makes of a file in its place, and say whether that changed it.

    Nothing is written up to the first byte that differs: a run of many gigabytes has few files with a secret.
    """
    with path.open("rb") as source, ExitStack() as stack:
        target: IO[bytes] | None = None
        same, ahead = 0, b""
        for data, out in redacted(source):
            check()
            ahead += data if target is None else b""
            if target is None and ahead.startswith(out) and len(ahead) - len(out) <= _MOST_HELD:
                same, ahead = same + len(out), ahead[len(out) :]
                continue
            if target is None:
                target = _begun(path, same, stack, check)
            target.write(out)
        if target is None and ahead:  # its end was dropped
            target = _begun(path, same, stack, check)
        return target is not None


def _begun(path: Path, size: int, stack: ExitStack, check: Check) -> IO[bytes]:
    """Return a file that replaces `path` when `stack` is closed, and has its first bytes."""
    target = stack.enter_context(replacement(path))
    with path.open("rb") as source:
        while size and (data := source.read(min(size, _CHUNK))):
            check()
            target.write(data)
            size -= len(data)
    return target
