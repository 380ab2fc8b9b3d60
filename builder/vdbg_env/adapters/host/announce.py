"""Say that a guarded command has failed: a file, a program.

Each is given a time, and none can keep the guard longer: its command is to be started again.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

_HOOK_S = 60.0
_SHELL = "/bin/sh"
_MOST_SAID = 4096  # bytes of what a hook says


class LocalAnnouncer:
    """An Announcer of this machine; a hook has `hook_s` seconds."""

    def __init__(self, *, hook_s: float = _HOOK_S) -> None:
        self._hook_s = hook_s

    def write(self, path: Path, text: str) -> str | None:
        """Write a text to a file, made where it is not there; Kubernetes reads its own as a whole."""
        try:
            # A workload may have put a pipe in its place, which would be waited for.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            return f"{path} could not be written: {error.strerror}"
        return None

    def run(self, line: str, text: str) -> str | None:
        """Run a line of the shell with the text on its standard input; what it leaves behind is not waited for."""
        # Not a file on disk: a container may have none that it can write.
        with os.fdopen(os.memfd_create("what a hook says"), "w+b") as said:
            try:
                process = subprocess.Popen(
                    [_SHELL, "-c", line],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    start_new_session=True,
                )
                try:
                    process.communicate(text.encode() + b"\n", timeout=self._hook_s)
                except BaseException:  # its time is over, or ours
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    raise
            except subprocess.TimeoutExpired:
                return f"the hook `{line}` was ended: it took more than {self._hook_s:g} s"
            except OSError as error:
                return f"the hook `{line}` failed: {error}"
            said.seek(0)
            last = said.read(_MOST_SAID).decode("utf-8", "replace").strip().rpartition("\n")[2]
        return f"the hook `{line}` ended with {process.returncode}: {last}" if process.returncode else None
