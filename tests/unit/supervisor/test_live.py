"""Output is passed on unchanged, and its reader is never waited for."""

import os
import socket
from pathlib import Path

import pytest

from vdbg_env.supervisor.streams import Live

DATA = os.urandom(1 << 20)


def taken_from(descriptor: int, count: int) -> bytes:
    """Read `count` bytes."""
    found = b""
    while len(found) < count:
        found += os.read(descriptor, count - len(found))
    return found


def test_a_pipe_that_is_full_keeps_the_rest_and_its_other_holders_block_as_before() -> None:
    read, write = os.pipe()
    live = Live(write)
    live.write(DATA)
    assert live.waits
    assert os.get_blocking(write)
    found = b""
    while live.waits:
        found += os.read(read, 1 << 16)
        live.flush()
    os.set_blocking(read, False)
    while len(found) < len(DATA):
        found += os.read(read, 1 << 16)
    assert found == DATA
    os.close(read)
    live.write(b"more")
    assert live.broken and not live.waits
    live.close()
    os.close(write)


def test_a_socket_that_is_full_keeps_the_rest() -> None:
    ours, theirs = socket.socketpair()
    live = Live(ours.fileno())
    live.write(DATA)
    assert live.waits
    found = b""
    while live.waits:
        found += theirs.recv(1 << 16)
        live.flush()
    found += taken_from(theirs.fileno(), len(DATA) - len(found))
    assert found == DATA
    live.close()
    ours.close()
    theirs.close()


def test_a_file_is_written_where_its_other_holders_are(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb", buffering=0) as file:
        file.write(b"before ")
        live = Live(file.fileno())
        live.write(b"ours ")
        file.write(b"after")
    assert (tmp_path / "log").read_bytes() == b"before ours after"


def test_a_full_disk_below_a_redirection_loses_output_and_nothing_else() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    live = Live(full)
    live.write(b"lost")
    assert not live.waits and not live.broken
    assert live.lost == "No space left on device"
    os.close(full)


@pytest.mark.parametrize("data", [b"", b"x"])
def test_little_is_passed_on_at_once(data: bytes) -> None:
    read, write = os.pipe()
    live = Live(write)
    live.write(data)
    assert not live.waits
    live.close()
    os.close(write)
    assert os.read(read, 10) == data if data else True
    os.close(read)
