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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # which -I leaves out
from native_tasks import exit_status, name_of
from native_tracer import ASKED, BY_CORE, adopt, follow, none_taken

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
            while True:
                ready = select.select([lines, woken], [], [], LONGEST_S if self._crash else None)[0]
                if not ready:
                    slow = f"gdb took longer than {LONGEST_S:.0f} s"
                    os.kill(self._tracer, signal.SIGKILL)
                if woken in ready:
                    os.read(woken, 64)
                if lines not in ready:
                    continue
                line = lines.readline()
                if not line:
                    break
                first = not self._root
                self._root, self._status, self._crash = json.loads(line)
                if first:
                    self._pass_on()
        _, status = os.waitpid(self._tracer, 0)
        if os.WIFEXITED(status) and not self._crash:
            return os.WEXITSTATUS(status)
        ended = f"was ended by {name_of(os.WTERMSIG(status))}" if os.WIFSIGNALED(status) else "failed"
        return self._take_over(slow or f"{'gdb' if self._crash else 'the tracer'} {ended}")

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
            if process == self._root:
                self._status = exit_status(status)


def main(words):
    """Run a command below a tracer; return its exit status."""
    if not words:
        print("python3 native_stack.py COMMAND [ARGUMENT...]", file=sys.stderr)
        return 2
    adopt()
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
