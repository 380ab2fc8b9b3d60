"""A stack that cannot be taken: gdb is killed, hangs or may not trace. The workload runs on, and ends as it would."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.native_stack import ARGV, CHECK, crashes, followed, looked_at

# The parent prints how its child ended; the others find that they are no longer traced.
DIES = """
import ctypes, os, time
child = os.fork()
if child == 0:
    time.sleep(0.3)
    {crash}
print(child, flush=True)
print("child", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
os._exit(3)
"""
RAISED, SENT = "ctypes.memset(8, 0, 1)", "os.abort()"


@pytest.mark.usefixtures("gdb")
@pytest.mark.parametrize("attached", [False, True], ids=["starts", "has-attached"])
@pytest.mark.parametrize(("crash", "number"), [(RAISED, 11), (SENT, 6)], ids=["raised", "sent"])
def test_a_gdb_that_is_killed_costs_the_stack_and_not_the_crash(crash: str, number: int, attached: bool) -> None:
    with looked_at(DIES.format(crash=crash), attached) as (overseer, gdb):
        os.kill(gdb, signal.SIGKILL)
        out, _ = overseer.communicate(timeout=60)
    assert f"native stack: none of {signal.Signals(number).name} in process " in out
    assert ": gdb was ended by SIGKILL; later crashes have no stack either; try: ulimit -c unlimited" in out
    assert f"child -{number}\n" in out
    assert overseer.returncode == 3


@pytest.mark.usefixtures("gdb")
def test_the_command_s_own_crash_is_its_status_when_gdb_is_killed() -> None:
    with looked_at("import os, time; print(os.getpid(), flush=True); os.abort()", attached=True) as (overseer, gdb):
        os.kill(gdb, signal.SIGKILL)
        assert overseer.wait(60) == 128 + 6


# gdb forks when it starts, and its fork asks its parent to trace it. Here gdb dies before the fork does that, or later.
FAKE_GDB = """\
#!{python} -IS
import ctypes, os, signal, sys, time
if "-x" not in sys.argv:
    print("yes")
    sys.exit()
gdb, libc = os.getpid(), ctypes.CDLL(None)
if os.fork() == 0:
    while {orphaned} and os.getppid() == gdb:
        time.sleep(0.001)
    for _ in range({forks}):
        os.fork()
    if {traced}:
        libc.ptrace(0, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)
time.sleep(0.0 if {orphaned} else 0.3)
os.kill(gdb, signal.SIGKILL)
"""


@pytest.mark.parametrize("forks", [0, 2])
@pytest.mark.parametrize("traced", [True, False], ids=["asks-to-be-traced", "sleeps"])
@pytest.mark.parametrize("orphaned", [True, False], ids=["gdb-dies-first", "gdb-dies-later"])
def test_what_a_killed_gdb_has_forked_is_ended_too(tmp_path: Path, orphaned: bool, traced: bool, forks: int) -> None:
    gdb = tmp_path / "gdb"
    gdb.write_text(FAKE_GDB.format(python=sys.executable, orphaned=orphaned, traced=traced, forks=forks))
    gdb.chmod(0o755)
    ran = followed(sys.executable, "-c", DIES.format(crash=SENT), path=tmp_path, limit_s=30)
    assert ": gdb was ended by SIGKILL; later crashes have no stack either; " in ran.stdout
    assert "child -6\n" in ran.stdout
    assert ran.returncode == 3


def test_a_process_that_asks_a_dead_parent_s_heir_to_trace_it_runs_on() -> None:
    code = """
import ctypes, os, signal, time
tracer = os.getppid()
os.kill(tracer, signal.SIGKILL)
while os.getppid() == tracer:
    time.sleep(0.001)
ctypes.CDLL(None).ptrace(0, 0, None, None)
os.kill(os.getpid(), signal.SIGUSR1)
"""
    assert followed(sys.executable, "-c", code, limit_s=30).returncode == 128 + signal.SIGUSR1


def test_the_end_of_a_tracer_is_seen_where_a_parent_has_the_ends_of_children_ignored() -> None:
    argv = ["/bin/sh", "-c", 'trap "" CHLD; exec "$@"', "sh", *ARGV, "/bin/sh", "-c", "exit 5"]
    assert subprocess.run(argv, timeout=30, check=False).returncode == 5


def test_a_gdb_that_hangs_is_killed(tmp_path: Path, gdb: str) -> None:
    checks = tmp_path / "checks"
    checks.mkdir()
    for file in CHECK.parent.glob("native_*.py"):
        (checks / file.name).write_text(file.read_text().replace("LONGEST_S = 300.0", "LONGEST_S = 0.2"))
    frames = checks / "native_frames.py"
    frames.write_text("import time\ntime.sleep(60)\n" + frames.read_text())
    argv = [sys.executable, "-I", "-S", str(checks / "native_stack.py"), sys.executable, "-c", "import os; os.abort()"]
    ran = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=50, check=False)
    assert "): gdb took longer than 0 s; " in ran.stdout
    assert ran.returncode == 128 + 6


def test_a_tracer_that_is_killed_leaves_a_command_that_runs_to_its_end() -> None:
    code = "import os; os.kill(os.getppid(), 9); [None for _ in range(10**6)]; print('on', flush=True); os._exit(5)"
    ran = followed(sys.executable, "-c", code)
    assert "native stack: none: the tracer was ended by SIGKILL; later crashes" in ran.stdout
    assert ran.stdout.endswith("on\n") or "\non\n" in ran.stdout
    assert ran.returncode == 5


# A container's profile without ptrace(2), as a filter: x86-64 has the number 101, arm64 117.
WITHOUT_PTRACE = """
import ctypes, os, struct, sys
number = {"x86_64": 101, "aarch64": 117}[os.uname().machine]
code = struct.pack("=" + "HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, number, 6, 0, 0, 0x50001, 6, 0, 0, 0x7FFF0000)
kept = ctypes.create_string_buffer(code)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(kept)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 == libc.prctl(22, 2, program), ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_where_ptrace_is_forbidden_the_cause_and_the_next_step_are_said() -> None:
    argv = [sys.executable, "-c", WITHOUT_PTRACE, sys.executable, "-I", "-S", str(CHECK), sys.executable, "-c"]
    ran = subprocess.run([*argv, "import os; os.abort()"], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    (line,) = ran.stdout.splitlines()
    assert line.startswith(
        "native stack: none: Operation not permitted: the container's seccomp profile forbids ptrace"
    )
    assert line.endswith("; try: docker run --cap-add SYS_PTRACE")
    assert ran.returncode == 128 + 6


# The handler makes the page that could not be written writable, as virtual machines of languages do.
RECOVERS = """
import ctypes, mmap, os, signal, sys
libc = ctypes.CDLL(None)
page = mmap.mmap(-1, 4096)
at = ctypes.addressof(ctypes.c_char.from_buffer(page))
@ctypes.CFUNCTYPE(None, ctypes.c_int)
def handler(number):
    if sys.argv[1] == "exit": os._exit(9)
    libc.mprotect(ctypes.c_void_p(at), 4096, 3)
libc.signal(11, handler)
libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
for _ in range(10):
    libc.mprotect(ctypes.c_void_p(at), 4096, 0)
    ctypes.memset(at, 1, 1)
if sys.argv[1] == "crash":
    libc.signal(11, None)
    ctypes.string_at(8)
"""


@pytest.mark.usefixtures("gdb")
def test_what_a_handler_recovers_from_is_no_crash_and_what_ends_the_process_is() -> None:
    well = followed(sys.executable, "-c", RECOVERS, "well")
    assert (well.stdout, well.returncode) == ("", 0)
    ran = followed(sys.executable, "-c", RECOVERS, "crash")
    (crash,) = crashes(ran)
    assert "memset" not in crash
    assert "native address: 0x8\n" in ran.stdout
    assert ran.returncode == 128 + 11


def test_a_handler_that_ends_its_process_is_named() -> None:
    ran = followed(sys.executable, "-c", RECOVERS, "exit")
    assert crashes(ran) == []
    assert ran.stdout.startswith("native signal: SIGSEGV in process ")
    assert ran.stdout.endswith("): its handler took it, and it ended with status 9\n")
    assert ran.returncode == 9


@pytest.mark.usefixtures("gdb")
@pytest.mark.parametrize("crash", [RAISED, SENT], ids=["raised", "sent"])
def test_a_handler_that_sends_its_signal_again_is_not_what_is_named(crash: str) -> None:
    ran = followed(sys.executable, "-X", "faulthandler", "-c", f"import ctypes, os; {crash}")
    (line,) = crashes(ran)
    named = line.partition("): in ")[2]
    assert named.startswith("__memset") if crash == RAISED else named and "faulthandler" not in named
    assert ("native address: 0x8\n" in ran.stdout) == (crash == RAISED)
