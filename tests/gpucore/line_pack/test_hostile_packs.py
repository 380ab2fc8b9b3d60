"""Line packs whose small bytes claim much: each is refused, or read, within a bound of memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import gpucore
from gpucore import line_pack
from gpucore.code_identity import HASH_SIZE
from gpucore.line_pack import CODE_ROW, FRAME_ROW, NAME_ROW, ColumnWriter, Kind

MOST_MIB = 256
MIB = 1 << 20


def sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + line_pack.compress(data)


def framed(*pieces: bytes) -> tuple[bytes, bytes]:
    table, body = b"", b""
    for number, piece in enumerate(pieces):
        frame = line_pack.compress(piece)
        row = (len(body), len(frame), len(piece), number, line_pack.checksum(frame, 8))
        table, body = table + FRAME_ROW.pack(*row), body + frame
    return table, body


def pack(
    *,
    blocks: tuple[bytes, ...] = (),
    strings: tuple[bytes, ...] = (),
    provenance: bytes = b"[]",
    rows: int | None = None,
) -> bytes:
    """Return a pack whose checksums hold; each block is one record."""
    count = len(blocks) if rows is None else rows
    code = b"".join(
        CODE_ROW.pack(bytes(16), bytes(8), number if rows is None else 0, 0) for number in range(min(count, 64))
    )
    code += bytes(CODE_ROW.size) * (count - min(count, 64))
    block_table, block_data = framed(*blocks)
    string_table, string_data = framed(*strings)
    return line_pack.assemble(
        {
            Kind.PROVENANCE: sized(provenance),
            Kind.CODE: code,
            Kind.NAMES: bytes(NAME_ROW.size) * count,
            Kind.BLOCK_TABLE: block_table,
            Kind.BLOCKS: block_data,
            Kind.STRING_TABLE: string_table,
            Kind.STRINGS: string_data,
        }
    )


def zeros(count: int) -> bytes:
    return count.to_bytes(4, "little") + b"\1" + bytes(count)


def record(**columns: int) -> bytes:
    """Return a record whose columns have so many zeros."""
    out = ColumnWriter()
    out.number(0)
    out.raw(bytes(HASH_SIZE))
    out.number(0)
    out.number(1 << 30)
    names = ("archs", "sources", "fields", "inner", "parameters", "strings", "parents", "files", "lines", "names")
    for name in (*names, "starts", "places"):
        out.raw(zeros(columns[name]) if name in columns else bytes(4))
    data = bytes(out.data)
    return len(data).to_bytes(4, "little") + data


TEXT = zeros(1)
FULL = 15 * MIB
PACKS: dict[str, Callable[[], bytes]] = {
    "texts of no length": lambda: pack(blocks=(record(),), strings=(zeros(FULL),)),
    "many frames of texts": lambda: pack(blocks=(record(),), strings=(zeros(FULL),) * 8),
    "many blocks": lambda: pack(blocks=(record() + bytes(FULL),) * 12, strings=(TEXT,)),
    "architectures": lambda: pack(blocks=(record(archs=FULL),), strings=(TEXT,)),
    "fields": lambda: pack(blocks=(record(fields=FULL // 3 * 3),), strings=(TEXT,)),
    "inner functions": lambda: pack(blocks=(record(inner=FULL // 3 * 3),), strings=(TEXT,)),
    "parameters": lambda: pack(blocks=(record(parameters=FULL // 3 * 3),), strings=(TEXT,)),
    "texts of a record": lambda: pack(blocks=(record(strings=FULL),), strings=(TEXT,)),
    "parents": lambda: pack(blocks=(record(parents=FULL // 8),), strings=(TEXT,)),
    "lines": lambda: pack(blocks=(record(lines=FULL // 8),), strings=(TEXT,)),
    "starts": lambda: pack(blocks=(record(starts=FULL // 8),), strings=(TEXT,)),
    "provenance of lists": lambda: pack(provenance=b"[" + b"[]," * (2 * MIB) + b"[]]"),
    "provenance of names": lambda: pack(provenance=json.dumps([{f"{n}": n for n in range(100_000)}]).encode()),
    "deep provenance": lambda: pack(provenance=b"[" * (7 * MIB)),
    "rows": lambda: pack(blocks=(record(),), strings=(TEXT,), rows=1_100_000),
    "a function many times": lambda: pack(blocks=(record(),), strings=(TEXT,), rows=5_000),
    "a frame that is too large": lambda: pack(blocks=(record() + bytes(20 * MIB),), strings=(TEXT,)),
    "frames": lambda: pack(blocks=(record(),), strings=(b"\0\0\0\0",) * 20_000),
}
READ = """
import resource, sys
from gpucore.errors import UnreadableBinary
from gpucore.line_packs import LinePack
data = open(sys.argv[1], "rb").read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
problem = ""
for read in (lambda p: p.check(), lambda p: p.find(bytes(16), "f")):
    try:
        read(LinePack(data))
    except UnreadableBinary as error:
        problem = problem or error.what
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, problem)
"""


@pytest.mark.parametrize("name", PACKS)
def test_a_pack_that_claims_much_costs_little(name: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.lines"
    path.write_bytes(PACKS[name]())
    ran = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, timeout=120, check=False,
        env={"PYTHONPATH": str(Path(gpucore.__file__).parents[1])},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    kib, _, problem = ran.stdout.strip().partition(" ")
    assert problem
    assert int(kib) < MOST_MIB << 10, f"{int(kib) >> 10} MiB: {problem}"
