"""This machine: its name, its user's key for pseudonyms, what a debugger may do, what a build may use."""

from __future__ import annotations

import os
import re
import secrets
import socket
from pathlib import Path

from platformdirs import user_state_path

from vdbg_env.common.errors import HostNotAble
from vdbg_env.supervisor import sockets

_CAP_SYS_PTRACE = 19
_LOWEST_PORT, _TRIES = 10_000, 64


class ThisHost:
    """This machine and its user, as Linux knows them; `proc` is where its /proc is."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def name(self) -> str:
        """Return the host name."""
        return socket.gethostname()

    def token(self) -> str:
        """Return four random hexadecimal digits, for names that must differ."""
        return secrets.token_hex(2)

    def pseudonym_key(self) -> bytes:
        """Return this user's key for pseudonyms, made at first use; next to a run it would undo its purpose."""
        path = user_state_path("vdbg-env", appauthor=False) / "pseudonym.key"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return path.read_bytes()
        with os.fdopen(descriptor, "wb") as file:
            key = secrets.token_bytes(32)
            file.write(key)
        return key

    def may_trace(self) -> bool | None:
        """Say whether a debugger may attach to a process that is not its child; None where that is unknown."""
        try:
            status = (self._proc / "self" / "status").read_text()
        except OSError:
            return None
        effective = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
        if effective and int(effective[1], 16) >> _CAP_SYS_PTRACE & 1:
            return True
        try:
            return (self._proc / "sys" / "kernel" / "yama" / "ptrace_scope").read_text().strip() == "0"
        except OSError:
            return None

    def folder(self, path: Path) -> Path:
        """Make a folder if there is none, and return its real path; raises HostNotAble."""
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HostNotAble(
                f"{path.absolute()} cannot be made: {error.strerror}",
                cause="the folder is read-only, full, or belongs to another user",
                next_step="cd to another folder, or name one for runs: export VDBG_ENV_RUNS=DIR",
            ) from error
        return path.resolve()

    def free_port(self) -> int:
        """Return a port that no process has, and that the kernel gives to none by itself; raises HostNotAble."""
        try:
            first = int((self._proc / "sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        except (OSError, ValueError):
            first = 32768
        for _ in range(_TRIES):
            port = _LOWEST_PORT + secrets.randbelow(max(1, first - _LOWEST_PORT))
            with socket.socket() as probe:
                try:
                    probe.bind(("", port))
                except OSError:
                    continue
                return port
        raise HostNotAble("no free port was found", next_step="name one: -i port=PORT")

    def listener(self, url: str) -> str | None:
        """Return who listens where a URL leads to, in words, or None."""
        return sockets.taken(url)
