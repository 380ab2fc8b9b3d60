"""Every command that may be at long work ends soon when it is told to, or killed, and leaves what it promises.

The table has the command and its work, how it is stopped, its exit status, in how many seconds it ends on an idle
machine, and what must hold then. `tests.support.stopping` sees to the rest: no traceback, and no process is left.
"""

import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import vdbg_env
from tests.support.runbooks import TINY
from tests.support.stopping import Begin, Ended, Running, Work, stopped, until, vdbg
from vdbg_env.record.event_log import read_events

TERM, INT, HUP, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL
TOTAL_TIME = None


# A program that a run asks, and that hangs from its Nth call on; a driver that is stuck in an ioctl seems so.

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
HANGS = """#!/bin/sh
echo >> calls
if [ $(wc -l < calls) = {at} ]; then
    sleep 600 & touch hanging
    wait
fi
exit 9
"""


def asking_nvidia_smi(at: int, *flags: str) -> Begin:
    """nvidia-smi is asked before the run begins, and by a built-in step; it is waited for longer than this takes."""

    def begin(folder: Path, _request: pytest.FixtureRequest) -> Work:
        (folder / "health.yaml").write_text(HEALTH)
        program = folder / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(HANGS.format(at=at))
        program.chmod(0o755)
        return Work(
            argv=vdbg("runbook", "health", "-f", "health.yaml", "--batch", "--run-dir", "run", *flags, "--", "true"),
            at=lambda _: (folder / "hanging").exists(),
            env={"PATH": f"{program.parent}:{os.environ['PATH']}"},
            below_s=15.0,
        )

    return begin


def no_run_began(ended: Ended) -> None:
    assert not (ended.folder / "run" / "events.jsonl").exists()


def events(ended: Ended) -> list[tuple[str, Any]]:
    return [(event.kind, event.data) for event in read_events(ended.folder / "run" / "events.jsonl")]


def the_run_is_resumed(ended: Ended) -> None:
    assert events(ended)[-1][0] == "run_interrupted"
    run = ended.folder / "run"
    again = vdbg_env("runbook", "-f", str(ended.folder / "health.yaml"), "--batch", "--resume", str(run))
    assert again.status in {0, 4, 125}, again.stderr
    assert events(ended)[-1][0] == "run_finished"


# Copies of any size: of a recording, of another run, and the recording that a run writes.

