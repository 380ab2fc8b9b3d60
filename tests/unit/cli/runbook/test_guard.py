"""`vdbg-env guard` around real processes: output and status are theirs, what ended them is on record."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import vdbg_env
from tests.support.patience import patience

ROOT = Path(__file__).parents[4]


@dataclass(frozen=True)
class Guarded:
    """A guard that has ended; `said` is its line of JSON, None where it said nothing."""

    status: int
    stdout: bytes
    stderr: bytes
    said: dict[str, Any] | None


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VDBG_", "CUDA_"))}
    return {**kept, "PYTHONPATH": str(ROOT / "builder"), "VDBG_ENV_RUNS": str(folder / "runs"), **more}


def guard_command(*words: str, flags: tuple[str, ...] = ()) -> list[str]:
    return [sys.executable, "-m", "vdbg_env", "guard", *flags, "--", *words]


def guarded(folder: Path, code: str, *flags: str, **more: str) -> Guarded:
    """Run a Python program under guard, to its end."""
    done = subprocess.run(
        guard_command(sys.executable, "-c", code, flags=flags),
        env=environment(folder, **more), cwd=folder, capture_output=True, timeout=patience(60), check=False,
    )  # fmt: skip
    *own, last = done.stderr.split(b"\n")[:-1] or [b""]
    said = json.loads(last) if last.startswith(b'{"schema": "vdbg-env/guard') else None
    return Guarded(done.returncode, done.stdout, b"\n".join(own) if said else done.stderr, said)


def the_run(folder: Path) -> Path:
    (run,) = (folder / "runs").glob("*-guard-*")
    return run


def test_an_exception_is_explained_after_the_command_s_own_output(tmp_path: Path) -> None:
    code = r"import os; os.write(1, b'out\x00\xff\r\n'); raise ValueError('no such expert')"
    done = guarded(tmp_path, code)
    assert done.status == 1
    assert done.stdout == b"out\x00\xff\r\n"
    assert done.stderr.startswith(b"Traceback") and done.stderr.endswith(b"ValueError: no such expert")
    assert done.said is not None
    assert (done.said["verdict"], done.said["found"]) == ("failed", "ValueError: no such expert")
    assert done.said["ended"] == {"by": "exit", "code": 1, "signal": None}
    report = Path(done.said["report"])
    assert report.parent == the_run(tmp_path)
    assert "no such expert" in report.read_text()
    assert (report.parent / "steps/guarded/1/localhost-0/stdout").read_bytes() == done.stdout


@pytest.mark.parametrize(("signal", "status"), [("SIGSEGV", 139), ("SIGKILL", 137)])
def test_the_status_of_a_signal_is_the_one_a_shell_gives(tmp_path: Path, signal: str, status: int) -> None:
    done = guarded(tmp_path, f"import os, signal; os.kill(os.getpid(), signal.{signal})")
    assert done.status == status
    assert done.said is not None
    assert done.said["status"] == status


def test_a_command_that_ends_well_is_all_that_is_heard(tmp_path: Path) -> None:
    done = guarded(tmp_path, "import sys; print(sys.stdin.read(), end=''); print('warned', file=sys.stderr)")
    assert (done.status, done.stdout, done.stderr, done.said) == (0, b"", b"warned\n", None)
    assert json.loads((the_run(tmp_path) / "report.json").read_bytes())["verdict"] == "passed"


COUNTED = """\
import os, sys
open(sys.argv[1], "a").write("x")
if os.environ.get("CALM"):
    sys.exit(0)
print("boom badly")
sys.exit(1)
"""
LADDER = """\
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: ladder, title: A short ladder}
spec:
  inputs:
    argv: {type: array, required: true, description: The workload.}
  matchers:
    boom: {regex: 'boom (?P<what>[a-z]+)'}
  commands:
    workload: {argv: "${{ inputs.argv }}", timeout: 60s}
  steps:
    - id: baseline
      run: workload
      repeat: {count: 2, until: has(matched.boom)}
      outcomes:
        - reproduced: {when: has(matched.boom), message: "boom ${{ matched.boom.groups.what }}", next: changed}
        - unresolved: {next: changed}
    - id: changed
      run: workload
      env: {CALM: "1"}
      outcomes:
        - not_reproduced: {when: ended.clean, message: calm helps, next: end}
        - unresolved: {next: end}
"""


def test_a_ladder_that_begins_from_a_guarded_crash_runs_only_what_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("program.py", COUNTED), ("ladder.yaml", LADDER)):
        (tmp_path / name).write_text(text)
    words = (sys.executable, str(tmp_path / "program.py"), str(tmp_path / "count"))
    subprocess.run(guard_command(*words), env=environment(tmp_path), cwd=tmp_path, capture_output=True, check=False)
    known = the_run(tmp_path)
    monkeypatch.setenv("VDBG_ENV_RUNS", str(tmp_path / "runs"))
    ran = vdbg_env("runbook", str(tmp_path / "ladder.yaml"), "--from", known.name, "--batch", "--json")
    assert ran.status == 3, ran.stderr
    baseline, changed = json.loads(ran.stdout)["steps"]
    assert (baseline["outcome"], baseline["message"]) == ("reproduced", "boom badly")
    assert f"taken from step 'guarded' of run {known.name}, and not run again" in baseline["attempts"][0]["notes"]
    assert changed["outcome"] == "not_reproduced"
    assert (tmp_path / "count").read_text() == "xx"  # once under guard, once calm
