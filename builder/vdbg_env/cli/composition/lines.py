"""Line packs: where they are looked up, kept and sent to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vdbg_env.crash.line_packs import PackedLines, default_folder, open_store, open_stores

if TYPE_CHECKING:
    from vdbg_env.crash.line_packs import LineStore
    from vdbg_env.lines.stores import PackTarget, Shelf


def packed_lines(named: Sequence[str] = ()) -> PackedLines:
    return PackedLines(line_stores(named))


def line_stores(named: Sequence[str] = ()) -> tuple[LineStore, ...]:
    return open_stores(named, os.environ, remote_store)


def line_store(name: str) -> LineStore:
    return open_store(name, remote_store)


def remote_store(name: str) -> LineStore:
    from vdbg_env.lines.remote import open_remote

    return open_remote(name, os.environ)


def pack_target(name: str) -> PackTarget:
    from vdbg_env.lines.remote import open_target

    return open_target(name)


def pack_folder(folder: Path | None, *, fetched: bool = False) -> Shelf:
    from vdbg_env.lines.stores import Shelf, cache_folder

    return Shelf(folder or (cache_folder() if fetched else default_folder()))


def default_pack(name: str) -> Path:
    return default_folder() / name


def write_file(path: Path, data: bytes) -> None:
    from vdbg_env.crash.line_packs import write_whole

    write_whole(path, data)