FILES = 20_000  # what takes seconds to copy and to search for secrets, on a fast and idle machine too
FAILS = ("--", sys.executable, "-c", "raise SystemExit(3)")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a runbook, a run and a recording of it, whose step left many files."""
    here = tmp_path_factory.mktemp("large")
    (here / "tiny.yaml").write_text(TINY)
    words = ("tiny", "-f", str(here / "tiny.yaml"), "--batch", "--run-dir", str(here / "--from"))
    vdbg_env("runbook", *words, "--record", str(here / "--replay"), *FAILS)
    for flag in ("--from", "--replay"):
        many = here / flag / "steps/baseline/1/localhost-0/many"
        many.mkdir()
        for number in range(FILES):
            (many / str(number)).write_bytes(b"token=abcdefgh\n")
    return here


def copying(flag: str, *limit: str) -> Begin:
    def begin(folder: Path, request: pytest.FixtureRequest) -> Work:
        large: Path = request.getfixturevalue("large")
        words = ("tiny", "-f", str(large / "tiny.yaml"), "--batch", "--run-dir", "run", *limit, flag, str(large / flag))
        copy = folder / "run/steps/baseline/1/.localhost-0.new/many"
        return Work(argv=vdbg("runbook", *words, *FAILS), at=lambda _: copy.is_dir())

    return begin


def the_copy_was_cut_short(ended: Ended) -> None:
    rank = ended.folder / "run/steps/baseline/1/localhost-0"
    assert not list(rank.parent.glob(".*"))
    assert not (rank / "many").exists()
    (before, seen), (last, _) = events(ended)[-2:]
    assert (before, seen["observation"]["ended"]["by"], last) == ("attempt_ended", "cancel", "run_interrupted")


def the_copy_is_repeated(ended: Ended) -> None:
    the_copy_was_cut_short(ended)
    (ended.folder / "tiny.yaml").write_text(TINY)
    words = ("-f", str(ended.folder / "tiny.yaml"), "--batch", "--resume", str(ended.folder / "run"))
    resumed = vdbg_env("runbook", *words)
    assert resumed.status in {0, 4, 125}, resumed.stderr
    ends = [data["observation"]["ended"]["by"] for kind, data in events(ended) if kind == "attempt_ended"]
    assert ends == ["cancel", "exit"]


def writing_its_recording(folder: Path, _request: pytest.FixtureRequest) -> Work:
    many = f"import os\nfor n in range({FILES}): open(os.environ['FILES'] + f'/{{n}}', 'w').write('token=abcdefgh')"
    text = TINY.replace("{MODE: loud}", "{FILES: '${{ rank.dir }}'}").replace("timeout: 20s", "timeout: 120s")
    (folder / "tiny.yaml").write_text(text)
    words = ("tiny", "-f", "tiny.yaml", "--batch", "--run-dir", "run", "--record", "recording")
    return Work(
        argv=vdbg("runbook", *words, "--", sys.executable, "-c", many),
        at=lambda _: bool(list(folder.glob(".vdbg-*/recording"))),
    )


def the_run_is_whole_without_its_recording(ended: Ended) -> None:
    assert "recording was not written: told to stop" in ended.err
    assert "A tiny runbook" in ended.out
    assert sorted(path.name for path in ended.folder.iterdir()) == ["run", "tiny.yaml"]


# A guard, while its command runs and when it has ended.


def guarding(folder: Path, code: str, at: Callable[[Running], bool], *flags: str, **more: Any) -> Work:
    argv = vdbg("guard", *flags, "--", sys.executable, "-S", "-c", code)
    return Work(argv=argv, at=at, **{"env": {"VDBG_ENV_RUNS": str(folder / "runs")}, **more})


def in_its_hook(folder: Path, _request: pytest.FixtureRequest) -> Work:
    hook = f"sh -c 'sleep 3600 & touch \"{folder}/asked\"; wait'"
    return guarding(folder, "raise SystemExit(7)", lambda _: (folder / "asked").exists(), "--hook", hook)


def said_by(ended: Ended) -> dict[str, Any]:
    """Return the line of JSON that a guard ends with, or the last but one."""
    said: dict[str, Any] = next(json.loads(line) for line in ended.err.splitlines() if line.startswith('{"schema"'))
    return said


def the_failure_is_announced(ended: Ended) -> None:
    assert (said_by(ended)["status"], said_by(ended)["verdict"]) == (7, "failed")
    assert ended.err.splitlines()[1:] == ["vdbg-env guard: told to stop: the hook was not waited for"]


def reading_a_core(last: str) -> Begin:
    """A core of 4 TB, nearly all of it a hole, takes an hour to read."""

    def begin(folder: Path, _request: pytest.FixtureRequest) -> Work:
        code = (
            f"import glob, os\nos.chdir(glob.glob({str(folder)!r} + '/runs/*/steps/guarded/1/*')[0])\n"
            f"open('core.cuda.host.1', 'wb').truncate(4 << 40)\n{last}"
        )

        def at(_: Running) -> bool:
            ended = any(folder.glob("runs/*/steps/guarded/1/*/ended.json"))
            time.sleep(1.0 if ended else 0.0)
            return ended

        return guarding(folder, code, at)

    return begin


def it_was_read_no_further(ended: Ended) -> None:
    said = said_by(ended)
    assert (said["status"], said["ended"]["code"]) == (9, 9)
    assert "the run was being ended" in Path(said["report"]).read_text()


def nothing_is_said(ended: Ended) -> None:
    assert ended.err == ""


# A guard that is told to stop while it speaks. It would give up by itself, later than any test waits.
SPEAKS = "import sys; from vdbg_env.cli import main, runbook; runbook._SAY_S = 900.0; sys.exit(main(sys.argv[1:]))"


def saying_what_nobody_reads(folder: Path, _request: pytest.FixtureRequest) -> Work:
    """The pipe that is stderr is full to the last byte when the command ends."""

    def at(running: Running) -> bool:
        if not (folder / "full").exists():
            if (folder / "begun").exists():
                fill(Path(f"/proc/{running.process.pid}/fd/2"))
                (folder / "full").touch()
            return False
        threads = list(Path(f"/proc/{running.process.pid}/task").iterdir())
        return any(folder.glob("runs/*/report.md")) and len(threads) > 1  # the other one writes

    code = f"import os, time\nos.chdir({str(folder)!r})\nopen('begun', 'w')\n"
    code += "while not os.path.exists('full'): time.sleep(0.01)\nos._exit(3)"
    work = guarding(folder, code, at, listens=False)
    return replace(work, argv=[sys.executable, "-c", SPEAKS, *work.argv[3:]])


def fill(pipe: Path) -> None:
    """Fill a pipe, which has room for one page, with as many bytes: a rest of a page would take a short line."""
    writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    size = fcntl.fcntl(writer, 1031, 1)  # F_SETPIPE_SZ
    assert os.write(writer, b"x" * size) == size
    os.close(writer)


def exiting(folder: Path, _request: pytest.FixtureRequest) -> Work:
    """Python's end takes a tenth of a second, in which no handler of its own works."""
    (folder / "sitecustomize.py").write_text(
        "import os, sys, time\nclass Last:\n"
        "    def __del__(self, mknod=os.mknod, sleep=time.sleep):\n        mknod('ending'); sleep(1)\n"
        "if b'\\0guard\\0' in open('/proc/self/cmdline', 'rb').read():\n    sys.last_of_all = Last()\n"
    )
    path = f"{folder}:{Path(__file__).parents[3] / 'builder'}"
    env = {"VDBG_ENV_RUNS": str(folder / "runs"), "PYTHONPATH": path}
    return guarding(folder, "raise SystemExit(7)", lambda _: (folder / "ending").exists(), env=env)


