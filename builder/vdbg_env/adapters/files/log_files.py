"""Logs on disk and on the standard input, in chunks, decompressed as they are read."""

from __future__ import annotations

import codecs
import errno
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import zstandard

from vdbg_env.application.ports.files import LogFile
from vdbg_env.common.errors import BadInput, unreadable

CHUNK = 1 << 20
MAX_FILES = 4096
STDIN = "-"

_LOG_NAME = re.compile(
    r".*\.(?:log|txt|out|err|stdout|stderr)(?:[.-]?\d+)?(?:\.(?:gz|zst))?|(?:stdout|stderr|output)(?:\.\d+)?"
)
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class LogFiles:
    """Finds logs by path; `-` is the standard input. A folder gives what is named as a log, else all its files."""

    def open(self, targets: Sequence[str]) -> Iterator[LogFile]:
        """Yield every log; see `LogSource.open`."""
        for target in targets:
            if target == STDIN:
                yield LogFile(name="(standard input)", chunks=_chunks(_rest(sys.stdin.buffer), "(standard input)"))
                continue
            for path in _files(Path(target)):
                with _opened(path) as stream:
                    yield LogFile(name=str(path), chunks=_chunks(_pieces(stream), str(path)))


def _files(target: Path) -> list[Path]:
    try:
        if not target.is_dir():
            return [target]
        found = sorted(_below(target))
    except OSError as error:
        raise unreadable(target, error) from None
    logs = [path for path in found if _LOG_NAME.fullmatch(path.name)] or found
    if not logs:
        raise BadInput(
            f"{target} holds no file of a workload; records of vdbg-env below it are not read",
            next_step="give the folder that holds the logs, a log file, or one run: vdbg-env runs list",
        )
    if len(logs) > MAX_FILES:
        raise BadInput(f"{target} holds {len(logs)} logs; at most {MAX_FILES} are read at once")
    return logs


def _below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, but of none of our runs in it: their logs are of other attempts."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not Path(place, name, "run.json").is_file()]
        yield from (path for name in names if (path := Path(place, name)).is_file())


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise BadInput(
            f"{path} does not exist", next_step="give a log file, a folder of logs, or - for stdin"
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None


def _chunks(raw: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Read to the end as UTF-8. The first bytes, not the name, say whether a log is compressed or UTF-16."""
    try:
        head, raw = _head(raw)
        if head.startswith(_GZIP):
            head, raw = _head(_gunzip(raw))
        elif head.startswith(_ZSTD):
            head, raw = _head(_unzstd(raw))
        # A zero byte is no text: a disk that lost its power leaves blocks of them, and UTF-16 without its mark is ASCII
        # with one next to each letter.
        yield from (data.replace(b"\0", b"") for data in (_utf8(raw) if head.startswith(_UTF_16) else raw))
    except (EOFError, zlib.error, zstandard.ZstdError) as error:
        raise BadInput(f"{name} is damaged: {error}", cause="the file was cut while it was written or copied") from None
    except OSError as error:
        raise unreadable(name, error) from None


def _head(raw: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    head = next(filter(None, raw), b"")
    return head, chain((head,), raw)


def _utf8(raw: Iterator[bytes]) -> Iterator[bytes]:
    """Recode UTF-16, as PowerShell writes it (`kubectl logs POD > pod.log`)."""
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for data in raw:
        yield decoder.decode(data).encode()
    yield decoder.decode(b"", final=True).encode()


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    """Yield a file as long as it is now, without its holes: others may write faster than this is read.

    A log that was cut to nothing while its writer kept its place (logrotate's `copytruncate`) begins with a hole that
    is as long as all that was written before.
    """
    size, at = os.fstat(stream.fileno()).st_size, 0
    if not size:  # a pipe, or a file of the kernel
        yield from _rest(stream)
    while at < size:
        try:
            at = os.lseek(stream.fileno(), at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole follows, or it has been cut
                return
            raise
        data = os.pread(stream.fileno(), min(CHUNK, size - at), at)
        if not data:
            return
        yield data
        at += len(data)


def _rest(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK):
        yield chunk


def _gunzip(raw: Iterator[bytes]) -> Iterator[bytes]:
    """Decompress member after member, giving all there is before a member that breaks off; raises EOFError then."""
    member = zlib.decompressobj(wbits=31)
    for data in raw:
        while data:
            if member.eof:
                member = zlib.decompressobj(wbits=31)
            yield member.decompress(data, CHUNK)
            data = member.unused_data if member.eof else member.unconsumed_tail
            if not data and not member.eof and (more := member.decompress(b"", CHUNK)):
                yield more
    if not member.eof:
        raise EOFError("it ends in the middle of its compressed data")


def _unzstd(raw: Iterator[bytes]) -> Iterator[bytes]:
    """Decompress frame after frame; raises EOFError when the last one breaks off."""
    frame = zstandard.ZstdDecompressor().decompressobj()
    for data in raw:
        while data:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            yield frame.decompress(data)
            data = frame.unused_data
    if not frame.eof:
        raise EOFError("it ends in the middle of its compressed data")
