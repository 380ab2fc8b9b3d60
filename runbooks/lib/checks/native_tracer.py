"""Follow a command and all that it starts, and write the native stack of each process that a signal ends.

Every process is followed, because the one that crashes is seldom the first: `vllm serve` starts an engine, the engine
starts workers. The kernel reports the signal to this program (ptrace), which then becomes gdb for as long as the stack
takes; after that the process gets its signal as if nobody had looked. gdb itself cannot follow a tree whose threads
start programs: gdb 13 waits for ever on a vfork(2).

This process stays an ancestor of all of them while it is gdb: Yama (kernel.yama.ptrace_scope 1, the default of Ubuntu)
lets nobody else look. Source: ptrace(2), Documentation/admin-guide/LSM/Yama.rst.

A signal that a handler takes ends no process by itself, and is passed on: the handler may recover (a Java machine
does), and where it sends the signal again, as Python's fault handler does, the stack then has the frames below it too.
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

sys.path.insert(0, str(Path(__file__).parent))  # which -I leaves out
from native_tasks import descendants, exit_status, field_of, name_of, process_of, state_of, tasks, title

FATAL = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGSYS")
ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # to end
MOST_STACKS = 4
MOST_HANDLED = 64  # processes with handlers that are kept in mind
NOT_HANDLED = (0, 0, None, "")  # thread, signal, address of the fault, the process's title
SETTLE_S = 5.0  # a thread that waits in the kernel is not stopped at once
NOT_STARTED = 127
BY_CORE = "ulimit -c unlimited, and gdb PROGRAM CORE after the crash"
INTERPRETER = (sys.executable, "-I", "-S")  # nothing of the workload's own packages
FRAMES = Path(__file__).with_name("native_frames.py")

# <linux/ptrace.h>
CONT, DETACH, GETEVENTMSG, GETSIGINFO, SEIZE, INTERRUPT, LISTEN = 7, 17, 0x4201, 0x4202, 0x4206, 0x4207, 0x4208
TRACE_FORK, TRACE_VFORK, TRACE_CLONE, TRACE_EXEC, TRACE_EXIT = 0x02, 0x04, 0x08, 0x10, 0x40
EVERY_TASK = TRACE_FORK | TRACE_VFORK | TRACE_CLONE | TRACE_EXEC | TRACE_EXIT
EVENT_EXEC, EVENT_EXIT, EVENT_STOP = 4, 6, 128
CAP_SYS_PTRACE = 1 << 19  # <linux/capability.h>
WALL = 0x40000000  # <linux/wait.h>: threads too
SUBREAPER = 36  # <linux/prctl.h>

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


class Tracer:
    """Follows the command `root` and its descendants; what it does is written to the pipe `overseer`."""

    def __init__(self, root, overseer, looks=0, status=1, handled=()):
        self.root = root
        self._overseer = overseer
        os.set_inheritable(overseer, False)
        self._looks = looks
        self._status = status  # that of the command, as far as it is known
        # By process, the last signal that a handler took: thread, signal, address, title.
        self._handled = {one: seen for one, *seen in handled}

    def run(self):
        """Follow to the end; return the exit status of the command, 128 and the signal's number where one ended it."""
        self.report()
        while True:
            try:
                self._changed(*os.waitpid(-1, WALL))
            except ChildProcessError:
                return self._status

    def report(self, crash=None):
        """Write what the overseer has to know if this process is killed: the crash is the one that gdb looks at."""
        with contextlib.suppress(OSError):
            os.write(self._overseer, json.dumps([self.root, self._status, crash]).encode() + b"\n")

    def end_when_asked(self):
        """End when asked to, if the command has ended; the overseer passes on to the command what asks it to."""

        def asked(_got, _frame):
            if field_of(self.root, "Tgid") is None:
                sys.exit(self._status)

        for number in ASKED:
            signal.signal(number, asked)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKED)

    def go_on(self):
        """Let those go on that stopped while this program was gdb, which took note of none of them."""
        for task in [task for process in descendants() for task in tasks(process)]:
            if field_of(task, "TracerPid") == str(os.getpid()) and state_of(task) == "t":
                number, code, _ = told(task) or (signal.SIGSTOP, EVENT_STOP << 8, 0)
                self._stopped(task, max(code, 0) >> 8 << 16 | number << 8)  # a signal that was sent has a code below 0

    def _changed(self, task, status):
        if os.WIFSTOPPED(status):
            self._stopped(task, status)
            return
        _, number, _, name = self._handled.pop(task, NOT_HANDLED)
        if number and os.WIFEXITED(status) and os.WEXITSTATUS(status):
            ended = f"its handler took it, and it ended with status {os.WEXITSTATUS(status)}"
            print(f"native signal: {name_of(number)} in process {task} ({name}): {ended}", flush=True)
        if task == self.root:
            self._status = exit_status(status)
            self.report()

    def _stopped(self, task, status):
        number, event = os.WSTOPSIG(status), status >> 16
        if event == EVENT_STOP and number in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
            ptrace(LISTEN, task)  # stopped by somebody, and to stay so
        elif event:
            if event == EVENT_EXEC:
                self._handled.pop(task, None)  # handlers end with their program
            if event == EVENT_EXIT and task == self.root:  # gdb may be the one that gets its end
                message = ctypes.c_ulong()
                ptrace(GETEVENTMSG, task, ctypes.addressof(message))
                self._status = exit_status(message.value)
            ptrace(CONT, task)
        elif name_of(number) in FATAL and self._is_the_end(task, number) and self._looks < MOST_STACKS:
            self._look_at(task, number)
        else:
            ptrace(CONT, task, number)

    def _is_the_end(self, task, number):
        """Return whether a signal ends the process: the kernel sets back what ignores or blocks one of its own."""
        caught, ignored = (int(field_of(task, name) or "0", 16) >> number - 1 & 1 for name in ("SigCgt", "SigIgn"))
        process = process_of(task)
        if caught and process and (process in self._handled or len(self._handled) < MOST_HANDLED):
            name = self._handled.get(process, NOT_HANDLED)[3] or title(process)
            self._handled[process] = (task, number, fault(told(task)), name)
        return not caught and not ignored

    def _look_at(self, task, number):
        """Leave the process to gdb, which this program becomes, and which becomes this program again.

        The others run until they start or end something, or get a signal: another one that crashes waits for its turn.
        """
        process, info = process_of(task), told(task)
        if process is None or info is None:
            ptrace(CONT, task, number)
            return
        self._looks += 1
        crash = f"{name_of(number)} in process {process} ({title(process)})"
        gdb = gdb_with_python()
        if gdb is None or not self._release(process, but=task):
            without = ("no gdb with Python is here", "sudo apt-get install gdb")
            print(none_taken(*(("a thread of it does not stop", BY_CORE) if gdb else without), crash), flush=True)
            ptrace(CONT, task, number)
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGCONT)
            self.go_on()
            return
        ptrace(DETACH, task, signal.SIGSTOP)  # its own process stops before another instruction of it runs
        wait_for(lambda: state_of(task) == "T")
        of, before, where, _ = self._handled.pop(process, NOT_HANDLED)
        handled = of == task and number in (before, signal.SIGABRT)  # sent again by the handler, or its way to end
        status = 128 + number if process == self.root else self._status
        asked = {
            "crash": crash,
            "process": process,
            "task": task,
            "signal": number,
            # What was sent must be sent again; what an instruction raised is raised again.
            "sent": info[1] <= 0,
            "step": BY_CORE,
            "handled": handled,
            "address": fault(info),
            "handled_address": where,
        }
        self.report(asked)
        state = [self.root, self._overseer, self._looks, status, [[one, *seen] for one, seen in self._handled.items()]]
        asked["then"] = [*INTERPRETER, __file__, json.dumps(state)]
        os.environ["VDBG_NATIVE_CRASH"] = json.dumps(asked)
        os.set_inheritable(self._overseer, True)
        signal.pthread_sigmask(signal.SIG_BLOCK, ASKED)  # which would end gdb
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


