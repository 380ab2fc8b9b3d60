"""Open GPU core dumps: maps plain ones, expands gzipped ones into a temporary file first."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from vdbg_env.adapters.files.candidates import KEEP_FREE
from vdbg_env.application.ports.files import CoreFile
from vdbg_env.common.errors import BadInput, HostNotAble, unreadable
from vdbg_env.common.mapped import mapped

_GZIP: Final = b"\x1f\x8b"
_CHUNK: Final = 1 << 20
_SUFFIXES: Final = (".nvcudmp", ".nvcudmp.gz")


class CoreFilesOnDisk:
    """CoreFiles over the local file system. A dump is as large as GPU memory, so it is mapped, never read whole."""

    def find(self, target: str) -> tuple[str, ...]:
        """Return the file itself, or the dumps below a folder by name or contents; raises BadInput when none is.

        A file or folder below that cannot be read is among them: `open` says why.
        """
        if target == "-" and not os.path.lexists(target):
            raise BadInput(
                "a core dump is read from a file, not from the standard input",
                cause="it is read at random, and may be as large as the GPU's memory",
                next_step="cat > core.nvcudmp, then vdbg-env core core.nvcudmp",
            )
        path = Path(target)
        if os.path.isdir(path):  # noqa: PTH112 - Path raises where a name is too long
            found = sorted(_dumps_below(target))
            if not found:
                raise BadInput(
                    f"no GPU core dump below {target}",
                    cause="none was written, or it is compressed and its name ends in something else than .nvcudmp.gz",
                    next_step=f"ls -R {target}",
                )
            return tuple(found)
        _refuse_what_cannot_be_mapped(path)
        return (target,)

    def is_gzipped(self, path: str) -> bool:
        """Say whether this is a gzipped file, and not a tar; raises BadInput when it cannot be read."""
        if not os.path.isfile(path):  # noqa: PTH113 - and a pipe must not be opened: that would wait for ever
            return False
        try:
            with Path(path).open("rb") as file:
                if file.read(2) != _GZIP:
                    return False
                from vdbg_env.adapters.files.archives import is_tar  # loaded on first use: most cores are not packed

                file.seek(0)
                return not is_tar(file)
        except OSError as error:
            raise unreadable(path, error) from error

    @contextmanager
    def open(self, path: str) -> Iterator[CoreFile]:
        """Yield the dump's bytes; a gzipped one that is cut short gives what could be expanded, and says so."""
        try:
            with Path(path).open("rb") as file:
                modified = os.fstat(file.fileno()).st_mtime
                if file.read(2) != _GZIP:
                    with mapped(file.fileno(), path) as data:
                        yield CoreFile(name=path, data=data, modified=modified)
                    return
                file.seek(0)
                with tempfile.TemporaryFile(prefix="vdbg-env-core-") as plain:
                    note = _expand(file, plain, path)
                    notes = (note,) if note else ()
                    plain.flush()
                    with mapped(plain.fileno(), path) as data:
                        yield CoreFile(name=path, data=data, modified=modified, notes=notes)
        except OSError as error:
            raise unreadable(path, error) from error


def _dumps_below(folder: str) -> Iterator[str]:
    closed: list[OSError] = []
    for root, _, names in os.walk(folder, onerror=closed.append):
        yield from (str(path) for name in names if _is_dump(path := Path(root, name)))
    yield from (str(error.filename) for error in closed)


def _is_dump(path: Path) -> bool:
    """Say whether a file may be a dump: by its name, by its first bytes, or because it cannot be read."""
    from vdbg_env.record.dump_files import (  # loaded for a folder alone: a named file needs no record
        HEAD_BYTES,
        kind_of,
    )

    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        if path.name.endswith(_SUFFIXES):
            return True
        with path.open("rb") as file:
            return kind_of(file.read(HEAD_BYTES)) == "gpu-core"
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ELOOP)  # a link that leads nowhere


def _refuse_what_cannot_be_mapped(path: Path) -> None:
    """Raise BadInput unless this is a regular file: a pipe without a writer would block for ever."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise BadInput(
            f"no such file: {path}",
            cause="the dump was never written, or in another folder",
            next_step="vdbg-env dumps list, for the dump volume; vdbg-env runbook no-core-dump finds out why none is",
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if not stat.S_ISREG(mode):
        raise BadInput(f"{path} is a pipe or a device; its bytes cannot be mapped", next_step="save it to a file")


def _expand(source: IO[bytes], target: IO[bytes], name: str) -> str | None:
    """Write the expanded bytes; return a note when the gzip stream is damaged or ends early."""
    room = shutil.disk_usage(tempfile.gettempdir()).free - KEEP_FREE
    written = 0
    try:
        with gzip.GzipFile(fileobj=source) as stream:
            while chunk := stream.read1(_CHUNK):
                written += len(chunk)
                if written > room:
                    raise HostNotAble(
                        f"no room to expand {name} in {tempfile.gettempdir()}",
                        next_step="TMPDIR=/a/larger/disk vdbg-env core ...",
                    )
                target.write(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        return f"truncated: the gzip stream ends early ({error}); {written} bytes could be expanded"
    return None
