"""Files, folders and wheels: what is a candidate, what is passed over, what is a problem."""

import io
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

import pytest

from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, archive, container, host_library
from vdbg_env.common.errors import BadInput
from vdbg_env.crash import archives
from vdbg_env.crash.files import BinaryFiles

LIBRARY = host_library(container(EntrySpec(payload=cubin("k"))))


def found(target: Path) -> dict[str, bytes | str]:
    """Return each file's name below the target, and its bytes or its problem."""
    with BinaryFiles().open(str(target)) as files:
        return {f.name.removeprefix(str(target)).lstrip("/:"): f.problem or bytes(f.data) for f in files}


def test_a_named_file_is_yielded_whatever_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"hello")
    with BinaryFiles().open(str(tmp_path / "notes.txt")) as files:
        read = [(bytes(file.data), file.asked_for, file.path) for file in files]
    assert read == [(b"hello", True, tmp_path / "notes.txt")]


def test_an_empty_file_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "empty.so").touch()
    assert found(tmp_path / "empty.so") == {"": b""}


def _mapped_kib() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile"))
    return int(line.split()[1])


def test_pages_that_were_read_are_forgotten_and_mapped_again(tmp_path: Path) -> None:
    path = tmp_path / "large.so"
    with path.open("wb") as file:
        file.write(b"start")
        file.truncate(64 << 20)
    with BinaryFiles().open(str(path)) as files:
        for large in files:
            assert bytes(large.data).count(b"\0") == (64 << 20) - 5
            before = _mapped_kib()
            large.forget()
            assert before - _mapped_kib() > 32 << 10
            assert bytes(large.data[:6]) == b"start\0"


def test_a_folder_yields_candidates_by_their_first_bytes_not_their_names(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "libx.so.1").write_bytes(LIBRARY)
    (tmp_path / "lib.a").write_bytes(archive(("x.o", LIBRARY)))
    (tmp_path / "k.fatbin").write_bytes(container())
    (tmp_path / "k.cubin").write_bytes(cubin("k"))
    (tmp_path / "fake.so").write_bytes(b"#!/bin/sh\n")
    (tmp_path / "empty.so").touch()
    assert sorted(found(tmp_path)) == ["deep/er/libx.so.1", "k.cubin", "k.fatbin", "lib.a"]


def test_a_file_of_several_names_is_yielded_once(tmp_path: Path) -> None:
    (tmp_path / "libx.so.1").write_bytes(LIBRARY)
    (tmp_path / "libx.so").symlink_to("libx.so.1")
    os.link(tmp_path / "libx.so.1", tmp_path / "liby.so")
    (tmp_path / "dangling.so").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert sorted(found(tmp_path)) == ["libx.so.1"]


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.so")
    assert found(tmp_path) == {}


def test_members_of_a_wheel_are_yielded_one_at_a_time_and_leave_nothing_behind(tmp_path: Path) -> None:
    wheel = tmp_path / "x-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("x/a.so", LIBRARY)
        z.writestr("x/__init__.py", "")
        z.writestr("y/a.so", LIBRARY)
    seen: dict[str, Path] = {}
    with BinaryFiles().open(str(wheel)) as files:
        for file in files:
            assert not any(path.exists() for path in seen.values())
            assert file.path is not None
            assert file.path.read_bytes() == bytes(file.data) == LIBRARY
            seen[file.name] = file.path
    assert list(seen) == [f"{wheel}:x/a.so", f"{wheel}:y/a.so"]
    assert not any(path.exists() for path in seen.values())


def test_a_wheel_in_a_folder_is_looked_into(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as z:
        z.writestr("a.so", LIBRARY)
    assert found(tmp_path) == {"x.whl:a.so": LIBRARY}


def test_a_damaged_member_is_a_problem_and_the_rest_is_read(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as z:
        z.writestr("a.so", LIBRARY)
        z.writestr("b.so", LIBRARY)
    data = bytearray(wheel.read_bytes())
    data[data.index(LIBRARY) + 100] ^= 0xFF
    wheel.write_bytes(data)
    names = found(wheel)
    assert "Bad CRC-32" in str(names["a.so"])
    assert names["b.so"] == LIBRARY


def test_a_member_that_expands_without_end_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("bomb.so", LIBRARY + bytes(8 << 20))
    free = shutil.disk_usage(tempfile.gettempdir()).free
    monkeypatch.setattr(archives, "KEEP_FREE", free - (4 << 20))
    with pytest.raises(BadInput, match=r"no room in .* to expand .*bomb\.so: set TMPDIR"):
        found(tmp_path / "bomb.whl")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "closed.so").write_bytes(LIBRARY)
    (tmp_path / "closed.so").chmod(0)
    assert found(tmp_path) == {"closed.so": "Permission denied"}


def test_a_device_is_refused_since_it_cannot_be_mapped() -> None:
    with pytest.raises(BadInput, match="/dev/zero is a pipe or a device"), BinaryFiles().open("/dev/zero"):
        pass


def test_a_missing_target_and_a_false_wheel_are_bad_input(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"not a zip file")
    for target, what in (("nowhere", "no such file"), ("x.whl", "cannot be read: File is not a zip file")):
        with pytest.raises(BadInput, match=what), BinaryFiles().open(str(tmp_path / target)) as files:
            list(files)


def test_a_wheel_that_expands_to_a_thousand_times_its_size_is_refused_by_its_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_SMALL", 1 << 20)
    opened: list[str] = []
    with zipfile.ZipFile(tmp_path / "bomb.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("lib.so", b"\x7fELF" + bytes(8 << 20))
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda _, member: opened.append(member.filename))
    why = "its members are said to expand to over 1,048,576 bytes, the most that is read of an archive of 8"
    with pytest.raises(BadInput, match=why), BinaryFiles().open(str(tmp_path / "bomb.whl")) as files:
        list(files)
    assert opened == []


def test_members_of_a_wheel_that_share_bytes_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("lib.so", b"\x7fELF" + bytes(4000))
    data = (tmp_path / "a.whl").read_bytes()
    at = data.index(b"PK\1\2")
    row, end = data[at:].split(b"PK\5\6")
    count = (5).to_bytes(2, "little")
    end = end[:4] + count * 2 + (len(row) * 5).to_bytes(4, "little") + end[12:]
    (tmp_path / "a.whl").write_bytes(data[:at] + row * 5 + b"PK\5\6" + end)
    with pytest.raises(BadInput, match="members share bytes"), BinaryFiles().open(str(tmp_path / "a.whl")) as files:
        list(files)


def test_archives_in_an_archive_share_what_they_may_expand_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_SMALL", 1 << 20)
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("lib.so", b"\x7fELF" + bytes(500_000))
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as wheel:
        for number in range(20):
            wheel.writestr(f"{number}.whl", inner.getvalue())
    why = "it expands to over 1,048,576 bytes"
    with pytest.raises(BadInput, match=why), BinaryFiles().open(str(tmp_path / "a.zip")) as files:
        list(files)
