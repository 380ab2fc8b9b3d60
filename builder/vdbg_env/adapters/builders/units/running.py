"""Run a program of a build to its end, each line of its output reported at once, ended whatever happens."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vdbg_env.adapters.builders.progress.events import TAIL_LINES, LineSplitter
from vdbg_env.adapters.builders.units.kept import Tell
from vdbg_env.application.ports.build_events import OutputLine
from vdbg_env.common.errors import EngineFailed, HostNotAble
from vdbg_env.supervisor.processes.signals import send_to_group

_PIECE = 1 << 16
_MOST_OF_ERROR = 12


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A program that ended: its exit status, the last lines that it printed, and CMake's first error of them all."""

    code: int
    tail: tuple[str, ...]
    error: tuple[str, ...] = ()


class _Printed:
    """What is kept of a program's output: its end, and the first error of CMake, which is a line and indented ones."""

    def __init__(self) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.error: list[str] = []
        self._within = False

    def add(self, line: str) -> None:
        self.tail.append(line)
        starts = not self.error and line.startswith("CMake Error")
        self._within = starts or (self._within and (not line.strip() or line.startswith((" ", "\t"))))
        if self._within and line.strip() and len(self.error) < _MOST_OF_ERROR:
            self.error.append(line)


class Programs:
    """Runs programs, each in a session that ends with it; `stop` ends those that run, from any thread."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, argv: Sequence[str], *, key: str, env: Mapping[str, str], cwd: Path | None = None) -> Ran:
        """Run a program; raises HostNotAble when it cannot be started."""
        with self._lock:
            if self._stopped:
                return Ran(code=-signal.SIGTERM, tail=())
            try:
                process = subprocess.Popen(
                    argv, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise HostNotAble(f"{argv[0]} cannot be started: {error.strerror or error}") from error
            self._running.add(process)
        printed = _Printed()
        try:
            self._read(process, key, printed)
            code = process.wait()
        finally:
            self._end(process)
        return Ran(code=code, tail=tuple(printed.tail), error=tuple(printed.error))

    def require(self, argv: Sequence[str], *, key: str, env: Mapping[str, str], what: str, next_step: str) -> None:
        """Run a program that must end well; raises EngineFailed with its last lines when it does not.

        CMake continues after an error: its first one is in the sentence, and all of it above the last lines.
        """
        ran = self.run(argv, key=key, env=env)
        if ran.code != 0:
            said = f": {' '.join(' '.join(ran.error).split())}" if ran.error else ""
            earlier = () if set(ran.error) <= set(ran.tail) else (*ran.error, "...")
            raise EngineFailed(
                f"{what} failed with exit status {ran.code}{said}",
                details=tuple(f"| {line}" for line in (*earlier, *ran.tail)),
                next_step=next_step,
            )

    def stop(self) -> None:
        """End what runs, and start nothing more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                send_to_group(process.pid, signal.SIGKILL)

    def _read(self, process: subprocess.Popen[bytes], key: str, printed: _Printed) -> None:
        assert process.stdout is not None
        splitter = LineSplitter()
        while data := process.stdout.read1(_PIECE):  # type: ignore[attr-defined]
            self._report(splitter.feed(data), key, printed)
        self._report(splitter.rest(), key, printed)

    def _report(self, lines: Iterable[str], key: str, printed: _Printed) -> None:
        for line in lines:
            printed.add(line)
            self._tell(OutputLine(key=key, text=line, stream="stdout"))

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(process)
        send_to_group(process.pid, signal.SIGKILL)  # what it left running in its session
        process.wait()
        if process.stdout:
            process.stdout.close()
