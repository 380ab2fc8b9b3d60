"""With pseudonyms a binary artifact keeps its length and loses the names of hosts; one that keeps them is announced."""

import gzip
import zipfile
from pathlib import Path

import pytest

from tests.support.steps import place, python, runner
from vdbg_env.record.masking import mask_artifact, name_hosts, redact_run
from vdbg_env.record.redactor import Pseudonyms, Redactor
from vdbg_env.run.attempt import OneRank
from vdbg_env.run.ranks import PseudonymousSteps
from vdbg_env.runbook.model import ArtifactRule

HOST, SHORT = b"node-of-mine-17.example", b"gpu-07"
NAMES = Pseudonyms(b"key", (HOST.decode(), SHORT.decode()))
CORE = b"\x7fELF\0\0" + b"\0".join(
    (HOST, SHORT, b"x" + SHORT, SHORT + b"x", b"127.0.0.1", b"10.1.2.33", b"fd00:1:2:3::4", b"")
)


@pytest.mark.parametrize("window", [1, 2, 7, 64, 1 << 17])
@pytest.mark.parametrize("hole", [0, 1 << 30])
def test_names_are_replaced_at_their_length_wherever_a_window_ends(tmp_path: Path, window: int, hole: int) -> None:
    path = tmp_path / "core"
    with path.open("wb") as file:
        file.seek(hole)
        file.write(CORE)
    name_hosts(path, NAMES, window=window if not hole else 1 << 17)
    with path.open("rb") as file:
        file.seek(hole)
        named = file.read()
    assert len(named) == len(CORE)
    long, short, *others = named[6:].split(b"\0")
    assert long.startswith(NAMES.replace(HOST)) and set(long[len(NAMES.replace(HOST)) :]) == {ord("*")}
    assert short == NAMES.replace(SHORT)[: len(SHORT)]
    assert others[:2] == [b"x" + SHORT, SHORT + b"x"]
    assert others[2] == b"127.0.0.1"
    assert others[3:5] == [NAMES.replace(a)[: len(a)].ljust(len(a), b"*") for a in (b"10.1.2.33", b"fd00:1:2:3::4")]


def test_what_keeps_its_names_is_announced(tmp_path: Path) -> None:
    (tmp_path / "large.gz").write_bytes(gzip.compress(CORE * 100))
    assert (mask_artifact(tmp_path / "large.gz", (), pseudonyms=NAMES, limit=64).note or "").endswith(
        "before you share the run"
    )
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a", HOST * 3)
    before = (tmp_path / "x.zip").read_bytes()
    redacted = redact_run(tmp_path, Redactor((), NAMES))
    assert "x.zip: names of hosts and addresses in it stay: remove it before you share the run" in redacted.notes
    assert (tmp_path / "x.zip").read_bytes() == before


def test_a_step_s_binary_artifact_has_pseudonyms(tmp_path: Path) -> None:
    code = f"open('core.1', 'wb').write({CORE!r}); open('x.zip', 'wb').write(b'PK\\3\\4' + bytes(64))"
    rules = (ArtifactRule(name="core", glob="core.*"), ArtifactRule(name="zip", glob="*.zip"))
    directory = place(tmp_path)
    invocation = python(f"import os; os.chdir({str(directory)!r})\n{code}", artifacts=rules)
    steps = PseudonymousSteps(OneRank(runner(tmp_path)), Redactor((), NAMES))
    attempt = steps.start(invocation, directory.parent)
    while (seen := attempt.wait(0.1)) is None:
        pass
    (core,) = seen[0].artifacts["core"]
    assert HOST not in (directory / "core.1").read_bytes()
    assert core.size == len(CORE)
    assert "x.zip: " in seen[0].notes[-1]
    assert seen[0].notes[-1].endswith("before you share the run")
