"""The kernel holds the server to its folders, whatever its readers open."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders.core_builder import hang_core, illegal_address_core
from tests.support.agent import served, started_agent

CONFINED = """
import json, os, subprocess, sys, tempfile, threading
from pathlib import Path
from vdbg_env.agents.confine import confine
inside, outside, scratch = map(Path, sys.argv[1:])
held = confine([inside], scratch)
tries = {
    "read": (inside / "a").read_text, "list": lambda: os.listdir(inside), "maps": Path("/proc/self/maps").read_text,
    "import": lambda: __import__("sqlite3"), "scratch": lambda: tempfile.TemporaryFile(dir=scratch).write(b"x"),
    "name": lambda: os.path.realpath(outside / "a"),
    "read outside": (outside / "a").read_text, "list outside": lambda: os.listdir(outside),
    "by a link": (inside / "link").read_text,
    "by a descriptor": lambda: os.open("a", os.O_RDONLY, dir_fd=os.open(outside, os.O_PATH)),
    "by /proc": Path(f"/proc/self/root{outside}/a").read_text, "environment": Path("/proc/self/environ").read_bytes,
    "write": lambda: (inside / "a").write_text("y"), "make": (inside / "b").touch, "remove": (inside / "a").unlink,
    "write outside": lambda: (outside / "b").write_text("y"), "run": lambda: subprocess.run(["/bin/true"], check=True),
    "remove outside": (outside / "a").unlink,
}
found = {}
def attempt():
    for name, trial in tries.items():
        try:
            trial()
            found[name] = True
        except PermissionError:
            found[name] = False
thread = threading.Thread(target=attempt)
thread.start()
thread.join()
print(json.dumps([held, found]))
"""


@pytest.fixture(scope="module")
def landlock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    """Return what a confined thread could do; skips where this kernel has no Landlock."""
    folders = [tmp_path_factory.mktemp(name) for name in ("inside", "outside", "scratch")]
    for folder in folders[:2]:
        (folder / "a").write_text("x")
    (folders[0] / "link").symlink_to(folders[1] / "a")
    argv = [sys.executable, "-c", CONFINED, *map(str, folders)]
    held, found = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, timeout=60, check=True).stdout)
    if not held:
        pytest.skip("this kernel has no Landlock")
    return dict(found)


def test_a_confined_process_reads_its_folders_and_nothing_else(landlock: dict[str, bool]) -> None:
    allowed = {"read", "list", "maps", "import", "scratch", "name"}
    assert landlock == {name: name in allowed for name in landlock} and len(landlock) == 18


def log(text: str) -> bytes:
    return f"RuntimeError: CUDA error: an illegal memory access was encountered in {text}\n".encode()


RACES: dict[str, tuple[str, bytes, bytes, str, dict[str, Any]]] = {
    "log": ("a.log", log("PLAIN"), log("SECRET"), "triage", {"logs": ["a.log"]}),
    "packed log": ("a.gz", gzip.compress(log("PLAIN")), gzip.compress(log("SECRET")), "triage", {"logs": ["a.gz"]}),
    "core": (
        "a.nvcudmp", illegal_address_core(branch="r590", generator="PLAIN"),
        illegal_address_core(branch="r590", generator="SECRET"), "open_core", {"path": "a.nvcudmp", "detail": True},
    ),
    "packed core": (
        "a.nvcudmp.gz", gzip.compress(hang_core(generator="PLAIN"), 1), gzip.compress(hang_core(generator="SECRET"), 1),
        "open_core", {"path": "a.nvcudmp.gz", "detail": True},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("landlock")
@pytest.mark.parametrize("race", RACES)
def test_a_link_that_takes_the_place_of_a_file_shows_nothing(tmp_path: Path, race: str) -> None:
    name, plain, secret, tool, arguments = RACES[race]
    inside = tmp_path / "in"
    inside.mkdir()
    (tmp_path / name).write_bytes(secret)

    def swap() -> None:
        while not over.is_set():
            (inside / "plain").write_bytes(plain)
            (inside / "plain").replace(inside / name)
            (inside / "link").symlink_to(tmp_path / name)
            (inside / "link").replace(inside / name)

    over, swapping = threading.Event(), threading.Thread(target=swap)
    with started_agent(inside) as ask:
        swapping.start()
        try:
            told = [ask(tool, **arguments).text for _ in range(30)]
        finally:
            over.set()
            swapping.join()
    assert not any("SECRET" in text for text in told)
    assert any("PLAIN" in text for text in told)


@pytest.mark.parametrize("end", ["closed", "SIGTERM"])
def test_the_server_leaves_nothing_in_the_temporary_folder(tmp_path: Path, end: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "in" / "a.nvcudmp.gz").write_bytes(gzip.compress(illegal_address_core()))
    parameters = served(tmp_path / "in")
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    asked: list[dict[str, Any]] = [
        {**call, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
        }},
        {**call, "params": {"name": "faults", "arguments": {"path": "a.nvcudmp.gz"}}},
    ]  # fmt: skip
    with subprocess.Popen(
        [parameters.command, *parameters.args], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={"TMPDIR": str(tmp_path / "tmp"), "PATH": "/usr/bin:/bin"},
    ) as server:  # fmt: skip
        assert server.stdin and server.stdout
        for one in asked:
            server.stdin.write(json.dumps(one).encode() + b"\n")
            server.stdin.flush()
            answer = server.stdout.readline()
        assert b"Warp Illegal Address" in answer
        finish: Callable[[], None] = server.stdin.close if end == "closed" else server.terminate
        finish()
        assert server.wait(30) == (0 if end == "closed" else 128 + signal.SIGTERM)
    assert not list((tmp_path / "tmp").iterdir())
