"""Makes one line pack of several."""

from __future__ import annotations

from collections.abc import Iterable

from vdbg_env.cuda.line_pack.reader import LinePack
from vdbg_env.cuda.line_pack.writer import PackWriter


def merge(packs: Iterable[LinePack]) -> bytes:
    """Return a pack of all functions of several, in whatever order they are given.

    Builds that have the same code and lines become one; those that disagree on lines both stay. Raises
    UnreadableBinary when a pack is damaged.
    """
    writer = PackWriter()
    for pack in packs:
        for binary in pack.binaries:
            writer.add_binary(binary)
        for record in pack.records():
            writer.add(record)
    return writer.build()
