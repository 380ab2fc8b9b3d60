"""Small line packs of the cubins in tests/data/cubins."""

from __future__ import annotations

import hashlib
from functools import cache

from gpucore.code_map import CodeMap
from gpucore.line_packs import PackWriter, Provenance, records_of
from tests.support.cubins import cubin

CUBINS = ("inline_chain_sm90", "inline_chain_sm80", "shared_leaf_sm90")


@cache
def pack_of(*names: str, release: str = "sample 1.0") -> bytes:
    """Return a pack of the cubins of these names, of all those with lines where none is given."""
    writer = PackWriter()
    for name in names or CUBINS:
        data = cubin(name)
        digest = hashlib.sha256(data).hexdigest()
        writer.add_binary(Provenance(digest=digest, binary=f"{name}.cubin", release=release, compiler="13.0.88"))
        for record in records_of(CodeMap(data), f"sm_{name[-2:]}", digest):
            writer.add(record)
    return writer.build()
