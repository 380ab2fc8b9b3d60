"""The parent of a process that runs tests: what its tests leave behind comes to it, and ends with it.

    python3 -I -S reaper.py COMMAND [ARGUMENT...]

Runs a command and ends as it does. A process whose parent has died becomes a child of this one, as it would become one
of init, so it is seen whose it is (PR_SET_CHILD_SUBREAPER, prctl(2)). When the command ends, all others are killed.
What has VDBG_TESTS_STAYS in its environment lives on: a Docker Engine that was started for whoever needs one.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

SUBREAPER, DEATH_SIGNAL = 36, 1  # <linux/prctl.h>
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
END_S = 20.0  # for those that are killed
STAYS = "VDBG_TESTS_STAYS"


def adopt() -> None:
    """Have all below whose parent dies become children of this process."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """Have this process killed when its parent dies, which may have happened already."""
    ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def look_after(child: int) -> None:
    """Reap until a child has ended, kill all others, and end as it has; never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the child too
    for number in PASSED_ON:
        if signal.getsignal(number) is signal.SIG_IGN:
            continue
        signal.signal(number, lambda number, _: _send(child, number))
    while True:
        process, status = os.wait()
        if process == child:
            break
    end_all()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def end_all() -> None:
    """Kill every child, and those that come to this process by that, until there is none."""
    limit = time.monotonic() + END_S
    while (children := [one for one in _children() if not stays(one)]) and time.monotonic() < limit:
        for child in children:
            _send(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def stays(process: int) -> bool:
    """Return whether a process lives on when the tests have ended."""
    try:
        return f"{STAYS}=".encode() in Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return False


def _children() -> list[int]:
    children = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
                children += [int(folder.name)] if parent == os.getpid() else []
    return children


def _send(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


if __name__ == "__main__":
    adopt()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that goes away ends who started this one, or does not
    here = os.getpid()
    started = os.fork()
    if started == 0:
        die_with(here)
        os.environ["VDBG_TESTS_REAPER"] = str(here)
        os.execv(sys.argv[1], sys.argv[1:])
    for descriptor in (0, 1):  # the end of a test's process is seen by that of its pipes
        os.close(descriptor)
    look_after(started)
