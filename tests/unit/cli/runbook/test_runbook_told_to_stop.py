"""A program that a run asks may hang: told to stop, or when its time is over, the run ends and leaves none of it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.patience import patience
from tests.support.runbooks import TINY
from vdbg_env.supervisor.proc import is_alive

# nvidia-smi is asked before the run begins, and by a built-in step.
HEALTH = """\
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: health, title: Health}
spec:
  inputs: {argv: {type: array, required: true, description: The workload.}}
  steps:
    - id: check
      name: Is the GPU well?
      uses: builtin/gpu-health@v1
      outcomes:
        - pass: {next: end}
"""
# It hangs from its Nth call on, and what it started does too; a driver that is stuck in an ioctl seems so.
HANGS = """#!/bin/sh
echo >> calls
if [ $(wc -l < calls) -ge {at} ]; then
    sleep 600 & echo $! >> hanging
    echo $$ >> hanging
    wait
fi
exit 9
"""
BELOW_OWN_LIMIT_S = 15.0  # nvidia-smi is waited for longer


@pytest.mark.parametrize(
    ("at", "number", "status"),
    [(1, signal.SIGTERM, 143), (1, signal.SIGINT, 130), (2, signal.SIGTERM, 143), (2, 0, 124)],
    ids=["before the run: SIGTERM", "before the run: SIGINT", "in a step: SIGTERM", "in a step: total time"],
)
def test_a_program_that_hangs_keeps_no_run_from_ending(tmp_path: Path, at: int, number: int, status: int) -> None:
    (tmp_path / "health.yaml").write_text(HEALTH)
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(HANGS.format(at=at))
    program.chmod(0o755)
    engine = subprocess.Popen(
        [sys.executable, "-m", "vdbg_env", "runbook", "health", "-f", "health.yaml", "--batch", "--run-dir", "run",
         *(["--total-time", "1s"] if not number else []), "--", "true"],
        cwd=tmp_path, env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    hanging = tmp_path / "hanging"
    while not (hanging.exists() and len(hanging.read_text().split()) == 2) and engine.poll() is None:
        time.sleep(0.01)
    engine.send_signal(number)
    try:
        _, said = engine.communicate(timeout=BELOW_OWN_LIMIT_S)
    finally:
        engine.kill()
    assert engine.returncode == status, said
    assert "Traceback" not in said
    until = time.monotonic() + patience(2.0)  # killed, they are gone in a moment
    while left := [pid for pid in map(int, hanging.read_text().split()) if is_alive(pid)]:
        assert time.monotonic() < until, left
        time.sleep(0.01)
    assert (tmp_path / "run" / "events.jsonl").exists() == (at > 1)


def test_a_recording_that_is_being_written_keeps_no_run_from_ending(tmp_path: Path) -> None:
    many = "import os\nfor n in range(20_000): open(os.environ['FILES'] + f'/{n}', 'w').write('token=abcdefgh')"
    text = TINY.replace("{MODE: loud}", "{FILES: '${{ rank.dir }}'}").replace("timeout: 20s", "timeout: 120s")
    (tmp_path / "tiny.yaml").write_text(text)
    words = ["tiny", "-f", "tiny.yaml", "--batch", "--run-dir", "run", "--record", "recording"]
    engine = subprocess.Popen(
        [sys.executable, "-m", "vdbg_env", "runbook", *words, "--", sys.executable, "-c", many],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not list(tmp_path.glob(".vdbg-*/recording")) and engine.poll() is None:
        time.sleep(0.01)
    engine.send_signal(signal.SIGTERM)
    out, said = engine.communicate(timeout=60)
    assert "recording was not written: told to stop" in said
    assert engine.returncode in {0, 4, 125}, "it is the run's own"
    assert "A tiny runbook" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "tiny.yaml"]
