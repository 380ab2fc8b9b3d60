"""Packs behind a real HTTP server, and in folders: fetched by key, checked, cached within a bound; damage is typed."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.builders.core_builder import illegal_address_core
from tests.support.command_line import Ran, vdbg_env
from tests.support.line_packs import pack_of
from vdbg_env.crash import line_packs

ONE, OTHER = pack_of("inline_chain_sm90"), pack_of("shared_leaf_sm90")


class Server:
    """Hands out a folder; `spoil` gives another answer in the place of some."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        self.spoil: dict[str, tuple[int, bytes, int | None]] = {}  # part of a path: status, body, claimed length
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                spoilt = next((v for part, v in outer.spoil.items() if part in self.path), None)
                path = folder / self.path.lstrip("/")
                status, body, length = spoilt or (
                    (200, path.read_bytes(), None) if path.is_file() else (404, b"none", None)
                )
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) if length is None else length))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    Path("one.lines").write_bytes(ONE)
    Path("other.lines").write_bytes(OTHER)
    Path("stock.nvcudmp").write_bytes(illegal_address_core(lines=False))
    assert vdbg_env("lines", "push", "one.lines", "other.lines", "www").status == 0
    running = Server(Path("www"))
    yield running
    running.close()


def core(*argv: str) -> tuple[list[int], list[str]]:
    """Return the lines of the fault's chain, and the notes."""
    ran = vdbg_env("core", "--json", *argv, "stock.nvcudmp")
    assert ran.status == 3
    document = json.loads(ran.stdout)
    return [frame["line"] for frame in document["faults"][0]["chain"]], document["notes"]


def cached() -> list[Path]:
    return sorted(Path("cache/vdbg-env/lines").glob("*.lines"))


def test_only_the_pack_with_the_code_is_fetched_and_only_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDBG_LINES", server.address)
    lines, notes = core()
    assert lines == [3, 13, 8, 19]
    digest = hashlib.sha256(ONE).hexdigest()
    assert [path for path in server.asked if "/packs/" in path] == [f"/packs/{digest}.lines"]
    assert [path.read_bytes() for path in cached()] == [ONE]
    assert core() == (lines, notes)
    assert sum("/packs/" in path for path in server.asked) == 1


def test_nothing_is_fetched_unless_configured(server: Server) -> None:
    assert core()[0] == []
    assert server.asked == []


def test_what_is_there_is_listed_and_pulled(server: Server) -> None:
    ran = vdbg_env("lines", "list", "--json", server.address)
    assert {pack["functions"] for pack in json.loads(ran.stdout)["packs"]} == {1, 2}
    assert vdbg_env("lines", "pull", server.address).status == 0
    server.asked.clear()
    assert core()[0] == [3, 13, 8, 19]
    assert server.asked == []


