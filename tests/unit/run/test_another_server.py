"""Another's server on this machine gets no request, ever: each test counts what arrives at it.

The other server is in the test's own process, the parent of the supervisor and so no process of the step.
"""

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.patience import patience
from tests.support.steps import place, python, runner, survivors
from tests.unit.run.test_driven_servers import SERVER, free_port
from vdbg_env.evidence.finding import EndedBy, Observation, Requests
from vdbg_env.evidence.system import not_started_findings
from vdbg_env.runbook.model import KillPolicy, Ready, ServerDriver
from vdbg_env.runbook.state import Invocation

SLEEPS = "import time; time.sleep(60)"
# A server whose first request makes it stop listening, and live on.
LEAVES = """
import http.server, threading, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers['Content-Length']))
        self.server.socket.shutdown(2)
        self.server.socket.close()
        print('closed', flush=True)
        time.sleep(2.5)
        self.send_response(200); self.end_headers()
http.server.ThreadingHTTPServer(('127.0.0.1', {port}), Handler).serve_forever()
"""
SHARES = """
import socket, http.server
class Shared(http.server.ThreadingHTTPServer):
    def server_bind(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    do_POST = do_GET
Shared(('127.0.0.1', {port}), Handler).serve_forever()
"""
AS_A_DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, '-c', {code!r}])
    os._exit(0)
time.sleep(60)
"""


class Other:
    """A healthy server of somebody else; `arrived` has the first line of each request."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", share: bool = False) -> None:
        arrived: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                arrived.append(self.requestline)
                self.send_response(200)
                self.end_headers()

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            def server_bind(self) -> None:
                if share:
                    self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                super().server_bind()

        self.arrived = arrived
        self._server = Server((host, port), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop it."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def other(port: int) -> Iterator[Other]:
    with closing(Other(port)) as server:
        yield server


def driven(
    tmp_path: Path, code: str, port: int, *, listens: bool = True, requests: int = 3, host: str = ""
) -> Invocation:
    lines = [{"url": "/v1/completions", "body": {"prompt": i}} for i in range(requests)]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    url = f"http://{host or '127.0.0.1'}:{port}"
    driver = ServerDriver(ready=Ready(http=f"{url}/health", timeout_s=patience(5)), replay="requests.jsonl")
    return python(
        code, driver=driver, server=True, kill=KillPolicy(grace_s=0.4), listens=url if listens else "",
        timeout_s=patience(40),
    )  # fmt: skip


def seen(tmp_path: Path, invocation: Invocation) -> Observation:
    step = runner(tmp_path).start(invocation, place(tmp_path))
    found = step.wait(patience(60))
    assert found is not None
    assert survivors(tmp_path) == []
    return found


def test_a_step_whose_port_is_taken_is_not_started_and_names_who_has_it(
    tmp_path: Path, port: int, other: Other
) -> None:
    found = seen(tmp_path, driven(tmp_path, SERVER.format(answer="self.answer(200)", port=port), port))
    assert found.ended.by is EndedBy.NOT_STARTED
    assert str(found.ended.message).startswith(f"port {port} is taken: process {os.getpid()} (")
    assert "pytest" in str(found.ended.message)
    (finding,) = not_started_findings((found,))
    assert finding.message == found.ended.message
    assert "-i port=auto" in str(finding.next_step)
    assert other.arrived == []


def test_a_server_that_takes_the_port_before_the_steps_own_gets_no_request(
    tmp_path: Path, port: int, other: Other
) -> None:
    found = seen(tmp_path, driven(tmp_path, SLEEPS, port, listens=False))
    assert other.arrived == []
    assert found.ended.by is EndedBy.NOT_STARTED
    assert f"is not proven to be this step's: process {os.getpid()} (" in str(found.ended.message)
    assert found.requests == Requests(recorded=3)


def test_a_server_that_takes_the_port_during_the_run_gets_no_request(tmp_path: Path, port: int) -> None:
    invocation = driven(tmp_path, LEAVES.format(port=port), port)
    step = runner(tmp_path).start(invocation, directory := place(tmp_path))
    until, output = time.monotonic() + patience(20), directory / "stdout"
    while not (output.exists() and b"closed" in output.read_bytes()) and time.monotonic() < until:
        time.sleep(0.02)
    with closing(Other(port)) as other:
        found = step.wait(patience(60))
        assert other.arrived == []
    assert found is not None
    assert found.requests is not None
    assert found.requests.sent < 3
    assert not found.went_well
    assert "was not proven to be this step's" in str(found.ended.message)


def test_a_port_that_another_shares_is_no_proof(tmp_path: Path, port: int) -> None:
    with closing(Other(port, share=True)) as other:
        found = seen(tmp_path, driven(tmp_path, SHARES.format(port=port), port, listens=False, requests=40))
        assert other.arrived == []
    assert "listens on port" in str(found.ended.message)
    assert "too, and may get what is sent there" in str(found.ended.message)


@pytest.mark.parametrize(
    ("listens_at", "asked"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "127.0.0.1"), ("::", "localhost")],
)
def test_the_steps_own_server_is_known_at_each_kind_of_address(
    tmp_path: Path, port: int, listens_at: str, asked: str
) -> None:
    code = SERVER.format(answer="self.answer(200)", port=port).replace("'127.0.0.1'", repr(listens_at))
    if ":" in listens_at:
        code = f"import http.server, socket; http.server.HTTPServer.address_family = socket.AF_INET6\n{code}"
    found = seen(tmp_path, driven(tmp_path, code, port, host=asked))
    assert found.ended.message == "3 of 3 requests sent, 3 answered"


