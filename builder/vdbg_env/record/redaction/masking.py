"""Mask secrets in files that must keep their length: what a workload left behind, cores above all."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

from vdbg_env.record.redaction.redaction import Pseudonyms
from vdbg_env.record.redaction.secrets import OVERLAP, finder_of

_LONGEST_NAME = 256  # bytes of a host's name or an address, with the bytes around it
_TOKEN_END = re.compile(rb"[\s\"'`,;&<>(){}\[\]]")


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
        found = _TOKEN_END.search(data)
        end = found.start() if found else len(data)
        os.pwrite(descriptor, b"*" * end, at)
        at += end
        if found:
            break
    return at
