"""A replay copies what was recorded, without secrets, and follows no link out of the recording."""

import json
from base64 import b64encode
from pathlib import Path

import pytest

from vdbg_env.record.redactor import Redactor, as_literals
from vdbg_env.run.recordings import Replay
from vdbg_env.runbook.state import Invocation

SECRET = "very-secret-value-77"
STEP = Invocation(step="baseline", attempt=1, argv=("x",))


def recording(folder: Path) -> Path:
    rank = folder / "steps" / "baseline" / "1" / "localhost-0"
    rank.mkdir(parents=True)
    (rank / "ended.json").write_text(json.dumps({"by": "exit", "code": 1, "message": f"with {SECRET}"}))
    (rank / "stdout").write_text(f"boom {b64encode(SECRET.encode()).decode()}\n")
    (rank / "core").write_bytes(b"\x7fELF\0" + SECRET.encode("utf-16-le") + b"\0end")
    return rank


def played(tmp_path: Path) -> Path:
    directory = tmp_path / "run" / "steps" / "baseline" / "1" / "localhost-0"
    directory.mkdir(parents=True)
    Replay(tmp_path / "recording", Redactor(as_literals([SECRET]))).rank(STEP, directory).wait()
    return directory


def contents(folder: Path) -> bytes:
    return b"".join(
        str(path).encode() + (path.read_bytes() if path.is_file() else b"") for path in sorted(folder.rglob("*"))
    )


def test_the_secrets_of_this_run_are_redacted(tmp_path: Path) -> None:
    recording(tmp_path / "recording")
    directory = played(tmp_path)
    assert sorted(path.name for path in directory.iterdir()) == ["core", "ended.json", "stdout"]
    assert (directory / "stdout").read_text() == "boom [redacted known-value]c=\n"
    assert json.loads((directory / "ended.json").read_text())["code"] == 1
    kept = contents(tmp_path / "run")
    assert not [form for form in as_literals([SECRET]) if form in kept]


@pytest.mark.parametrize("level", ["step", "attempt", "rank", "folder", "file"])
def test_no_link_is_followed(tmp_path: Path, level: str) -> None:
    outside = tmp_path / "outside"
    rank = recording(outside)
    (rank / "id_rsa").write_text("private")
    inside = tmp_path / "recording" / "steps" / "baseline" / "1" / "localhost-0"
    link = {"step": inside.parents[1], "attempt": inside.parent, "rank": inside}.get(level)
    target = {"step": rank.parents[1], "attempt": rank.parent, "rank": rank}.get(level)
    if link and target:
        link.parent.mkdir(parents=True)
        link.symlink_to(target)
    else:
        recording(tmp_path / "recording")
        (inside / "link").symlink_to(rank if level == "folder" else rank / "id_rsa")
    directory = played(tmp_path)
    assert b"private" not in contents(directory)
    names = {path.name for path in directory.iterdir()}
    assert ("stdout" in names, "link" in names) == (level in {"folder", "file"}, False)
