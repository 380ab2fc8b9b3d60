"""A program's end is seen, though what it left behind holds its pipes: a compiler's cache server, a daemon."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.build_orders import small_order
from vdbg_env.build.builder import Built, OutputLine
from vdbg_env.build.buildkit import Buildx, buildx_events
from vdbg_env.build.host import HostBuilder, HostSteps
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.programs import Programs
from vdbg_env.engine.client import Endpoint
from vdbg_env.image.context import BuildContext
from vdbg_env.image.plan import CommandStep
from vdbg_env.record.redactor import Redactor
from vdbg_env.run.execute import in_fork
from vdbg_env.supervisor.helpers import Helper, Helpers
from vdbg_env.supervisor.job import Job
from vdbg_env.supervisor.streams import Streams
from vdbg_env_lines import compilers

LONG_S = 120
SOON_S = 60  # far less than LONG_S, and time enough on a crowded machine


@pytest.fixture
def left(tmp_path: Path) -> Iterator[str]:
    """Return a line of the shell that leaves a process behind, in a session of its own and with all pipes."""
    pid = tmp_path / "left"
    yield f'setsid sh -c \'echo $$ > "{pid}"; exec sleep {LONG_S}\' & while [ ! -s "{pid}" ]; do sleep 0.01; done'
    os.kill(int(pid.read_text()), signal.SIGKILL)


@pytest.fixture(autouse=True)
def _soon() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SOON_S


def test_a_helper_s_output_and_status_come_back(left: str) -> None:
    ran = Programs().run(["sh", "-c", f"{left}; echo out; echo err >&2; exit 3"])
    assert (ran.code, ran.stdout, ran.stderr) == (3, "out\n", "err\n")


@pytest.mark.parametrize("pidfd", [True, False])
def test_all_that_a_helper_prints_comes_back(monkeypatch: pytest.MonkeyPatch, left: str, pidfd: bool) -> None:
    if not pidfd:
        monkeypatch.setattr(os, "pidfd_open", lambda _: os.open("/proc/nowhere", os.O_RDONLY))
    ran = Programs().run(["sh", "-c", f"{left}; head -c 3000000 /dev/zero; head -c 60000 /dev/zero >&2"])
    assert (ran.code, len(ran.stdout), len(ran.stderr)) == (0, 3_000_000, 60_000)


def test_what_a_helper_left_may_print_without_end(tmp_path: Path) -> None:
    script = f'setsid sh -c \'echo $$ > "{tmp_path}/left"; exec yes\' & while [ ! -s "{tmp_path}/left" ]; do :; done'
    ran = Programs().run(["sh", "-c", script])
    assert ran.code == 0
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


def test_a_helper_that_hangs_is_given_up_though_its_child_lives_on(left: str) -> None:
    with pytest.raises(HostNotAble, match="did not end within 1 seconds"):
        Programs().run(["sh", "-c", f"{left}; sleep {LONG_S}"], timeout_s=1)


def test_a_helper_that_cannot_be_killed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that waits in a dead driver; here it does not see that it ended."""
    killed: list[subprocess.Popen[bytes]] = []
    wait = subprocess.Popen.wait

    def in_vain(process: "subprocess.Popen[bytes]", timeout: float | None = None) -> int:
        killed.append(process)
        assert timeout is not None
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", in_vain)
    with pytest.raises(HostNotAble, match=r"did not end within 0\.2 seconds"):
        Programs().run(["sleep", str(LONG_S)], timeout_s=0.2)
    assert wait(killed[0], SOON_S) == -signal.SIGKILL


def test_a_step_of_a_build_on_this_machine_ends(tmp_path: Path, left: str) -> None:
    step = CommandStep(id="compile", title="compile", commands=(left, "echo compiled"))
    order = replace(small_order(), plan=replace(small_order().plan, steps=(step,)))
    events = list(HostSteps(order, tmp_path / "prefix", objects=tmp_path / "objects").run(tmp_path))
    assert [event.text for event in events if isinstance(event, OutputLine)] == ["compiled"]


def test_a_program_of_a_folder_that_was_built_ends(tmp_path: Path, left: str) -> None:
    record = {"plan": "sha256:1", "names": [], "labels": {}}
    (tmp_path / "vdbg-env.json").write_text(json.dumps({**record, "environment": {"PATH": "/usr/bin:/bin"}}))
    ran = HostBuilder(why="test", home=tmp_path).execute(f"host:{tmp_path}", ["sh", "-c", f"{left}; echo out; exit 2"])
    assert (ran.argv[0], ran.code, ran.stdout) == ("sh", 2, "out\n")


def test_a_compiler_ends(left: str) -> None:
    printed: list[str] = []
    programs = compilers.Programs(lambda event: printed.append(getattr(event, "text", "")))
    ran = programs.run(["sh", "-c", f"{left}; echo compiled; exit 4"], key="k", env=os.environ)
    assert (ran.code, ran.tail, printed) == (4, ("compiled",), ["compiled"])


def test_a_build_with_buildx_ends(tmp_path: Path, left: str) -> None:
    buildx = tmp_path / "buildx"
    words = f'while [ "$1" != --iidfile ]; do shift; done; cat > /dev/null; echo sha256:1 > "$2"; {left}'
    buildx.write_text(f"#!/bin/sh\n{words}\n")
    buildx.chmod(0o755)
    found = Buildx(argv=(str(buildx),), version="v0.30")
    *_, last = buildx_events(found, Endpoint(host="unix:///nowhere", source="test"), [], BuildContext(items=()))
    assert isinstance(last, Built) and last.image_id == "sha256:1"


def test_work_in_a_fork_ends(tmp_path: Path) -> None:
    def work() -> bytes:
        if (child := os.fork()) == 0:
            os.setsid()
            time.sleep(LONG_S)
        (tmp_path / "left").write_text(str(child))
        return b"done"

    assert in_fork(work, timeout_s=None, check=lambda: None) == b"done"
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


class _Endless:
    """A pipe that somebody fills again as soon as it is read, up to far more than it holds."""

    def __init__(self) -> None:
        self.read, self._write = os.pipe()
        self.size = 0
        os.set_blocking(self.read, False)
        self.fill(b"x" * 1000)

    def fill(self, data: bytes) -> None:
        self.size += os.write(self._write, data)
        assert self.size < 10 << 20


def test_what_looks_at_a_workload_may_print_without_end(tmp_path: Path) -> None:
    pipe = _Endless()
    helpers = Helpers(Job(str(tmp_path), (), {}, str(tmp_path)), time.monotonic)
    helpers.running[1] = Helper(1, pipe.read, pipe.fill, lambda _: None, float("inf"))
    helpers.read()
    assert pipe.size > 1 << 20


def test_a_stranger_may_write_to_the_workload_s_output_without_end(tmp_path: Path) -> None:
    pipe = _Endless()
    streams = Streams(Job(str(tmp_path), (), {}, str(tmp_path)), Redactor(()), pipe.fill, lambda: False)
    streams.pipes["stdout"] = pipe.read
    streams.open()
    streams.drain()
    streams.close()
    assert streams.summary()["output"]["stdout"]["bytes"] > 1 << 20


def test_the_fixture_holds_the_pipes(left: str) -> None:
    with subprocess.Popen(["sh", "-c", left], stdout=subprocess.PIPE) as process:
        assert process.wait(SOON_S) == 0
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=0.2)
