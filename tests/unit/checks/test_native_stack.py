"""The native stack of the process that crashes, by a real gdb: a script starts a child that renames itself and dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.native_stack import ARGV, crashes, followed, looked_at

# Like vLLM's: an entry point with an interpreter line, helpers that exec something else, a spawned child.
SCRIPT = f"""#!{sys.executable}
import ctypes, multiprocessing, os, signal, subprocess, sys
def crash(how):
    import setproctitle
    setproctitle.setproctitle("VLLM::EngineCore")
    os.abort() if how != "segfault" else ctypes.memset(8, 0, 1)
if __name__ == "__main__":
    subprocess.run("true | cat", shell=True)
    if sys.argv[1] != "none":
        child = multiprocessing.get_context("spawn").Process(target=crash, args=(sys.argv[1],))
        child.start()
        child.join()
        print("child", child.exitcode, flush=True)
    sys.exit(3)
"""


def under(folder: Path, how: str) -> "subprocess.CompletedProcess[str]":
    script = folder / "serve"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    return followed(str(script), how)


@pytest.mark.usefixtures("gdb")
def test_the_stack_is_that_of_the_child_that_crashed(tmp_path: Path) -> None:
    ran = under(tmp_path, "segfault")
    (crash,) = crashes(ran)
    assert crash.startswith("native crash: SIGSEGV in process ")
    assert " (VLLM::EngineCore): in __memset" in crash
    assert ", called by " in crash
    assert "native address: 0x8" in ran.stdout
    assert "#0 " in ran.stdout
    assert "child -11" in ran.stdout, "the signal reaches the process all the same"
    assert ran.returncode == 3, "the status is that of the command"


@pytest.mark.usefixtures("gdb")
def test_what_ends_a_process_is_not_what_is_named(tmp_path: Path) -> None:
    ran = under(tmp_path, "abort")
    (crash,) = crashes(ran)
    assert "SIGABRT" in crash
    named = crash.partition("): in ")[2]  # a distribution's Python has no symbol of its own os_abort
    assert named.startswith(("os_abort", "abort", "PyObject_Vectorcall")), "the frames of raise() are passed over"
    assert "child -6" in ran.stdout


def test_a_command_that_does_not_crash_keeps_its_status(tmp_path: Path) -> None:
    ran = under(tmp_path, "none")
    assert "native crash" not in ran.stdout
    assert ran.returncode == 3


def test_a_command_that_is_not_there_is_reported(tmp_path: Path) -> None:
    ran = followed(str(tmp_path / "absent"))
    assert ran.returncode == 127
    assert "absent: No such file" in ran.stderr


# gdb 13 as the tracer never came to an end of this: it waits for ever on a vfork(2) of one thread while another execs.
MANY = """
import multiprocessing, os, subprocess, sys, threading
def spawn():
    for _ in range(3):
        subprocess.run(["true"])
if __name__ == "__main__":
    spawned = multiprocessing.get_context("spawn")
    workers = [threading.Thread(target=spawn) for _ in range(4)] + [spawned.Process(target=spawn) for _ in range(2)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    os.abort()
"""


@pytest.mark.usefixtures("gdb")
def test_threads_that_start_programs_are_followed_through_a_shell(tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text(MANY)
    ran = followed("sh", "-c", f'env "{sys.executable}" "{tmp_path}/many.py"; exit $?')
    assert len(crashes(ran)) == 1, ran.stderr
    assert ran.returncode == 134


# Two workers of four die, the second after the first has been looked at, which its orphaned child outlives.
WORKERS = """
import ctypes, os, time
for number in range(4):
    if os.fork() == 0:
        time.sleep(0.2 * number)
        if number % 2:
            if os.fork() == 0:
                time.sleep(3)
                os.kill(os.getpid(), 6)
            ctypes.memset(8, 0, 1)
        os._exit(0)
print(sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(4)), flush=True)
"""


@pytest.mark.usefixtures("gdb")
def test_those_that_die_later_and_orphans_are_looked_at_too() -> None:
    ran = followed(sys.executable, "-c", WORKERS)
    assert sorted(line.split()[2] for line in crashes(ran)) == ["SIGABRT", "SIGABRT", "SIGSEGV", "SIGSEGV"]
    assert "[-11, -11, 0, 0]" in ran.stdout
    assert ran.returncode == 0


@pytest.mark.usefixtures("gdb")
def test_a_signal_that_another_sent_ends_the_process_and_is_the_status() -> None:
    ran = followed(sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert len(crashes(ran)) == 1
    assert "native address" not in ran.stdout
    assert ran.returncode == 128 + 11


def test_the_command_is_asked_to_end_when_its_tracer_is() -> None:
    # Short sleeps: a signal that arrives just before one of them begins does not interrupt it.
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('up', flush=True)\n"
        "for _ in range(1200): time.sleep(0.05)"
    )
    argv = [*ARGV, sys.executable, "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout
        tracer.stdout.readline()
        tracer.terminate()
        assert tracer.wait(60) == 7


def test_a_process_that_is_stopped_stays_so_and_goes_on() -> None:
    code = "import os; print(os.getpid(), flush=True); os.kill(os.getpid(), 19); print('on', flush=True)"
    argv = [*ARGV, sys.executable, "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as tracer:
        assert tracer.stdout
        pid = int(tracer.stdout.readline())
        while "State:\tt" not in Path(f"/proc/{pid}/status").read_text():
            time.sleep(0.01)
        os.kill(pid, signal.SIGCONT)
        assert tracer.stdout.readline() == "on\n"
        assert tracer.wait(60) == 0


# The parent ends with status 7 when it is asked to, and waits for that.
ASKED = """
import ctypes, os, signal, sys, time
child = os.fork()
if child == 0:
    time.sleep(0.3)
    ctypes.memset(8, 0, 1)
print(child, flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
time.sleep(60)
"""


@pytest.mark.usefixtures("gdb")
@pytest.mark.parametrize("attached", [False, True], ids=["starts", "has-attached"])
def test_what_asks_to_end_while_gdb_works_reaches_the_command(attached: bool) -> None:
    with looked_at(ASKED, attached) as (overseer, gdb):
        os.kill(gdb, signal.SIGTERM)  # as a signal to all of a job does
        overseer.terminate()
        out, _ = overseer.communicate(timeout=60)
    assert "native crash: SIGSEGV" in out
    assert overseer.returncode == 7
