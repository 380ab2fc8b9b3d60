"""Write the stack of the thread that got a signal, and let its process have it: what gdb runs for native_tracer.py.

    VDBG_NATIVE_CRASH={"process": ..., ...} gdb -q -nx -batch -x native_frames.py

Runs inside gdb (9 or later, with Python), in the process of native_tracer.py, and becomes that again at its end.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
from pathlib import Path

import gdb

# How a process ends itself: what called these is of interest.
ENDS = re.compile(
    r"__pthread_kill|pthread_kill|raise$|abort$|__libc_message|malloc_printerr|__assert_fail|__fortify_fail|__stack_chk"
    r"|std::terminate|__gnu_cxx::__verbose_terminate|__cxxabiv1::|__cxa_(?:throw|rethrow)|\?\?$"
)
START = re.compile(r"_start$|__libc_start|start_thread$|clone3?$|__clone")
# The values of arguments may be what users wrote.
SETTINGS = """\
set pagination off
set confirm off
set width 0
set print thread-events off
set print inferior-events off
set print frame-arguments presence
set suppress-cli-notifications on
set debuginfod enabled off
handle all nostop noprint pass
"""


def main(crash):
    """Write the stack, and have the process go on."""
    for line in SETTINGS.splitlines():
        _try(line)
    try:
        # All of its threads, but where the first has ended: that one cannot be attached to.
        ended = "\nState:\tZ" in Path(f"/proc/{crash['process']}/status").read_text(errors="replace")
        gdb.execute(f"attach {crash['task'] if ended else crash['process']}", to_string=True)
        thread = next(one for one in gdb.selected_inferior().threads() if one.ptid[1] == crash["task"])
        thread.switch()
        show(crash)
    except (gdb.error, OSError, StopIteration) as error:
        reason = " ".join(str(error).split())
        print(f"native stack: none of {crash['crash']}: gdb: {reason}; try: {crash['step']}", flush=True)
    _try("detach")
    if crash["sent"]:
        ctypes.CDLL(None).tgkill(crash["process"], crash["task"], crash["signal"])
    with contextlib.suppress(OSError):
        os.kill(crash["process"], signal.SIGCONT)


def show(crash):
    """Write one line, the address where it is known, and the frames."""
    frames = []
    cause = 0  # the first frame below what a handler of a fatal signal did
    frame = gdb.newest_frame()
    while frame is not None and len(frames) < 60:
        function = frame.name() or "??"
        frames.append((function, _library(frame.pc())))
        if crash["handled"] and frame.type() == gdb.SIGTRAMP_FRAME:
            cause = len(frames)
        try:
            frame = frame.older()
        except gdb.error:
            break
    telling = next((n for n, (function, _) in enumerate(frames) if n >= cause and not ENDS.search(function)), 0)
    function, library = frames[telling] if frames else ("??", "??")
    callers = [
        (name, file)
        for name, file in frames[telling + 1 :]
        if name != "??" and file != library and not START.match(name)
    ]
    by = f", called by {callers[0][0]} of {callers[0][1]}" if callers else ""
    print(f"native crash: {crash['crash']}: in {function} of {library}{by}")
    address = crash["handled_address" if cause else "address"]
    if address is not None:
        print(f"native address: {address:#x}")
    print(_try("bt 40") or "", flush=True)


def _library(pc):
    return Path(gdb.solib_name(pc) or gdb.current_progspace().filename or "??").name


def _try(command):
    """Run a command of gdb's and return its output, or None where this gdb does not know it."""
    try:
        return gdb.execute(command, to_string=True)
    except gdb.error:
        return None


CRASH = json.loads(os.environ.pop("VDBG_NATIVE_CRASH"))
try:
    main(CRASH)
finally:
    os.execv(CRASH["then"][0], CRASH["then"])
