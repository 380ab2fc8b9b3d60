"""Measures line packs: size and time for cubins with line info, and look-ups among ten million rows.

    python -m benchmarks.lines CUBIN...            cubins compiled with -lineinfo
    python -m benchmarks.lines PACK.lines          look-ups of its own functions

The peer for size is the cubins' own debug sections, compressed by zstd at level 10. Rows are those that a look-up has
to tell apart: the instructions' runs, and not the callers that `.debug_line` repeats. Times are of the processor.
"""

from __future__ import annotations

import hashlib
import mmap
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import zstandard

from gpucore.code_map import CodeMap
from gpucore.line_pack import LineRecord
from gpucore.line_packs import LinePack, PackWriter, Provenance, records_of

ROWS = 10_000_000
LOOKED_UP = 200
_TABLES = (".debug_line", ".debug_str")


def pack(paths: Sequence[Path]) -> list[LineRecord]:
    """Pack cubins, print sizes and times, and return the records."""
    writer, tables = PackWriter(), bytearray()
    records: list[LineRecord] = []
    began = time.process_time()
    for path in paths:
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        writer.add_binary(Provenance(digest=digest, binary=path.name))
        code = CodeMap(data)
        records += records_of(code, f"sm_{code.elf.arch}", digest)
        for name in _TABLES:
            section = code.elf.section(name)
            tables += code.elf.contents(section) if section else b""
    for record in records:
        writer.add(record)
    read = time.process_time()
    packed = writer.build()
    peer = len(zstandard.ZstdCompressor(level=10).compress(bytes(tables)))
    print(f"cubins {sum(path.stat().st_size for path in paths):,} bytes, functions {len(records):,}")
    print(f"{' and '.join(_TABLES)} {len(tables):,} bytes, by zstd {peer:,}; the pack {len(packed):,}")
    print(f"read in {read - began:.2f} s, written in {time.process_time() - read:.2f} s")
    return records


def look_up(records: Sequence[LineRecord], folder: Path) -> None:
    """Look functions up in a pack of as many copies of the records as have ROWS rows, each with a name of its own."""
    writer, rows, copy, sought = PackWriter(), 0, 0, []
    writer.add_binary(Provenance(digest="0" * 64, binary="copies"))
    while rows < ROWS:
        for number, record in enumerate(records):
            code = hashlib.blake2b(record.hash + copy.to_bytes(4, "little"), digest_size=16).digest()
            one = replace(record, name=f"{record.name}_{copy}", hash=code, sources=("0" * 64,))
            writer.add(one)
            rows += len(record.starts)
            if (number + copy) % 97 == 0:
                sought.append(one)
        copy += 1
    path = folder / "copies.lines"
    path.write_bytes(writer.build())
    print(f"{rows:,} rows of {len(writer):,} functions: {path.stat().st_size:,} bytes")
    time_look_ups(path, sought)


def time_look_ups(path: Path, sought: Sequence[LineRecord]) -> None:
    """Open the pack anew for each look-up of a function's middle instruction, and print the times."""
    taken = []
    for one in sought[:: max(1, len(sought) // LOOKED_UP)]:
        offset = one.size // 2 // 16 * 16
        began = time.process_time()
        with path.open("rb") as file:
            (found, *_) = LinePack(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))).find(
                one.hash, one.name
            )
            chain = found.chain(offset)
        taken.append(time.process_time() - began)
        assert chain == one.chain(offset)
    taken.sort()
    print(
        f"opened and looked up {len(taken)} times: median {1e3 * statistics.median(taken):.1f} ms, "
        f"95 of 100 {1e3 * taken[len(taken) * 95 // 100]:.1f} ms, most {1e3 * taken[-1]:.1f} ms"
    )


def read(path: Path) -> None:
    """Print what a pack has, and look its functions up."""
    records = list(LinePack(path.read_bytes()).records())
    rows, code = sum(len(record.starts) for record in records), sum(record.size for record in records)
    size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes, {len(records):,} functions with {code:,} bytes of code, {rows:,} rows")
    time_look_ups(path, records)


def main() -> None:
    """Measure with the cubins that the command line names."""
    paths = [Path(word) for word in sys.argv[1:]]
    if not paths:
        print("benchmarks.lines: name cubins that were compiled with -lineinfo")
        return
    if paths[0].suffix == ".lines":
        read(paths[0])
        return
    records = list({(record.hash, record.name): record for record in pack(paths)}.values())
    with tempfile.TemporaryDirectory(prefix="vdbg-env-lines-") as folder:
        look_up(records, Path(folder))


if __name__ == "__main__":
    main()