def anything(_: Ended) -> None:
    """The status says it all."""


SERVES = """\
import os, signal, subprocess, sys, time
for number in (signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, lambda number, _: print(signal.Signals(number).name, flush=True))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)
print('ready', flush=True)
while True:
    time.sleep(0.05)
"""


def serving(*flags: str, whom: Callable[[Running], int] | None = None) -> Begin:
    """The command serves, and is passed the signals that do not stop it."""

    def at(running: Running) -> bool:
        if running.out.read_text() != "ready\n":
            return False
        for count, number in enumerate((signal.SIGUSR1, signal.SIGHUP), 2):
            running.process.send_signal(number)
            until(lambda: len(running.out.read_text().splitlines()) == count, 20.0)  # noqa: B023
        assert running.out.read_text() == "ready\nSIGUSR1\nSIGHUP\n"
        return True

    return lambda folder, _: guarding(folder, SERVES, at, *flags, whom=whom)


def serving_below_nohup(folder: Path, _request: pytest.FixtureRequest) -> Work:
    """The terminal goes away, which is no matter of the command either."""

    def at(running: Running) -> bool:
        if running.out.read_text() != "ready\n":
            return False
        for number in (signal.SIGHUP, signal.SIGUSR1):
            running.process.send_signal(number)
        until(lambda: "SIGUSR1\n" in running.out.read_text(), 20.0)
        assert running.out.read_text() == "ready\nSIGUSR1\n"
        return True

    work = guarding(folder, SERVES, at)
    return replace(work, argv=["nohup", *work.argv])


def its_supervisor(running: Running) -> int:
    (state,) = running.folder.glob("runs/*/steps/guarded/1/*/supervisor.json")
    return int(json.loads(state.read_text().splitlines()[0])["pid"])


def it_was_stopped_and_has_not_crashed(ended: Ended) -> None:
    said = said_by(ended)
    assert (said["verdict"], said["ended"]["by"]) == ("warned", "stopped")


