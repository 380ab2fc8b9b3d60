"""Say that a guarded command has failed: a file, a program, an address.

Each is given a time, and none can keep the guard longer: its command is to be started again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_HOOK_S, _POST_S = 60.0, 10.0
_MOST_SAID = 4096  # bytes of what a hook says


class LocalAnnouncer:
    """An Announcer of this machine; a hook has `hook_s` seconds, a webhook `post_s`."""

    def __init__(self, *, hook_s: float = _HOOK_S, post_s: float = _POST_S) -> None:
        self._hook_s = hook_s
        self._post_s = post_s

    def write(self, path: Path, text: str) -> str | None:
        """Write a text to a file that is there: Kubernetes makes /dev/termination-log, and reads it as a whole."""
        try:
            # A workload may have put a pipe in its place, which would be waited for.
            descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            return f"{path} could not be written: {error.strerror}"
        return None

    def run(self, command: Sequence[str], text: str) -> str | None:
        """Run a program with the text on its standard input; what it leaves in the background is not waited for."""
        # Not a file on disk: a container may have none that it can write.
        with os.fdopen(os.memfd_create("what a hook says"), "w+b") as said:
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
                )
                try:
                    process.communicate(text.encode() + b"\n", timeout=self._hook_s)
                except BaseException:  # its time is over, or ours
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    raise
            except subprocess.TimeoutExpired:
                return f"the hook {command[0]} was ended: it took more than {self._hook_s:g} s"
            except OSError as error:
                return f"the hook {command[0]} failed: {error}"
            said.seek(0)
            last = said.read(_MOST_SAID).decode("utf-8", "replace").strip().rpartition("\n")[2]
        return f"the hook {command[0]} ended with {process.returncode}: {last}" if process.returncode else None

    def post(self, url: str, text: str) -> str | None:
        """Send a text to an address, as JSON, within the time; a redirection is not followed."""
        if not url.lower().startswith(("http://", "https://")):
            return "the webhook could not be reached: it is not an http or https address"
        problems: list[str | None] = ["no answer in time"]
        # The library's limit is for each piece of an answer: a server that dribbles would keep it for hours.
        thread = threading.Thread(target=lambda: problems.append(_posted(url, text, self._post_s)), daemon=True)
        thread.start()
        thread.join(self._post_s)
        problem = problems[-1]
        return f"the webhook could not be reached: {problem}" if problem else None


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def _posted(url: str, text: str, limit_s: float) -> str | None:
    """Return what went wrong, or None."""
    try:
        request = urllib.request.Request(
            url, data=text.encode(), headers={"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.build_opener(_NoRedirection).open(request, timeout=limit_s):
            return None
    except Exception as error:  # of an address as of a server: none of these is the command's
        return str(getattr(error, "reason", None) or error)
