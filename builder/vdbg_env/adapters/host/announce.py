"""Say that a guarded command has failed: a file, a program, an address."""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

_HOOK_S, _POST_S = 60.0, 10.0


class LocalAnnouncer:
    """An Announcer of this machine."""

    def write(self, path: Path, text: str) -> str | None:
        """Write a text to a file that is there: Kubernetes makes /dev/termination-log, and reads it as a whole."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            return f"{path} could not be written: {error.strerror}"
        return None

    def run(self, command: Sequence[str], text: str) -> str | None:
        """Run a program with the text on its standard input, for a minute at most."""
        try:
            done = subprocess.run(
                command, input=text.encode() + b"\n", capture_output=True, timeout=_HOOK_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"the hook {command[0]} failed: {error}"
        said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return f"the hook {command[0]} ended with {done.returncode}: {said}" if done.returncode else None

    def post(self, url: str, text: str) -> str | None:
        """Send a text to an address, as JSON, within ten seconds."""
        request = urllib.request.Request(
            url, data=text.encode(), headers={"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=_POST_S):
                return None
        except (OSError, ValueError, urllib.error.URLError) as error:
            return f"the webhook could not be reached: {getattr(error, 'reason', error)}"
