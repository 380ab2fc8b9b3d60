import bz2
import gzip
import lzma
import random
import struct
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.common.console import size_text
from vdbg_env.record.dump_files import PACKED_HEAD_BYTES, Dump, DumpKind, Retention, age_text, kind_of, retire

DAY = 86400.0
NOW = 1_800_000_000.0


def elf(file_type: int, machine: int) -> bytes:
    return b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HH", file_type, machine) + bytes(44)


def dump(path: str, *, size: int = 10, age: float = 0.0, kind: DumpKind = "gpu-core") -> Dump:
    return Dump(path=path, size=size, modified=NOW - age, kind=kind)


PACKERS: list[Callable[[bytes], bytes]] = [
    gzip.compress, bz2.compress, lzma.compress, zstandard.ZstdCompressor().compress, lz4.frame.compress,
    lambda data: b"\x50\x2a\x4d\x18\x04\0\0\0size" + zstandard.compress(data),  # as pzstd does
]  # fmt: skip


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (elf(4, 190), "gpu-core"),
        (elf(4, 62), "host-core"),
        (elf(3, 62), "other"),
        (elf(2, 190), "other"),
        (b"not a core", "other"),
        (b"\x7fELF", "other"),
        (b"", "other"),
    ],
)
def test_a_file_is_a_dump_by_its_content(head: bytes, kind: DumpKind) -> None:
    assert kind_of(head) == kind


@pytest.mark.parametrize("pack", PACKERS)
def test_a_compressed_file_is_a_dump_by_what_it_expands_to(pack: Callable[[bytes], bytes]) -> None:
    """`mydb_dump.sql.gz` and `model_scores.json.gz` were removed for their names."""
    assert kind_of(pack(elf(4, 190) + bytes(100_000))) == "compressed"
    assert kind_of(pack(elf(4, 62) + random.Random(0).randbytes(3 << 20))[:PACKED_HEAD_BYTES]) == "compressed"
    assert kind_of(pack(b"INSERT INTO dump VALUES (1);\n" * 1000)) == "other"
    assert kind_of(pack(elf(3, 62))) == "other"
    assert kind_of(pack(b"")) == "other"
    assert kind_of(pack(elf(4, 190))[:9]) == "other"


def test_retention_removes_the_oldest_and_says_why() -> None:
    dumps = [dump("new"), dump("middle", age=2 * DAY), dump("old", age=9 * DAY)]
    assert [(r.dump.path, r.why) for r in retire(dumps, Retention(older_than_s=7 * DAY), now=NOW)] == [
        ("old", "9 d old")
    ]
    assert [r.dump.path for r in retire(dumps, Retention(keep=1), now=NOW)] == ["old", "middle"]
    assert [r.dump.path for r in retire(dumps, Retention(max_bytes=20), now=NOW)] == ["old"]


def test_no_rule_removes_nothing_and_what_is_no_dump_always_stays() -> None:
    dumps = [dump("notes.txt", kind="other", age=900 * DAY), dump("core")]
    assert retire(dumps, Retention(), now=NOW) == ()
    assert [r.dump.path for r in retire(dumps, Retention(keep=0, older_than_s=0, max_bytes=0), now=NOW)] == ["core"]


DUMPS = st.lists(
    st.builds(
        dump,
        st.text("abc", min_size=1, max_size=4),
        size=st.integers(0, 100),
        age=st.floats(0, 1e6),
        kind=st.sampled_from(["gpu-core", "host-core", "other"]),
    ),
    max_size=12,
    unique_by=lambda d: d.path,
)


@given(DUMPS, st.integers(0, 500))
def test_what_is_left_fits_the_quota_and_is_newer_than_what_goes(dumps: list[Dump], quota: int) -> None:
    gone = {r.dump for r in retire(dumps, Retention(max_bytes=quota), now=NOW)}
    left = [d for d in dumps if d not in gone and d.kind != "other"]
    assert sum(d.size for d in left) <= quota
    assert all(g.modified <= d.modified for g in gone for d in left)


@given(st.binary(max_size=70), st.sampled_from([b"", *(pack(b"")[:4] for pack in PACKERS)]))
def test_no_bytes_stop_the_reader(rest: bytes, magic: bytes) -> None:
    assert kind_of(magic + rest) in {"gpu-core", "host-core", "compressed", "other"}


def test_sizes_and_ages_read_as_a_person_says_them() -> None:
    assert [size_text(n) for n in (0, 1023, 1024, 5 << 30, 3 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 GiB",
        "3072.0 TiB",
    ]
    assert [age_text(s) for s in (-1, 59, 60, 7200, 3 * DAY)] == ["0 s", "59 s", "1 min", "2 h", "3 d"]
