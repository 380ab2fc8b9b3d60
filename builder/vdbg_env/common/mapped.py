"""Map a file that another program may cut short meanwhile: what is gone reads as zeros, and is an error at the end.

To read behind the end of a file that was cut, or what its disk no longer gives, is a SIGBUS, which ends a program at
once. As libwayland does for the buffers of its clients, zeros are put there, and the reader continues.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_GONE = "it was cut short, or its disk failed, while it was read: once nothing writes to it, the same again"
_SA_SIGINFO = 4
_SI_ADDR = 16  # where the address is in a siginfo_t of a 64-bit machine
_MAP_FIXED = 0x10
_OURS = "r--s"  # of /proc/self/maps: shared pages that are only read
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Sigaction(ctypes.Structure):
    """The structure sigaction of glibc and musl on 64-bit machines."""

    _fields_ = (
        ("handler", _Handler),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("rest", ctypes.c_void_p),
    )


_replaced: list[int] = []  # the address of each page from which on zeros were put into a mapping


def mapped_for_good(path: Path) -> memoryview:
    """Return the bytes of a file, mapped until the program ends; raises OSError when it cannot be read."""
    with path.open("rb") as file:
        return memoryview(_pages(file.fileno()))


@contextmanager
def mapped(descriptor: int, path: str | os.PathLike[str]) -> Iterator[memoryview]:
    """Yield the bytes of an open file, mapped; they are gone once the block ends and no slice of them is held.

    Raises OSError at the end of the block, in place of what it raised, when bytes were gone when they were read.
    """
    before = len(_replaced)
    pages = _pages(descriptor)
    view = memoryview(pages)
    try:
        yield view
    finally:
        with suppress(BufferError):  # the reader still holds a slice: the pages go when it lets go
            view.release()
            if isinstance(pages, mmap.mmap):
                pages.close()
        if len(_replaced) > before:
            raise OSError(errno.EIO, _GONE, os.fspath(path))


def _pages(descriptor: int) -> mmap.mmap | bytes:
    _take_faults()
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except ValueError:  # it is empty; to ask before would be too early
        return b""


def _take_faults() -> None:
    """Have SIGBUS put zeros in place of what is gone; another program's handler, as faulthandler's, is replaced."""
    action = _Sigaction(_HANDLER, (ctypes.c_ulong * 16)(), _SA_SIGINFO, None)
    _libc.sigaction(signal.SIGBUS, ctypes.byref(action), None)


def _on_fault(_number: int, info: int, _context: int) -> None:
    """Put zeros from the page of the fault to the end of its mapping; for any other fault the signal is not handled.

    It is called where the fault was, which for one of our mappings is a copy, search or checksum of its bytes.
    """
    address = ctypes.c_uint64.from_address(info + _SI_ADDR).value
    page = address - address % mmap.PAGESIZE
    for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
        span, kind, _, _, _, name = f"{line} ".split(" ", 5)
        start, end = (int(number, 16) for number in span.split("-"))
        if start <= address < end and kind == _OURS:
            _replaced.append(page)
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
            _libc.mmap(page, end - page, mmap.PROT_READ, flags, -1, 0)
            with suppress(OSError):
                os.write(2, f"{name.strip()}: {_GONE}\n".encode("utf-8", "surrogateescape"))
            return
    _libc.signal(signal.SIGBUS, 0)


_HANDLER = _Handler(_on_fault)
