"""The index of a store: which packs may have a function, by the first bytes of its code hash and of its name's hash.

256 small files, by the first byte of the key; a row is a key of eight bytes and the sha256 of a pack. A client fetches
the files of the keys that it looks for, then the packs themselves, whose names never change their contents.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from gpucore.errors import UnreadableBinary
from gpucore.line_pack import KEY_SIZE, checksum
from gpucore.line_packs import LinePack

MAGIC: Final = b"VDBGKEY1"

_ROW: Final = struct.Struct("<8s32s")
_SUM: Final = 16


def shard_name(key: bytes) -> str:
    """Return the name of the file that has a key."""
    return f"{key[0]:02x}"


def keys_of(pack: LinePack) -> set[bytes]:
    """Return every key of a pack."""
    return {key for code, name in pack.keys() for key in (code[:KEY_SIZE], name)}  # noqa: SIM118 - not a dict


def shards(keys: Iterable[bytes], digest: str) -> Mapping[str, set[tuple[bytes, bytes]]]:
    """Return the rows that a pack adds to each file."""
    found: dict[str, set[tuple[bytes, bytes]]] = defaultdict(set)
    for key in keys:
        found[shard_name(key)].add((key, bytes.fromhex(digest)))
    return found


def dump(rows: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a file of rows."""
    body = b"".join(_ROW.pack(*row) for row in sorted(rows))
    return MAGIC + checksum(body, _SUM) + body


def load(data: bytes) -> set[tuple[bytes, bytes]]:
    """Return the rows of a file; raises UnreadableBinary when it is damaged, or is something else."""
    body = data[len(MAGIC) + _SUM :]
    if not data.startswith(MAGIC) or len(body) % _ROW.size or data[len(MAGIC) :][:_SUM] != checksum(body, _SUM):
        raise UnreadableBinary("not an index of line packs, or a damaged one")
    return set(_ROW.iter_unpack(body))
