"""Run a command, follow all that it starts, and write the native stack of each process that a signal ends.

    python3 -I -S native_stack.py COMMAND [ARGUMENT...]

For each such signal one line is written, then the frames of its thread (native_frames.py):

    native crash: SIGSEGV in process 42 (VLLM::EngineCore): in memset of libc.so.6, called by ffi_call of libffi.so.8

Where that is not possible, a line says why, and what to type; the command runs all the same. This process oversees a
second one, which follows the command and becomes gdb (native_tracer.py): gdb can be killed for its memory, or fail.
Then the processes go on without a tracer, and the one that crashed has stopped; it gets its signal from here.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # which -I leaves out
from native_tasks import descendants, exit_status, holders, name_of
from native_tracer import ASKED, BY_CORE, DETACH, SETTLE_S, adopt, follow, none_taken, ptrace

LONGEST_S = 300.0  # for gdb to read the symbols of one process


class Overseer:
    """Passes on what asks it to end, and takes the place of a tracer that dies."""

    def __init__(self, tracer, read):
        self._tracer = tracer
        self._read = read
        self._root, self._status, self._crash = 0, 1, None

    def run(self):
        """Oversee to the end; return the exit status of the command."""
        slow = ""
        # A signal that arrives just before a wait begins does not interrupt it; what is written to this pipe does.
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake)
        with os.fdopen(self._read, "rb", buffering=0) as lines:  # a buffer would hide lines from select(2)
            sources = [lines, woken]
            # The end of the pipe is not the end of the tracer: what gdb has forked holds it too.
            while not (ended := os.waitpid(self._tracer, os.WNOHANG))[0]:
                ready = select.select(sources, [], [], LONGEST_S if self._crash else None)[0]
                if not ready:
                    slow = f"gdb took longer than {LONGEST_S:.0f} s"
                    os.kill(self._tracer, signal.SIGKILL)
                if woken in ready:
                    os.read(woken, 64)
                if lines in ready and not self._take(lines.readline()):
                    sources.remove(lines)
            self._read_rest(lines)
        status = ended[1]
        if os.WIFEXITED(status) and not self._crash:
            return os.WEXITSTATUS(status)
        how = f"was ended by {name_of(os.WTERMSIG(status))}" if os.WIFSIGNALED(status) else "failed"
        return self._take_over(slow or f"{'gdb' if self._crash else 'the tracer'} {how}")

    def _take(self, line):
        """Take note of what the tracer wrote; return whether it wrote something."""
        if line:
            first = not self._root
            self._root, self._status, self._crash = json.loads(line)
            if first:
                self._pass_on()
        return bool(line)

    def _read_rest(self, lines):
        """Read what a tracer that has ended wrote, and kill what it left behind where it had become gdb.

        gdb forks when it starts, to try ptrace(2). Where gdb is killed then, its fork becomes a child of this process,
        asks to be traced by it, and stops for ever. Of all processes it alone holds the tracer's end of the pipe.
        """
        limit = time.monotonic() + SETTLE_S
        while time.monotonic() < limit:
            if select.select([lines], [], [], 0)[0]:
                if not self._take(lines.readline()):
                    return
                continue
            if not self._crash:
                return
            for process in holders(lines.fileno(), descendants()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.001)

    def _pass_on(self):
        def tell(got, _frame):
            # A command that has ended and waits to be reaped takes a signal, and does nothing with it.
            try:
                with open(f"/proc/{self._root}/stat") as file:  # noqa: PTH123
                    ended = file.read().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                ended = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._tracer if ended else self._root, got)  # a tracer ends where its command has

        for number in ASKED:
            signal.signal(number, tell)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKED)

    def _take_over(self, reason):
        """Let the process that crashed have its signal, and wait for all."""
        crash = self._crash
        reason += "; later crashes have no stack either"
        print(none_taken(reason, BY_CORE, crash and crash["crash"]), flush=True)
        if crash:
            with contextlib.suppress(OSError):
                if crash["sent"]:
                    ctypes.CDLL(None).tgkill(crash["process"], crash["task"], crash["signal"])
                os.kill(crash["process"], signal.SIGCONT)
        while True:
            try:
                process, status = os.wait()
            except ChildProcessError:
                return self._status
            if os.WIFSTOPPED(status):
                ptrace(DETACH, process, os.WSTOPSIG(status))  # it asked to be traced by a parent that has died
            elif process == self._root:
                self._status = exit_status(status)


def main(words):
    """Run a command below a tracer; return its exit status."""
    if not words:
        print("python3 native_stack.py COMMAND [ARGUMENT...]", file=sys.stderr)
        return 2
    adopt()
    signal.signal(signal.SIGCHLD, lambda *_: None)  # ignored, which may be inherited, it would wake no one
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ASKED)  # until it is known whom to pass them on to
    read, write = os.pipe()
    tracer = os.fork()
    if tracer == 0:
        os.close(read)
        os._exit(follow(words, mask, write))
    os.close(write)
    return Overseer(tracer, read).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
