"""Guard announces a crash before it asks a server of line packs, whatever that server does."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import vdbg_env as package
from tests.builders.core_builder import illegal_address_core
from tests.support.line_packs import pack_of
from tests.support.patience import patience
from tests.unit.cli.runbook.test_guards_at_once import CRASH
from tests.unit.lines.test_deadlines import HEAD, drip, serving
from vdbg_env_lines.client import LIMIT
from vdbg_env_lines.stores import CarriedPack, PublishedFolder


def guard(tmp_path: Path, address: str) -> tuple[dict[str, object], list[str], float, float]:
    """Guard a crash; return the announcement, what followed it, and after how many seconds each of both came."""
    (tmp_path / "core").write_bytes(illegal_address_core(lines=False))
    env = os.environ | {
        "PYTHONPATH": str(Path(package.__file__).parents[1]), "VDBG_LINES": address, LIMIT: "2",
        "XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_DATA_HOME": str(tmp_path / "data"), "no_proxy": "127.0.0.1",
    }  # fmt: skip
    words = ["guard", "--runs", str(tmp_path / "runs"), "--", sys.executable, "-c", CRASH, str(tmp_path / "core")]
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "vdbg_env", *words], env=env, stderr=subprocess.PIPE, text=True
    ) as ran:
        try:
            assert ran.stderr
            first = next(line for line in ran.stderr if line.startswith("{"))
            announced = time.monotonic() - began
            rest = ran.stderr.read().splitlines()
            assert ran.wait(patience(20)) == 1
            return json.loads(first), rest, announced, time.monotonic() - began
        finally:
            ran.kill()


@contextmanager
def published(folder: Path) -> Iterator[str]:
    data = pack_of("inline_chain_sm90")
    digest = hashlib.sha256(data).hexdigest()
    PublishedFolder(folder).put([CarriedPack(digest=digest, functions=1, builds="sample 1.0", data=data)])

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_that_drips_does_not_hold_the_announcement(tmp_path: Path) -> None:
    with serving(drip(HEAD + b"X: ", b"y")) as host:
        said, rest, announced, ended = guard(tmp_path, f"http://{host}")
    assert str(said["found"]).startswith("Warp Illegal Address at kern")
    assert ended - announced < patience(6.0)
    assert any("all requests there together took longer than 2 s" in line for line in rest), rest
    assert "took longer than 2 s" in Path(str(said["report"])).read_text()


def test_lines_of_a_server_are_told_after_the_announcement(tmp_path: Path) -> None:
    with published(tmp_path / "www") as address:
        said, rest, _, _ = guard(tmp_path, address)
    assert said["location"] is None
    (line,) = [line for line in rest if "from a line pack" in line]
    assert "inline_chain.cu" in line
    assert "inline_chain.cu" in Path(str(said["report"])).read_text()


def test_lines_of_a_folder_here_are_in_the_announcement(tmp_path: Path) -> None:
    (tmp_path / "sample.lines").write_bytes(pack_of("inline_chain_sm90"))
    said, rest, _, _ = guard(tmp_path, f"{tmp_path}/sample.lines http://127.0.0.1:1")
    assert str(said["location"]).startswith("inline_chain.cu") or "inline_chain.cu" in str(said["found"])
    assert not [line for line in rest if "line pack" in line]
