"""Take secrets out of the names of files that a workload left behind, of what links lead to, and of attributes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vdbg_env.record.redaction.secrets import SecretFinder


def redact_names(folder: Path, finder: SecretFinder, check: Callable[[], None] = lambda: None) -> int:
    """Change each name, link and extended attribute with a secret below `folder`, and return how many there were.

    Names are changed inside of opened folders and links are not followed: a folder that is replaced by a link
    meanwhile is left, not the place it leads to. `check` is called for each name and may raise.
    """
    if not folder.is_dir():  # the workload has removed it
        return 0
    renamed = 0
    for _, folders, files, descriptor in os.fwalk(folder, topdown=False, follow_symlinks=False):
        taken = {*folders, *files}
        for name in sorted(taken):
            check()
            for change in (_attributes_removed, _link_changed):
                with suppress(OSError):  # it is no link, or cannot have attributes
                    renamed += change(name, descriptor, finder)
            redacted = _redacted(name, finder, taken)
            if redacted != name:
                with suppress(FileNotFoundError):  # the workload is still removing its files
                    os.rename(name, redacted, src_dir_fd=descriptor, dst_dir_fd=descriptor)
                    taken.add(redacted)
                    renamed += 1
    return renamed


def _attributes_removed(name: str, folder: int, finder: SecretFinder) -> int:
    path, removed = f"/proc/self/fd/{folder}/{name}", 0
    for attribute in os.listxattr(path, follow_symlinks=False):
        value = os.getxattr(path, attribute, follow_symlinks=False)
        if finder.find(os.fsencode(attribute)) or finder.find(value):
            os.removexattr(path, attribute, follow_symlinks=False)
            removed += 1
    return removed


def _link_changed(name: str, folder: int, finder: SecretFinder) -> bool:
    target = os.readlink(name, dir_fd=folder)
    redacted = _without_secrets(target, finder)
    if redacted == target:
        return False
    os.unlink(name, dir_fd=folder)
    os.symlink(redacted, name, dir_fd=folder)
    return True


def _without_secrets(text: str, finder: SecretFinder) -> str:
    data = os.fsencode(text)
    parts, at = [], 0
    for span in finder.find(data):
        parts += [data[at : span.start], b"redacted"]
        at = span.end
    return os.fsdecode(b"".join([*parts, data[at:]]))


def _redacted(name: str, finder: SecretFinder, taken: set[str]) -> str:
    wanted = _without_secrets(name, finder)
    if wanted == name:
        return name
    numbered = (f"{wanted}.{number}" for number in range(1, len(taken) + 2))
    return wanted if wanted not in taken else next(other for other in numbered if other not in taken)
