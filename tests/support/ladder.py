"""The shipped illegal-memory-access walked over the scripted vLLM: by a batch job, or by a person at a terminal."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.builders.core_builder import hang_core, idle_core, illegal_address_core
from tests.support.killing import left_running

ROOT = Path(__file__).parents[2]
WORKLOADS = ROOT / "tests" / "workloads"
RUNBOOK = "illegal-memory-access"
# Waits of the shipped runbook that a test cannot afford; the ladder itself is not touched.
SHORTER = [
    (r"output_idle: \d+m", "output_idle: 1500ms"),
    (r"grace: (30s|2m)", "grace: 300ms"),
    (r"dump_wait: \w+", "dump_wait: 20s"),
]


def lay_out(folder: Path, shorter: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
    """Put the runbooks, the programs and the cores into a folder, and return the environment that finds them."""
    runbooks, tools = folder / "runbooks", folder / "bin"
    shutil.copytree(ROOT / "runbooks", runbooks)
    for path in runbooks.rglob("*.yaml"):
        text = path.read_text()
        for pattern, instead in (*SHORTER, *shorter):
            text = re.sub(pattern, instead, text)
        path.write_text(text)
    tools.mkdir()
    for name, source in (("vllm", "fake_vllm.py"), ("compute-sanitizer", "fake_compute_sanitizer.py")):
        program(tools / name, f'exec {sys.executable} {WORKLOADS / source} "$@"')
    (folder / "ima.core").write_bytes(illegal_address_core())
    (folder / "nolines.core").write_bytes(illegal_address_core(lines=False))
    (folder / "hang.core").write_bytes(hang_core())
    (folder / "idle.core").write_bytes(idle_core())
    return {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "FAKE_VLLM_CORE": str(folder / "ima.core")}


def program(path: Path, line: str) -> None:
    """Write a shell script of one line."""
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def outcomes(report: dict[str, Any]) -> dict[str, str]:
    """Return the outcome of each step that has one, the last visit of each."""
    return {s["id"]: s["outcome"] for s in report["steps"] if s["outcome"]}


def step(report: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the last visit of a step."""
    found: dict[str, Any] = next(s for s in reversed(report["steps"]) if s["id"] == name)
    return found


Reply = str | Callable[[Path], None]


@dataclass(frozen=True)
class Attended:
    """A run that a person sat at: its exit status, its report, and all that stood on the screen."""

    status: int
    report: dict[str, Any]
    screen: str


def attended(
    folder: Path, environment: dict[str, str], flags: Sequence[str], replies: Sequence[tuple[str, Reply]]
) -> Attended:
    """Walk the runbook with a terminal on stdin and stderr, and answer each text that shows up, in turn.

    A reply is typed, or done: then it is called with the run's folder.
    """
    run, report = folder / "attended", folder / "attended.json"
    where = () if "--resume" in flags else ("--run-dir", str(run))
    argv = ["runbook", RUNBOOK, *where, "--json", *flags]
    ours, theirs = pty.openpty()
    with report.open("wb") as stdout:
        process = subprocess.Popen(
            [sys.executable, "-m", "vdbg_env", *argv],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "builder"), **environment},
            stdin=theirs,
            stdout=stdout,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal, as at a desk
        )
    os.close(theirs)
    try:
        screen, waiting = "", list(replies)
        until = time.monotonic() + 120
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            assert time.monotonic() < until, f"waiting for {waiting[:1]}:\n{screen}"
            if not select.select([ours], [], [], 0.2)[0]:
                continue
            try:
                screen += os.read(ours, 4096).decode()
            except OSError:  # EIO: nobody has the other end any more
                break
            if waiting and waiting[0][0] in screen:
                reply = waiting.pop(0)[1]
                if isinstance(reply, str):
                    os.write(ours, reply.encode() + b"\n")
                else:
                    reply(run)
        status = process.wait(30)
    finally:
        process.kill()
        os.close(ours)
    assert not waiting, f"never came: {waiting[0][0]!r}\n{screen}"
    assert left_running(run) == []
    return Attended(status=status, report=json.loads(report.read_text()), screen=screen)
