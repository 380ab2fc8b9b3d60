"""Whose is a TCP connection: prove that the process at its other end is one of a step's own.

A port and an answer prove nothing: another server may listen there, share the port (SO_REUSEPORT, which vLLM sets) or
take it while a step runs. What proves it is the socket itself: /proc/net/tcp gives its inode, and the inode is open in
a process of the step. A connection that no process has accepted yet has no inode. It waits in the queue of a listener,
and a queue dies with its listener: so it belongs to the step where every listener that may have it does.
"""

from __future__ import annotations

import os
import pwd
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from vdbg_env.record.redactor import Redactor
from vdbg_env.supervisor.proc import Process, below, open_files, process, processes

_ACCEPT_S = 15.0  # for a server's process to take a connection that may be another's until then
_AGAIN_S = 0.05
_SETTLED_S = 2.0  # a table that is read while it changes may lack a row, and a descriptor appears after its socket
_ESTABLISHED, _SYN_RECEIVED, _CLOSE_WAIT, _LISTENING = 0x01, 0x03, 0x08, 0x0A  # include/net/tcp_states.h
_TAKEN = {_ESTABLISHED, _SYN_RECEIVED, _CLOSE_WAIT}  # the second: a listener whose queue is full has not taken it yet
_ANY = (bytes(4), bytes(16))
_MAPPED = bytes(10) + b"\xff\xff"
_WORDS_SHOWN = 200  # characters of a command line

Address = tuple[bytes, int]
"""The bytes of an IP address, four for IPv4 and for IPv4 inside IPv6, and a port."""


class NotOurs(Exception):
    """No proof that a process of the step is at the other end; the text says why."""


class Row(NamedTuple):
    """A socket as the kernel lists it; `inode` is 0 for a connection that no process has accepted yet."""

    local: Address
    remote: Address
    state: int
    user: int
    inode: int


class Sockets:
    """The sockets of the processes below `root`, and of `root`: those of a step, where that is its supervisor."""

    def __init__(self, root: int) -> None:
        self._root = root
        # By pid and start time. Who was once below the supervisor stays there: it is the parent of every orphan.
        self._holders: dict[int, int] = {}
        self._looked_at: set[int] = set()  # listening sockets that no process outside has

    def check_listener(self, target: Address) -> bool:
        """Return whether a process of the step listens at `target`; raises NotOurs where another one does.

        False means that none listens there, as far as can be seen from here.
        """
        for tables in self._tables(target):
            found = listeners(tables, target)
            own = [row for row in found if self._is_held(row.inode)]
            shared = {row.local for row in own}
            foreign = [row for row in found if row not in own and (not own or row.local in shared)]
            if foreign:
                also = " too, and may get what is sent there" if own else self._unread()
                raise NotOurs(f"{owner(foreign[0])} listens on port {target[1]}{also}")
            if own:
                self._check_not_shared(own)
                return True
        if not _is_local(target) and not any(self._other_namespaces()):
            raise NotOurs(f"{text_of(target)} is no address of this machine")
        return False

    def check_connection(self, connection: socket.socket) -> None:
        """Return once it is proven that the other end is a process of the step; raises NotOurs where it is not."""
        mine, theirs = _of_name(connection.getsockname()), _of_name(connection.getpeername())
        began = time.monotonic()
        while True:
            row, queue = self._other_end(mine, theirs)
            if row and row.inode and self._is_held(row.inode):
                return
            if row and not row.inode and queue and all(self._is_held(one.inode) for one in queue):
                return
            passed = time.monotonic() - began
            if row and row.inode and passed > _SETTLED_S:
                raise NotOurs(f"{owner(row)} accepts connections on port {theirs[1]}{self._unread()}")
            if row is None and passed > _SETTLED_S:
                raise NotOurs(f"the server at {text_of(theirs)} is no process of the step on this machine")
            if passed > _ACCEPT_S:
                raise NotOurs(f"another process may accept connections on port {theirs[1]}: none of the step's did")
            time.sleep(_AGAIN_S)

    def _tree(self) -> list[Process]:
        found = processes()
        return [*(one for one in found if one.pid == self._root), *below((self._root,), found)]

    def _other_end(self, mine: Address, theirs: Address) -> tuple[Row | None, list[Row]]:
        """Return the row of the connection's other end, and the listeners that were there before it was read."""
        for tables in self._tables(theirs):
            for table in tables:  # the kernel lists those that listen before all others
                for row in table:
                    if row.local == theirs and row.remote == mine and row.state in _TAKEN:
                        return row, listeners([table], theirs)
        return None, []

    def _tables(self, target: Address) -> Iterator[list[list[Row]]]:
        """Yield the sockets of this process's network namespace, then of the others that the step's processes are in.

        A loopback address is this namespace's own.
        """
        yield tables_of("self")
        if not _is_loopback(target):
            yield from map(tables_of, self._other_namespaces())

    def _other_namespaces(self) -> Iterator[str]:
        """Yield one process of the step for each network namespace that this process is not in."""
        seen = {_namespace("self"), ""}
        for one in self._tree():
            space = _namespace(str(one.pid))
            if space not in seen:
                seen.add(space)
                yield str(one.pid)

    def _is_held(self, inode: int) -> bool:
        for pid, start in self._holders.items():
            one = process(pid)
            if one and one.start == start and inode in inodes(pid):
                return True
        for one in self._tree():
            if inode in inodes(one.pid):
                self._holders = {**self._holders, one.pid: one.start}
                return True
        return False

    def _check_not_shared(self, rows: Iterable[Row]) -> None:
        """Raise NotOurs where a process outside has the same listening socket: it was inherited, or handed over."""
        new = {row.inode for row in rows} - self._looked_at
        if not new:
            return
        own = {one.pid for one in self._tree()}
        for one in processes():
            if one.pid not in own and new & inodes(one.pid):
                raise NotOurs(f"{_described(one.pid)} has the server's listening socket too")
        self._looked_at |= new

    def _unread(self) -> str:
        """Return which processes of the step could not be looked into, as the end of a sentence."""
        closed = [one for one in self._tree() if not os.access(f"/proc/{one.pid}/fd", os.R_OK)]
        return f"; the sockets of {closed[0].name} ({closed[0].pid}) may not be read" if closed else ""


