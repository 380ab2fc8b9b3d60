"""Packs that were fetched, by their sha256, up to a number of bytes: those that were not used for longest go first."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.mapped import mapped_for_good
from vdbg_env.crash.line_packs import SUFFIX, PackFile, write_whole

DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class PackCache:
    """A folder of packs named by their sha256; each is compared with its name once, before it is used."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder: Final = folder
        self._most: Final = most_bytes
        self._checked: Final[set[str]] = set()

    def get(self, digest: str, origin: str, fetch: Callable[[], bytes]) -> PackFile:
        """Return a pack, fetched from `origin` where it is not here; raises HostNotAble when it is another one."""
        path = self._folder / f"{digest}{SUFFIX}"
        if digest not in self._checked and not self._is_sound(path, digest):
            data = fetch()
            if hashlib.sha256(data).hexdigest() != digest:
                raise HostNotAble(
                    f"{origin} sent another line pack than {digest[:12]}",
                    cause="a proxy that answers in place of the server, or a transfer that was cut short",
                    next_step=f"curl -s {origin} | sha256sum",
                )
            write_whole(path, data)
            self._keep_within_bound(path)
        self._checked.add(digest)
        with contextlib.suppress(OSError):  # a cache that is read only works too; its order is then that of arrival
            os.utime(path)
        return PackFile(name=f"{origin}@{digest[:12]}", data=mapped_for_good(path), path=path)

    def _is_sound(self, path: Path, digest: str) -> bool:
        try:
            return hashlib.sha256(mapped_for_good(path)).hexdigest() == digest
        except FileNotFoundError:
            return False
        except OSError as error:
            raise HostNotAble(f"{path} cannot be read: {error.strerror or error}") from error

    def _keep_within_bound(self, newest: Path) -> None:
        for path in least_used(self._folder, self._most):
            if path != newest:
                path.unlink(missing_ok=True)


def least_used(folder: Path, most_bytes: int) -> list[Path]:
    """Return the packs to remove for the others to fit into some bytes: those unused for longest."""
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    found.sort(key=lambda row: (-row[0], row[2]))
    removed, total = [], 0
    for _, size, path in found:
        total += size
        if total > most_bytes:
            removed.append(path)
    return removed
