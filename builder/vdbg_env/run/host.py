"""This machine: its name, its user's key for pseudonyms, what a debugger may do, what a build may use."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from platformdirs import user_state_path

from vdbg_env.common.errors import HostNotAble
from vdbg_env.evidence.finding import Ended
from vdbg_env.supervisor import sockets

_CAP_SYS_PTRACE = 19
_LOWEST_PORT, _TRIES = 10_000, 64


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


# This machine, as a run needs to know it, and the one command that this process may guard on it.


@dataclass(frozen=True, kw_only=True)
class Room:
    """The volume that cores go to: its folder, the bytes free for them, and the memory of a GPU, 0 without one."""

    folder: str
    free: int
    gpu_memory: int = 0


class ThisHost(Protocol):
    """This machine and its user."""

    def name(self) -> str:
        """Return the host name."""
        ...

    def token(self) -> str:
        """Return four random hexadecimal digits, for names that must differ."""
        ...

    def pseudonym_key(self) -> bytes:
        """Return the user's key for pseudonyms, made at first use; it is never kept next to a run."""
        ...

    def may_trace(self) -> bool | None:
        """Say whether a debugger may attach to a process that is not its child; None where that is unknown."""
        ...

    def folder(self, path: Path) -> Path:
        """Make a folder if there is none, and return its real path; raises HostNotAble."""
        ...

    def free_port(self) -> int:
        """Return a port that no process has, and that the kernel gives to none by itself."""
        ...

    def listener(self, url: str) -> str | None:
        """Return who listens where a URL leads to, in words, or None."""
        ...


class GuardedCommand(AbstractContextManager["GuardedCommand"], Protocol):
    """The one command that this process guards; entered, it takes the signals of this process until the last exit."""

    @property
    def own_variables(self) -> Mapping[str, str]:
        """What each step's processes are marked with, whatever the runbook sets."""
        ...

    @property
    def started(self) -> bool:
        """Whether it may run: it must not be started once more."""
        ...

    def wait(self) -> Ended:
        """Wait for its end, whatever has become of its record."""
        ...

    def told_to_stop(self) -> bool:
        """Return whether a signal came after its end, which asks this program to end."""
        ...

    def unfinished_line(self) -> bool:
        """Return whether what it wrote to standard error ends within a line."""
        ...

    def become(self, argv: Sequence[str]) -> NoReturn:
        """Run it in place of this process; raises HostNotAble where it cannot be started."""
        ...


class Announcer(Protocol):
    """Says that something has failed; each verb returns what went wrong with that, in words, or None."""

    def write(self, path: Path, text: str) -> str | None:
        """Write a text to a file, made where it is not there."""
        ...

    def run(self, line: str, text: str) -> str | None:
        """Run a line of the shell with the text on its standard input, for a limited time."""
        ...
