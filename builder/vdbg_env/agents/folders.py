"""The folders whose files the tools may read; alone, because all that keeps a path inside is here."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vdbg_env.common.errors import BadInput

_MOST_FILES: Final = 200_000  # below a folder that is named


class Folders:
    """Admits paths below `roots`. Links are resolved first, and a folder with a link that leads out is refused."""

    def __init__(self, roots: Sequence[str | Path]) -> None:
        """Raises BadInput for a root that is not a folder."""
        self._roots: Final = tuple(Path(os.path.realpath(root)) for root in roots)
        for root in self._roots:
            if not root.is_dir():
                raise BadInput(f"{root} is not a folder", next_step="name the folders of your cores, logs and runs")

    def admit(self, path: str) -> str:
        """Return the real path of a file or folder; a relative one is below the first root that has it.

        It may also begin with the name of a root. Raises BadInput for one that is outside, is missing, or is neither a
        file nor a folder.
        """
        if "\0" in path:
            raise BadInput("a path has a zero byte")
        real = os.path.realpath(self._found(path))
        if not self.inside(real):
            raise BadInput(
                f"{path} is outside of the folders that this server may read",
                next_step="its user names them: vdbg-env mcp FOLDER...",
            )
        try:
            mode = os.stat(real).st_mode  # noqa: PTH116 - a Path of what may be too long
        except OSError as error:
            named = " or ".join(map(str, self._roots))
            raise BadInput(f"{path} cannot be read: {error.strerror}", next_step=f"a path below {named}") from None
        if stat.S_ISDIR(mode):
            self._refuse_links_out(real)
        elif not stat.S_ISREG(mode):
            raise BadInput(f"{path} is neither a file nor a folder")
        return real

    def _found(self, path: str) -> Path:
        beside = (root.parent for root in self._roots if Path(path).parts[:1] == (root.name,))
        candidates = [base / path for base in (*self._roots, *beside)]
        return next((one for one in candidates if os.path.exists(one)), candidates[0])  # noqa: PTH110 - or too long

    def inside(self, path: str | Path) -> bool:
        """Say whether a path, its links resolved, is below a root."""
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(root) for root in self._roots)

    def _refuse_links_out(self, folder: str) -> None:
        seen = 0
        for place, folders, names in os.walk(folder):
            for name in (*folders, *names):
                seen += 1
                path = os.path.join(place, name)  # noqa: PTH118 - of many files
                if os.path.islink(path) and not self.inside(path):  # noqa: PTH114
                    raise BadInput(
                        f"{folder} has a link that leads out of the folders that this server may read: {path}",
                        next_step="name the files in it one by one",
                    )
            if seen > _MOST_FILES:
                raise BadInput(f"{folder} holds more than {_MOST_FILES} files", next_step="name a folder below it")
