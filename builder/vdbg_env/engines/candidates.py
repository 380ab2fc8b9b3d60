"""Which files of an image may hold device code, and how they are lent out: mapped, one at a time."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from vdbg_env.application.ports import BinaryFile

# ELF (libraries, objects, cubins), archives, and fat binaries wrapped or bare.
_BEGINNINGS = (b"\x7fELF", b"!<arch>\n", b"\xb1\x43\x62\x46", b"\x50\xed\x55\xba")


def is_candidate(head: bytes) -> bool:
    """Say whether a file whose first eight bytes these are may hold device code."""
    return head.startswith(_BEGINNINGS)


@contextmanager
def mapped(name: str, descriptor: int) -> Iterator[BinaryFile]:
    """Lend an open, non-empty file by its mapped pages; they are gone when the block ends."""
    pages = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    view = memoryview(pages)
    try:
        yield BinaryFile(name=name, data=view)
    finally:
        with suppress(BufferError):  # the reader still holds a slice: the pages go when it lets go
            view.release()
            pages.close()
