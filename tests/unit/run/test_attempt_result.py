"""What is read of an attempt whose workload could write into its folder: nothing outside of it, and never for ever."""

import hashlib
import json
import os
import stat
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from vdbg_env.evidence.finding import EndedBy
from vdbg_env.run.attempt import observation
from vdbg_env.runbook.model import ArtifactRule
from vdbg_env.runbook.state import Invocation
from vdbg_env.supervisor import control_files

INVOCATION = Invocation(step="step", attempt=1, argv=("true",))
OURS = {"by": "exit", "code": 3, "output": {"stdout": {"bytes": 5, "dropped": 0}}}
MATCH = {"matcher": "m", "stream": "stdout", "line": 1, "offset": 0, "text": "it failed", "groups": {"x": "y"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "run" / "steps" / "step" / "1" / "localhost-0"
    place.mkdir(parents=True)
    return place


def test_what_the_supervisor_wrote_is_what_was_seen(folder: Path) -> None:
    (folder / "ended.json").write_text(json.dumps({**OURS, "matched": {"m": [MATCH]}, "duration_s": 2}))
    seen = observation(INVOCATION, folder, ())
    assert (seen.ended.by, seen.ended.code, seen.output_bytes, seen.duration_s) == (EndedBy.EXIT, 3, 5, 2.0)
    assert (seen.matched["m"][0].text, seen.matched["m"][0].groups) == ("it failed", {"x": "y"})
    assert (seen.directory, seen.notes) == ("steps/step/1/localhost-0", ())


@pytest.mark.parametrize(
    "written",
    [
        b'{"by": "banana"}',
        b"[]",
        b"null",
        b"[" * 200_000,
        b"\xff\xfe\x00",
        b"{}",
        b'{"by": "exit", "code": "three"}',
        b'{"by": "exit", "output": {"a": {}}}',
        b'{"by": "exit", "matched": {"m": [{"x": 1}]}}',
        b'{"by": "exit", "workers": [{}]}',
    ],
)
def test_an_end_that_no_supervisor_wrote_was_not_seen(folder: Path, written: bytes) -> None:
    (folder / "ended.json").write_bytes(written)
    ended = observation(INVOCATION, folder, ()).ended
    assert ended.by is EndedBy.ENGINE_LOST
    assert "not the supervisor's" in str(ended.message)


def test_no_set_uid_file_and_no_device_of_a_workload_stays_in_the_record(folder: Path) -> None:
    (folder / "ended.json").write_text(json.dumps(OURS))
    (folder / "below").mkdir()
    for path in (tool := folder / "below" / "tool", folder / "plain"):
        path.write_bytes(b"x")
    tool.chmod(0o6755)
    (folder / "link").symlink_to("below/tool")
    devices = 0
    if os.geteuid() == 0:
        os.mknod(folder / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        devices = 1
    seen = observation(INVOCATION, folder, ())
    assert tool.stat().st_mode & 0o7777 == 0o755
    assert not (folder / "null").exists()
    assert any(note.startswith(f"{1 + devices} files had set-uid bits") for note in seen.notes)
    assert observation(INVOCATION, folder, ()).notes == ()


@pytest.mark.parametrize("mode", [0o755, 0o4755], ids=oct)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file capabilities")
def test_no_file_of_a_workload_keeps_capabilities(folder: Path, mode: int) -> None:
    (folder / "ended.json").write_text(json.dumps(OURS))
    (folder / "tool").write_bytes(b"x")
    rights = struct.pack("<IIIII", 0x02000001, 1 << 7, 0, 0, 0)  # linux/capability.h: version 2, effective, CAP_SETUID
    os.setxattr(folder / "tool", "security.capability", rights)
    (folder / "tool").chmod(mode)
    assert any("set-uid bits" in note for note in observation(INVOCATION, folder, ()).notes)
    assert os.listxattr(folder / "tool") == []
    assert stat.S_IMODE((folder / "tool").stat().st_mode) == 0o755


def test_an_end_without_measure_is_not_read_at_all(folder: Path) -> None:
    with (folder / "ended.json").open("wb") as file:
        file.truncate(1 << 40)
    assert observation(INVOCATION, folder, ()).ended.by is EndedBy.ENGINE_LOST


@pytest.mark.parametrize("name", ["stdout", "ended.json", "kernel.log"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_stands_under_our_names_and_is_no_file_is_taken_away(folder: Path, name: str, kind: str) -> None:
    outside = folder.parents[4] / "outside"
    outside.write_text("not the step's")
    (folder / "ended.json").write_text(json.dumps(OURS))
    (folder / name).unlink(missing_ok=True)
    match kind:
        case "link":
            (folder / name).symlink_to(outside)
        case "pipe":
            os.mkfifo(folder / name)
        case _:
            (folder / name / "below").mkdir(parents=True)
    seen = observation(INVOCATION, folder, ())
    assert not os.path.lexists(folder / name)
    assert outside.read_text() == "not the step's"
    assert [note for note in seen.notes if note.startswith(name)]


@pytest.mark.parametrize("name", ["kernel.log", "hang.txt", "notes.txt"])
def test_a_secret_is_masked_also_under_a_name_that_might_be_ours(folder: Path, name: str) -> None:
    (folder / name).write_text("it is tell-nobody-77\n")
    seen = observation(INVOCATION, folder, (b"tell-nobody-77",))
    assert "tell-nobody" not in (folder / name).read_text()
    assert f"1 secrets masked in {name}" in seen.notes


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_lock_that_is_no_file_is_held_by_nobody(folder: Path, kind: str) -> None:
    path = folder / control_files.LOCK
    match kind:
        case "link":
            path.symlink_to(folder.parent)
        case "pipe":
            os.mkfifo(path)
        case _:
            path.mkdir()
    assert not control_files.is_held(str(folder))
    assert not control_files.was_started(str(folder))


def test_the_digest_of_a_sparse_file_is_that_of_all_its_bytes(folder: Path) -> None:
    data = bytearray(9 << 20)
    with (folder / "core.1").open("wb") as file:
        for at in (0, 3 << 20, (7 << 20) + 4000):
            file.seek(at)
            file.write(b"data" * 500)
            data[at : at + 2000] = b"data" * 500
        file.truncate(len(data))
    rule = ArtifactRule(name="core", glob="core.*")
    (core,) = observation(replace(INVOCATION, artifacts=(rule,)), folder, ()).artifacts["core"]
    assert (core.size, core.sha256) == (len(data), hashlib.sha256(data).hexdigest())
