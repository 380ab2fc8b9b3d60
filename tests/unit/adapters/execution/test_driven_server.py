"""A server under the supervisor: driven where its own arguments say that it listens, and judged by how it ends."""

import json
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.steps import python, seen
from vdbg_env.evidence.observation import EndedBy, Observation
from vdbg_env.evidence.system.not_started import not_started_findings
from vdbg_env.runbook.invocation import Invocation
from vdbg_env.runbook.model import Ready, ServerDriver, Watch
from vdbg_env.runbook.workload.server_address import url_of_server
from vdbg_env.supervisor import request_driver
from vdbg_env.supervisor.job import Job
from vdbg_env.supervisor.watch import server as server_watch
from vdbg_env.supervisor.watch.helpers import Helpers

SERVER = """
import http.server, os, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(s): s.send_response(200); s.end_headers()
    def do_POST(s):
        body = s.rfile.read(int(s.headers['Content-Length'])).decode()
        key = 'Bearer ' + os.environ.get('VLLM_API_KEY', '')
        print('got', s.path, body, s.headers['X-Tag'], s.headers['Authorization'] == key, flush=True)
        if 'crash' in body: os._exit(0)
        if 'hang' in body: s.connection.close(); return
        s.send_response(200); s.end_headers()
    def log_message(s, *a): pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[sys.argv.index('--port') + 1])), H).serve_forever()
"""
DEFAULT = "http://127.0.0.1:8000/health"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def driven(
    tmp_path: Path, *prompts: str, url: str = DEFAULT, ready_s: float = 10, port: int | None = None, **settings: Any
) -> Observation:
    """Return what is seen of a server that gets one request for each prompt."""
    requests = [{"url": "/v1/completions", "body": {"prompt": p}, "headers": {"X-Tag": "t"}} for p in prompts]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, requests)))
    driver = ServerDriver(ready=Ready(http=url, timeout_s=ready_s), replay="requests.jsonl")
    one = python(SERVER, driver=driver, watch=Watch(on_hang=("stacks",)))
    return seen(tmp_path, replace(one, argv=(*one.argv, "--port", str(port or free_port()))), **settings)


def stdout(tmp_path: Path, found: Observation) -> str:
    return (tmp_path / "run" / found.directory / "stdout").read_text()


def test_a_server_is_driven_where_its_own_arguments_say_and_then_stopped(tmp_path: Path) -> None:
    found = driven(tmp_path, "a", "b", "c")
    assert (found.ended.by, found.ended.clean) == (EndedBy.STOPPED, True)
    assert found.ended.message == "3 of 3 requests sent, 0 answered with an error, 0 not at all"
    assert stdout(tmp_path, found).count("got /v1/completions") == 3


def test_requests_carry_their_headers_and_the_server_s_key(tmp_path: Path) -> None:
    found = driven(tmp_path, "a", env={"PATH": "/usr/bin:/bin", "VLLM_API_KEY": "sk-local-11223344"})
    assert stdout(tmp_path, found).endswith(" t True\n")


def test_a_server_that_never_gets_ready_was_not_tried(tmp_path: Path) -> None:
    found = driven(tmp_path, "a", url=f"http://127.0.0.1:{free_port()}/health", ready_s=0.5)
    assert found.ended.by is EndedBy.NOT_STARTED
    assert str(found.ended.message).startswith(
        "no request could be sent: the server was not ready at http://127.0.0.1:"
    )
    assert found.notes == ("on hang: stacks",)
    (finding,) = not_started_findings((found,))
    assert finding.message == found.ended.message
    assert "-i url=" in str(finding.next_step)


def test_a_recording_without_requests_is_an_error_and_no_finding(tmp_path: Path) -> None:
    found = driven(tmp_path)
    assert found.ended.by is EndedBy.NOT_STARTED
    assert "it holds no requests" in str(found.ended.message)


def test_a_server_that_ends_by_itself_with_status_0_did_not_end_well(tmp_path: Path) -> None:
    found = driven(tmp_path, "a", "crash", "b")
    assert (found.ended.by, found.ended.code, found.ended.clean) == (EndedBy.EXIT, 0, False)
    assert found.ended.message


def test_nor_does_one_that_nobody_drives(tmp_path: Path) -> None:
    vllm = tmp_path / "vllm"
    vllm.write_text("#!/bin/sh\nexit 0\n")
    vllm.chmod(0o755)
    found = seen(tmp_path, Invocation(step="step", attempt=1, argv=(str(vllm), "serve", "model")))
    assert (found.ended.clean, found.ended.message) == (False, "the server ended by itself")


def test_a_server_that_lives_and_stops_answering_hangs() -> None:
    orders = Job("", (), {}, "")
    server = server_watch.DrivenServer(orders, Helpers(orders))
    server._output = [b"first\n1 of 3 requests sent, 1 not at all\n"]
    server._ended(server_watch.UNANSWERED)
    assert server.verdict(time.monotonic()) is None, "it may end by itself"
    why = "the server stopped answering: 1 of 3 requests sent, 1 not at all"
    assert server.verdict(time.monotonic() + server_watch.OWN_END_S) == ("watch", why)
    assert server.own_end(9) == ("signal", why)


def test_the_driver_ends_as_the_supervisor_reads_it() -> None:
    assert (server_watch.ALL_SENT, server_watch.UNANSWERED) == (request_driver.ALL_SENT, request_driver.UNANSWERED)


@pytest.mark.parametrize(
    ("argv", "url"),
    [
        (("vllm", "serve", "m"), DEFAULT),
        (("vllm", "serve", "m", "--port", "8005"), "http://127.0.0.1:8005/health"),
        (("vllm", "serve", "m", "--port=1", "--port=8005", "--host", "0.0.0.0"), "http://127.0.0.1:8005/health"),
        (("uvicorn", "app:app", "--host=10.0.0.7"), "http://10.0.0.7:8000/health"),
        (("vllm", "serve", "m", "--host", "::", "--port", "9"), "http://[::1]:9/health"),
        (("vllm", "serve", "m", "--port"), DEFAULT),
    ],
)
def test_the_address_of_a_server_follows_from_its_arguments(argv: tuple[str, ...], url: str) -> None:
    assert url_of_server(DEFAULT, argv) == url


def test_an_address_that_a_person_chose_is_kept() -> None:
    chosen = "http://127.0.0.1:9000/health"
    assert url_of_server(chosen, ("vllm", "serve", "m", "--port", "8005")) == chosen
