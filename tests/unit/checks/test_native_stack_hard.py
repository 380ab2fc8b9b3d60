"""Crashes that are hard to look at: threads at once, a first thread that has ended, one that waits, signals."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.native_stack import ARGV, CHECK, crashes, followed

AT_ONCE = """
import ctypes, threading
barrier = threading.Barrier(8)
def crash():
    wait = ctypes.CDLL(None).usleep
    barrier.wait()
    wait(200000)
    ctypes.memset(8, 0, 1)
for _ in range(8): threading.Thread(target=crash).start()
"""


@pytest.mark.usefixtures("gdb")
def test_threads_that_crash_at_once_do_not_end_the_process_before_it_was_looked_at() -> None:
    ran = followed(sys.executable, "-c", AT_ONCE)
    (crash,) = crashes(ran)
    assert "): in __memset" in crash, ran.stdout
    assert ran.returncode == 128 + 11


FIRST_ENDED = """
import ctypes, os, threading, time
def crash():
    while "State:\\tZ" not in open(f"/proc/self/task/{os.getpid()}/status").read(): time.sleep(0.01)
    ctypes.memset(8, 0, 1)
threading.Thread(target=crash).start()
libc = ctypes.CDLL(None)
libc.syscall(93 if os.uname().machine == "aarch64" else 60, 0)  # exit of this thread alone
"""


@pytest.mark.usefixtures("gdb")
def test_a_crash_after_the_first_thread_has_ended_has_a_stack() -> None:
    ran = followed(sys.executable, "-c", FIRST_ENDED)
    (crash,) = crashes(ran)
    assert "): in __memset" in crash, ran.stdout
    assert ran.returncode == 128 + 11


# The new program's standard input is a pipe that nobody writes to: the thread that starts it waits in vfork(2).
WAITS = """
import os, signal, sys, threading, time
fifo, parent = sys.argv[1], os.getpid()
if os.fork() == 0:
    time.sleep(1)
    os.kill(parent, signal.SIGSEGV)
    while os.getppid() == parent: time.sleep(0.01)
    os._exit(os.close(os.open(fifo, os.O_WRONLY)) or 0)
opened = [(os.POSIX_SPAWN_OPEN, 0, fifo, os.O_RDONLY, 0)]
start = lambda: (time.sleep(0.3), os.posix_spawnp("true", ["true"], os.environ, file_actions=opened))
threading.Thread(target=start).start()
time.sleep(60)
"""


@pytest.mark.usefixtures("gdb")
def test_a_thread_that_does_not_stop_costs_the_stack_and_not_the_run(tmp_path: Path) -> None:
    subprocess.run(["mkfifo", tmp_path / "fifo"], check=True)
    ran = followed(sys.executable, "-c", WAITS, str(tmp_path / "fifo"))
    assert crashes(ran) == []
    assert "native stack: none of SIGSEGV in process " in ran.stdout
    assert "): a thread of it does not stop; try: ulimit -c unlimited" in ran.stdout
    assert ran.returncode == 128 + 11


# raise(3) of one process goes on while another is looked at.
MEANWHILE = """
import ctypes, os, signal, time
if os.fork() == 0:
    ctypes.memset(8, 0, 1)
got = sent = 0
def count(*_):
    global got
    got += 1
signal.signal(signal.SIGUSR1, count)
while not os.waitpid(-1, os.WNOHANG)[0]:
    signal.raise_signal(signal.SIGUSR1)
    sent += 1
print("sent", sent - got, "more than were got", flush=True)
"""


@pytest.mark.usefixtures("gdb")
def test_no_signal_of_another_process_is_lost_while_one_is_looked_at() -> None:
    ran = followed(sys.executable, "-c", MEANWHILE)
    assert len(crashes(ran)) == 1
    assert "sent 0 more than were got" in ran.stdout


def test_the_command_does_not_ignore_the_signals_that_python_ignores() -> None:
    def ignored(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("SigIgn")]

    words = ["cat", "/proc/self/status"]
    bare = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ignored(followed(*words).stdout) == ignored(bare.stdout) != []


def test_a_tracer_whose_command_has_ended_ends_when_it_is_asked_to() -> None:
    argv = [*ARGV, "sh", "-c", "sleep 60 & echo $!; exit 5"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stdout
        assert tracer.stderr
        orphan = tracer.stdout.readline().strip()
        follower = Path(f"/proc/{tracer.pid}/task/{tracer.pid}/children").read_text().strip()
        while f"PPid:\t{follower}\n" not in Path(f"/proc/{orphan}/status").read_text():
            pass
        tracer.terminate()
        try:
            assert tracer.wait(60) == 5
        finally:
            subprocess.run(["kill", orphan], check=True)
        assert tracer.stderr.read() == ""


def test_a_gdb_without_python_costs_the_stack_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "gdb").write_text(
        "#!/bin/sh\necho 'Python scripting is not supported in this copy of GDB.' >&2; exit 1\n"
    )
    (tmp_path / "gdb").chmod(0o755)
    ran = followed(sys.executable, "-c", "import ctypes; ctypes.memset(8, 0, 1)", path=tmp_path)
    assert "): no gdb with Python is here; try: sudo apt-get install gdb\n" in ran.stdout
    assert ran.returncode == 128 + 11


def test_a_title_of_any_letters_stays_one_line_that_the_runbook_reads(tmp_path: Path) -> None:
    (tmp_path / "gdb").symlink_to("/bin/false")
    code = "import os\n\n(lambda: os.abort())()"
    (line,) = followed(sys.executable, "-c", code, path=tmp_path).stdout.splitlines()
    text = (CHECK.parents[2] / "host-crash.yaml").read_text()
    matcher = re.search(r"no_stack: \{regex: '(.*)'\}", text)
    assert matcher
    found = re.match(matcher[1], line)
    assert found
    assert found["of"].endswith(" -c import os lambda: os.abort)")
    assert found["step"] == "sudo apt-get install gdb"
