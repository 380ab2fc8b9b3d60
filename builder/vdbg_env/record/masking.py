"""Take secrets out of files: what a workload left behind keeps its length, a run's own texts are written anew.

A file is masked in place, cores above all: one with bytes missing could not be read. A compressed file is looked into,
up to a limit, and withheld as a whole where it holds a secret; what was not looked into is said, file by file.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import lz4.frame
import zstandard

from vdbg_env.common.files import ZSTD
from vdbg_env.record.redactor import OVERLAP, TOKEN_END, Pseudonyms, Redactor, SecretFinder, finder_of
from vdbg_env.record.run_directory import replacement

LIMIT = 256 << 20  # bytes of one file that are expanded: a core without device memory is far smaller
_LONGEST_NAME = 256  # bytes of a host's name or an address, with the bytes around it
_CHUNK = 1 << 18
_MOST_HELD = 1 << 20  # bytes that are read ahead of what is written: a redactor holds back fewer, or drops them
# Bytes of a JSON document that is redacted by its values, which takes ten times as much memory, and a second.
_BY_VALUES = 4 << 20
_LOCKS = {"run.lock", "supervisor.json"}
_TEXTS = {"stdout", "stderr", "kernel.log", "hang.txt", "report.html", "report.md", "report.sarif"}
Check = Callable[[], None]
Pieces = Iterator[tuple[bytes, bytes]]  # what is read, and what may be written by then


def mask_file(
    path: Path, literals: tuple[bytes, ...], *, window: int = 1 << 17, check: Callable[[], None] = lambda: None
) -> int:
    """Overwrite every secret in a file with as many `*`, in place, and return how many were found.

    The length stays, so an ELF core stays readable. A file with a NUL in its first 8 KiB counts as binary: there only
    literals and tokens with a telling prefix are taken, for `://x@` in machine code is no address. Holes of a sparse
    file are skipped. `check` is called for each window and may raise.
    """
    found, at = 0, 0
    with path.open("r+b") as file:
        finder = finder_of(literals, strict=b"\0" in file.read(8192))
        size = os.fstat(file.fileno()).st_size
        while at < size:
            check()
            at = _next_data(file.fileno(), at, size)
            data = os.pread(file.fileno(), window + OVERLAP, at)
            last = at + len(data) >= size
            # What begins in the overlap is left to the next window, which sees it whole.
            step = len(data) if last else max(1, len(data) - OVERLAP)
            spans = finder.find(data)
            cut_off = bool(spans) and spans[-1].end == len(data) and spans[-1].context < step and not last
            whole = spans if cut_off else [s for s in spans if s.context < step]
            for span in whole:
                os.pwrite(file.fileno(), b"*" * (span.end - span.start), at + span.start)
            found += len(whole)
            at = _mask_to_end(file.fileno(), at + len(data)) if cut_off else at + step
    return found


def name_hosts(
    path: Path, pseudonyms: Pseudonyms, *, window: int = 1 << 17, check: Callable[[], None] = lambda: None
) -> int:
    """Overwrite the names of hosts and the addresses in a file by pseudonyms of their length, where they are ASCII.

    Returns how many windows had one; holes and `check` as in `mask_file`.
    """
    changed, at, before = 0, 0, b""
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        while at < size:
            check()
            if (data_at := _next_data(file.fileno(), at, size)) > at:
                at, before = data_at, b""
                continue
            data = os.pread(file.fileno(), window + _LONGEST_NAME, at)
            if not data:
                break  # it was cut short
            named = pseudonyms.replace_in_place(before + data)[len(before) :][:window]
            if named != data[:window]:
                os.pwrite(file.fileno(), named, at)
                changed += 1
            at, before = at + window, (before + data[:window])[-_LONGEST_NAME:]
    return changed


def _next_data(descriptor: int, at: int, size: int) -> int:
    """Return where to continue behind a hole at `at`; what may begin in its last zeros is seen whole."""
    try:
        return max(at, os.lseek(descriptor, at, os.SEEK_DATA) - OVERLAP)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole follows
            return size
        raise


def _mask_to_end(descriptor: int, at: int) -> int:
    """Mask the rest of a secret that was longer than the window, and return the offset behind it."""
    while data := os.pread(descriptor, OVERLAP, at):
        found = TOKEN_END.search(data)
        end = found.start() if found else len(data)
        os.pwrite(descriptor, b"*" * end, at)
        at += end
        if found:
            break
    return at


class Looked(NamedTuple):
    """The result for one file: how many secrets were masked, and a note for the reader."""

    masked: int
    note: str | None = None


def mask_artifact(
    path: Path,
    literals: tuple[bytes, ...],
    *,
    pseudonyms: Pseudonyms | None = None,
    limit: int = LIMIT,
    check: Check = lambda: None,
) -> Looked:
    """Mask every secret of a file, `literals` and those the rules find, and keep its time of writing.

    With `pseudonyms`, names of hosts and addresses get stand-ins of their length; they stay in a compressed file, which
    is noted. Such a file is expanded up to `limit` bytes and removed where it holds a secret. `check` is called about
    every mebibyte and may raise. Raises OSError where the file itself cannot be read or written.
    """
    with path.open("rb") as file:
        head = file.read(8)
    before = path.stat()
    if before.st_nlink > 1:
        _make_own(path, check)
    note = None
    if packed := head.startswith((*_OPENERS, _ZIP, *_CLOSED)):
        held, note = _looked_into(path, head, literals, limit, check)
        if held:
            path.unlink()
            return Looked(held, "withheld: it held a secret, and a compressed file cannot be masked")
        names = "names of hosts and addresses in it stay: remove it before you share the run" if pseudonyms else None
        note = "; ".join(filter(None, [note, names])) or None
    found = mask_file(path, literals, check=check)
    if pseudonyms and not packed:
        found += name_hosts(path, pseudonyms, check=check)
    if found:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # readers take the core with the earliest time
    return Looked(found, note)


def _looked_into(
    path: Path, head: bytes, literals: tuple[bytes, ...], limit: int, check: Check
) -> tuple[int, str | None]:
    """Return how many secrets a compressed file holds, looking no further than the first, and what was not searched."""
    if head.startswith(_CLOSED):
        return 0, "an archive of this kind is not looked into for secrets"
    found, left = 0, limit
    try:
        for part in _parts(path, head):
            found, left = _searched(part, literals, left, check)
            if found or left < 0:
                break
    except _DAMAGED as error:
        return 0, f"not looked into for secrets to its end: it is damaged ({error})"
    if left < 0 and not found:
        return 0, f"not looked into for secrets to its end: only its first {limit} bytes were expanded"
    return found, None


def _parts(path: Path, head: bytes) -> Iterator[IO[bytes]]:
    """Yield what a compressed file expands to; of a zip each member."""
    if not head.startswith(_ZIP):
        opener = next(opener for magic, opener in _OPENERS.items() if head.startswith(magic))
        with opener(path, "rb") as source:
            yield source
        return
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as source:
                yield source


def _searched(source: IO[bytes], literals: tuple[bytes, ...], left: int, check: Check) -> tuple[int, int]:
    """Return how many secrets are in the first piece that has any, and how many bytes of `left` are left then.

    A negative number means that there were more bytes.
    """
    finder: SecretFinder | None = None
    held = b""
    # `read` would lose the bytes before the damage.
    while data := cast(Any, source).read1(min(_CHUNK, left + 1)):
        check()
        left -= len(data)
        held += data if left >= 0 else data[:left]
        finder = finder or finder_of(literals, strict=b"\0" in held[:8192])
        if found := len(finder.find(held)):
            return found, left
        if left < 0:
            break
        held = held[-OVERLAP:]
    return 0, left


def _zstd(path: Path, _mode: str) -> IO[bytes]:
    """Open a zstd file; one may be several frames, of which the library's own `open` reads the first alone."""
    source: IO[bytes] = zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True)
    return source


# The first bytes of a file say what it is, never its name.
_OPENERS: Mapping[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    **dict.fromkeys(ZSTD, _zstd),
    b"\x04\x22\x4d\x18": lz4.frame.open,
}
_ZIP, _CLOSED = b"PK\x03\x04", (b"7z\xbc\xaf\x27\x1c", b"Rar!")
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, zipfile.BadZipFile, RuntimeError, OSError)


def _make_own(path: Path, check: Check) -> None:
    """Give a file that has several names a separate copy: masking in place would change the others too."""
    with path.open("rb") as shared, replacement(path) as own:
        while data := shared.read(_CHUNK):
            check()
            own.write(data)


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
    notes = list[str]()
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