def connected(host: str, port: int, timeout_s: float, sockets: Sockets) -> socket.socket:
    """Connect to a server and prove that it is the step's; raises NotOurs, or OSError where none listens yet."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for name in dict.fromkeys(name[:2] for *_, name in found):
        if not sockets.check_listener(_of_name(name)):
            continue
        connection = socket.create_connection((str(name[0]), port), timeout_s)
        try:
            sockets.check_connection(connection)
        except BaseException:
            connection.close()
            raise
        return connection
    raise ConnectionRefusedError(f"no process of the step listens at {host}:{port}")


def taken(url: str) -> str | None:
    """Return who listens already where a server is to listen, in words, or None; no name is looked up for it."""
    parts = urlsplit(url)
    host, port = parts.hostname or "localhost", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        numeric = 0 if host == "localhost" else socket.AI_NUMERICHOST
        names = [name[:2] for *_, name in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=numeric)]
    except OSError:
        names = [("0.0.0.0", port)]
    found = [row for name in names for row in listeners(tables_of("self"), _of_name(name))]
    return f"port {port} is taken: {owner(found[0])} listens there" if found else None


def text_of(address: Address) -> str:
    """Return an address as it is written."""
    packed, port = address
    if len(packed) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, packed)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{port}"


def tables_of(pid: str) -> list[list[Row]]:
    """Return the sockets of a process's network namespace, IPv4's and IPv6's (proc(5), /proc/[pid]/net/tcp)."""
    return [_table(f"/proc/{pid}/net/{name}") for name in ("tcp", "tcp6")]


def listeners(tables: Iterable[list[Row]], target: Address) -> list[Row]:
    """Return the listening sockets that a connection to `target` may reach."""
    packed, port = target
    return [
        row
        for table in tables
        for row in table
        if row.state == _LISTENING and row.local[1] == port and row.local[0] in {packed, *_ANY}
    ]


def owner(row: Row) -> str:
    """Return who has a socket, in words: the process with its command line, or else its user."""
    for one in processes():
        if row.inode in inodes(one.pid):
            return _described(one.pid)
    try:
        user = pwd.getpwuid(row.user).pw_name
    except KeyError:
        user = str(row.user)
    return f"a process of user {user} that cannot be looked into from here"


def inodes(pid: int) -> set[int]:
    """Return the inodes of the sockets that a process has open; none where they may not be read."""
    try:
        found = open_files(pid).values()
    except OSError:
        return set()
    return {int(name[8:-1]) for name in found if name.startswith("socket:[")}


def _described(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            words = [os.fsdecode(word) for word in file.read().rstrip(b"\0").split(b"\0")]
    except OSError:
        words = []
    shown = " ".join(Redactor().argv(words)).strip()
    return f"process {pid} ({shown[:_WORDS_SHOWN]})" if shown else f"process {pid}"


def _is_loopback(target: Address) -> bool:
    return target[0][:1] == b"\x7f" if len(target[0]) == 4 else target[0] == bytes(15) + b"\1"


def _is_local(target: Address) -> bool:
    """Whether an address is one of this network namespace."""
    packed, family = target[0], socket.AF_INET if len(target[0]) == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((socket.inet_ntop(family, packed), 0))
    except OSError:
        return False
    return True


def _namespace(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")  # noqa: PTH115
    except OSError:
        return ""


def _table(path: str) -> list[Row]:
    try:
        with open(path) as file:  # noqa: PTH123
            lines = file.read().splitlines()[1:]
    except OSError:
        return []  # no IPv6, or a process that is gone
    return [_row(line.split()) for line in lines]


def _row(fields: list[str]) -> Row:
    return Row(_address(fields[1]), _address(fields[2]), int(fields[3], 16), int(fields[7]), int(fields[9]))


def _address(text: str) -> Address:
    """Return an address of the kernel's table, whose words of four bytes are in this machine's order."""
    packed, port = text.split(":")
    data = bytes.fromhex(packed)
    if sys.byteorder == "little":
        data = b"".join(data[at : at + 4][::-1] for at in range(0, len(data), 4))
    return _plain(data), int(port, 16)


def _of_name(name: Sequence[str | int | bytes]) -> Address:
    """Return an address as `getsockname` and `getaddrinfo` give it."""
    host, port = str(name[0]).partition("%")[0], int(name[1])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return _plain(socket.inet_pton(family, host)), port


def _plain(packed: bytes) -> bytes:
    return packed[12:] if len(packed) == 16 and packed.startswith(_MAPPED) else packed
