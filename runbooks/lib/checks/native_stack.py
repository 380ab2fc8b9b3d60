"""Run a command, follow all that it starts, and write the native stack of each process that a signal ends.

    python3 -I -S native_stack.py COMMAND [ARGUMENT...]

Every process is followed, because the one that crashes is seldom the first: `vllm serve` starts an engine, the engine
starts workers. The kernel reports the signal to this program (ptrace), which then becomes gdb for as long as the stack
takes; after that the process gets its signal as if nobody had looked. gdb itself cannot follow a tree whose threads
start programs: gdb 13 waits for ever on a vfork(2).

For each signal one line is written, then the frames of its thread (native_frames.py):

    native crash: SIGSEGV in process 42 (VLLM::EngineCore): in memset of libc.so.6, called by ffi_call of libffi.so.8

This process stays an ancestor of all of them while it is gdb: Yama (kernel.yama.ptrace_scope 1, the default of Ubuntu)
lets nobody else look. Source: ptrace(2), Documentation/admin-guide/LSM/Yama.rst.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

FATAL = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGSYS")
ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # to end
MOST_STACKS = 4
SETTLE_S = 5.0  # a thread that waits in the kernel is not stopped at once
NOT_STARTED = 127
INTERPRETER = (sys.executable, "-I", "-S")  # nothing of the workload's own packages
FRAMES = Path(__file__).with_name("native_frames.py")

# <linux/ptrace.h>
CONT, DETACH, GETEVENTMSG, GETSIGINFO, SEIZE, INTERRUPT, LISTEN = 7, 17, 0x4201, 0x4202, 0x4206, 0x4207, 0x4208
TRACE_FORK, TRACE_VFORK, TRACE_CLONE, TRACE_EXEC, TRACE_EXIT = 0x02, 0x04, 0x08, 0x10, 0x40
EVERY_TASK = TRACE_FORK | TRACE_VFORK | TRACE_CLONE | TRACE_EXEC | TRACE_EXIT
EVENT_EXIT, EVENT_STOP = 6, 128
WALL = 0x40000000  # <linux/wait.h>: threads too
SUBREAPER = 36  # <linux/prctl.h>

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


class Tracer:
    """Follows the command `root` and its descendants."""

    def __init__(self, root, shown=(), status=1):
        self.root = root
        self._shown = list(shown)  # the processes whose stack was written
        self._status = status  # that of the command, as far as it is known

    def run(self):
        """Follow to the end; return the exit status of the command, 128 and the signal's number where one ended it."""
        while True:
            try:
                self._changed(*os.waitpid(-1, WALL))
            except ChildProcessError:
                return self._status

    def go_on(self):
        """Let those go on that stopped while this program was gdb, which took note of none of them."""
        for task in [task for process in descendants() for task in tasks(process)]:
            if field_of(task, "TracerPid") == str(os.getpid()) and state_of(task) == "t":
                number, code, _ = told(task) or (signal.SIGSTOP, EVENT_STOP << 8, 0)
                self._stopped(task, max(code, 0) >> 8 << 16 | number << 8)  # a signal that was sent has a code below 0

    def pass_on(self):
        """Pass on to the command what asks this program to end; end where there is no command any longer."""

        def tell(got, _frame):
            try:
                os.kill(self.root, got)
            except OSError:
                sys.exit(self._status)

        for number in ASKED:
            signal.signal(number, tell)

    def _changed(self, task, status):
        if os.WIFSTOPPED(status):
            self._stopped(task, status)
        elif task == self.root:
            self._status = exit_status(status)

    def _stopped(self, task, status):
        number, event = os.WSTOPSIG(status), status >> 16
        if event == EVENT_STOP and number in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
            ptrace(LISTEN, task)  # stopped by somebody, and to stay so
        elif event:
            if event == EVENT_EXIT and task == self.root:  # gdb may be the one that gets its end
                message = ctypes.c_ulong()
                ptrace(GETEVENTMSG, task, ctypes.addressof(message))
                self._status = exit_status(message.value)
            ptrace(CONT, task)
        elif name_of(number) in FATAL and len(self._shown) < MOST_STACKS and process_of(task) not in self._shown:
            self._look_at(task, number)
        else:
            ptrace(CONT, task, number)

    def _look_at(self, task, number):
        """Leave the process to gdb, which this program becomes, and which becomes this program again.

        The others run until they start or end something, or get a signal: another one that crashes waits for its turn.
        """
        process, info = process_of(task), told(task)
        if process is None or info is None:
            ptrace(CONT, task, number)
            return
        self._shown.append(process)
        crash = f"native crash: {name_of(number)} in process {process} ({title(process)})"
        gdb = gdb_with_python()
        if gdb is None or not self._release(process, but=task):
            reason = "a thread of it does not stop" if gdb else "no gdb with Python is here: apt-get install gdb"
            print(f"{crash}: in ??\nnative stack: {reason}", flush=True)
            ptrace(CONT, task, number)
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGCONT)
            self.go_on()
            return
        ptrace(DETACH, task, signal.SIGSTOP)  # its own process stops before another instruction of it runs
        wait_for(lambda: state_of(task) == "T")
        _, code, address = info
        status = 128 + number if process == self.root else self._status
        asked = {
            "crash": crash,
            "root": self.root,
            "process": process,
            "task": task,
            "signal": number,
            # What was sent must be sent again; what an instruction raised is raised again.
            "sent": code <= 0,
            "address": address if number in (signal.SIGSEGV, signal.SIGBUS) and code > 0 else None,
            "then": [*INTERPRETER, __file__, "--go-on", json.dumps([self.root, self._shown, status])],
        }
        os.environ["VDBG_NATIVE_CRASH"] = json.dumps(asked)
        os.execv(gdb, [gdb, "-q", "-nx", "-batch", "-x", str(FRAMES)])

    def _release(self, process, but):
        """Trace no thread of a process any longer, but one, which is stopped; return whether all could be let go.

        Signals that are due are delivered; but a second thread that crashes stops the process, which it would end too
        early. A thread in vfork(2) stops when its child has come to its exec, which this program is told of.
        """
        left = {one for one in tasks(process) if one != but and ptrace(INTERRUPT, one)}
        end = time.monotonic() + SETTLE_S
        while left and time.monotonic() < end:
            task, status = os.waitpid(-1, WALL | os.WNOHANG)
            number = os.WSTOPSIG(status) if os.WIFSTOPPED(status) else 0
            fatal = not status >> 16 and name_of(number) in FATAL
            if not task:
                time.sleep(0.001)
                # The first thread of a process stays as a zombie where it ended before the others.
                left = {one for one in left & set(tasks(process)) if one != process or state_of(one) != "Z"}
            elif task == but:  # killed, or another thread of it has come to its exec
                self._changed(task, status)
                return False
            elif number and process_of(task) == process:
                ptrace(DETACH, task, signal.SIGSTOP if fatal else 0 if status >> 16 else number)
                left.discard(task)
            elif not fatal:  # of another process, whose turn it is afterwards
                self._changed(task, status)
        return not left