def fault(info):
    """Return the address that an instruction could not reach, None where the signal is another one."""
    return info[2] if info and info[0] in (signal.SIGSEGV, signal.SIGBUS) and info[1] > 0 else None


def gdb_with_python():
    """Return the path of a gdb that can run native_frames.py, None where there is none."""
    gdb = shutil.which("gdb")
    try:
        words = [gdb, "-nx", "-batch", "-ex", "python print('yes')"]
        ran = gdb and subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return gdb if ran and ran.stdout.strip() == b"yes" else None


def ptrace(request, task, data=0):
    """Ask the kernel; return whether it did so, which it does not for a task that is gone."""
    return _libc.ptrace(request, task, None, data or None) == 0


def wait_for(seen):
    """Wait a while until `seen` returns true."""
    end = time.monotonic() + SETTLE_S
    while not seen() and time.monotonic() < end:
        time.sleep(0.001)


def none_taken(reason, step, crash=None):
    """Return the line that says why there is no stack, and what to type."""
    return f"native stack: none{f' of {crash}' if crash else ''}: {reason}; try: {step}"


def why_untraced(error):
    """Return why the kernel lets this process trace none, and what to type."""
    with contextlib.suppress(OSError, ValueError):
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
        if scope > 2:
            return "kernel.yama.ptrace_scope is 3: nobody may trace until a reboot", "grep -r ptrace_scope /etc/sysctl*"
        if scope == 2 and not int(field_of("self", "CapEff"), 16) & CAP_SYS_PTRACE:
            return "kernel.yama.ptrace_scope is 2: only root may trace", "sudo sysctl kernel.yama.ptrace_scope=1"
    if field_of("self", "Seccomp") == "2":
        return f"{error}: the container's seccomp profile forbids ptrace", "docker run --cap-add SYS_PTRACE"
    return f"{error}: a process that is traced already, by strace for example, or a security module", "dmesg | tail"


def start(argv, mask):
    """Start the command with a signal mask, stopped until it is traced; return its process."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(write)
        os.read(read, 1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            os.execvp(argv[0], argv)
        except OSError as error:
            print(f"native stack: {argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(NOT_STARTED)
    os.close(read)
    if not ptrace(SEIZE, process, EVERY_TASK):
        print(none_taken(*why_untraced(os.strerror(ctypes.get_errno()))), flush=True)
    os.close(write)
    return process


def adopt():
    """Have all below whose parent dies become children of this process."""
    _libc.prctl(SUBREAPER, 1, 0, 0, 0)


def follow(argv, mask, overseer):
    """Start a command and follow it; return its exit status."""
    adopt()
    tracer = Tracer(start(argv, mask), overseer)
    tracer.end_when_asked()
    return tracer.run()


if __name__ == "__main__":  # again, after gdb
    again = Tracer(*json.loads(sys.argv[1]))
    again.end_when_asked()
    again.go_on()
    sys.exit(again.run())
