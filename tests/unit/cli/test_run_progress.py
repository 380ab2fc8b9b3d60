"""While a step runs, its elapsed time, what it waits for and the workload's last line are shown, live or soberly."""

import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.patience import patience
from vdbg_env.cli.runbook import RunProgress
from vdbg_env.record.event_log import Event

RUNBOOK = """\
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: slow, title: A slow program}
spec:
  inputs:
    argv: {type: array, required: true}
    request: {type: path}
    port: {type: string}
  commands:
    workload:
      argv: "${{ inputs.argv }}"
      driver: {replay: "${{ inputs.request }}", ready: {http: "${{ workload.url }}/health", timeout: 60s}}
      timeout: 2m
  steps:
    - id: baseline
      name: As given
      run: workload
      outcomes:
        - unresolved: {next: end}
"""
SLOW = """
import time
print('loading shard 1 of 9', flush=True); time.sleep(5)
print('\\033[2Jloaded', flush=True); time.sleep(3)
"""


def at_a_terminal(argv: list[str], folder: Path) -> str:
    """Return what a program wrote to its terminal."""
    master, slave = pty.openpty()
    said = bytearray()

    def read() -> None:
        while True:
            try:
                said.extend(os.read(master, 1 << 16))
            except OSError:  # the last one has closed it
                return

    reader = threading.Thread(target=read)
    with subprocess.Popen(argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=slave) as ran:
        os.close(slave)
        reader.start()
        ran.wait(patience(60))
    reader.join(patience(10))
    os.close(master)
    return said.decode()


@pytest.fixture
def slow(tmp_path: Path) -> list[str]:
    (tmp_path / "slow.yaml").write_text(RUNBOOK)
    words = ["runbook", "./slow.yaml", "--batch", "--run-dir", "run"]
    return [sys.executable, "-m", "vdbg_env", *words, "--", sys.executable, "-c", SLOW]


def test_at_a_terminal_one_line_is_written_anew(slow: list[str], tmp_path: Path) -> None:
    said = at_a_terminal(slow, tmp_path)
    live = re.findall(r"\r\x1b\[K(baseline #1: [^\r]*)", said)
    assert len(live) >= 3, said
    assert re.fullmatch(r"baseline #1: \d\.\d s, waits for its end \| loading shard 1 of 9", live[0])
    assert any("loaded" in line for line in live)
    assert "\x1b[2J" not in said, "what the workload prints moves no cursor"
    assert "\r\x1b[K[" in said, "the line is gone before an event is printed"


def test_on_a_pipe_a_short_step_says_no_more_than_its_events(slow: list[str], tmp_path: Path) -> None:
    ran = subprocess.run(slow, cwd=tmp_path, capture_output=True, text=True, timeout=patience(60), check=False)
    assert "\x1b" not in ran.stderr
    assert "waits for" not in ran.stderr
    assert "baseline #1: As given" in ran.stderr


def test_on_a_pipe_a_long_step_says_so_after_a_minute_and_then_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    folder = tmp_path / "steps/baseline/1/host-0"
    folder.mkdir(parents=True)
    (folder / "stdout").write_text("one\n\ntwo\n")
    (folder / "waits.txt").write_text("answers: 3 of 9 requests sent, 2 answered")
    shown = RunProgress().of_run(tmp_path)
    data = {"step": "baseline", "attempt": 2, "directory": "steps/baseline/1"}
    shown._follow(Event(seq=1, at="", elapsed_s=7.0, kind="attempt_started", data=data))
    for _ in range(4 * 400):  # 400 s
        clock[0] += 0.25
        shown.waits()
    lines = capsys.readouterr().err.splitlines()
    what = "waits for answers: 3 of 9 requests sent, 2 answered; it prints: two"
    assert lines == [
        f"[{7.0 + passed:8.1f} s] baseline #2: {words}, {what}"
        for passed, words in ((60.0, "1 min 00 s"), (360.0, "6 min 00 s"))
    ]
