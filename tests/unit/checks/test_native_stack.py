"""The native stack of the process that crashes, by a real gdb: a script starts a child that renames itself and dies."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[3] / "runbooks" / "lib" / "checks" / "native_stack.py"
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


@pytest.fixture(scope="module")
def gdb() -> str:
    """Return gdb's path; skip where none with Python is installed."""
    found = shutil.which("gdb")
    if not found or subprocess.run([found, "-nx", "-batch", "-ex", "python print(1)"], check=False).returncode:
        pytest.skip("no gdb with Python here: apt-get install gdb")
    return found


def under(gdb: str, folder: Path, how: str) -> "subprocess.CompletedProcess[str]":
    script = folder / "serve"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    words = [gdb, "-q", "-nx", "-batch", "-x", str(CHECK), "--args", "env", str(script), how]
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)


def test_the_stack_is_that_of_the_child_that_crashed(gdb: str, tmp_path: Path) -> None:
    ran = under(gdb, tmp_path, "segfault")
    (crash,) = [line for line in ran.stdout.splitlines() if line.startswith("native crash: ")]
    assert crash.startswith("native crash: SIGSEGV in process ")
    assert " (VLLM::EngineCore): in __memset" in crash
    assert ", called by " in crash
    assert "native address: (void *) 0x8" in ran.stdout
    assert "#0 " in ran.stdout
    assert "child -11" in ran.stdout, "the signal reaches the process all the same"
    assert ran.returncode == 3, "the status is that of the command"


def test_what_ends_a_process_is_not_what_is_named(gdb: str, tmp_path: Path) -> None:
    ran = under(gdb, tmp_path, "abort")
    (crash,) = [line for line in ran.stdout.splitlines() if line.startswith("native crash: ")]
    assert "SIGABRT" in crash
    named = crash.partition("): in ")[2]  # a distribution's Python has no symbol of its own os_abort
    assert named.startswith(("os_abort", "abort", "PyObject_Vectorcall")), "the frames of raise() are passed over"


def test_a_command_that_does_not_crash_keeps_its_status(gdb: str, tmp_path: Path) -> None:
    ran = under(gdb, tmp_path, "none")
    assert "native crash" not in ran.stdout
    assert ran.returncode == 3


def test_a_command_that_is_not_there_is_reported(gdb: str, tmp_path: Path) -> None:
    words = [gdb, "-q", "-nx", "-batch", "-x", str(CHECK), "--args", "env", str(tmp_path / "absent")]
    ran = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 127
    assert "No such file" in ran.stderr
