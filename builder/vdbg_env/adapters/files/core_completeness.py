"""Say whether a dump that is being written is whole: every byte its own headers speak of is there."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpucore.elf import Elf
from gpucore.errors import UnreadableBinary
from vdbg_env.common.mapped import mapped

_GZIP: Final = b"\x1f\x8b"
_CHUNK: Final = 1 << 20


def is_complete(path: Path) -> bool:
    """Return whether a dump, gzipped or not, has all its bytes; False too while it cannot be opened."""
    try:
        with path.open("rb") as file:
            if file.read(2) == _GZIP:
                file.seek(0)
                return _gzip_ends(file.read)
            with mapped(file.fileno(), path) as data:
                return _elf_is_whole(data)
    except OSError:
        return False


def _elf_is_whole(view: memoryview) -> bool:
    try:
        elf = Elf(view)
        end = elf.contents_end
        elf.data.release()
    except UnreadableBinary:
        return False
    return 0 < end <= len(view)


def _gzip_ends(read: Callable[[int], bytes]) -> bool:
    stream = zlib.decompressobj(wbits=31)
    try:
        while chunk := read(_CHUNK):
            while chunk and not stream.eof:
                stream.decompress(chunk, _CHUNK)
                chunk = stream.unconsumed_tail
    except zlib.error:
        return False
    return stream.eof
