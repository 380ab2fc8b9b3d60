"""Line packs: where they are looked up, kept and sent to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vdbg_env.adapters.lines import stores
from vdbg_env.application.line_packs.lookup import PackedLines

if TYPE_CHECKING:
    from vdbg_env.adapters.lines.shelf import Shelf
    from vdbg_env.application.ports.files import LineStore, PackTarget


def packed_lines(named: Sequence[str] = ()) -> PackedLines:
    return PackedLines(line_stores(named))


def line_stores(named: Sequence[str] = ()) -> tuple[LineStore, ...]:
    return stores.open_stores(named, os.environ)


def line_store(name: str) -> LineStore:
    return stores.open_store(name, os.environ)


def pack_target(name: str) -> PackTarget:
    return stores.open_target(name)


def pack_folder(folder: Path | None, *, fetched: bool = False) -> Shelf:
    from vdbg_env.adapters.lines.shelf import Shelf

    return Shelf(folder or (stores.cache_folder() if fetched else stores.default_folder()))


def default_pack(name: str) -> Path:
    return stores.default_folder() / name


def write_file(path: Path, data: bytes) -> None:
    from vdbg_env.adapters.lines.folder import write_whole

    write_whole(path, data)
