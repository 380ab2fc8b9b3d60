"""Follow a command and all that it starts, and write the native stack of each process that a signal ends.

    gdb -q -nx -batch -x native_stack.py --args env COMMAND [ARGUMENT...]

Runs inside gdb (12 or later, with Python), not by itself. `env` starts what no debugger takes: a script, or a program
by its name. Every process that is forked is followed, because the one that crashes is seldom the first: `vllm serve`
starts an engine, the engine starts workers. A process that execs another program than Python is left alone (compilers,
lscpu). Symbols are loaded only when a signal arrived, so a start takes little longer than without gdb.

For each signal one line is written, then the frames of its thread:

    native crash: SIGSEGV in process 42 (VLLM::EngineCore): in memset of libc.so.6, called by ffi_call of libffi.so.8
"""

import os
import re
from pathlib import Path

import gdb

FATAL = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGSYS")
MOST_STACKS = 4
MOST_ERRORS = 20
# How a process ends itself: what called these is of interest.
ENDS = re.compile(
    r"__pthread_kill|pthread_kill|raise$|abort$|__libc_message|malloc_printerr|__assert_fail|__fortify_fail|__stack_chk"
    r"|std::terminate|__gnu_cxx::__verbose_terminate|__cxxabiv1::|__cxa_(?:throw|rethrow)|\?\?$"
)
START = re.compile(r"_start$|__libc_start|start_thread$|clone3?$|__clone")
SETTINGS = """\
set pagination off
set confirm off
set width 0
set print thread-events off
set print inferior-events off
set startup-with-shell off
set disable-randomization off
set auto-solib-add off
set debuginfod enabled off
set detach-on-fork off
set follow-fork-mode parent
set schedule-multiple on
handle all nostop noprint pass
"""


def main():
    """Run the command to its end."""
    for line in SETTINGS.splitlines():
        _try(line)
    for name in FATAL:
        _try(f"handle {name} stop print pass")
    _try("catch exec")
    stops = []
    gdb.events.stop.connect(stops.append)
    gdb.events.exited.connect(note_end)
    shown, start, errors = [], "run", 0
    while errors < MOST_ERRORS and (start == "run" or _select_living()):
        stops.clear()
        try:
            gdb.execute(start, to_string=True)
        except gdb.error as error:
            # A process that is killed while gdb looks at it: the others run on.
            errors += 1
            print(f"native stack: {error}", flush=True)
        start = "continue"
        stop = stops[-1] if stops else None
        try:
            _stopped(stop, shown)
        except gdb.error as error:
            errors += 1
            print(f"native stack: {error}", flush=True)


def _stopped(stop, shown):
    """Show the stack of a process that a signal is about to end, or let go of one that is of no interest."""
    if isinstance(stop, gdb.SignalEvent) and stop.stop_signal in FATAL:
        inferior = gdb.selected_inferior()
        if len(shown) < MOST_STACKS:
            shown.append(inferior.pid)
            show(stop.stop_signal)
        # It gets its signal and dies alone: gdb 13 loses its way among the dying threads of a large process.
        _try(f"detach inferiors {inferior.num}")
    elif stop is not None and _program() not in (None, *PROGRAMS):
        _consider_exec()


PROGRAMS = set()
STATUS = []


def note_end(event):
    """Keep the exit status of the command itself: ours is the same, 1 where a signal ended it."""
    if event.inferior.num == 1 and not STATUS:
        STATUS.append(getattr(event, "exit_code", 1))


def _consider_exec():
    """Let go of a process that has become another program: Python, and what the command itself is, is followed."""
    name = Path(_program() or "").name
    inferior = gdb.selected_inferior()
    if not PROGRAMS or re.match(r"python|pypy|vllm", name):
        PROGRAMS.add(_program())
    else:
        _try(f"detach inferiors {inferior.num}")


def show(signal):
    """Write the stack of the thread that got the signal."""
    inferior = gdb.selected_inferior()
    _try("sharedlibrary")
    frames = []
    frame = gdb.newest_frame()
    while frame is not None and len(frames) < 60:
        function = frame.name() or "??"
        frames.append((function, _library(frame.pc())))
        try:
            frame = frame.older()
        except gdb.error:
            break
    telling = next((n for n, (function, _) in enumerate(frames) if not ENDS.search(function)), 0)
    function, library = frames[telling] if frames else ("??", "??")
    callers = [
        (name, file)
        for name, file in frames[telling + 1 :]
        if name != "??" and file != library and not START.match(name)
    ]
    by = f", called by {callers[0][0]} of {callers[0][1]}" if callers else ""
    print(f"native crash: {signal} in process {inferior.pid} ({_title(inferior.pid)}): in {function} of {library}{by}")
    address = _try("p $_siginfo._sifields._sigfault.si_addr") if signal in ("SIGSEGV", "SIGBUS") else None
    if address:
        print(f"native address: {address.partition('=')[2].strip()}")
    print(_try("bt -frame-arguments presence 40") or "", flush=True)  # their values may be what users wrote


def _library(pc):
    return Path(gdb.solib_name(pc) or gdb.current_progspace().filename or "??").name


def _program():
    return gdb.current_progspace().filename


def _title(pid):
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()[:4096].rstrip(b"\0").split(b"\0")
    except OSError:
        return "?"
    return " ".join(Path(word.decode(errors="replace")).name for word in words[:3]).strip()[:80] or "?"


def _living():
    return [inferior for inferior in gdb.inferiors() if inferior.pid]


def _select_living():
    """Select a process that lives, unless the current one does; return whether there is one."""
    if gdb.selected_inferior().pid:
        return True
    for inferior in _living():
        _try(f"inferior {inferior.num}")
        return True
    return False


def _try(command):
    """Run a command of gdb's and return its output, or None where this gdb does not know it."""
    try:
        return gdb.execute(command, to_string=True)
    except gdb.error:
        return None


main()
try:
    gdb.execute(f"quit {STATUS[0] if STATUS else 1}")
except gdb.error:  # a process that is gone and that gdb still holds
    os._exit(STATUS[0] if STATUS else 1)
