"""The places that the user configured for line packs, and the default one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from platformdirs import user_data_path

from vdbg_env.adapters.lines.folder import PackFolder
from vdbg_env.application.ports.files import LineStore

VARIABLE: Final = "VDBG_LINES"


def open_stores(named: Sequence[str], environment: Mapping[str, str]) -> tuple[LineStore, ...]:
    """Return what `--lines` names, then what VDBG_LINES lists (by blanks or commas), then the default folder.

    Raises BadInput for a place of `--lines` that does not exist; of the others that is a note when they are used.
    """
    listed = environment.get(VARIABLE, "").replace(",", " ").split()
    asked = [open_store(name) for name in named]
    for store in asked:
        if isinstance(store, PackFolder):
            store.paths()
    return (*asked, *map(open_store, listed), PackFolder(default_folder(), optional=True))


def open_store(name: str) -> LineStore:
    """Return the store that a name means."""
    return PackFolder(Path(name).expanduser())


def default_folder() -> Path:
    """Return the folder that is always looked through: `vdbg-env/lines` in the user's data folder."""
    return user_data_path("vdbg-env") / "lines"
