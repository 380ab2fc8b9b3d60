"""Take secrets out of the names of files that a workload left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vdbg_env.record.redaction.secrets import SecretFinder


def redact_names(folder: Path, finder: SecretFinder, check: Callable[[], None] = lambda: None) -> int:
    """Rename each file and folder below `folder` whose name has a secret, and return how many there were.

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
            redacted = _redacted(name, finder, taken)
            if redacted != name:
                with suppress(FileNotFoundError):  # the workload is still removing its files
                    os.rename(name, redacted, src_dir_fd=descriptor, dst_dir_fd=descriptor)
                    taken.add(redacted)
                    renamed += 1
    return renamed


def _redacted(name: str, finder: SecretFinder, taken: set[str]) -> str:
    data = os.fsencode(name)
    spans = finder.find(data)
    if not spans:
        return name
    parts, at = [], 0
    for span in spans:
        parts += [data[at : span.start], b"redacted"]
        at = span.end
    wanted = os.fsdecode(b"".join([*parts, data[at:]]))
    numbered = (f"{wanted}.{number}" for number in range(1, len(taken) + 2))
    return wanted if wanted not in taken else next(other for other in numbered if other not in taken)