def it_was_killed(ended: Ended) -> None:
    assert said_by(ended)["ended"] == {"by": "signal", "code": None, "signal": KILL}


def the_record_says_how_to_start_again(ended: Ended) -> None:
    """Its supervisor ends the command as politely as ever, and writes down that the guard is gone."""
    (run,) = ended.folder.glob("runs/*-guard-*")
    end = run / "steps/guarded/1/localhost-0/ended.json"
    until(end.exists, 20.0)
    document = json.loads(end.read_bytes())
    assert (document["by"], document["code"]) == ("stopped", 5)
    assert document["message"].startswith("vdbg-env guard was killed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VDBG_ENV_RUNS", str(run.parent))
        report = json.loads(vdbg_env("runs", "report", run.name, "--format", "json").stdout)
        shown = vdbg_env("runs", "show", run.name).stdout
    (again,) = [step["command"] for step in report["next_steps"]]
    assert again.startswith(f"vdbg-env guard -- {sys.executable} -S -c ")
    assert "start the command again: vdbg-env guard --" in shown and "--resume" not in shown


# A capture, however slow its clients, its server and its name server are.

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


def kept(request: pytest.FixtureRequest, opened: socket.socket) -> socket.socket:
    request.addfinalizer(opened.close)
    return opened


def port_of(running: Running) -> int | None:
    said, whole, _ = running.err.read_text().partition("\n")
    return int(said.partition(",")[0].rpartition(":")[2]) if whole else None


def with_slow_clients(folder: Path, request: pytest.FixtureRequest) -> Work:
    server = kept(request, socket.create_server(("127.0.0.1", 0)))  # it takes connections, and never answers

    def at(running: Running) -> bool:
        port = port_of(running)
        if port is None:
            return False
        ends = (b"X-a: ", b"Content-Length: 9999\r\n\r\n{", b"Content-Length: 2\r\n\r\n{}")
        for number in range(60):
            client = kept(request, socket.create_connection(("127.0.0.1", port)))
            client.sendall(HEAD + ends[number % 3])
        server.accept()[0].close()
        return True

    to = f"127.0.0.1:{server.getsockname()[1]}"
    return Work(argv=vdbg("capture", "--port", "0", "--to", to, "-o", folder / "out"), at=at)


def bound_for_names(server: socket.socket) -> str:
    """Bind to the port of name servers, on an address that no other run of the tests has at the moment."""
    for last in range(9, 250):
        with suppress(OSError):
            server.bind((f"127.0.0.{last}", 53))
            return f"127.0.0.{last}"
    pytest.fail("no address is left for a name server")


