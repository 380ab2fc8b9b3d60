"""A server under the real supervisor, with recorded requests: what is counted, and who ended it.

The stand-ins behave as vLLM 0.32.0 did when its worker died (CPU backend, 2026-11-22): the request that met the fault
and those after it are answered with 500, the server shuts itself down a second later, and its exit status is 0.
"""

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import patience
from tests.support.steps import ENV, python, seen
from vdbg_env.evidence.finding import EndedBy, Observation, Requests
from vdbg_env.evidence.system import not_started_findings
from vdbg_env.runbook.model import KillPolicy, Matcher, Ready, ServerDriver, Watch
from vdbg_env.supervisor import request_driver, watch
from vdbg_env.supervisor.sockets import Sockets

SERVER = """
import http.server, os, threading, time
KEY = 'Bearer ' + os.environ.get('VLLM_API_KEY', '')
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200)
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length'])).decode()
        print('got', self.path, body, self.headers['X-Tag'], self.headers['Authorization'] == KEY, flush=True)
        {answer}
    def answer(self, status, body=b''):
        self.send_response(status)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(('127.0.0.1', {port}), Handler).serve_forever()
"""
DEAD_ENGINE = "self.answer(500); threading.Timer(0.3, os._exit, (0,)).start()"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def driven(
    tmp_path: Path,
    answer: str,
    *,
    grace_s: float = 0.4,
    requests: int = 3,
    key: str = "",
    at_once: int | None = None,
    **fields: Any,
) -> Observation:
    lines = [{"url": "/v1/completions", "body": {"prompt": i}, "headers": {"X-Tag": "t"}} for i in range(requests)]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    port = free_port()
    ready = Ready(http=f"http://127.0.0.1:{port}/health", timeout_s=10)
    driver = ServerDriver(ready=ready, replay="requests.jsonl", concurrency=at_once)
    code = SERVER.format(answer=answer, port=port)
    return seen(
        tmp_path,
        python(code, driver=driver, server=True, kill=KillPolicy(grace_s=grace_s), **fields),
        env={**ENV, "VLLM_API_KEY": key},
    )


def stdout(tmp_path: Path) -> bytes:
    return (tmp_path / "run/steps/step/1/localhost-0/stdout").read_bytes()


def test_a_server_is_driven_and_then_stopped(tmp_path: Path) -> None:
    found = driven(tmp_path, "self.answer(200)", key="sk-local-11223344")
    assert found.ended.by is EndedBy.STOPPED
    assert found.ended.message == "3 of 3 requests sent, 3 answered"
    assert found.requests == Requests(recorded=3, ready=True, sent=3, answered=3)
    assert found.went_well
    assert stdout(tmp_path).count(b" t True\n") == 3


@pytest.mark.parametrize("at_once", [None, 3])
def test_as_many_requests_are_under_way_as_the_runbook_asks_for(tmp_path: Path, at_once: int | None) -> None:
    # Answers are held back until three requests are there, for a second at most.
    met = "barrier = globals().setdefault('BARRIER', threading.Barrier(3))\n"
    wait = (
        "        try:\n            barrier.wait(1.0); self.answer(200)\n"
        "        except threading.BrokenBarrierError:\n            self.answer(400)"
    )
    found = driven(tmp_path, met + wait, at_once=at_once)
    assert found.requests == Requests(recorded=3, ready=True, sent=3, **{"answered" if at_once else "refused": 3})


def test_a_server_whose_engine_died_ended_by_itself_and_not_well(tmp_path: Path) -> None:
    found = driven(tmp_path, DEAD_ENGINE, grace_s=10.0)
    assert (found.ended.by, found.ended.code) == (EndedBy.DIED, 0)
    assert not found.ended.clean
    assert found.requests is not None
    assert found.requests.answered == 0
    assert found.requests.failed >= 1


def test_a_server_that_answers_errors_and_stays_is_stopped_and_not_well(tmp_path: Path) -> None:
    found = driven(tmp_path, "self.answer(500)")
    assert found.ended.by is EndedBy.STOPPED
    assert found.ended.message == "3 of 3 requests sent, 0 answered, 3 failed"
    assert not found.went_well


def test_a_stream_that_breaks_off_with_an_error_has_failed(tmp_path: Path) -> None:
    streamed = (
        'self.answer(200, b\'data: {"choices": []}\\n\\ndata: {"error": {"code": 500}}\\n\\ndata: [DONE]\\n\\n\')'
    )
    found = driven(tmp_path, streamed, requests=1)
    assert found.requests == Requests(recorded=1, ready=True, sent=1, failed=1)


