"""Pods are followed, and their Job is deleted, whatever a server or a proxy before it answers."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.patience import patience
from vdbg_env.adapters.placement.k8s.api import KubeApi
from vdbg_env.adapters.placement.k8s.evidence import PodEvidence
from vdbg_env.adapters.placement.k8s.pods import Pod
from vdbg_env.adapters.placement.k8s.watch import PodWatch
from vdbg_env.record.redaction.redaction import Redactor

PODS = json.dumps({"items": [], "metadata": {"resourceVersion": "7"}}).encode()
PAGE = b"<html>Your session has expired</html>"


@contextmanager
def served(answer: Callable[[str], bytes], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeApi]:
    """Serve status 200 and what `answer` returns for a path, as an API server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answer(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        config = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "debug"}}],
            "current-context": "x",
        }
        (folder / "config").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
        try:
            yield KubeApi(context="x", namespace=None)
        finally:
            server.shutdown()


def until(seen: Callable[[], object]) -> None:
    end = time.monotonic() + patience(10)
    while not seen():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_watches_that_end_at_once_are_not_asked_for_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vdbg_env.adapters.placement.k8s.watch._AGAIN_S", 60.0)
    asked: list[str] = []

    def answer(path: str) -> bytes:
        asked.append(path)
        return b"" if "watch=True" in path else PODS

    with served(answer, tmp_path, monkeypatch) as api:
        watch = PodWatch(api, "a=b")
        watch.start()
        until(lambda: len(asked) > 1)
        time.sleep(0.5)
        watch.stop()
        assert (watch.ranks(), len(asked)) == ({}, 2)


def test_a_page_in_place_of_an_answer_means_that_the_server_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expired = [True]

    def answer(path: str) -> bytes:
        return PAGE if expired[0] else b"" if "watch=True" in path else PODS

    with served(answer, tmp_path, monkeypatch) as api:
        watch = PodWatch(api, "a=b")
        watch.start()
        until(lambda: watch.away)
        assert "session has expired" in watch.away and watch.ranks() is None
        expired[0] = False
        until(lambda: watch.ranks() == {})
        assert watch.away == ""
        watch.stop()


def test_evidence_does_not_keep_a_job_from_its_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One dead node's kubelet takes 30 s to answer for each log."""
    asked: list[str] = []

    def slow(path: str) -> bytes:
        asked.append(path)
        time.sleep(0.1)
        return b'{"items": []}'

    pods = tuple(Pod(name=f"p{rank}", uid=str(rank), rank=rank) for rank in range(32))
    with served(slow, tmp_path, monkeypatch) as api:
        evidence = PodEvidence(tmp_path, "job", Redactor(), limit_s=0.25)
        evidence.collect(api, pods)
        assert len(asked) <= 4
        assert "took more than 0.25 s" in evidence.notes[0]
        assert len(json.loads((evidence.folder / "pods.json").read_bytes())) == 32

        (tmp_path / "file").write_bytes(b"")
        blocked = PodEvidence(tmp_path / "file", "job", Redactor())
        blocked.collect(api, ())
        assert "what the cluster reports could not be kept: Not a directory" in blocked.notes
