"""Secrets inside of compressed files: such a file is withheld as a whole, or it is said that nobody looked."""

import bz2
import gzip
import io
import lzma
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import pytest
import zstandard

from vdbg_env.record import masking
from vdbg_env.record.masking import mask_artifact

HF = b"hf_" + b"AbCdEfGhIjKlMnOpQrStUvWxYz012345"
TEXT = b"the token is " + HF + b" and the word is tell-nobody-77\n"
CLEAN = b"nothing to hide, 512 tokens/s\n" * 1000
LITERALS = (b"tell-nobody-77",)

Pack = Callable[[bytes], bytes]
Unpack = Callable[[bytes], bytes]
FORMATS: dict[str, tuple[Pack, Unpack]] = {
    "gz": (gzip.compress, gzip.decompress),
    "bz2": (bz2.compress, bz2.decompress),
    "xz": (lzma.compress, lzma.decompress),
    "zst": (zstandard.compress, lambda data: zstandard.ZstdDecompressor().stream_reader(data).read()),
    "pzstd": (
        lambda data: b"\x50\x2a\x4d\x18\x04\0\0\0size" + zstandard.compress(data),
        lambda data: zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read(),
    ),
    "lz4": (lz4.frame.compress, lz4.frame.decompress),
}


@pytest.fixture(params=FORMATS)
def form(request: pytest.FixtureRequest) -> tuple[str, Pack, Unpack]:
    return (request.param, *FORMATS[request.param])


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


WITHHELD = "withheld: it held a secret, and a compressed file cannot be masked"


def test_a_file_that_holds_a_secret_is_withheld(tmp_path: Path, form: tuple[str, Pack, Unpack]) -> None:
    path = tmp_path / "worker.log"  # the first bytes count, not the name
    path.write_bytes(form[1](CLEAN + TEXT + CLEAN))
    assert mask_artifact(path, LITERALS).note == WITHHELD
    assert left_over(tmp_path) == []


def test_a_secret_is_found_wherever_the_pieces_end(tmp_path: Path, form: tuple[str, Pack, Unpack]) -> None:
    path = tmp_path / "a"
    for before in range(masking._CHUNK - 40, masking._CHUNK + 2, 7):
        path.write_bytes(form[1](b"." * before + HF + b" " + CLEAN))
        assert mask_artifact(path, ()).note == WITHHELD, before


def test_a_file_without_secrets_stays_byte_for_byte(tmp_path: Path, form: tuple[str, Pack, Unpack]) -> None:
    path = tmp_path / "a"
    path.write_bytes(data := form[1](CLEAN))
    assert mask_artifact(path, LITERALS) == (0, None)
    assert path.read_bytes() == data


def test_every_part_of_a_file_that_was_appended_to_is_looked_into(
    tmp_path: Path, form: tuple[str, Pack, Unpack]
) -> None:
    path = tmp_path / "a"
    path.write_bytes(form[1](CLEAN) + form[1](TEXT))
    assert mask_artifact(path, LITERALS).note == WITHHELD


def test_more_than_the_limit_is_not_expanded_and_that_is_said(tmp_path: Path, form: tuple[str, Pack, Unpack]) -> None:
    path = tmp_path / "a"
    path.write_bytes(form[1](CLEAN))
    looked = mask_artifact(path, LITERALS, limit=1000)
    assert looked == (0, "not looked into for secrets to its end: only its first 1000 bytes were expanded")
    assert mask_artifact(path, LITERALS, limit=len(CLEAN)) == (0, None)


def test_a_file_that_breaks_off_is_looked_into_as_far_as_it_goes(tmp_path: Path) -> None:
    random = os.urandom(200_000).hex().encode()
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(TEXT + random)[:-5000])
    assert mask_artifact(path, LITERALS).note == WITHHELD
    for data in (gzip.compress(random)[:-5000], b"\x1f\x8b\x08 and no gzip at all"):
        path.write_bytes(data)
        assert (mask_artifact(path, LITERALS).note or "").startswith("not looked into for secrets to its end: it is")
        assert path.read_bytes() == data


def zipped(data: bytes, *, kind: int) -> bytes:
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w", kind) as archive:
        archive.writestr("data.pkl", data)
        archive.writestr("other", CLEAN)
    return kept.getvalue()


def test_a_zip_is_looked_into_member_by_member(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(data := zipped(CLEAN, kind=zipfile.ZIP_DEFLATED))
    assert mask_artifact(path, LITERALS) == (0, None)
    assert path.read_bytes() == data
    for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        path.write_bytes(zipped(TEXT, kind=kind))
        assert mask_artifact(path, LITERALS).note == WITHHELD
        assert left_over(tmp_path) == []


def test_a_bomb_costs_no_more_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    for data in (gzip.compress(b"\0" * (64 << 20)), zipped(b"\0" * (64 << 20), kind=zipfile.ZIP_DEFLATED)):
        path.write_bytes(data)
        assert "first" in (mask_artifact(path, LITERALS, limit=1 << 20).note or "")


@pytest.mark.parametrize("magic", [b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07\x01\x00"])
def test_an_archive_of_another_kind_is_named_as_not_looked_into(tmp_path: Path, magic: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(magic + b"\0" * 40)
    assert mask_artifact(path, LITERALS) == (0, "an archive of this kind is not looked into for secrets")


def test_what_is_not_compressed_is_masked_in_place(tmp_path: Path) -> None:
    path = tmp_path / "core"
    path.write_bytes(b"\x7fELF\0" + TEXT)
    assert mask_artifact(path, LITERALS) == (2, None)
    assert path.stat().st_size == 5 + len(TEXT)


def test_a_file_that_has_another_name_elsewhere_is_left_as_it_is_there(tmp_path: Path) -> None:
    elsewhere, path = tmp_path / "config.yaml", tmp_path / "artifact"
    elsewhere.write_bytes(TEXT)
    path.hardlink_to(elsewhere)
    assert mask_artifact(path, LITERALS) == (2, None)
    assert elsewhere.read_bytes() == TEXT and HF not in path.read_bytes()
