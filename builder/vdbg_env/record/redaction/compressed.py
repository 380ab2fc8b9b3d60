"""Searches what a workload left behind for secrets, also inside of compressed files, and masks them.

A compressed file is expanded, up to a limit, into a file without a name that no one else can open and that a killed
process leaves nothing of; it is masked there and packed again. What cannot be packed again is withheld once a secret
was found in it. What was not looked into is said, file by file.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

import lz4.frame
import zstandard

from vdbg_env.record.atomic_write import replacement
from vdbg_env.record.redaction.masking import mask_file, name_hosts
from vdbg_env.record.redaction.redaction import Pseudonyms

LIMIT = 256 << 20  # bytes of one file that are expanded: a core without device memory is far smaller
_CHUNK = 1 << 20
_WITHHELD = "withheld"
_NAMES_STAY = "names of hosts and addresses in it stay: remove it before you share the run"
_ZIP, _7Z, _RAR = b"PK\x03\x04", b"7z\xbc\xaf\x27\x1c", b"Rar!"
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, zipfile.BadZipFile, RuntimeError, OSError)

Opener = Callable[..., Any]
Check = Callable[[], None]


def _zstd(path: Path, mode: str) -> IO[bytes]:
    """Open a zstd file; one may be several frames, of which the library's own `open` reads the first alone."""
    if mode != "rb":
        opened: IO[bytes] = zstandard.open(path, mode)
        return opened
    return zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True)


# The first bytes of a file say what it is, never its name.
_OPENERS: Mapping[bytes, Opener] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": _zstd,
    b"\x04\x22\x4d\x18": lz4.frame.open,
}


class _Readable(Protocol):
    def read1(self, size: int, /) -> bytes:
        """Return some bytes, none at the end; `read` would lose what came before the break of a damaged file."""
        ...


class Looked(NamedTuple):
    """What came of one file: how many secrets were masked, and what is to be said about it."""

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

    With `pseudonyms`, names of hosts and addresses get stand-ins of their length; an archive keeps its names, which is
    noted. A compressed file is expanded up to `limit` bytes. `check` is called about every mebibyte and may raise.
    Raises OSError where the file itself cannot be read or written.
    """
    with path.open("rb") as file:
        head = file.read(8)
    before = path.stat()
    if before.st_nlink > 1:
        _make_own(path, check)
    opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
    if opener:
        looked = _compressed(path, opener, literals, pseudonyms, limit, check)
    elif head.startswith(_ZIP):
        looked = _with_names(_zipped(path, literals, limit, check), pseudonyms)
    elif head.startswith((_7Z, _RAR)):
        looked = _with_names(Looked(0, "an archive of this kind is not looked into for secrets"), pseudonyms)
    else:
        looked = Looked(_masked(path, literals, pseudonyms, check))
    if looked.masked and path.exists():
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # the earliest core is told by its time
    return looked


def _masked(path: Path, literals: tuple[bytes, ...], pseudonyms: Pseudonyms | None, check: Check) -> int:
    found = mask_file(path, literals, check=check)
    return found + (name_hosts(path, pseudonyms, check=check) if pseudonyms else 0)


def _with_names(looked: Looked, pseudonyms: Pseudonyms | None) -> Looked:
    """Add that names of hosts stay where a file cannot be packed again, to a file that stays."""
    if pseudonyms is None or (looked.note or "").startswith(_WITHHELD):
        return looked
    return looked._replace(note="; ".join(filter(None, [looked.note, _NAMES_STAY])))


def _make_own(path: Path, check: Check) -> None:
    """Give a file that has several names a separate copy: masking in place would change the others too."""
    with path.open("rb") as shared, replacement(path) as own:
        _copy(shared, own, check)


def _copy(source: IO[bytes], target: IO[bytes], check: Check) -> None:
    while data := source.read(_CHUNK):
        check()
        target.write(data)


def _compressed(
    path: Path,
    opener: Opener,
    literals: tuple[bytes, ...],
    pseudonyms: Pseudonyms | None,
    limit: int,
    check: Check,
) -> Looked:
    with _nameless(path) as (expanded, where):
        try:
            with opener(path, "rb") as source:
                rest = _expand(source, expanded, limit, check)
        except _DAMAGED as error:
            rest = f"it breaks off ({error})"
        expanded.flush()
        found = _masked(where, literals, None if rest else pseudonyms, check)
        if rest:
            return _with_names(_not_whole(path, found, rest), pseudonyms)
        if found:
            expanded.seek(0)
            with replacement(path) as new, opener(new, "wb") as target:
                _copy(expanded, target, check)
    # What is not compressed: the name in a gzip header, the comment of a frame.
    return Looked(found or mask_file(path, literals, check=check))


def _zipped(path: Path, literals: tuple[bytes, ...], limit: int, check: Check) -> Looked:
    """Search the members of a zip, and its own bytes; it cannot be packed again as its program wrote it."""
    found = mask_file(path, literals, check=check)
    rest, left = None, limit
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.compress_type == zipfile.ZIP_STORED:
                    continue  # stored as it is: those bytes were seen already
                with _nameless(path) as (expanded, where), archive.open(member) as source:
                    rest = _expand(cast(_Readable, source), expanded, left, check)
                    expanded.flush()
                    left -= expanded.tell()
                    if mask_file(where, literals, check=check):
                        return _withheld(path, found + 1, "a zip cannot be packed again as it was")
                if rest:
                    break
    except _DAMAGED as error:
        rest = f"it is damaged ({error})"
    return Looked(found, f"not looked into for secrets to its end: {rest}") if rest else Looked(found)


def _expand(source: _Readable, target: IO[bytes], limit: int, check: Check) -> str | None:
    """Copy what is expanded, at most `limit` bytes, and say why that was not all."""
    left = limit
    while data := source.read1(min(_CHUNK, left + 1)):
        check()
        target.write(data[:left])
        left -= len(data)
        if left < 0:
            return f"only its first {limit} bytes were expanded"
    return None


def _not_whole(path: Path, found: int, rest: str) -> Looked:
    if found:
        return _withheld(path, found, rest)
    return Looked(0, f"not looked into for secrets to its end: {rest}")


def _withheld(path: Path, found: int, why: str) -> Looked:
    """Remove a file that holds a secret and cannot be masked."""
    path.unlink()
    return Looked(found, f"{_WITHHELD}: it held a secret and could not be masked, for {why}")


@contextmanager
def _nameless(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """Yield a file on the same disk that has no name, and a path by which this process can open it once more."""
    with tempfile.TemporaryFile(dir=path.parent) as file:
        yield file, Path(f"/proc/self/fd/{file.fileno()}")