DAMAGE: dict[str, tuple[str, tuple[int, bytes, int | None], str]] = {
    "another pack": ("/packs/", (200, OTHER, None), "sent another line pack"),
    "cut short": ("/packs/", (200, ONE[:900], len(ONE)), "cut short"),
    "a page of a proxy": ("/packs/", (200, b"<html>please log in</html>", None), "sent another line pack"),
    "refused": ("/packs/", (403, b"", None), "answers 403"),
    "lost": ("/packs/", (404, b"", None), "does not have it"),
    "damaged index": ("/keys/", (200, b"VDBGKEY1" + bytes(56), None), "damaged"),
    "no index": ("/keys/", (200, b"<html>", None), "not an index"),
    "server error": ("/keys/", (500, b"", None), "answers 500"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_a_server_gets_wrong_is_noted_and_gives_no_line(server: Server, what: str) -> None:
    part, answer, words = DAMAGE[what]
    server.spoil[part] = answer
    lines, notes = core("--lines", server.address)
    assert lines == []
    assert any(f"line packs of {server.address} are not used" in note and words in note for note in notes), notes
    assert cached() == []
    assert sum(part in path for path in server.asked) == 1, "a server that failed is not asked again"
    server.spoil.clear()
    assert core("--lines", server.address)[0] == [3, 13, 8, 19]


def test_no_server_is_noted(server: Server) -> None:
    server.close()
    lines, notes = core("--lines", server.address)
    assert lines == []
    assert any("cannot be reached" in note for note in notes)


def test_an_address_of_something_else_is_noted(server: Server) -> None:
    """It answers 404 for every key, as a server without the key does."""
    lines, notes = core("--lines", f"{server.address}/elsewhere")
    assert lines == []
    assert any("has no packs.json: it is not an address of line packs" in note for note in notes), notes


def test_a_damaged_copy_in_the_cache_is_fetched_again(server: Server) -> None:
    assert core("--lines", server.address)[0]
    (path,) = cached()
    path.write_bytes(ONE[:-1] + bytes([ONE[-1] ^ 1]))
    assert core("--lines", server.address)[0] == [3, 13, 8, 19]
    assert path.read_bytes() == ONE


def test_the_cache_keeps_within_its_bound(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDBG_LINES_CACHE", str(max(len(ONE), len(OTHER))))
    assert vdbg_env("lines", "list", server.address).status == 0
    assert len(cached()) == 1
    for words in ((), ("--dry-run",)):
        ran = vdbg_env("lines", "prune", "--max-size", "0", *words)
        assert ran.stdout.startswith("would remove")
        assert len(cached()) == 1
    assert vdbg_env("lines", "prune", "--max-size", "0", "--yes").stdout.startswith("removed")
    assert cached() == []


def test_a_file_that_only_has_the_name_of_a_pack_is_not_pruned(tmp_path: Path) -> None:
    (tmp_path / "poem.lines").write_text("not for you\n")
    (tmp_path / "pack.lines").write_bytes(ONE)
    assert vdbg_env("lines", "prune", str(tmp_path), "--max-size", "0", "--yes").status == 0
    assert [path.name for path in tmp_path.iterdir()] == ["poem.lines"]


def test_pushing_twice_changes_nothing(server: Server) -> None:
    del server
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path("www").rglob("*") if path.is_file()}
    assert vdbg_env("lines", "push", "one.lines", "www").status == 0
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path("www").rglob("*") if path.is_file()}
    assert {k: v for k, v in after.items() if k.name != ".lock"} == {
        k: v for k, v in before.items() if k.name != ".lock"
    }


def refused(ran: Ran, words: str) -> bool:
    return ran.status == 2 and words in ran.stderr


def test_what_is_damaged_is_neither_pushed_nor_merged(server: Server) -> None:
    del server
    damaged = bytearray(ONE)
    damaged[-40] ^= 1
    Path("damaged.lines").write_bytes(damaged)
    assert refused(vdbg_env("lines", "push", "damaged.lines", "www"), "checksum differs")
    assert refused(vdbg_env("lines", "merge", "damaged.lines", "one.lines", "-o", "m.lines"), "checksum differs")
    ran = vdbg_env("lines", "verify", "damaged.lines", "one.lines")
    assert ran.status == 3
    assert "damaged.lines: damaged:" in ran.stdout
    assert "one.lines: sound, 2 functions" in ran.stdout


def test_merging_is_the_same_in_any_order(server: Server) -> None:
    del server
    assert vdbg_env("lines", "merge", "one.lines", "other.lines", "-o", "a.lines").status == 0
    assert vdbg_env("lines", "merge", "other.lines", "one.lines", "-o", "b.lines").status == 0
    assert Path("a.lines").read_bytes() == Path("b.lines").read_bytes()


def test_an_address_that_only_gives_packs_says_what_to_do(server: Server) -> None:
    assert refused(vdbg_env("lines", "push", "one.lines", server.address), "only gives line packs")
    assert refused(vdbg_env("lines", "pull", "oci://nothing"), "oci://HOST/NAME:TAG")


LOG = """\
INFO vLLM API server version 0.33.0
========= Invalid __global__ write of size 4 bytes
=========     at {place}
"""


def triaged(*argv: str) -> dict[str, list[Any]]:
    ran = vdbg_env("triage", "--json", *argv, "run.log")
    assert ran.status == 3, ran.stderr
    document: dict[str, list[Any]] = json.loads(ran.stdout)
    return document


def lines_of(document: dict[str, list[Any]]) -> list[list[int]]:
    return [[frame["line"] for frame in found["chain"]] for found in document["lines"]]


@pytest.mark.parametrize(
    ("place", "fetched"),
    [
        ("void kern<float>(float*, int, float)+0x140", {1, 2}),  # no index knows a demangled name: until it is found
        ("_Z4kernIfEvPT_iS0_+0x140", {1}),
    ],
)
def test_triage_fetches_what_it_needs_of_a_name(server: Server, place: str, fetched: set[int]) -> None:
    Path("run.log").write_text(LOG.format(place=place))
    assert lines_of(triaged()) == [] and server.asked == []
    assert lines_of(triaged("--lines", server.address)) == [[3, 13, 8, 19]]
    packs = [path for path in server.asked if "/packs/" in path]
    assert len(packs) in fetched
    server.asked.clear()
    assert lines_of(triaged("--lines", "one.lines", "--lines", server.address)) == [[3, 13, 8, 19]]
    assert server.asked == [], "what a pack on this machine answers is not looked for elsewhere"


def test_triage_takes_packs_of_the_release_first_and_no_more_than_a_few(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("run.log").write_text(LOG.format(place="void unknown_kernel<float>(float*)+0x140"))
    listed = json.loads(Path("www/packs.json").read_text())
    mine = hashlib.sha256(OTHER).hexdigest()
    listed[mine]["builds"] = "vllm 0.33.0, nvcc 13.0.88"
    Path("www/packs.json").write_text(json.dumps(listed))
    monkeypatch.setattr(line_packs, "MOST_FETCHED", 1)
    assert lines_of(triaged("--lines", server.address)) == []
    assert [path for path in server.asked if "/packs/" in path] == [f"/packs/{mine}.lines"]


def test_triage_notes_an_address_that_does_not_respond(server: Server) -> None:
    Path("run.log").write_text(LOG.format(place="void kern<float>(float*, int, float)+0x140"))
    server.spoil["packs.json"] = (500, b"", None)
    document = triaged("--lines", server.address)
    assert document["lines"] == []
    assert any(f"line packs of {server.address} are not used" in note for note in document["notes"])
