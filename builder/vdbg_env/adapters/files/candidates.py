"""Find which files may hold device code, and map them, one at a time."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Final

from vdbg_env.application.ports import BinaryFile
from vdbg_env.cuda.binary.device_code import may_hold_device_code

HEAD: Final = 8  # bytes of a file that show whether it is a candidate


@contextmanager
def mapped(name: str, descriptor: int, *, path: Path | None = None, asked_for: bool = False) -> Iterator[BinaryFile]:
    """Lend an open file by its mapped pages; they are gone once the block ends and no slice of them is held."""
    if os.fstat(descriptor).st_size == 0:
        yield BinaryFile(name=name, data=b"", path=path, asked_for=asked_for)
        return
    pages = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    pages.madvise(mmap.MADV_SEQUENTIAL)  # a cold disk reads ahead further
    view = memoryview(pages)
    try:
        forget = partial(pages.madvise, mmap.MADV_DONTNEED)
        yield BinaryFile(name=name, data=view, path=path, asked_for=asked_for, forget=forget)
    finally:
        with suppress(BufferError):  # the reader still holds a slice: the pages go when it lets go
            view.release()
            pages.close()


def spilled(name: str, stream: IO[bytes]) -> Iterator[BinaryFile]:
    """Lend a stream's contents if it is a candidate: from a scratch file, which goes away when the next is asked for.

    A library may be larger than memory should hold, and cuobjdump needs a file.
    """
    head = stream.read(HEAD)
    if not may_hold_device_code(head):
        return
    suffix = "-" + Path(name.replace(":", "/")).name[-100:]
    with tempfile.NamedTemporaryFile(prefix="vdbg-", suffix=suffix) as scratch:
        scratch.write(head)
        shutil.copyfileobj(stream, scratch, 1 << 20)
        scratch.flush()
        with mapped(name, scratch.fileno(), path=Path(scratch.name)) as found:
            yield found
