"""A recording that others made is played: it leads to nothing outside of it, and brings no secret into a run."""

import json
import stat
from pathlib import Path

import pytest

from vdbg_env.evidence.finding import EndedBy, Observation
from vdbg_env.record.redactor import Redactor
from vdbg_env.run.recordings import Replay
from vdbg_env.runbook.model import Matcher
from vdbg_env.runbook.state import Invocation

SECRET = "known-secret-4711"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    attempt = tmp_path / "recording" / "steps" / "step" / "1" / "localhost-0"
    attempt.mkdir(parents=True)
    (attempt / "ended.json").write_text(json.dumps({"by": "exit", "code": 3, "message": f"it was {SECRET}"}))
    (attempt / "stdout").write_text(f"an illegal access with {SECRET}\n")
    return attempt


def played(tmp_path: Path) -> tuple[Observation, Path]:
    directory = tmp_path / "run" / "steps" / "step" / "1" / "localhost-0"
    directory.mkdir(parents=True)
    invocation = Invocation(step="step", attempt=1, argv=("x",), matchers=(Matcher(name="m", pattern="illegal .*"),))
    seen = Replay(tmp_path / "recording", Redactor((SECRET.encode(),))).rank(invocation, directory).wait()
    assert seen is not None
    return seen, directory


def test_what_was_recorded_is_seen_again_without_known_secrets(recording: Path, tmp_path: Path) -> None:
    seen, directory = played(tmp_path)
    assert (seen.ended.by, seen.ended.code) == (EndedBy.EXIT, 3)
    assert seen.matched["m"][0].text.startswith("an illegal access with [redacted")
    assert not [p for p in directory.rglob("*") if SECRET in p.read_text()]


@pytest.mark.parametrize("level", ["step", "attempt", "rank", "file"])
def test_a_link_at_any_level_is_not_followed(recording: Path, tmp_path: Path, level: str) -> None:
    outside = tmp_path / "outside" / "1" / "localhost-0"
    outside.mkdir(parents=True)
    (outside / "id_rsa").write_text("a private key")
    (outside / "ended.json").write_text('{"by": "exit", "code": 0}')
    place, aim = {
        "step": (recording.parents[1], tmp_path / "outside"),
        "attempt": (recording.parent, tmp_path / "outside" / "1"),
        "rank": (recording, outside),
        "file": (recording / "id_rsa", outside / "id_rsa"),
    }[level]
    if place.exists():
        place.rename(tmp_path / "away")
    place.symlink_to(aim)
    seen, directory = played(tmp_path)
    assert not (directory / "id_rsa").exists()
    assert seen.ended.by is (EndedBy.EXIT if level == "file" else EndedBy.NOT_STARTED)


def test_no_set_uid_bit_gets_into_a_run(recording: Path, tmp_path: Path) -> None:
    (recording / "tool").write_text("#!/bin/sh\n")
    (recording / "tool").chmod(0o4755)
    _, directory = played(tmp_path)
    assert not (directory / "tool").stat().st_mode & (stat.S_ISUID | stat.S_IXUSR)