def asking_a_name_server(folder: Path, request: pytest.FixtureRequest) -> Work:
    """It is waited for 30 s and longer."""
    if os.geteuid() != 0:
        pytest.skip("a name server of its own needs root")
    server = kept(request, socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    address = bound_for_names(server)
    server.settimeout(120)
    (folder / "resolv.conf").write_text(f"nameserver {address}\noptions timeout:30\n")

    def at(running: Running) -> bool:
        port = port_of(running)
        if port is None:
            return False
        client = kept(request, socket.create_connection(("127.0.0.1", port)))
        client.sendall(HEAD + b"Content-Length: 2\r\n\r\n{}")
        assert b"no-such-host" in server.recvfrom(512)[0]
        return True

    shell = f'mount --bind "{folder}/resolv.conf" /etc/resolv.conf && exec "$@"'
    words = vdbg("capture", "--port", "0", "--to", "no-such-host.example:80", "-o", folder / "out")
    private = ("unshare", "--mount", "--propagation", "private", "sh", "-c", shell, "sh")
    return Work(argv=[*private, *words], at=at, below_s=15.0)


# A search in a library of 4 TB, nearly all of it a hole, which takes an hour.


def searching(*words: str) -> Begin:
    def begin(folder: Path, _request: pytest.FixtureRequest) -> Work:
        library = folder / "libhuge.so"
        shutil.copyfile(Path(sys.executable).resolve(), library)
        os.truncate(library, 4 << 40)

        def at(running: Running) -> bool:
            return library.name in Path(f"/proc/{running.process.pid}/maps").read_text()

        return Work(argv=vdbg(*words, library), at=at)

    return begin


def nothing_is_shown(ended: Ended) -> None:
    assert ended.out == ""


HALF = ("--total-time", "0.5s")
CRASH = ("--exit-status-on-crash", "70")
# The command and its work, how it is stopped, its status, the seconds it may take, and what must hold.
TABLE: list[tuple[str, Begin, signal.Signals | None, int, float, Callable[[Ended], None]]] = [
    ("runbook asks before its run", asking_nvidia_smi(1), TERM, 143, 4.0, no_run_began),
    ("runbook asks before its run", asking_nvidia_smi(1), INT, 130, 4.0, no_run_began),
    ("runbook asks in a step", asking_nvidia_smi(2), TERM, 143, 4.0, the_run_is_resumed),
    ("runbook asks in a step", asking_nvidia_smi(2, "--total-time", "1s"), TOTAL_TIME, 124, 5.0, the_run_is_resumed),
    ("runbook --replay copies", copying("--replay"), TERM, 143, 2.0, the_copy_was_cut_short),
    ("runbook --replay copies", copying("--replay", *HALF), TOTAL_TIME, 124, 2.5, the_copy_was_cut_short),
    ("runbook --from copies", copying("--from"), INT, 130, 2.0, the_copy_was_cut_short),
    ("runbook --from copies", copying("--from", *HALF), TOTAL_TIME, 124, 2.5, the_copy_is_repeated),
    ("runbook --record writes", writing_its_recording, TERM, 0, 60.0, the_run_is_whole_without_its_recording),
    ("guard waits for its hook", in_its_hook, TERM, 7, 3.0, the_failure_is_announced),
    ("guard waits for its hook", in_its_hook, INT, 7, 3.0, the_failure_is_announced),
    ("guard waits for its hook", in_its_hook, HUP, 7, 3.0, the_failure_is_announced),
    ("guard reads a core of a crash", reading_a_core("os._exit(9)"), TERM, 9, 3.0, it_was_read_no_further),
    ("guard reads a core of no crash", reading_a_core(""), TERM, 0, 3.0, nothing_is_said),
    ("guard says what nobody reads", saying_what_nobody_reads, TERM, 3, 3.0, anything),
    ("guard exits", exiting, TERM, 7, 60.0, anything),
    ("guard has a command that serves", serving(), TERM, 5, 60.0, it_was_stopped_and_has_not_crashed),
    ("guard with a status for crashes", serving(*CRASH), TERM, 5, 60.0, it_was_stopped_and_has_not_crashed),
    ("guard below nohup", serving_below_nohup, TERM, 5, 60.0, it_was_stopped_and_has_not_crashed),
    ("guard has a command that serves", serving(), KILL, -KILL, 60.0, the_record_says_how_to_start_again),
    ("guard, its supervisor alone", serving(whom=its_supervisor), KILL, 137, 60.0, it_was_killed),
    ("verify searches a library", searching("verify", "--witness", "none"), TERM, 143, 3.0, nothing_is_shown),
    ("locate searches a library", searching("locate", "kern+0x140"), INT, 130, 3.0, nothing_is_shown),
    ("capture has slow clients", with_slow_clients, TERM, 0, 5.0, anything),
    ("capture asks a name server", asking_a_name_server, TERM, 0, 5.0, anything),
]


@pytest.mark.parametrize(
    ("begin", "how", "status", "within_s", "holds"),
    [row[1:] for row in TABLE],
    ids=[f"{row[0]}: {row[2].name if row[2] else 'total time'}" for row in TABLE],
)
def test_a_command_that_is_stopped_ends_in_time_and_keeps_its_promises(
    request: pytest.FixtureRequest,
    begin: Begin,
    how: signal.Signals | None,
    status: int,
    within_s: float,
    holds: Callable[[Ended], None],
) -> None:
    ended = stopped(begin, request, how, within_s)
    assert ended.status == status, ended.err
    holds(ended)
