"""Runs damaged files of every kind that holds others through every command that reads them.

Wheels, tars packed in every way, saved images, static libraries, fat binaries, line packs, cores and logs get wrong
bytes, sizes and ends; sizes in packed ones are wrong below the packing. Each is read in a process of its own, within
bounds of time and memory, and none may end in a traceback. `FUZZ_CONTAINERS` is how many, 1,000 if not set.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import zstandard

from gpucore.fatbin import Compression
from tests.builders.core_builder import illegal_address_core
from tests.builders.fatbin import EntrySpec, archive, container, host_library
from tests.fuzz.fuzz_library import KERNEL, bounded
from tests.support.cubins import cubin
from tests.support.line_packs import pack_of

Pack = Callable[[bytes], bytes]

_LIBRARY = host_library(*(container(EntrySpec(payload=cubin("inline_chain_sm90"), how=how)) for how in Compression))
_VERIFY, _LOCATE = ("verify", "--witness", "none", "{}"), ("locate", f"{KERNEL}+0x140", "{}")
_BINARIES = (_VERIFY, _LOCATE)


def tar(members: Mapping[str, bytes]) -> bytes:
    """Return a tar of these files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as packed:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))
    return out.getvalue()


def wheel(how: int) -> bytes:
    """Return a wheel of two libraries."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as packed:
        packed.writestr("a/lib.so", _LIBRARY)
        packed.writestr("a/inner.whl", b"PK\5\6" + bytes(18))
    return out.getvalue()


def seeds() -> list[tuple[str, bytes, Pack, tuple[tuple[str, ...], ...]]]:
    """Return a name, sound bytes, what packs them once they are damaged, and the commands that read them."""

    plain: Pack = bytes
    zstd: Pack = zstandard.ZstdCompressor().compress
    ways: tuple[Pack, ...] = (gzip.compress, lzma.compress, bz2.compress, zstd)
    layer = tar({"usr/lib.so": _LIBRARY, "usr/.wh.gone": b""})
    image = tar({"manifest.json": json.dumps([{"Layers": ["l.tar", "l.tar"]}]).encode(), "l.tar": layer})
    folder = tar({"x" * 150: _LIBRARY, "lib.a": archive(("a_rather_long_name.o", _LIBRARY))})
    pack, core = pack_of("inline_chain_sm90"), illegal_address_core(lines=False)
    log = b"RuntimeError: CUDA error: an illegal memory access was encountered\n" * 50
    packs = (("lines", "verify", "{}"), ("lines", "list", "--lines", "{}"), ("core", "--lines", "{}", "sound.nvcudmp"))
    cores = (
        ("core", "{}"),
        ("core", "--registers", "--parameters", "--json", "{}"),
        ("locate", "0x7fffd9001140", "{}"),
    )
    return [
        ("a.whl", wheel(zipfile.ZIP_DEFLATED), plain, _BINARIES),
        ("b.whl", wheel(zipfile.ZIP_STORED), plain, _BINARIES),
        ("a.tar", folder, plain, _BINARIES),
        *((f"b.tar{number}", folder, how, _BINARIES) for number, how in enumerate(ways)),
        *((f"c.tar{number}", image, how, _BINARIES) for number, how in enumerate((plain, *ways))),
        ("d.tar.gz", gzip.compress(folder), plain, _BINARIES),
        ("e.tar.zst", zstd(folder), plain, _BINARIES),
        ("a.a", archive(("a_rather_long_name.o", _LIBRARY), ("b.o", _LIBRARY)), plain, _BINARIES),
        ("a.fatbin", container(EntrySpec(payload=cubin("inline_chain_sm90"), how=Compression.LZ4)), plain, _BINARIES),
        ("a.lines", pack, plain, packs),
        ("a.nvcudmp", core, plain, cores),
        ("b.nvcudmp.gz", core, gzip.compress, cores),
        ("c.nvcudmp.gz", gzip.compress(core), plain, cores),
        ("a.log", log, plain, (("triage", "{}"),)),
        ("a.log.gz", gzip.compress(log), plain, (("triage", "{}"),)),
        ("b.log.zst", zstd(log), plain, (("triage", "{}"),)),
        ("c.log.xz", lzma.compress(log), plain, (("triage", "{}"),)),
        ("d.zip", wheel(zipfile.ZIP_DEFLATED), plain, (("triage", "{}"),)),
    ]


def damaged(sound: bytes, chance: random.Random) -> bytes:
    """Return the bytes with some of them wrong: bits, numbers in binary and in octal digits, pieces, the end."""
    data = bytearray(sound)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(max(len(data) - 12, 1))
        match chance.choice("bbnnnodp"):
            case "b":
                data[at] ^= 1 << chance.randrange(8)
            case "n":
                size = chance.choice((2, 4, 8))
                value = chance.choice((0, 1, len(data), (1 << 8 * size) - 1, 1 << 8 * size - 1, 1 << 20, 1 << 30))
                data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
            case "o":  # the size of a member of a tar, its checksum made right
                at = chance.randrange(len(data) // 512 + 1) * 512
                head = data[at : at + 512]
                if len(head) == 512:
                    sizes = (b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"00000000000\0", b"-0000000001\0")
                    head[124:136] = chance.choice(sizes)
                    head[156] = chance.choice(b"0157xgLKS")
                    head[148:156] = b"%06o\0 " % (256 + sum(head[:148]) + sum(head[156:]))
                    data[at : at + 512] = head
            case "d":
                del data[at : at + chance.choice((1, 8, 512))]
            case _:
                data[at:at] = data[at : at + chance.choice((1, 64, 512))] * chance.choice((1, 100))
    return bytes(data[: chance.randrange(len(data))] if chance.random() < 0.05 else data)


def fuzz(count: int) -> int:
    """Run so many files, print what came of them, and return the exit status: 1 where one was not read well."""
    chance = random.Random(os.environ.get("FUZZ_SEED", "38"))
    ends: Counter[str] = Counter()
    slowest = (0.0, "")
    bad = 0
    kinds = seeds()
    here = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="vdbg-fuzz-") as folder:
        os.chdir(folder)
        Path("sound.nvcudmp").write_bytes(illegal_address_core(lines=False))
        for number in range(count):
            name, sound, pack, commands = kinds[number % len(kinds)]
            Path(name).write_bytes(pack(damaged(sound, chance)))
            for command in commands:
                took, end = bounded([word.format(name) for word in command])
                ends[f"{command[0]} of {name}: {end}"] += 1
                slowest = max(slowest, (took, f"{command[0]} of {name}"))
                if end not in ("0", "2", "3", "4"):
                    bad += 1
                    shutil.copy(name, here / f"container-{number}-{name}")
                    print(f"{command[0]} container-{number}-{name}: {end} after {took:.1f} s", file=sys.stderr)
            Path(name).unlink()
        os.chdir(here)
    for end, times in sorted(ends.items()):
        print(f"{times:6} {end}")
    print(f"the slowest: {slowest[0]:.2f} s of processor time, {slowest[1]}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(fuzz(int(os.environ.get("FUZZ_CONTAINERS", "1000"))))
