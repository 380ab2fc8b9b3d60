"""Replace files in folders where a workload may be writing at the same time, and write new ones over none."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
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
