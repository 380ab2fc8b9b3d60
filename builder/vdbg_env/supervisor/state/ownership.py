"""Give an attempt's files to the owner of its folder, when they were written as root.

In a container the supervisor and the workload are root, as a rule, and the engine outside is not: what they write would
be closed to it.
"""

from __future__ import annotations

import os


def give_back(directory: str) -> None:
    """Give all below `directory` to its owner; does nothing unless this process is root and another user owns it.

    Links are given themselves and never followed. What is gone by then, or on a file system without owners, is left
    as it is.
    """
    owner = os.stat(directory)  # noqa: PTH116 - pathlib would cost the scribe 3 ms of its start
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            try:
                os.lchown(f"{folder}/{name}", owner.st_uid, owner.st_gid)
            except OSError:
                continue