def test_a_name_whose_first_address_is_anothers_is_asked_at_none(tmp_path: Path, port: int) -> None:
    with closing(Other(port, host="::1")) as other:
        code = SERVER.format(answer="self.answer(200)", port=port)
        seen(tmp_path, driven(tmp_path, code, port, host="localhost", listens=False))
        assert other.arrived == []


def test_an_address_of_another_machine_is_asked_nothing(tmp_path: Path, port: int) -> None:
    found = seen(tmp_path, driven(tmp_path, SLEEPS, port, host="192.0.2.1"))
    assert found.ended.by is EndedBy.NOT_STARTED
    assert f"192.0.2.1:{port} is no address of this machine" in str(found.ended.message)


def test_a_server_that_left_its_parents_is_the_steps_own(tmp_path: Path, port: int) -> None:
    code = AS_A_DAEMON.format(code=SERVER.format(answer="self.answer(200)", port=port))
    found = seen(tmp_path, driven(tmp_path, code, port))
    assert found.ended.message == "3 of 3 requests sent, 3 answered"


def test_a_listening_socket_that_a_process_outside_has_too_is_no_proof(tmp_path: Path, port: int) -> None:
    # The step's server is handed over to a process outside by pidfd_getfd, as a socket unit of systemd shares its own.
    code = SERVER.format(answer="self.answer(200)", port=port)
    with socket.socket() as own:
        own.bind(("127.0.0.1", port))
        own.listen()
        own.set_inheritable(True)
        outside = subprocess.Popen([sys.executable, "-c", SLEEPS], pass_fds=[own.fileno()])
        (tmp_path / "pid").write_text(str(outside.pid))
        number = own.fileno()
    take = (
        f"import ctypes, os, socket; pid = os.pidfd_open({outside.pid})\n"
        f"own = socket.socket(fileno=ctypes.CDLL(None).syscall(438, pid, {number}, 0))\n"
    )
    code = take + code.replace(
        f"http.server.ThreadingHTTPServer(('127.0.0.1', {port}), Handler)",
        f"s = http.server.ThreadingHTTPServer(('127.0.0.1', {port}), Handler, bind_and_activate=False)\n"
        "s.socket = own\ns",
    )
    try:
        found = seen(tmp_path, driven(tmp_path, code, port, listens=False))
    finally:
        outside.kill()
        outside.wait()
    assert found.requests == Requests(recorded=3)
    assert "has the server's listening socket too" in str(found.ended.message)


needs_namespaces = pytest.mark.skipif(
    not shutil.which("unshare") or subprocess.run(["unshare", "--net", "--pid", "--fork", "true"]).returncode != 0,
    reason="this user may make no namespaces",
)


@needs_namespaces
def test_a_server_in_a_pid_namespace_of_its_own_is_proven(tmp_path: Path, port: int) -> None:
    code = SERVER.format(answer="self.answer(200)", port=port)
    invocation = driven(tmp_path, code, port)
    inside = ("unshare", "--pid", "--fork", "--mount-proc", *invocation.argv)
    found = seen(tmp_path, invocation.__class__(**{**vars(invocation), "argv": inside}))
    assert found.ended.message == "3 of 3 requests sent, 3 answered"


@needs_namespaces
def test_a_step_in_a_network_namespace_of_its_own_sends_nothing_to_the_port_out_here(
    tmp_path: Path, port: int, other: Other
) -> None:
    code = SERVER.format(answer="self.answer(200)", port=port).replace("'127.0.0.1'", "'0.0.0.0'")
    invocation = driven(tmp_path, code, port, listens=False)
    inside = ("unshare", "--net", *invocation.argv)
    found = seen(tmp_path, invocation.__class__(**{**vars(invocation), "argv": inside}))
    assert other.arrived == []
    assert found.requests == Requests(recorded=3)


@needs_namespaces
@pytest.mark.skipif(not shutil.which("ip"), reason="needs ip")
def test_a_server_behind_a_veth_pair_is_proven_in_its_own_network_namespace(tmp_path: Path, port: int) -> None:
    name = f"vdbg{port}"
    here, there = f"10.203.{port % 250}.1", f"10.203.{port % 250}.2"
    invocation = driven(
        tmp_path,
        SERVER.format(answer="self.answer(200)", port=port).replace("'127.0.0.1'", repr(there)),
        port,
        host=there,
    )
    try:
        subprocess.run(["ip", "netns", "add", name], check=True)
        for line in (
            f"link add {name}a type veth peer name {name}b", f"link set {name}b netns {name}",
            f"addr add {here}/24 dev {name}a", f"link set {name}a up",
            f"-n {name} addr add {there}/24 dev {name}b", f"-n {name} link set {name}b up",
        ):  # fmt: skip
            if subprocess.run(["ip", *line.split()]).returncode:
                pytest.skip("no veth pair can be made here")
        inside = ("ip", "netns", "exec", name, *invocation.argv)
        found = seen(tmp_path, invocation.__class__(**{**vars(invocation), "argv": inside}))
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)
        subprocess.run(["ip", "link", "del", f"{name}a"], check=False, stderr=subprocess.DEVNULL)
    assert found.ended.message == "3 of 3 requests sent, 3 answered"
