"""Files of a record: written whole or not at all, and without set-uid bits."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from vdbg_env.common.errors import BadInput


@contextmanager
def replacement(path: Path, *, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Yield a file that becomes `path` at the block's end, whole and durable; after a failure nothing is left.

    It has the permissions of the file that it replaces, those of `mode` where there was none.

    Until then it has a name that cannot be foreseen: under any other a workload may have put a link, and what is
    written would be where that leads, on this machine and not in the workload's container.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".new")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            with suppress(FileNotFoundError):
                mode = path.lstat().st_mode & 0o777
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


def write_new(path: Path, text: str, *, next_step: str) -> None:
    """Write a file for people to edit; raises BadInput where there is one, or where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise BadInput(
            f"{path} exists already", next_step=f"edit it, or choose another name than {path.stem}"
        ) from None
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}", next_step=next_step) from None


def write_json(path: Path, document: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Write a JSON file, whole or not at all."""
    with replacement(path) as file:
        file.write(json.dumps(document, indent=indent).encode() + b"\n")


@contextmanager
def prepared(path: Path) -> Iterator[Path]:
    """Yield where to make a file or folder that gets the name `path` at the block's end; else nothing is left.

    It is in a new folder next to `path`: what another put under a name that can be foreseen would be written over.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".vdbg-") as ours:
        made = Path(ours, path.name)
        yield made
        made.replace(path)


# Take from files of a container what would give rights on this machine: set-uid bits, capabilities, device nodes.


_CAPABILITIES = "security.capability"  # capabilities(7): a set-uid bit in parts; to change a mode keeps it
_SET_IDS = stat.S_ISUID | stat.S_ISGID


def disarm(folder: Path, *, since_ns: int = 0, check: Callable[[], None] = lambda: None) -> int:
    """Strip set-uid and set-gid bits and capabilities, and remove device nodes; return how many files had one.

    Root in a container is root on this machine: a set-uid file that it leaves in a folder of this machine would work
    for every user who reaches it. Only files that changed since `since_ns` are looked at; links are not followed.
    `check` is called for each file and may raise.
    """
    changed = 0
    with suppress(FileNotFoundError):  # the folder itself has been removed: what reads it next reports that
        for _, _, names, opened in os.fwalk(folder):
            for name in names:
                check()
                with suppress(OSError):  # removed since, or the file of another user, where only root could have set it
                    changed += _disarm(name, opened, since_ns)
    return changed


def _disarm(name: str, folder: int, since_ns: int) -> bool:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if found.st_ctime_ns < since_ns:
        return False
    if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
        os.unlink(name, dir_fd=folder)
        return True
    if not stat.S_ISREG(found.st_mode):
        return False
    armed = False
    with suppress(OSError):  # it has none, as a rule
        os.removexattr(f"/proc/self/fd/{folder}/{name}", _CAPABILITIES, follow_symlinks=False)
        armed = True
    if not found.st_mode & _SET_IDS:
        return armed
    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        os.fchmod(opened, stat.S_IMODE(found.st_mode) & ~_SET_IDS)
    finally:
        os.close(opened)
    return True
