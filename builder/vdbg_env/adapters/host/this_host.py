"""This machine: its name, its user's key for pseudonyms, what a debugger may do, what a build may use."""

from __future__ import annotations

import os
import re
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_state_path

from vdbg_env.common.errors import HostNotAble
from vdbg_env.supervisor.processes import sockets

if TYPE_CHECKING:
    from vdbg_env.image.plan import Machine

_CAP_SYS_PTRACE = 19
_LOWEST_PORT, _TRIES = 10_000, 64


def build_machine() -> Machine:
    """Return what a build may use: the cores of this process, and the memory that is free."""
    import psutil

    from vdbg_env.image.plan import Machine

    return Machine(cores=len(os.sched_getaffinity(0)), free_memory=psutil.virtual_memory().available)


class LocalMachine:
    """A ThisHost that asks Linux."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def name(self) -> str:
        """Return the host name."""
        return socket.gethostname()

    def token(self) -> str:
        """Return four random hexadecimal digits."""
        return secrets.token_hex(2)

    def pseudonym_key(self) -> bytes:
        """Return this user's key, made at first use; next to a run it would undo its purpose."""
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
        """Say whether a debugger may attach; see `ThisHost.may_trace`."""
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
        """Return a port that no process has now; see `ThisHost.free_port`."""
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
        """Return who listens there; see `ThisHost.listener`."""
        return sockets.taken(url)