def test_a_request_for_another_model_is_refused_and_has_not_failed(tmp_path: Path) -> None:
    found = driven(tmp_path, "self.answer(404)")
    assert found.requests == Requests(recorded=3, ready=True, sent=3, refused=3)
    assert not found.requests.told_something


def test_a_server_that_returns_without_any_request_has_died_too(tmp_path: Path) -> None:
    found = seen(tmp_path, python("pass", server=True))
    assert found.ended.by is EndedBy.DIED
    assert found.requests is None


def test_a_server_that_never_gets_ready_is_out_of_time(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"url": "/v1/completions"}\n')
    url = f"http://127.0.0.1:{free_port()}/health"
    driver = ServerDriver(ready=Ready(http=url, timeout_s=0.5), replay="one.jsonl")
    found = seen(tmp_path, python("import time; time.sleep(60)", driver=driver))
    assert found.ended.by is EndedBy.TIMEOUT
    assert found.ended.message == f"the server was not ready after 0.5 s: nothing answered at {url}"
    assert found.requests == Requests(recorded=1)


def test_a_server_that_lives_and_stops_answering_hangs(tmp_path: Path) -> None:
    found = driven(tmp_path, "self.connection.close()", watch=Watch(on_hang=("stacks",)))
    assert found.ended.by is EndedBy.WATCH
    why = "the server stopped answering: 3 of 3 requests sent, 0 answered, 3 failed (RemoteDisconnected("
    assert str(found.ended.message).startswith(why)
    assert found.notes == ("on hang: stacks",)


def test_a_server_that_lives_on_after_its_failure_is_ended_when_its_grace_is_over(tmp_path: Path) -> None:
    # Two ranks: rank 1 raises, rank 0 waits for it, and the request hangs for vLLM's own limit of 300 s.
    answer = "print('CUDA error: an illegal memory access', flush=True); time.sleep(60)"
    failure = Matcher(name="failure", pattern="illegal memory access")
    found = driven(tmp_path, answer, grace_s=1.0, matchers=(failure,), decisive=("failure",))
    assert (found.ended.by, found.ended.message) == (EndedBy.MATCH, "failure had shown, and the server lived on")
    assert found.requests == Requests(recorded=3, ready=True, sent=1)
    assert 1.0 < found.duration_s < patience(15.0)


@pytest.mark.parametrize("recording", [None, "", "[1]\n"])
def test_a_recording_without_requests_is_an_error_of_ours(tmp_path: Path, recording: str | None) -> None:
    if recording is not None:
        (tmp_path / "requests.jsonl").write_text(recording)
    driver = ServerDriver(ready=Ready(http="http://127.0.0.1:1/health", timeout_s=5), replay="requests.jsonl")
    found = seen(tmp_path, python("import time; time.sleep(60)", driver=driver))
    assert found.ended.by is EndedBy.NOT_STARTED
    (finding,) = not_started_findings((found,))
    assert finding.message.startswith("no request could be sent: ")
    assert "requests.jsonl" in finding.message


def test_the_driver_ends_as_the_supervisor_reads_it() -> None:
    theirs = (watch.ALL_SENT, watch.NEVER_READY, watch.UNANSWERED, watch.NOT_THE_STEPS)
    assert theirs == (
        request_driver.ALL_SENT, request_driver.NEVER_READY, request_driver.UNANSWERED, request_driver.NOT_THE_STEPS
    )  # fmt: skip


@pytest.mark.parametrize(("stopped_s", "sent"), [(0.0, 1), (3600.0, 2)])
def test_a_request_whose_answer_was_due_while_its_job_was_suspended_is_sent_again(
    stopped_s: float, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    sends = []

    def send(_base: str, request: dict[str, Any], _sockets: Sockets) -> int:
        sends.append(request)
        if len(sends) > 1:
            return 200
        clock[0] += request_driver.ANSWER_TIMEOUT_S + stopped_s
        raise TimeoutError

    monkeypatch.setattr(request_driver, "send", send)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    if sent == 1:
        with pytest.raises(TimeoutError):
            request_driver.send_once_more("http://127.0.0.1", {}, Sockets(1))
    else:
        assert request_driver.send_once_more("http://127.0.0.1", {}, Sockets(1)) == 200
    assert len(sends) == sent