def told(task):
    """Return what stopped a task: the signal, its code, and the address of a fault; None in a stop of its whole group.

    The code of an event of ours is SIGTRAP and the event's number, times 256.
    """
    info = ctypes.create_string_buffer(128)
    if not ptrace(GETSIGINFO, task, ctypes.addressof(info)):
        return None
    number, code = (int.from_bytes(info.raw[at : at + 4], sys.byteorder, signed=True) for at in (0, 8))
    return number, code, int.from_bytes(info.raw[16:24], sys.byteorder)


def gdb_with_python():
    """Return the path of a gdb that can run native_frames.py, None where there is none."""
    gdb = shutil.which("gdb")
    try:
        words = [gdb, "-nx", "-batch", "-ex", "python print('yes')"]
        ran = gdb and subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return gdb if ran and ran.stdout.strip() == b"yes" else None


def exit_status(status):
    """Return what a shell makes of a process's end: its exit status, or 128 and the number of a signal."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def ptrace(request, task, data=0):
    """Ask the kernel; return whether it did so, which it does not for a task that is gone."""
    return _libc.ptrace(request, task, None, data or None) == 0


def tasks(process):
    """Return the threads of a process."""
    try:
        return [int(one.name) for one in Path(f"/proc/{process}/task").iterdir()]
    except OSError:
        return []


def descendants():
    """Return all processes below this one."""
    children = {}
    for name in filter(str.isdigit, (one.name for one in Path("/proc").iterdir())):
        parent = field_of(name, "PPid")
        if parent is not None:
            children.setdefault(int(parent), []).append(int(name))
    found = [os.getpid()]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def process_of(task):
    """Return the process of a thread, None when it is gone."""
    group = field_of(task, "Tgid")
    return int(group) if group else None


def state_of(task):
    """Return the letter of a thread's state, None when it is gone."""
    return (field_of(task, "State") or " ")[0].strip() or None


def field_of(task, name):
    """Return a field of /proc/TASK/status, None when the task is gone."""
    try:
        for line in Path(f"/proc/{task}/status").read_text(errors="replace").splitlines():
            if line.startswith(name + ":"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return None


def title(process):
    """Return how a process calls itself, in one line and without parentheses, as far as there is room."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes()[:4096].rstrip(b"\0").split(b"\0")
    except OSError:
        return "?"
    text = " ".join(Path(word.decode(errors="replace")).name for word in words[:3])
    kept = "".join(letter if letter.isprintable() and letter not in "()" else " " for letter in text)
    return " ".join(kept.split())[:80] or "?"


def wait_for(seen):
    """Wait a while until `seen` returns true."""
    end = time.monotonic() + SETTLE_S
    while not seen() and time.monotonic() < end:
        time.sleep(0.001)


def name_of(number):
    """Return a signal's name, "" for one without."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def start(argv):
    """Start the command, stopped until it is traced; return its process."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(write)
        os.read(read, 1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvp(argv[0], argv)
        except OSError as error:
            print(f"native stack: {argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(NOT_STARTED)
    os.close(read)
    if not ptrace(SEIZE, process, EVERY_TASK):
        error = os.strerror(ctypes.get_errno())
        print(f"native stack: no process may be traced here ({error}): kernel.yama.ptrace_scope, seccomp", flush=True)
    os.close(write)
    return process


def main(words):
    """Run a command, or go on following one after gdb."""
    _libc.prctl(SUBREAPER, 1, 0, 0, 0)  # whose parent has died stays below us
    if words[:1] == ["--go-on"]:
        tracer = Tracer(*json.loads(words[1]))
        tracer.pass_on()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # gdb blocks some
        tracer.go_on()
    elif words:
        tracer = Tracer(start(words))
        tracer.pass_on()
    else:
        print("python3 native_stack.py COMMAND [ARGUMENT...]", file=sys.stderr)
        return 2
    return tracer.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
