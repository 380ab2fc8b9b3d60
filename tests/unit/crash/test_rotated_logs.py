"""Logs that their writer or logrotate changes while they are read."""

from __future__ import annotations

import base64
import gzip
import os
from pathlib import Path

import pytest

from vdbg_env.crash.triage import CHUNK, open_logs


def read(path: Path) -> bytes:
    return b"".join(b"".join(log.chunks) for log in open_logs([str(path)]))


def test_a_log_that_grows_as_fast_as_it_is_read_has_an_end(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"x" * (2 * CHUNK))
    seen = 0
    for one in open_logs([str(log)]):
        for chunk in one.chunks:
            seen += len(chunk)
            assert seen <= 2 * CHUNK
            with log.open("ab") as more:
                more.write(b"y" * CHUNK)
    assert seen == 2 * CHUNK


def test_the_hole_that_copytruncate_leaves_is_not_read(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with log.open("wb") as writer:
        writer.write(b"before\n")
        writer.flush()
        os.truncate(log, 0)  # as logrotate does with copytruncate; the writer keeps its place
        writer.seek(64 << 30)
        writer.write(b"after\n")
    assert read(log).strip(b"\0") == b"after\n"
    assert len(read(log)) < 4 * CHUNK


def test_a_log_that_is_cut_while_it_is_read_gives_what_was_read(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"x" * (4 * CHUNK))
    seen = b""
    for one in open_logs([str(log)]):
        for chunk in one.chunks:
            seen += chunk
            os.truncate(log, 0)
    assert seen == b"x" * CHUNK


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_log_that_is_renamed_while_it_is_read_is_read_to_its_end(tmp_path: Path, packed: bool) -> None:
    log = tmp_path / "server.log"
    text = base64.encodebytes(os.urandom(3 * CHUNK))
    log.write_bytes(gzip.compress(text) if packed else text)
    seen = b""
    for one in open_logs([str(log)]):
        for chunk in one.chunks:
            seen += chunk
            if log.exists():
                log.rename(tmp_path / "server.log.1")
                log.write_bytes(b"of the next day\n")
            elif len(seen) > CHUNK:
                log.touch()
    assert seen == text


def test_a_file_of_the_kernel_and_a_pipe_are_read_to_their_end(tmp_path: Path) -> None:
    assert b"processor" in read(Path("/proc/cpuinfo"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if os.fork() == 0:
        pipe.write_bytes(b"through a pipe\n")
        os._exit(0)
    assert read(pipe) == b"through a pipe\n"
    os.wait()
